"""The tables of a server that nothing is configured for yet."""

from __future__ import annotations

from penstock.postgres.connection import connect
from penstock.postgres.survey import survey
from tests.bed import Database


def test_every_table_says_whether_it_can_be_followed(database: Database) -> None:
    database.execute(
        "create extension if not exists file_fdw; create server files foreign data wrapper file_fdw",
        "create foreign table f (t text) server files options (filename '/dev/null')",
        "create table a (id int primary key)",
        "insert into a select generate_series(1, 1000)",
        "create table b (id int)",
        "create unlogged table c (id int primary key)",
        "create table d (id int primary key) partition by range (id)",
        "create table d_1 partition of d for values from (0) to (9)",
        "create table h (id int) partition by range (id)",
        "create foreign table h_1 partition of h for values from (0) to (9)"
        " server files options (filename '/dev/null')",
        "create table e (id int); alter table e replica identity full",
        "create temporary table g (id int primary key)",
        "create schema cdc_registry; create table cdc_registry.file_log (id int primary key)",
    )
    with connect(database.dsn) as connection:
        found = {table.name.name: table for table in survey(connection)}
    assert list(found) == ["a", "b", "c", "d", "e", "f", "h"]
    assert [name for name, table in found.items() if table.obstacle is None] == ["a", "d", "e"]
    assert found["a"].bytes > found["b"].bytes == 0
    assert "no primary key" in (found["b"].obstacle or "")
    assert "unlogged" in (found["c"].obstacle or "")
    assert "foreign" in (found["f"].obstacle or "")
    assert "partition public.h_1: it is a foreign table" in (found["h"].obstacle or "")
    assert all(table.remedy for table in found.values() if table.obstacle)


def test_rows_that_a_policy_hides_are_an_obstacle(database: Database) -> None:
    database.execute(
        "create table a (id int primary key)",
        "alter table a enable row level security",
        "drop role if exists surveyor",
        "create role surveyor login",
        "grant select on a to surveyor",
    )
    try:
        with connect(database.server.dsn(database.name, user="surveyor")) as connection:
            (table,) = survey(connection)
    finally:
        database.execute("drop owned by surveyor", "drop role surveyor")
    assert "row level security" in (table.obstacle or "")
