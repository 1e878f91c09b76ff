"""Tables read into Spark under one snapshot: the values the stream would give, and all rows at one moment."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions

from penstock.model import Column, ReplicaIdentity, TableId, TableSchema
from penstock.model.errors import ConfigError, SnapshotLost
from penstock.postgres.snapshot import CopyRange, Snapshot, Wanted
from penstock.spark.snapshot import snapshot_process
from penstock.spark.snapshot.fetch import fetch_typed, session_name
from penstock.spark.snapshot.frames import text_frame, typed_frame
from penstock.spark.snapshot.options import KNOWN, SnapshotOptions
from tests.bed import Database
from tests.capture.running import captured, eventually, running, spec_for
from tests.changes.made import column_type
from tests.spark.test_types import HELD, KEPT_AS_TEXT, SET_UP, TEXT_ELEMENTS

DOCUMENTED = Path(__file__).parents[2] / "docs" / "spark.md"

EVERY = HELD | KEPT_AS_TEXT | {type: [value] for type, (value, _) in TEXT_ELEMENTS.items()}


def every_type(database: Database) -> None:
    """A table `every` with a column for each type, published."""
    columns = {f"c{place}": declared for place, declared in enumerate(EVERY)}
    listed = ", ".join(f"{name} {declared}" for name, declared in columns.items())
    database.execute(SET_UP, f"create table every (id int primary key, {listed})")
    database.execute("create publication p for table every")


def _inserts() -> list[str]:
    columns = {f"c{place}": declared for place, declared in enumerate(EVERY)}
    deepest = max(len(values) for values in EVERY.values())
    statements = []
    for row in range(deepest + 1):
        chosen = {
            name: EVERY[declared][row] for name, declared in columns.items() if row < len(EVERY[declared])
        }
        names = ", ".join(["id", *chosen])
        values = ", ".join([str(row), *(f"$v${value}$v$" for value in chosen.values())])
        statements.append(f"insert into every ({names}) values ({values})")
    return statements


@dataclass(frozen=True)
class Copy:
    conninfo: str
    snapshot: str
    ranges: list[CopyRange]


@contextmanager
def copy_of(database: Database, table: TableSchema, partition_bytes: int = 1 << 14) -> Iterator[Copy]:
    with Snapshot.open(database.dsn, table.id) as snapshot:
        ranges = snapshot.ranges(table.column_names, None, partition_bytes)
        yield Copy(database.dsn, snapshot.name, ranges)


def comparable(value: Any) -> Any:
    """NaN equal to itself, zeros told apart by sign, instants whatever their zone is called."""
    if isinstance(value, list):
        return [comparable(each) for each in value]
    if isinstance(value, dict):
        return {name: comparable(each) for name, each in value.items() if not name.startswith("_")}
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat()
    return value


def by_id(frame: DataFrame) -> list[Any]:
    rows = frame.toArrow().to_pylist()
    return [comparable(row) for row in sorted(rows, key=lambda row: row["id"])]


@pytest.fixture
def read(spark: SparkSession, database: Database) -> Callable[..., DataFrame]:
    """Load a table of the database, with options."""

    def load(table: str, **options: Any) -> DataFrame:
        return spark.read.format("postgres_snapshot").options(dsn=database.dsn, table=table, **options).load()

    return load


@dataclass(frozen=True)
class Streamed:
    """A table of which everything came with the stream."""

    database: Database
    table: TableSchema
    texts: list[tuple[str | None, ...]]
    rows: list[Any]
    """In their types, by id."""


@pytest.fixture
def streamed(spark: SparkSession, database: Database, tmp_path: Path) -> Streamed:
    """The table `every`, as the stream gives it."""
    every_type(database)
    with running(spec_for(database, tmp_path / "spool")) as capture:
        database.execute(*_inserts())
        capture.until_past(database)
    changes = captured(tmp_path / "spool")
    table = changes[0].table
    assert table is not None
    typed: list[list[Any]] = []
    query = (
        spark.readStream.format("postgres_cdc")
        .options(spool=str(tmp_path / "spool"), table="public.every")
        .load()
        .writeStream.foreachBatch(lambda batch, _number: typed.append(by_id(batch)))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    (rows,) = typed
    return Streamed(database, table, [change.after or () for change in changes], rows)


def test_every_value_comes_with_the_copy_as_it_comes_with_the_stream(
    spark: SparkSession, streamed: Streamed, read: Callable[..., DataFrame]
) -> None:
    table = streamed.table
    assert len(streamed.rows) > 5
    assert by_id(read("public.every")) == streamed.rows
    as_text = [dict(zip(table.column_names, row, strict=True)) for row in streamed.texts]
    found = read("every", textColumns="*").toArrow().to_pylist()
    assert sorted(found, key=lambda row: int(row["id"])) == as_text
    with copy_of(streamed.database, table) as copy:
        assert by_id(typed_frame(spark, copy, table)) == streamed.rows
        frame = text_frame(spark, copy.conninfo, copy.snapshot, copy.ranges, table, ["c1", "id", "c9"])
        assert frame.columns == ["_row", "c1", "id", "c9"]
        rows = sorted(frame.toArrow().to_pylist(), key=lambda row: row["id"])
    assert [tuple(row["_row"]) for row in rows] == streamed.texts
    wanted = [{name: row[name] for name in ("c1", "id", "c9")} for row in streamed.rows]
    assert comparable(rows) == wanted


ACCOUNTS = 3000


@contextmanager
def money_moves(database: Database) -> Iterator[None]:
    stop = threading.Event()

    def move(seed: int) -> None:
        random = Random(seed)
        with database.connect() as connection:
            while not stop.is_set():
                payer, payee = sorted(random.sample(range(ACCOUNTS), 2))
                with connection.transaction():
                    for account, amount in ((payer, -7), (payee, 7)):
                        connection.execute(
                            "update accounts set balance = balance + %s where id = %s", (amount, account)
                        )
                stop.wait(0.005)

    threads = [threading.Thread(target=move, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.fixture
def accounts(database: Database) -> Database:
    """A table of some 3 MB."""
    database.execute(
        "create table accounts (id int primary key, balance int not null, note text)",
        f"insert into accounts select g, 1000, repeat('x', 900) from generate_series(0, {ACCOUNTS - 1}) g",
    )
    return database


def test_all_tasks_of_a_read_see_the_same_moment(accounts: Database, read: Callable[..., DataFrame]) -> None:
    with money_moves(accounts):
        parts = (
            read("public.accounts", partitionMb=1)
            .groupBy(functions.spark_partition_id())
            .agg(functions.count("*"), functions.sum("balance"))
            .collect()
        )
    assert len(parts) > 2
    assert sum(part[1] for part in parts) == ACCOUNTS
    assert sum(part[2] for part in parts) == 1000 * ACCOUNTS
    assert holders(accounts) <= 1, "planned once, held once"
    ((moved,),) = accounts.query("select count(*) from accounts where balance <> 1000")
    assert moved > 0


def test_a_snapshot_of_ones_own_is_read_for_as_long_as_one_holds_it(
    accounts: Database, read: Callable[..., DataFrame]
) -> None:
    ((table,),) = accounts.query("select 'accounts'::regclass::oid")
    with Snapshot.open(accounts.dsn, TableId(table)) as snapshot:
        frame = read(
            "accounts", partitionMb=1, snapshot=snapshot.name, columns="balance, id", where="id < 1000"
        )
        assert frame.columns == ["balance", "id"]
        accounts.execute("update accounts set balance = 0; insert into accounts values (-1, 0, '')")
        first = sorted(frame.collect())
        assert first == sorted(frame.collect()) == [(1000, number) for number in range(1000)]
    with pytest.raises(PySparkException, match="not exported any more"):
        frame.collect()


def holders(database: Database) -> int:
    ((count,),) = database.query(
        "select count(*) from pg_locks where relation = 'accounts'::regclass and mode = 'AccessShareLock'"
    )
    return int(count)


def test_a_held_snapshot_ends_when_its_readers_are_done(accounts: Database) -> None:
    ((table,),) = accounts.query("select 'accounts'::regclass::oid")
    wanted = Wanted(("id",), None, 1 << 20)
    request = snapshot_process.SnapshotRequest(
        accounts.dsn, TableId(table), wanted, watched=1, before_use=60, after_use=0.5
    )
    held = snapshot_process.ask(request)
    columns = [Column("id", column_type("int4"))]
    accounts.execute("delete from accounts")
    rows = [
        batch.num_rows
        for part in held.ranges
        for batch in fetch_typed(accounts.dsn, held.snapshot, part, columns)
    ]
    assert sum(rows) == ACCOUNTS
    assert holders(accounts) == 1
    with accounts.connect(application_name=session_name(held.snapshot)):
        threading.Event().wait(3)
        assert holders(accounts) == 1, "one reads, so it is held"
    eventually(lambda: holders(accounts) == 0, 10)
    with pytest.raises(SnapshotLost):
        list(fetch_typed(accounts.dsn, held.snapshot, held.ranges[0], columns))


def test_a_held_snapshot_ends_when_spark_does(accounts: Database) -> None:
    ((table,),) = accounts.query("select 'accounts'::regclass::oid")
    with subprocess.Popen(["sleep", "600"]) as spark:
        try:
            snapshot_process.ask(
                snapshot_process.SnapshotRequest(accounts.dsn, TableId(table), Wanted(("id",)), spark.pid)
            )
            threading.Event().wait(2)
            assert holders(accounts) == 1
        finally:
            spark.kill()
    eventually(lambda: holders(accounts) == 0, 10)


def test_a_held_snapshot_gives_way_to_who_waits_for_its_lock(accounts: Database) -> None:
    ((table,),) = accounts.query("select 'accounts'::regclass::oid")
    held = snapshot_process.ask(
        snapshot_process.SnapshotRequest(accounts.dsn, TableId(table), Wanted(("id",)), watched=1)
    )
    accounts.execute("set lock_timeout = '20s'; truncate accounts")
    with pytest.raises(SnapshotLost):
        list(fetch_typed(accounts.dsn, held.snapshot, held.ranges[0], [Column("id", column_type("int4"))]))


def test_a_table_of_partitions_with_odd_names(database: Database, read: Callable[..., DataFrame]) -> None:
    database.execute(
        'create table "Big ""Deal""" ("select" int, k text, "ü x" numeric(10,2)) partition by list (k)',
        'create table a partition of "Big ""Deal""" for values in (\'a\')',
        'create table b (gone int, "ü x" numeric(10,2), k text, "select" int)',
        "alter table b drop column gone",
        'alter table "Big ""Deal""" attach partition b for values in (\'b\')',
        'insert into "Big ""Deal""" values (1, \'a\', 1.5), (2, \'b\', null)',
        "create table nothing (id int)",
    )
    rows = read('public.Big "Deal"').toArrow().to_pylist()
    assert sorted(rows, key=lambda row: row["select"]) == [
        {"select": 1, "k": "a", "ü x": Decimal("1.50")},
        {"select": 2, "k": "b", "ü x": None},
    ]
    assert read('public.Big "Deal"', where="k like 'b%'", columns="ü x").collect() == [(None,)]
    assert read("nothing").collect() == []


def test_a_value_that_the_type_cannot_hold_is_refused_with_its_place(
    database: Database, read: Callable[..., DataFrame]
) -> None:
    database.execute(
        "create table prices (id int, price numeric(10,2), until date)",
        "insert into prices values (1, 1, '2024-01-01'), (2, 'NaN', 'infinity')",
    )
    for column, value in (("price", "NaN"), ("until", "infinity")):
        with pytest.raises(PySparkException) as raised:
            read("prices", columns=f"id,{column}").collect()
        for told in ("public.prices", f"column {column}", value, "textColumns"):
            assert told in str(raised.value)
        assert read("prices", columns=column, textColumns=column, where="id = 2").collect() == [(value,)]


def test_a_password_is_in_no_plan_and_no_error(
    spark: SparkSession, accounts: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    dsn, password = accounts.dsn, accounts.server.password
    options = {"dsn": dsn, "table": "accounts"}
    spark.read.format("postgres_snapshot").options(**options).load().explain(True)
    with Snapshot.open(
        accounts.dsn, TableId(accounts.query("select 'accounts'::regclass::oid")[0][0])
    ) as snapshot:
        table = TableSchema(
            snapshot.id, 1, snapshot.table, ReplicaIdentity.DEFAULT, (Column("id", column_type("int4")),)
        )
        text = text_frame(spark, dsn, snapshot.name, snapshot.ranges(("id",)), table, ["id"])
        text.explain(True)
        assert text.count() == ACCOUNTS
    said = [capsys.readouterr().out]
    assert "accounts" in said[0] or "id" in said[0]
    for wrong, told in (
        ({"dsn": make_conninfo(dsn, host="127.0.0.1", port="1")}, "Check that the server runs"),
        ({"table": "public.no_such"}, "no such table"),
        ({"columns": "no_such"}, "no column no_such"),
        ({"dsn": f"{password} is no connection"}, "does not read as a connection"),
        ({"where": "no_such = 1"}, 'the option `where`: column "no_such" does not exist'),
        ({"unknown": "1"}, "has no option unknown"),
    ):
        with pytest.raises(PySparkException) as raised:
            spark.read.format("postgres_snapshot").options(**options | wrong).load().collect()
        assert told in str(raised.value)
        said.append(str(raised.value))
    assert not [text for text in said if password in text]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"table": "t"}, "needs one of the options `dsn` and `config`"),
        ({"dsn": "dbname=shop"}, "needs the option `table`"),
        ({"dsn": "dbname=shop", "table": "t", "tabel": "t"}, "postgres_snapshot has no option tabel"),
        ({"dsn": "dbname=shop", "table": "t", "partitionMb": "0"}, "not a number of megabytes"),
        ({"dsn": "postgresql://u:hunter2@[", "table": "t"}, "does not read as a connection"),
    ],
)
def test_wrong_options_are_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        SnapshotOptions.read(given)
    assert said in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_configuration_names_the_source(tmp_path: Path) -> None:
    config = tmp_path / "shop.yml"
    config.write_text(
        """pipeline: shop
sources:
  - {name: eu, dsn: postgresql://u@eu/shop, tables: {include: [public.*]}}
  - {name: us, dsn: postgresql://u@us/shop, tables: {include: [public.*]}}
"""
    )
    chosen = SnapshotOptions.read({"config": str(config), "source": "us", "table": "users"})
    assert "us" in chosen.conninfo
    assert "us" not in repr(chosen).replace("users", "")
    with pytest.raises(ConfigError, match="must be one of eu, us"):
        SnapshotOptions.read({"config": str(config), "table": "users"})


def test_every_option_is_documented() -> None:
    section = DOCUMENTED.read_text().partition("## A table as it is now")[2].partition("\n## ")[0]
    assert [name for name in KNOWN if f"| `{name}` |" not in section] == []
