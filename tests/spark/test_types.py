"""The type map: values as a real server writes them, typed, against psycopg's own reading of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from psycopg.pq import Format

from penstock.changes.arrow_types import arrow_type
from penstock.changes.typed import first_refused, typed
from penstock.model import ColumnType, TypeKind
from penstock.postgres.types import TypeCatalog
from penstock.spark.types import spark_type
from penstock.spool.segment import BeforeKind
from tests.bed import Database
from tests.changes.made import MadeSpool, table

DOCUMENTED = Path(__file__).parents[2] / "docs" / "types.md"

AS_CAPTURE_ASKS = "-c datestyle=ISO -c extra_float_digits=3 -c bytea_output=hex -c timezone=UTC"

SET_UP = """
    create extension citext; create extension hstore; create extension vector;
    create type mood as enum ('sad', 'ok', 'so "happy"');
    create type pair as (a int, b text);
    create domain positive as numeric(12, 3) check (value > 0);
    create domain few as int4[];
    create domain when_ as timestamptz;
"""

# What the type holds exactly. Compared with what psycopg makes of the same value.
HELD = {
    "bool": ["true", "false"],
    "int2": ["-32768", "32767"],
    "int4": ["-2147483648", "2147483647", "0"],
    "int8": ["-9223372036854775808", "9223372036854775807"],
    "oid": ["0", "4294967295"],
    "xid": ["4294967295"],
    "cid": ["4294967295"],
    "float4": ["NaN", "Infinity", "-Infinity", "3.4028235e38", "1e-45", "0.1", "-0", "16777217"],
    "float8": ["NaN", "Infinity", "-Infinity", "5e-324", "1.7976931348623157e308", "0.1", "-0", "1e22"],
    "numeric(10,2)": ["0.005", "-12345678.9", "99999999.99", "0", "1e3"],
    "numeric(38,0)": ["9" * 38, "-" + "9" * 38, "1"],
    "numeric(38,38)": ["-0." + "9" * 38, "0." + "0" * 37 + "1"],
    "numeric(38,10)": ["-" + "9" * 28 + "." + "9" * 10],
    "numeric(1,1)": ["0.1", "-0.9"],
    "positive": ["0.001", "123456789.125"],
    "bytea": ["\\x", "\\x00", "\\x" + bytes(range(256)).hex()],
    "date": ["0001-01-01", "9999-12-31", "2024-02-29", "1582-10-10"],
    "timestamp": [
        *("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "2024-02-29 24:00:00"),
        *("1969-12-31 23:59:59.999999", "2024-02-29 12:34:56.1", "1582-10-10 00:00:00"),
    ],
    "timestamp(3)": ["2024-02-29 12:34:56.1239"],
    "timestamptz": [
        *("0001-01-01 00:00:00+00", "9999-12-31 23:59:59.999999+00", "2024-03-31 02:30:00 Europe/Berlin"),
        *("2024-10-27 02:30:00.000001+01", "1880-01-01 00:00:00 Europe/Amsterdam"),
    ],
    "when_": ["2024-02-29 12:34:56.789+05:30"],
    "text": ["", " ", "ünïcödé 日本 🚰", "NULL", "a\tb\nc\\d"],
    "varchar(3)": ["abc"],
    "char(5)": ["ab", ""],
    "name": ["a name"],
    '"char"': ["x"],
    "citext": ["CaSe"],
    "int4[]": ["{}", "{1,NULL,-3}", "{NULL}"],
    "few": ["{4,5}"],
    "int8[]": ["{9223372036854775807}"],
    "bool[]": ["{t,f,NULL}"],
    "float8[]": ["{NaN,-Infinity,0.1,NULL}"],
    "numeric(10,2)[]": ["{1.5,NULL,-99999999.99}"],
    "date[]": ["{0001-01-01,NULL}"],
    "timestamp[]": ['{"2024-02-29 12:34:56.1",NULL}'],
    "timestamptz[]": ['{"2024-02-29 12:34:56.1+02",NULL}'],
    "bytea[]": [r'{"\\x00ff",NULL,"\\x"}'],
    "text[]": [r'{"","a,b","c\"d","e\\f",NULL,"NULL","null","{x}"," y ",plain,"with space"}', '{"\n"}'],
}

# What stays text: exactly as the server wrote it.
KEPT_AS_TEXT = {
    "numeric": ["NaN", "Infinity", "-Infinity", "1" * 1000, "0." + "1" * 1000, "1e-20", "0.10"],
    "numeric(39,2)": ["1.5"],
    "numeric(3,-2)": ["12345"],
    "numeric(2,5)": ["0.00012"],
    "time": ["24:00:00", "00:00:00.000001"],
    "timetz": ["24:00:00+05:30", "23:59:59.999999-15:59"],
    "interval": ["178000000 years", "-1 year +2 days -03:04:05.678901", "0"],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "json": ['{"a":   1, "a": 12345678901234567890.123456789012345678901234567890}', "1e1000"],
    "jsonb": ['{"n": 12345678901234567890.123456789012345678901234567890}', "1e1000"],
    "jsonpath": ["$.a[*] ? (@ > 1)"],
    "money": ["-92233720368547758.08"],
    "bit(5)": ["10101"],
    "varbit": ["", "1"],
    "inet": ["192.168.0.1/24", "::1"],
    "cidr": ["10.0.0.0/8"],
    "macaddr": ["08:00:2b:01:02:03"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "point": ["(NaN,Infinity)"],
    "line": ["{1,2,3}"],
    "lseg": ["[(0,0),(1,1)]"],
    "box": ["(1,1),(0,0)"],
    "path": ["[(0,0),(1,1)]", "((0,0),(1,1))"],
    "polygon": ["((0,0),(1,1),(1,0))"],
    "circle": ["<(0,0),1>"],
    "int4range": ["empty", "[1,10)", "(,)"],
    "numrange": ["[NaN,]"],
    "tstzrange": ["[infinity,)"],
    "daterange": ["[0044-03-15 BC,)"],
    "int4multirange": ["{}", "{[1,2),[5,9)}"],
    "tsvector": ["a:1A 'b c':2"],
    "tsquery": ["a & !b"],
    "pg_lsn": ["16/B374D848"],
    "pg_snapshot": ["10:20:10,14,15"],
    "tid": ["(42,7)"],
    "xid8": ["18446744073709551615"],
    "regclass": ["pg_class"],
    "regtype": ["integer"],
    "int2vector": ["1 2 3"],
    "oidvector": ["1 4294967295"],
    "mood": ["ok", 'so "happy"'],
    "pair": ['(1,"a ""b"", c")', "(,)"],
    "hstore": ['"a"=>"1", "b"=>NULL'],
    "vector": ["[1,2.5,-3]"],
    "halfvec": ["[1,2]"],
    "sparsevec": ["{1:1.5}/3"],
}

# Arrays of what stays text: the elements are that text.
TEXT_ELEMENTS = {
    "box[]": ("{(1,1),(0,0);(2,2),(1,1)}", ["(1,1),(0,0)", "(2,2),(1,1)"]),
    "time[]": ("{24:00:00,NULL}", ["24:00:00", None]),
    "mood[]": ('{ok,"so \\"happy\\""}', ["ok", 'so "happy"']),
    "pair[]": ('{"(1,\\"a, b\\")"}', ['(1,"a, b")']),
    "int4range[]": ('{"[1,10)",empty}', ["[1,10)", "empty"]),
    "jsonb[]": ('{"{\\"a\\": [1, 2]}"}', ['{"a": [1, 2]}']),
    "hstore[]": ('{"\\"a\\"=>\\"1\\""}', ['"a"=>"1"']),
    "vector[]": ('{"[1,2]"}', ["[1,2]"]),
    "numeric[]": ("{NaN,1.50,NULL}", ["NaN", "1.50", None]),
    "citext[]": ("{Aa,bB,NULL}", ["Aa", "bB", None]),
    "point[]": ('{"(1,2)"}', ["(1,2)"]),
}

REFUSED = {
    "numeric(10,2)": ["NaN"],
    "positive": ["NaN"],
    "numeric(10,2)[]": ["{1,NaN}"],
    "date": ["infinity", "-infinity", "0044-03-15 BC", "10000-01-01", "5874897-12-31"],
    "timestamp": ["infinity", "-infinity", "0044-03-15 12:00:00 BC", "294276-12-31 23:59:59.999999"],
    "timestamptz": ["infinity", "0044-03-15 12:00:00+00 BC", "10000-01-01 00:00:00+00"],
    "timestamptz[]": ["{infinity}"],
    "int4[]": ["{{1,2},{3,4}}", "[0:1]={1,2}", "{{1}}", "[2:2][3:3]={{1}}"],
    "text[]": ['{{"a,b",c}}', '[5:5]={"a,b"}', '{{a,"{"}}'],
    "few": ["[0:0]={1}"],
}

# No server writes these for the type; they come only from a damaged spool. Arrow would take some of them.
NEVER_WRITTEN = {
    "numeric(38,0)": ["1" * 39, "1" * 1000, "-" + "9" * 40, ""],
    "numeric(10,2)": ["1.234", "100000000.00", " 1", "1 "],
    "int4": ["2147483648", " 1", "1.0", ""],
    "bool": ["true", "T", ""],
    "bytea": ["\\x0", "\\xZZ", "00", "", "\\x00 "],
    "date": ["2024-02-30", "2024-1-1", "2024-02-29 00:00:00", " 2024-02-29"],
    "timestamp": ["2024-02-29 24:00:00", "2024-02-29 12:00:00.1234567", "2024-02-29 12:00:00+00"],
    "timestamptz": ["2024-02-29 12:00:00", "1880-01-01 00:00:00+00:19:32"],
    "int4[]": ["", "{", "{1", "1}", "{1,}", "{,1}", "{1}x", "{1,,2}"],
    "text[]": ['{"a}', '{a"b"}', '{"a""b"}', '{"a"b}'],
}


@pytest.fixture
def types(database: Database) -> Iterator[TypeCatalog]:
    database.execute(SET_UP)
    catalog = TypeCatalog(database.connect)
    yield catalog
    catalog.close()


@pytest.fixture
def written(database: Database) -> Any:
    """The values of a type, as the server writes them and as psycopg reads them."""

    def write(type: str, values: Sequence[str]) -> tuple[list[str], list[Any]]:
        chosen = ", ".join(f"$${value}$$::{type}" for value in values)
        with database.connect(options=AS_CAPTURE_ASKS) as connection:
            result = connection.pgconn.exec_params(f"select {chosen}".encode(), [], result_format=Format.TEXT)
            texts = [(result.get_value(0, place) or b"").decode() for place in range(len(values))]
            try:
                read = connection.execute(f"select {chosen}".encode()).fetchone()
            except psycopg.DataError:
                read = None
            return texts, list(read or [])

    return write


def column_type(database: Database, types: TypeCatalog, declared: str) -> ColumnType:
    """The type of a column declared so, resolved as capture resolves it."""
    database.execute(f"drop table if exists one; create table one (c {declared})")
    ((oid, modifier),) = database.query(
        "select atttypid, atttypmod from pg_attribute where attrelid = 'one'::regclass and attnum = 1"
    )
    return types.resolve(oid, modifier)


def test_what_a_type_holds_arrives_as_psycopg_reads_it(
    database: Database, types: TypeCatalog, written: Any
) -> None:
    for declared, values in HELD.items():
        type = column_type(database, types, declared)
        texts, read = written(declared, values)
        found = typed(pa.array([*texts, None], pa.string()), type)
        assert found.type == arrow_type(type), declared
        assert _comparable(found.to_pylist()) == _comparable([*_as_arrow_gives(read, found.type), None]), (
            declared
        )


def test_what_a_type_holds_passes_through_spark(
    database: Database, types: TypeCatalog, written: Any, spool: MadeSpool, stream: Any
) -> None:
    columns = {f"c{n}": column_type(database, types, declared) for n, declared in enumerate(HELD)}
    texts = [written(declared, values[:1])[0][0] for declared, values in HELD.items()]
    every = table(9, "public.every", columns, key=())
    spool.learn(every)
    spool.insert(every, texts, [None] * len(texts))
    spool.update(every, texts, before=texts, before_kind=BeforeKind.FULL).commit()
    rows: list[dict[str, Any]] = []
    query = (
        stream(spool, table="public.every", before="true")
        .writeStream.foreachBatch(lambda batch, _number: rows.extend(batch.toArrow().to_pylist()))
        .option("checkpointLocation", str(spool.path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    expected = {
        name: typed(pa.array([text]), type)[0].as_py()
        for text, (name, type) in zip(texts, columns.items(), strict=True)
    }
    inserted, nulls, updated = ({name: row[name] for name in columns} for row in rows)
    assert _comparable(inserted) == _comparable(updated) == _comparable(expected)
    assert nulls == dict.fromkeys(columns)
    assert _comparable(rows[2]["_before"]) == _comparable(expected)


def test_what_stays_text_is_what_the_server_wrote(
    database: Database, types: TypeCatalog, written: Any
) -> None:
    for declared, values in KEPT_AS_TEXT.items():
        type = column_type(database, types, declared)
        texts, _ = written(declared, values)
        assert arrow_type(type) == pa.string(), declared
        assert typed(pa.array(texts, pa.string()), type).to_pylist() == texts, declared


def test_intervals_stay_as_written_in_every_style(database: Database, types: TypeCatalog) -> None:
    type = column_type(database, types, "interval")
    with database.connect() as connection:
        for style in ("postgres", "postgres_verbose", "sql_standard", "iso_8601"):
            connection.execute(f"set intervalstyle = {style}".encode())
            result = connection.pgconn.exec_(b"select '-1 year +2 days -03:04:05.678901'::interval")
            text = (result.get_value(0, 0) or b"").decode()
            assert typed(pa.array([text]), type).to_pylist() == [text]


def test_elements_follow_the_rule_of_their_type(database: Database, types: TypeCatalog, written: Any) -> None:
    for declared, (value, expected) in TEXT_ELEMENTS.items():
        type = column_type(database, types, declared)
        texts, _ = written(declared, [value])
        assert typed(pa.array([*texts, None]), type).to_pylist() == [expected, None], declared


def test_what_a_type_cannot_hold_is_refused(database: Database, types: TypeCatalog, written: Any) -> None:
    for declared, values in REFUSED.items():
        type = column_type(database, types, declared)
        good = written(declared, HELD[declared])[0]
        for text in written(declared, values)[0]:
            column = pa.array([None, *good, text, *good])
            with pytest.raises(pa.ArrowInvalid):
                typed(column, type)
            assert first_refused(column, type) == len(good) + 1, (declared, text)


def test_what_no_server_writes_is_refused(database: Database, types: TypeCatalog) -> None:
    for declared, values in NEVER_WRITTEN.items():
        type = column_type(database, types, declared)
        for text in values:
            with pytest.raises(pa.ArrowInvalid):
                typed(pa.array([text]), type)


def test_any_array_of_text_is_taken_apart(database: Database, types: TypeCatalog) -> None:
    random = Random(7)
    letters = ['"', "\\", ",", "{", "}", " ", "\n", "a", "N", "ULL", "é", "🚰", ""]
    lists = [
        [
            None if random.random() < 0.1 else "".join(random.choices(letters, k=random.randrange(4)))
            for _ in range(random.randrange(5))
        ]
        for _ in range(500)
    ]
    with database.connect() as connection:
        connection.execute("create table lists (place int, list text[])")
        connection.cursor().executemany("insert into lists values (%s, %s)", list(enumerate(lists)))
        result = connection.pgconn.exec_(b"select list from lists order by place")
        texts = [(result.get_value(place, 0) or b"").decode() for place in range(len(lists))]
    type = column_type(database, types, "text[]")
    assert typed(pa.array(texts), type).to_pylist() == lists
    for text, expected in zip(texts, lists, strict=True):
        assert typed(pa.array([text]), type).to_pylist() == [expected]


def test_any_double_survives(database: Database) -> None:
    random = Random(7)
    numbers = [np.frombuffer(random.randbytes(8), np.float64)[0].item() for _ in range(2000)]
    numbers = [number for number in numbers if not math.isnan(number)]
    with database.connect() as connection:
        texts = [
            row[0]
            for row in connection.execute("select x::text from unnest(%s::float8[]) x", (numbers,)).fetchall()
        ]
    assert typed(pa.array(texts), ColumnType(701, "float8")).to_pylist() == numbers


def test_sliced_columns_are_typed_as_whole_ones() -> None:
    for name, texts, expected in (
        ("bytea", ["\\xaa", None, "\\x00ff", "\\x41", "\\x"], [None, b"\x00\xff", b"A"]),
        ("bool", ["t", None, "f", "t", "t"], [None, False, True]),
    ):
        assert typed(pa.array(texts).slice(1, 3), ColumnType(1, name)).to_pylist() == expected
    ints = ColumnType(1007, "_int4", -1, TypeKind.ARRAY, ColumnType(23, "int4"))
    assert typed(pa.array(["{9}", None, "{1,2}", "{}"]).slice(1, 2), ints).to_pylist() == [None, [1, 2]]


def test_an_array_of_a_type_nobody_knows_stays_text() -> None:
    unknown = ColumnType(20000, "mystery")
    assert arrow_type(ColumnType(20001, "_mystery", -1, TypeKind.ARRAY, unknown)) == pa.string()
    assert arrow_type(ColumnType(20002, "gone", -1, TypeKind.UNKNOWN)) == pa.string()


def test_postgis_types_stay_text() -> None:
    """PostGIS is not in the embedded server; its types are like any other that is not PostgreSQL's own."""
    geometry = ColumnType(17000, "geometry")
    assert arrow_type(geometry) == pa.string()
    array = ColumnType(17001, "_geometry", -1, TypeKind.ARRAY, geometry)
    assert typed(pa.array(["{0101:0102}"]), array).to_pylist() == [["0101", "0102"]]


def test_every_type_of_the_server_is_documented(database: Database, types: TypeCatalog) -> None:
    rows = [line.split(" | ") for line in DOCUMENTED.read_text().splitlines() if line.startswith("| ")]
    documented = {name: row[1] for row in rows for name in re.findall(r"`([^`]+)`", row[0])}
    builtin = database.query(
        """select oid, typname from pg_type
            where typnamespace = 'pg_catalog'::regnamespace and typtype in ('b', 'r', 'm')
              and not exists (select from pg_type element where element.typarray = pg_type.oid)"""
    )
    for oid, name in builtin:
        found = spark_type(arrow_type(types.resolve(oid))).simpleString()
        assert documented.get(name) == f"`{found}`", name
    for name in ("citext", "hstore", "vector", "halfvec", "sparsevec"):
        assert documented[name] == "`string`"


def _as_arrow_gives(read: list[Any], wanted: pa.DataType) -> list[Any]:
    """psycopg's values as those Python values that Arrow's become."""
    if pa.types.is_int64(wanted):
        return [int(value) for value in read]
    if pa.types.is_float32(wanted):
        return [np.float32(value).item() for value in read]
    return [value.tobytes() if isinstance(value, memoryview) else value for value in read]


def _comparable(value: Any) -> Any:
    """NaN equal to itself, zeros told apart by sign, instants whatever their zone is called."""
    if isinstance(value, list):
        return [_comparable(each) for each in value]
    if isinstance(value, dict):
        return {name: _comparable(each) for name, each in value.items()}
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat()
    return value
