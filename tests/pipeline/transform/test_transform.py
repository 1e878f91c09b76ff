"""`where`, `set` and `drop`: the same in the copy as in the stream."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.changes.slices import read_slice, slices_of
from penstock.cli.retry import retry
from penstock.config import load
from penstock.config.destinations import DestinationTable
from penstock.destinations.protocol import Delivery, Run, TableChanges
from penstock.model.errors import TransformRefused
from penstock.model.phases import Phase
from penstock.pipeline.transform.transform import Transforms
from penstock.spool.manifest import Manifest
from tests.bed import Database
from tests.changes.made import START, USERS, MadeSpool
from tests.pipeline.running import configuration, contents, running, to_postgres

RULES = {
    "target": "app.people",
    "where": "country <> 'XX'",
    "set": {"email": "sha2(email, 256)", "initial": "upper(substring(name, 1, 1))", "age": "age + 1"},
    "drop": ["secret"],
}
EXPECTED = """
    select id, name, country, encode(sha256(email::bytea), 'hex'), age + 1, upper(substr(name, 1, 1))
      from person where country <> 'XX' order by id
"""
FOUND = "select id, name, country, email, age, initial from app.people order by id"


def expected(source: Database) -> list[Any]:
    return source.query(EXPECTED)


def found(destination: Database) -> list[Any]:
    if destination.query("select to_regclass('app.people')") == [(None,)]:
        return []
    return destination.query(FOUND)


@pytest.mark.parametrize("identity", ["default", "full"])
def test_rows_are_masked_filtered_and_cut_in_copy_and_stream(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path, identity: str
) -> None:
    source.execute(
        "create table person (id integer primary key, name text, secret text, country char(2), email text,"
        " age integer)",
        f"alter table person replica identity {identity}",
        "insert into person select n, 'name' || n, 's', case when n % 3 = 0 then 'XX' else 'DE' end,"
        " n || '@example.com', n from generate_series(1, 100) n",
    )
    file = configuration(tmp_path, source, to_postgres(destination, tables={"public.person": RULES}))
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.person")
        assert found(destination) == expected(source)
        assert len(expected(source)) == 67
        source.execute(
            "update person set country = 'XX' where id in (1, 2)",  # leave the filter
            "update person set country = 'FR', name = null where id in (3, 6)",  # enter it
            "update person set age = age + 10 where id between 10 and 20",  # inside and outside
            "update person set id = id + 1000 where id in (4, 9)",  # under another key
            "delete from person where id in (5, 12)",
            "insert into person values (500, 'new', 's', 'DE', null, null), (501, 'out', 's', 'XX', '', 1)",
        )
        pipeline.until(lambda: found(destination) == expected(source))
        columns = destination.query(
            "select column_name, data_type from information_schema.columns where table_name = 'people'"
        )
        assert ("initial", "text") in columns
        assert "secret" not in dict(columns)


def test_a_wrong_expression_stops_its_table_with_what_spark_says(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    source.execute("create table t (id integer primary key)", "create table u (id integer primary key)")
    tables = {"public.t": {"where": "no_such_column > 1"}}
    file = configuration(tmp_path, source, to_postgres(destination, tables=tables, strict=False))
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.ERRORED, "public.t")
        pipeline.until_phase(Phase.READY, "public.u")
        error = pipeline.tables()["public.t"].error
        assert error is not None
        assert "no_such_column" in error.reason


def test_an_unsent_value_that_a_filter_needs_is_not_guessed(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    source.execute(
        "create table doc (id integer primary key, n integer, body text)",
        "alter table doc alter body set storage external",
        "insert into doc values (1, 1, repeat('x', 9000))",
    )
    tables = {"public.doc": {"where": "length(body) > 10"}}
    file = configuration(tmp_path, source, to_postgres(destination, tables=tables))
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.doc")
        source.execute("update doc set n = 2")
        pipeline.until_phase(Phase.ERRORED, "public.doc")
        error = pipeline.tables()["public.doc"].error
        assert error is not None
        assert error.where["column"] == "body"
        assert "replica identity full" in error.remedy
        assert len(contents(destination, "doc")) == 1


def test_segments_are_there_until_the_next_ones_of_their_table_or_the_next_start(
    spark: SparkSession, tmp_path: Path
) -> None:
    with closing(MadeSpool(tmp_path / "spool")) as spool:
        spool.learn(USERS)
        end = spool.insert(USERS, ("1", "one", "1.00"), ("2", "two", "2.00")).commit()
        with closing(Manifest.open(spool.path)) as manifest:
            entries, schemas = manifest.entries(START, end), manifest.schemas()
        parts = tuple(slices_of(spool.path, entries, START, schemas))
    changes = TableChanges((Run(Delivery("eu", USERS, USERS.name), parts),), START)

    def segments(name: str) -> list[Path]:
        return list((tmp_path / name).glob("**/*.arrow"))

    eu, us = Transforms(spark, tmp_path / "eu"), Transforms(spark, tmp_path / "us")
    rules = DestinationTable(where="score > 1")
    us.changes(rules, changes)
    eu.changes(rules, changes)
    ((part,),) = (run.slices for run in eu.changes(rules, changes).runs)
    assert segments("eu") == [part.path]
    assert [row["after"] for rows in read_slice(part) for row in rows.to_pylist()] == [["2", "two", "2.00"]]
    with pytest.raises(TransformRefused, match="DIVIDE_BY_ZERO"):
        eu.changes(DestinationTable(set={"name": "1 div (id - 2)"}), changes)
    assert segments("eu") == []
    assert len(segments("us")) == 1
    Transforms(spark, tmp_path / "us")
    assert segments("us") == []


# Each new or changed column: what Spark computes, and what PostgreSQL says it should be.
COMPUTED = {
    "d": ("d / 3", "d / 3"),
    "n": ("n + 1", "n + 1"),
    "b": ("not b", "not b"),
    "s": ("concat(s, s)", "s || s"),
    "at": ("at - interval 100000 days", "at - interval '100000 days'"),
    "local": ("local + interval 1 microsecond", "local + interval '1 microsecond'"),
    "raw": ("concat(raw, X'00ff')", r"raw || '\x00ff'"),
    "tags": (
        "reverse(tags)",
        "case when tags is not null then"
        " array(select t from unnest(tags) with ordinality u (t, n) order by n desc) end",
    ),
    "code": ("sha2(code, 256)", "encode(sha256(code::bytea), 'hex')"),
    "doc": ("null", "null::jsonb"),
    "zeta": ("id * 2", "id * 2"),
    "eta": ("cast(id as bigint) * 3000000000", "id::bigint * 3000000000"),
    "theta": ("date_add(day, id)", "day + id"),
    "iota": ("make_date(1 - id * 44, 3, 15)", "make_date(-id * 44, 3, 15)"),
    "kappa": ("timestamp_ntz'-0043-03-15 01:02:03.000001'", "timestamp '0044-03-15 01:02:03.000001 BC'"),
    "lambda": ("timestamp'-0043-03-15 01:02:03.5Z'", "timestamptz '0044-03-15 01:02:03.5+00 BC'"),
    "mu": ("make_timestamp(12345 + id, 1, 1, 0, 0, 0)", "make_timestamptz(12345 + id, 1, 1, 0, 0, 0, 'utc')"),
    "nu": ("float(id) * float(0.1)", "id::float4 * 0.1::float4"),
    "xi": ("date'1582-10-10'", "date '1582-10-10'"),
    "omicron": ("id = 1", "id = 1"),
    "alpha": ("cast(n as decimal(38, 18))", "n::numeric(38, 18)"),
}


def test_every_type_that_spark_computes_arrives_as_its_value_in_copy_and_stream(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    destination.execute(f"alter database {destination.name} set timezone to 'Asia/Kathmandu'")
    source.execute(
        "create table v (id integer primary key, d float8, n numeric(20, 5), b boolean, s text,"
        " at timestamptz, local timestamp, raw bytea, tags text[], code varchar(3), doc jsonb, day date)"
    )
    rows = r"""
        insert into v select id, d, n, b, s, at, local, raw, tags, 'abc', '{{}}', '1899-12-31' from (values
            ({0} + 1, 1e300::float8, -0.00001, true, E'a\tb\n\\\\N\r"', timestamptz '2024-02-29 23:59:59.9Z',
             timestamp '0001-01-01', '\xdeadbeef00'::bytea, array['a"b', 'c\d', null, '', 'NULL', '{{,}}']),
            ({0} + 2, 'NaN', 99999999999999.99999, false, '', '1850-06-01 00:00:00.000001+00',
             '9999-12-31 23:59:59', '', '{{}}'),
            ({0} + 3, '-Infinity', 0, null, E'\\\\.', '1970-01-01 00:00:00+00',
             '1969-12-31 23:59:59.5', null, null),
            ({0} + 4, 5e-323, null, null, null, null, null, null, null)
        ) x (id, d, n, b, s, at, local, raw, tags)
    """
    source.execute(rows.format(0))
    rules = {"set": {name: said for name, (said, _) in COMPUTED.items()}}
    file = configuration(tmp_path, source, to_postgres(destination, tables={"public.v": rules}))
    texts = [f'"{name}"::text' for name in COMPUTED]
    wanted = f"select {', '.join(f'({said})::text' for _, said in COMPUTED.values())} from v order by id"
    found = f"select {', '.join(texts)} from v order by id"

    def arrived() -> list[Any]:
        with destination.connect(options="-c timezone=utc") as connection:
            return connection.execute(found.encode()).fetchall() if contents(destination, "v") else []

    with source.connect(options="-c timezone=utc") as connection, running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.v")
        assert arrived() == connection.execute(wanted.encode()).fetchall()
        source.execute(rows.format(10), "update v set s = s || 'x', tags = tags || tags where id < 10")
        pipeline.until(lambda: len(arrived()) == 8 and arrived()[0][3].endswith("x"))
        assert arrived() == connection.execute(wanted.encode()).fetchall()
    columns = destination.query(
        "select column_name from information_schema.columns where table_name = 'v' order by ordinal_position"
    )
    there = {
        name for (name,) in source.query("select attname from pg_attribute where attrelid = 'v'::regclass")
    }
    said = load(file).destinations[0].tables["public.v"].set
    new = [name for name in said if name not in there]
    assert [name for (name,) in columns][-len(new) :] == new
    assert not list((tmp_path / "spool").glob("*/*/transformed/**/*.arrow"))


def test_names_are_those_of_the_table_however_they_are_written(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    source.execute(
        'create table odd (id integer primary key, "select" text, "a b" integer, "50%" text, "user" text)',
        'create table twins (id integer primary key, "Name" text, name text, "NAME" text)',
        "create table masked (id integer primary key, email text)",
        "insert into odd values (1, 'one', 1, 'x', 'me'), (2, null, 2, 'x', 'me')",
        "insert into twins values (1, 'A', 'b', 'c')",
        "insert into masked values (1, 'me@example.com')",
    )
    tables = {
        "public.odd": {
            "where": "`a b` <> 7 and 'a`b' <> 'user`'",
            "set": {
                "select": "concat(`select`, ' user')",
                "50%": "upper(`50%`)",
                "user": "upper(USER)",
            },
        },
        "public.twins": {
            "set": {"Name": "lower(Name)", "name": "upper(name)", "either": "concat(Name, name)"}
        },
        "public.masked": {"set": {"EMAIL": "sha2(email, 256)"}},
    }
    file = configuration(tmp_path, source, to_postgres(destination, tables=tables, strict=False))
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.odd", "public.twins")
        source.execute("insert into odd values (3, 'two', 3, 'y', 'you'), (4, '', 7, '', '')")
        source.execute("insert into twins values (2, 'D', 'e', 'f')")
        pipeline.until(lambda: len(contents(destination, "odd")) == 3)
        assert contents(destination, "odd") == [
            '(1,"one user",1,X,ME)',
            "(2,,2,X,ME)",
            '(3,"two user",3,Y,YOU)',
        ]
        pipeline.until(lambda: contents(destination, "twins") == ["(1,a,B,c,Ab)", "(2,d,E,f,De)"])
        pipeline.until_phase(Phase.ERRORED, "public.masked")
        error = pipeline.tables()["public.masked"].error
        assert error is not None
        assert "its column is called email" in error.reason


def test_rows_enter_and_leave_the_filter_of_a_keyless_table_a_history_and_an_appended_table(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    source.execute(
        "create table bag (kind text, n integer)",
        "alter table bag replica identity full",
        "insert into bag values ('in', 1), ('in', 1), ('in', 1), ('out', 1), ('out', 1), ('in', null)",
        "create table past (id integer primary key, kind text, n integer)",
        "create table kept (id integer primary key, kind text, n integer)",
        "insert into past select n, case when n < 4 then 'in' else 'out' end, n from generate_series(1, 6) n",
        "insert into kept select * from past",
    )
    rule = {"where": "kind = 'in'", "set": {"n": "n * 10"}}
    tables = {
        "public.bag": rule,
        "public.past": rule | {"kind": "history"},
        "public.kept": rule | {"kind": "append"},
    }
    file = configuration(tmp_path, source, to_postgres(destination, tables=tables))
    bag = "select kind, n * 10 from bag where kind = 'in' order by n"
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, *tables)
        assert destination.query("select * from bag order by n") == source.query(bag)
        source.execute(
            "update bag set kind = 'out' where ctid = (select min(ctid) from bag where kind = 'in')",
            "update bag set kind = 'in' where ctid = (select min(ctid) from bag where kind = 'out')",
            "delete from bag where ctid in (select ctid from bag order by kind desc, n limit 1)",
            "update bag set n = 2 where ctid = (select min(ctid) from bag where kind = 'in')",
            "update bag set n = n + 1 where n is null or kind = 'out'",
            "insert into bag values ('in', 2), ('in', 2), (null, 2)",
            *(
                statement.format(table)
                for table in ("past", "kept")
                for statement in (
                    "update {} set kind = 'out' where id = 1",  # leaves
                    "update {} set kind = 'in' where id = 4",  # enters
                    "update {} set n = 0 where id in (2, 5)",
                    "delete from {} where id in (3, 6)",
                    "update {} set kind = 'in' where id = 1",  # comes back
                    "insert into {} values (7, 'in', 7), (8, 'out', 8)",
                )
            ),
        )
        pipeline.until(lambda: (7,) in destination.query("select id from kept"))
        pipeline.until(lambda: destination.query("select * from bag order by n") == source.query(bag))
        assert destination.query("select id, n from kept order by id") == [
            (1, 10), (2, 0), (3, 30), (4, 40), (7, 70)
        ]  # fmt: skip
        versions = "select id, n, kvsz_end < '9999-01-01', kvsz_deleted from past order by id, kvsz_start"
        assert destination.query(versions) == [
            (1, 10, True, True), (1, 10, False, False),
            (2, 20, True, False), (2, 0, False, False),
            (3, 30, True, True),
            (4, 40, False, False),
            (7, 70, False, False),
        ]  # fmt: skip
        pipeline.until(lambda: not list((tmp_path / "spool").glob("*/*/transformed/**/*.arrow")))


@pytest.mark.slow
def test_an_expression_that_fails_at_a_row_stops_its_table_alone(
    spark: SparkSession,
    source: Database,
    destination: Database,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    source.execute(
        "create table streamed (id integer primary key, n integer)",
        "create table taken (id integer primary key, s text)",
        "create table other (id integer primary key)",
        "insert into streamed values (1, 1)",
        "insert into taken values (1, 'one')",
    )
    tables = {
        "public.streamed": {"where": "n <> 0", "set": {"part": "10 div (n - 2)", "guarded": "10 div n"}},
        "public.taken": {"set": {"s": "cast(s as integer)"}},
    }
    file = configuration(tmp_path, source, to_postgres(destination, tables=tables))
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.streamed", "public.other")
        # What the filter keeps away is not computed, and neither is a column of a row that is gone.
        source.execute("insert into streamed values (2, 0)", "delete from streamed where id = 2")
        source.execute("insert into streamed values (3, 3)")
        pipeline.until(lambda: len(contents(destination, "streamed")) == 2)
        source.execute("insert into streamed values (4, 2)", "insert into other values (1)")
        pipeline.until_phase(Phase.ERRORED, "public.streamed")
        pipeline.until(lambda: contents(destination, "other") == ["(1)"])
        assert "DIVIDE_BY_ZERO" in str(pipeline.tables()["public.streamed"].error)
        pipeline.until(lambda: "CAST_INVALID_INPUT" in str(pipeline.tables()["public.taken"].error))
    said = capfd.readouterr()
    assert "QueryContextLogger" not in said.err
    assert "org.apache.spark" not in said.err
    assert not list((tmp_path / "spool").glob("*/*/transformed/**/*.arrow"))

    mended = {"public.streamed": {"where": "n <> 0", "set": {"part": "n", "guarded": "10 div n"}}}
    file = configuration(tmp_path, source, to_postgres(destination, tables=mended))
    source.execute("update streamed set n = 5 where id = 1")
    retry(file, ["public.*"])
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.streamed", "public.taken")
        assert contents(destination, "taken") == ["(1,one)"]
        rows = "select id, n, part, guarded from streamed order by id"
        # Every row is as the mended expression has it.
        pipeline.until(
            lambda: destination.query(rows) == [(1, 5, 5, 2), (3, 3, 3, 3), (4, 2, 2, 5)], seconds=20
        )
