"""Every type through files: a table that is made from `schema.yml` and filled by COPY equals the source."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
import yaml
from psycopg import sql
from pyspark.sql import SparkSession

from penstock.destinations.files import schema_yml
from penstock.destinations.protocol import Delivery
from penstock.model import Column, ColumnType, Lsn, ReplicaIdentity, TableId, TableName, TableSchema
from penstock.model.phases import Phase
from penstock.postgres import catalog
from penstock.postgres.connection import connect
from tests.bed import Database
from tests.files.consumer import Consumer
from tests.files.test_files import to_files, until_rebuilt
from tests.pipeline.running import configuration, running
from tests.spark.test_types import HELD, KEPT_AS_TEXT, REFUSED, SET_UP, TEXT_ELEMENTS
from tests.values import VALUES

EVERY = TableName("public", "every")

MORE = {
    "other.\"Odd, 'name'\"": ["x", 'y"z'],
    "nested": ['("(1,a)","{ok,sad}",5)', "(,,)"],
    "nested[]": ['{"(\\"(1,\\\\\\"a b\\\\\\")\\",{},)",NULL}'],
    "deeper": ["2.500"],
    "textrange": ['["a,b",c)', "empty"],
    "textmultirange": ["{[a,b),[c,d)}"],
    "strict": ["good"],
}
SET_UP_MORE = """
    create schema other;
    create type other."Odd, 'name'" as enum ('x', 'y"z', 'it''s');
    create domain deeper as positive default 1.5;
    create type nested as ("a pair" pair, moods mood[], "number" deeper);
    create type textrange as range (subtype = text, multirange_type_name = textmultirange, collation = "C");
    create domain strict as text collate "C" not null default 'x'
        constraint "is good" check (value <> 'bad') check (length(value) < 100);
"""


def values_of_every_type() -> dict[str, list[str]]:
    """Types as they are declared, with values."""
    random = Random(11)
    found: dict[str, list[str]] = {}
    tables = [HELD, KEPT_AS_TEXT, {t: [value] for t, (value, _) in TEXT_ELEMENTS.items()}, REFUSED, MORE]
    tables.append({type: [make(random) for _ in range(20)] for type, make in VALUES.items()})
    for table in tables:
        for type, values in table.items():
            found.setdefault(type, []).extend(values)
    return found


def set_up(source: Database) -> dict[str, list[str]]:
    """An empty table with a column of each type."""
    values = values_of_every_type()
    columns = ", ".join(f"c{place} {type}" for place, type in enumerate(values))
    source.execute(SET_UP, SET_UP_MORE, f"create table every (id int primary key, {columns})")
    return values


def insert(source: Database, values: dict[str, list[str]], first: int) -> None:
    """Rows that have every value in its column, and a row of as many NULLs as can be."""
    not_null = list(values).index("strict")
    rows = max(map(len, values.values()))
    with source.connect() as connection:
        for row in range(rows + 1):
            given: list[Any] = [
                these[row] if row < len(these) else ("x" if place == not_null else None)
                for place, these in enumerate(values.values())
            ]
            texts = sql.SQL(", ").join(map(sql.Literal, [first + row, *given]))
            connection.execute(sql.SQL("insert into every values ({})").format(texts))


def make_types(connection: psycopg.Connection[Any], types: list[dict[str, Any]]) -> None:
    """Types as `schema.yml` describes them."""
    for one in types:
        schema = sql.Identifier(one["schema"])
        connection.execute(sql.SQL("create schema if not exists {}").format(schema))
        name, more = one["name"], sql.Composed([])
        match one["kind"]:
            case "extension":
                statement = f'create extension if not exists "{one["extension"]}"'
            case "enum":
                statement = f"create type {name} as enum ({{}})"
                more = sql.SQL(", ").join(map(sql.Literal, one["values"]))
            case "composite":
                statement = f"create type {name} as ({{}})"
                more = sql.SQL(", ").join(
                    sql.SQL(f"{{}} {attribute['type']}").format(sql.Identifier(attribute["name"]))
                    for attribute in one["attributes"]
                )
            case "range":
                collation = f", collation = {one['collation']}" if "collation" in one else ""
                multirange = f'multirange_type_name = "{one["multirange"]}"'
                statement = (
                    f"create type {name} as range (subtype = {one['subtype']}, {multirange}{collation})"
                )
            case "domain":
                statement = f"create domain {name} as {one['type']}"
                statement += f" collate {one['collation']}" if "collation" in one else ""
                statement += f" default {one['default']}" if "default" in one else ""
                statement += " not null" if one.get("not_null") else ""
                for check in one.get("checks", []):
                    statement += f' constraint "{check["name"]}" {check["definition"]}'
            case other:
                raise AssertionError(f"a type of kind {other}")
        connection.execute(sql.SQL(statement).format(more) if "{}" in statement else statement.encode())


def described(
    source: Database,
    name: str,
    dropped: Collection[str] = (),
    computed: Mapping[str, ColumnType] | None = None,
) -> dict[str, Any]:
    """The document of a table, as a copy would have it."""
    made = computed or {}
    ((oid,),) = source.query("select %s::regclass::oid", name)
    with connect(source.dsn) as connection:
        (table,) = catalog.detailed(connection, [oid])
        columns = tuple(
            Column(c.name, made.get(c.name, ColumnType(c.type_oid, c.type)), key=False)
            for c in table.columns
            if c.name not in dropped
        )
        schema = TableSchema(TableId(oid), 1, table.name, ReplicaIdentity.DEFAULT, columns)
        delivery = Delivery("source", schema, table.name, primary_key=("id",), computed=frozenset(made))
        text = schema_yml.document(connection, table, delivery, 3, Lsn.parse("0/ABC"))
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def test_every_type_arrives_in_a_table_made_from_its_description(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    values = set_up(source)
    insert(source, values, 0)
    with destination.connect() as connection:
        make_types(connection, described(source, "every")["types"])
    consumer = Consumer(source, destination)
    with running(configuration(tmp_path, source, to_files(tmp_path)), spark) as pipeline:
        until_rebuilt(pipeline, consumer, source, destination, lambda: [EVERY])
        insert(source, values, 1000)
        source.execute("update every set c0 = c0 where id % 2 = 0", "delete from every where id % 5 = 0")
        until_rebuilt(pipeline, consumer, source, destination, lambda: [EVERY])
        pipeline.until_phase(Phase.READY, "public.every")
    for query in (
        "select format_type(atttypid, atttypmod) from pg_attribute"
        " where attrelid = 'every'::regclass and attnum > 0 order by attnum",
        "select enumtypid::regtype::text, enumlabel from pg_enum order by 1, enumsortorder",
    ):
        assert destination.query(query) == source.query(query)


def test_types_made_from_a_description_are_described_the_same(
    source: Database, destination: Database
) -> None:
    set_up(source)
    types = described(source, "every")["types"]
    with destination.connect() as connection:
        make_types(connection, types)
    columns = ", ".join(f"c{place} {type}" for place, type in enumerate(values_of_every_type()))
    destination.execute(f"create table every (id int primary key, {columns})")
    assert described(destination, "every")["types"] == types
    by_name = {one["name"].removeprefix("public."): one for one in types}
    assert by_name["mood"] == {
        "name": "public.mood",
        "schema": "public",
        "kind": "enum",
        "values": ["sad", "ok", 'so "happy"'],
    }
    assert by_name["pair"]["attributes"] == [{"name": "a", "type": "integer"}, {"name": "b", "type": "text"}]
    assert by_name["hstore"]["extension"] == "hstore"
    assert by_name["few"]["type"] == "integer[]"
    assert (by_name["deeper"]["type"], by_name["positive"]["type"]) == ("public.positive", "numeric(12,3)")
    assert by_name["strict"]["not_null"]
    assert {check["name"] for check in by_name["strict"]["checks"]} == {"is good", "strict_check"}


def test_a_description_has_all_of_a_table(source: Database) -> None:
    source.execute(
        "create domain money_ as numeric(12, 3)",
        "create table parent (a int, b int, primary key (a, b))",
        """
        create table orders (
            id bigint generated by default as identity primary key,
            code varchar(20) not null unique default 'a' collate "C",
            price numeric(10, 2) check (price >= 0),
            amount money_,
            flags bit(5), varying_flags bit varying(7), letter character(3)[],
            at timestamp(3) with time zone default now(),
            twice numeric generated always as (price * 2) stored,
            always_ int generated always as identity,
            a int, b int,
            constraint pair foreign key (a, b) references parent (a, b) on delete cascade deferrable,
            constraint ordered check (a < b),
            unique nulls not distinct (a, b)
        )
        """,
        "create index lower_code on orders (lower(code)) where price > 1",
        "create unique index price_at on orders (price, at desc) include (code)",
    )
    found = described(source, "orders")
    assert found["table"] == {"schema": "public", "name": "orders", "row_count": 3}
    assert found["metadata"]["snapshot_lsn"] == "0/ABC"
    assert found["metadata"]["exported_at"].endswith("Z")
    assert found["metadata"]["key"] == ["id"]
    columns = {column.pop("name"): column for column in found["columns"]}
    assert columns["id"] == {
        "type": "bigint", "nullable": False, "primary_key": True, "identity": "by default"
    }  # fmt: skip
    assert columns["code"] == {
        "type": "character varying(20)", "length": 20, "nullable": False, "unique": True,
        "default": "'a'::character varying", "collation": 'pg_catalog."C"',
    }  # fmt: skip
    assert columns["price"] == {"type": "numeric(10,2)", "precision": 10, "scale": 2, "nullable": True}
    assert columns["amount"] == {
        "type": "public.money_", "precision": 12, "scale": 3, "nullable": True, "domain_of": "numeric(12,3)"
    }  # fmt: skip
    assert [columns[name]["length"] for name in ("flags", "varying_flags", "letter")] == [5, 7, 3]
    assert columns["at"] == {
        "type": "timestamp(3) with time zone", "precision": 3, "nullable": True, "default": "now()"
    }  # fmt: skip
    assert columns["twice"]["generated"] == "(price * (2)::numeric)"
    assert columns["always_"]["identity"] == "always"
    constraints = {one.pop("name"): one for one in found["constraints"]}
    assert constraints["pair"] == {
        "type": "foreign_key", "columns": ["a", "b"], "references": "public.parent",
        "referenced_columns": ["a", "b"],
        "definition": "FOREIGN KEY (a, b) REFERENCES public.parent(a, b) ON DELETE CASCADE DEFERRABLE",
    }  # fmt: skip
    assert constraints["ordered"] == {"type": "check", "columns": ["a", "b"], "definition": "CHECK ((a < b))"}
    assert constraints["orders_price_check"]["columns"] == ["price"]
    assert constraints["orders_pkey"]["type"] == "primary_key"
    assert constraints["orders_a_b_key"]["definition"] == "UNIQUE NULLS NOT DISTINCT (a, b)"
    assert constraints["orders_code_key"]["columns"] == ["code"]
    indexes = {one["name"]: one for one in found["indexes"]}
    assert "lower(" in indexes["lower_code"]["definition"]
    assert indexes["price_at"]["columns"] == ["price", "at"]
    assert indexes["price_at"]["unique"]
    assert [one["name"] for one in found["types"]] == ["public.money_"]


@pytest.mark.every_server
def test_a_description_has_nothing_that_depends_on_a_hidden_column(source: Database) -> None:
    source.execute(
        "create type grade as enum ('hush1', 'hush2')",
        "create type shown as enum ('a', 'b')",
        "create domain salary as int check (value <> 4711)",
        """
        create table people (
            id int primary key,
            secret grade default 'hush1',
            pay salary default 4711 unique,
            mood shown default 'a',
            note varchar(9) default 'fine',
            size int check (size > 0),
            twice int generated always as (size * 2) stored,
            earned int generated always as (pay + 4711) stored,
            boss int references people (pay),
            constraint by_secret check (size > 1 or secret <> 'hush2'),
            constraint whole check (people is distinct from row(1, 'hush1', 1, 'a', 'x', 1, 1, 1, 1)::people),
            constraint included unique (note) include (secret),
            exclude using btree (size with =, pay with =)
        )
        """,
        "create index of_note on people (lower(note)) where size > 1",
        "create index of_condition on people (note) where secret = 'hush1'",
        "create index of_expression on people ((pay + 4711), note)",
        "create index of_include on people (note) include (secret)",
        "create index of_pay on people (size, pay)",
        "create index of_whole on people (note) where people is not null",
    )
    found = described(source, "people", ["secret"], {"pay": ColumnType(1700, "numeric", (10 << 16 | 2) + 4)})
    columns = {column.pop("name"): column for column in found["columns"]}
    assert columns["pay"] == {"type": "numeric(10,2)"}
    assert columns["earned"] == {"type": "integer", "nullable": True}
    assert columns["boss"] == {"type": "integer", "nullable": True}
    assert columns["note"] == {
        "type": "character varying(9)", "length": 9, "nullable": True, "default": "'fine'::character varying"
    }  # fmt: skip
    assert columns["twice"]["generated"] == "(size * 2)"
    assert [*columns] == ["id", "pay", "mood", "note", "size", "twice", "earned", "boss"]
    assert [one["name"] for one in found["types"]] == ["public.shown"]
    assert [one["name"] for one in found["indexes"]] == ["of_note", "people_pkey"]
    assert [one["name"] for one in found["constraints"]] == ["people_pkey", "people_size_check"]
    assert [text for text in ("hush", "4711", "secret", "grade", "salary") if text in str(found)] == []
    kept = ColumnType(source.query("select 'grade'::regtype::oid")[0][0], "grade")
    found = described(source, "people", ["pay"], {"secret": kept})
    assert found["columns"][1] == {"name": "secret", "type": "text"}
    assert "hush" not in str(found)
    assert "hush1" in str(described(source, "people")), "without rules all of it is told"
