"""From a commit in PostgreSQL to rows in Spark: slot, capture, spool, source."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from penstock.spool.manifest import Manifest
from tests.bed import Database
from tests.capture.running import Running, eventually, running, spec_for
from tests.spark.conftest import Collect

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def users(database: Database) -> Database:
    """A database with a table of users, published."""
    database.execute(
        """create table users (
               id int primary key, name text, score numeric(10,2), tags text[], at timestamptz)""",
        "create publication p for all tables",
    )
    return database


@pytest.fixture
def capture(users: Database, tmp_path: Path) -> Iterator[Running]:
    """A capture whose changes are kept for the consumers `spark` and `typed`."""
    spec = spec_for(users, tmp_path / "spool", consumers=("spark", "typed"), ack="destination")
    with running(spec) as capture:
        yield capture


@pytest.fixture
def config(users: Database, tmp_path: Path) -> Path:
    """A configuration file for that database."""
    path = tmp_path / "shop.yml"
    path.write_text(
        f"""pipeline: shop
sources:
  - name: eu
    dsn: {users.dsn}
    replication: {{slot_name: penstock_{users.name}}}
    tables: {{include: [public.users]}}
spool: {{path: {tmp_path / "spools"}}}
"""
    )
    return path


def test_changes_arrive_in_both_shapes(
    users: Database, capture: Running, spark: SparkSession, drained: Collect
) -> None:
    users.execute(
        """insert into users values
               (1, 'Ann', 1.5, '{a,"b c"}', '2024-02-29 12:00+01'), (2, null, null, null, null)""",
        "update users set score = 2.25 where id = 1; delete from users where id = 2",
        "truncate users",
    )
    capture.until_past(users)
    read = spark.readStream.format("postgres_cdc").option("spool", str(capture.spec.spool))
    maps = drained(read.load(), "maps")
    assert [(row.op, row.after and row.after.get("id"), row.before) for row in maps] == [
        ("insert", "1", None),
        ("insert", "2", None),
        ("update", "1", None),
        ("delete", None, {"id": "2"}),
        ("truncate", None, None),
        ("message", None, None),
    ]
    assert maps[0].after["tags"] == '{a,"b c"}'
    typed = drained(read.options(table="public.users", consumer="typed").load(), "typed")
    assert [(row._op, row.id, row.name, row.score, row.tags) for row in typed] == [
        ("insert", 1, "Ann", Decimal("1.50"), ["a", "b c"]),
        ("insert", 2, None, None, None),
        ("update", 1, "Ann", Decimal("2.25"), ["a", "b c"]),
        ("delete", 2, None, None, None),
        ("truncate", None, None, None, None),
    ]
    assert [row._commit_lsn for row in typed] == sorted(row._commit_lsn for row in typed)


def test_a_restarted_query_misses_nothing_and_doubles_nothing(
    users: Database, capture: Running, spark: SparkSession, drained: Collect
) -> None:
    read = spark.readStream.format("postgres_cdc").option("spool", str(capture.spec.spool))
    seen: list[str] = []
    for start in (0, 100, 200):
        users.execute(
            *(
                f"insert into users (id) select generate_series({first}, {first + 9})"
                for first in range(start, start + 100, 10)
            )
        )
        capture.until_past(users)
        rows = drained(read.option("maxRowsPerBatch", "35").load())
        seen += [row.after["id"] for row in rows if row.op == "insert"]
    assert seen == [str(n) for n in range(300)]


def test_what_was_read_may_be_forgotten_and_is_then_refused(
    users: Database, capture: Running, spark: SparkSession, drained: Collect
) -> None:
    read = spark.readStream.format("postgres_cdc").option("spool", str(capture.spec.spool))
    with closing(Manifest.open(capture.spec.spool)) as manifest:
        manifest.forget("typed")
    users.execute("insert into users (id) values (1)")
    capture.until_past(users)
    assert len(drained(read.load(), "early")) > 0
    for number in (2, 3):
        users.execute(f"insert into users (id) values ({number})")
        capture.until_past(users)
        drained(read.load(), "late")
    eventually(lambda: not list(capture.spec.spool.glob("*.arrow")))
    users.execute("insert into users (id) values (4)")
    capture.until_past(users)
    with pytest.raises(StreamingQueryException, match="PositionGone: changes are asked for from"):
        drained(read.load(), "early")


def test_a_configuration_is_all_that_a_query_needs(
    users: Database, config: Path, spark: SparkSession, tmp_path: Path
) -> None:
    """Publication, slot and capture are made; the table has no change yet and is known all the same."""
    users.execute("drop publication p")
    stream = spark.readStream.format("postgres_cdc").options(config=str(config), table="public.users").load()
    rows: list[Any] = []
    query = (
        stream.writeStream.foreachBatch(lambda batch, _number: rows.extend(batch.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        eventually(lambda: _slot_is_active(users))
        users.execute("insert into users values (1, 'Ann', 1.5, '{}', null)")
        eventually(lambda: query.exception() or rows)
        assert query.exception() is None
        assert [(row._op, row.id, row.score, row.tags) for row in rows] == [
            ("insert", 1, Decimal("1.50"), [])
        ]
    finally:
        query.stop()


@pytest.mark.slow
@pytest.mark.usefixtures("silent_java")
@pytest.mark.parametrize("master", ["local-cluster[2,1,1024]"])
def test_it_works_on_executors_of_their_own(
    users: Database, capture: Running, tmp_path: Path, master: str
) -> None:
    users.execute(
        """insert into users
           select n, 'name ' || n, n, array['a', null], now() from generate_series(1, 150000) n"""
    )
    capture.until_past(users)
    program = f"""
from penstock.spark.session import session
spark = session({master!r})
read = spark.readStream.format("postgres_cdc").option("spool", {str(capture.spec.spool)!r})
stream = read.option("table", "public.users").load()
def show(batch, number):
    if not batch.isEmpty():
        print(*batch.selectExpr("count(*)", "sum(score)").first(), batch.rdd.getNumPartitions())
query = stream.writeStream.foreachBatch(show).option("checkpointLocation", {str(tmp_path / "c")!r})
query.trigger(availableNow=True).start().awaitTermination()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout.strip() == f"150000 {150000 * 150001 // 2}.00 2", done.stderr
    assert _without_broken_pipes(done.stderr) == ""


@pytest.mark.slow
def test_the_example_prints_rows(users: Database, config: Path, tmp_path: Path) -> None:
    with _started(
        [REPOSITORY / "examples" / "spark_stream.py", str(config), "public.users"], tmp_path
    ) as example:
        eventually(lambda: _slot_is_active(users), 90)
        users.execute("insert into users values (1, 'Ann', 1.5, '{x}', null)")
        eventually(lambda: "|insert|" in example.output(), 60)
    assert "|Ann |1.50 |[x] |NULL|" in example.output()
    assert "WARN" not in example.output()
    assert "incubator" not in example.output()


class _started:
    """A program that runs beside the test, and is interrupted at its end."""

    def __init__(self, command: list[Any], folder: Path) -> None:
        self._log = folder / "output"
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(
                [sys.executable, *command],
                stdout=log,
                stderr=log,
                cwd=folder,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )

    def output(self) -> str:
        return self._log.read_text()

    def __enter__(self) -> _started:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.send_signal(signal.SIGINT)
        self._child.wait(30)


def _slot_is_active(database: Database) -> bool:
    return database.query("select active from pg_replication_slots where database = current_database()") == [
        (True,)
    ]


def test_a_large_value_left_alone_is_taken_from_a_full_old_row(
    users: Database, capture: Running, spark: SparkSession, drained: Collect
) -> None:
    users.execute(
        "alter table users replica identity full; alter table users alter name set storage external",
        "insert into users values (1, repeat('x', 10000)), (2, repeat('y', 10000))",
        "update users set score = 1; truncate users",
    )
    capture.until_past(users)
    read = spark.readStream.format("postgres_cdc").option("spool", str(capture.spec.spool))
    rows = drained(read.option("table", "public.users").load(), "typed")
    assert [(row._op, row._unchanged, row.id, row.name, row.score) for row in rows] == [
        ("insert", [], 1, "x" * 10000, None),
        ("insert", [], 2, "y" * 10000, None),
        ("update", ["name"], 1, "x" * 10000, Decimal(1)),
        ("update", ["name"], 2, "y" * 10000, Decimal(1)),
        ("truncate", [], None, None, None),
    ]


def test_a_query_outlives_a_restart_of_the_server(
    own_database: Database, spark: SparkSession, tmp_path: Path
) -> None:
    own_database.execute("create table users (id int primary key)")
    config = tmp_path / "shop.yml"
    config.write_text(
        f"pipeline: shop\nsources:\n  - {{name: eu, dsn: '{own_database.dsn}'}}\n"
        f"spool: {{path: {tmp_path / 'spools'}}}\nretry: {{initial: 100ms, max: 500ms}}\n"
    )
    changes = spark.readStream.format("postgres_cdc").option("config", str(config)).load()
    query = (
        changes.writeStream.format("memory")
        .queryName("outlives")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )

    def seen() -> list[str]:
        return [row.id for row in spark.sql("select after['id'] as id from outlives").collect()]

    try:
        eventually(lambda: own_database.query("select 1 from pg_replication_slots where active"))
        own_database.execute("insert into users values (1)")
        eventually(lambda: seen() == ["1"])
        own_database.server.stop()
        own_database.server.start()
        own_database.execute("insert into users values (2)")
        eventually(lambda: query.exception() or seen() == ["1", "2"])
        assert query.exception() is None
    finally:
        query.stop()


def test_available_now_reads_all_that_had_committed_when_it_began(
    users: Database, config: Path, spark: SparkSession, drained: Collect
) -> None:
    """As a job that runs once a night: nobody captures in between."""
    users.execute("drop publication p")

    def run() -> list[int]:
        read = spark.readStream.format("postgres_cdc").option("config", str(config))
        return [row.id for row in drained(read.option("table", "public.users").load())]

    assert run() == []
    users.execute("insert into users select generate_series(1, 3)")
    assert run() == [1, 2, 3]
    users.execute("insert into users values (4)")
    assert run() == [4]


def _without_broken_pipes(said: str) -> str:
    """Spark's planning workers, which are not ours to start, complain when it has stopped reading them."""
    return re.sub(r"Traceback \(most recent call last\):\n(?:  .*\n)+BrokenPipeError: .*\n", "", said)
