"""`penstock grant` with names that want to be SQL: a superuser runs what it prints."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from psycopg import sql

from penstock.config import TablesConfig
from penstock.config.tables import expressions, matches
from penstock.embedded.postgres import PostgresServer
from penstock.model import TableName
from tests.bed import Database
from tests.security.granting import granted, penstock, run_by_dba

pytestmark = pytest.mark.every_server

HOSTILE = [
    'quote"d',
    "apo'strophe",
    "$$;drop table precious;--",
    "$function$; drop table precious; $function$",
    "back\\slash",
    "\\gexec",
    "\\! touch /tmp/precious",
    "line\nbreak",
    "line\r\n\\q\ndrop table precious;",
    "-- comment\ndrop table precious;",
    "/* open",
    ":variable :'quoted' :\"identified\"",
    "%I %s %L %",
    "{0} {role} {}",
    "select",
    "Ünïcödé 表 \u2028 \U0001f600",
    "ü" * 31 + "x",
    "x" * 63,
    "*",
    "[a-z]?",
    " ",
]


@pytest.fixture
def attacked(database: Database) -> Iterator[Database]:
    """A schema, a role and many tables of the worst names, and a table that shall stay."""
    with database.connect() as connection:
        connection.execute("create table public.precious (id int primary key)")
        for name in HOSTILE:
            connection.execute(sql.SQL("create schema {}").format(sql.Identifier(name)))
            connection.execute(
                sql.SQL("create table {} (id int primary key)").format(sql.Identifier(name, name))
            )
    yield database
    with database.connect() as connection:
        for role in HOSTILE:
            for statement in ("drop owned by {}", "drop role {}"):
                if connection.execute("select 1 from pg_roles where rolname = %s", (role,)).fetchone():
                    connection.execute(sql.SQL(statement).format(sql.Identifier(role)))


def configuration(folder: Path, database: Database, role: str, **keys: Any) -> Path:
    source = {
        "name": "shop",
        "connection": {
            "host": "127.0.0.1",
            "port": database.server.port,
            "database": database.name,
            "username": role,
            "password": database.server.password,  # of `postgres`; others need none here
        },
        "ddl_capture": "off",
        **keys,
    }
    file = folder / "shop.yaml"
    file.write_text(yaml.safe_dump({"pipeline": "p", "sources": [source]}))
    return file


def readable(database: Database, role: str) -> set[str]:
    rows = database.query(
        "select relname from pg_class c join pg_namespace n on n.oid = relnamespace"
        " where relkind = 'r' and nspname !~ '^(pg_|information)'"
        " and has_table_privilege(%s, c.oid, 'select') and has_schema_privilege(%s, n.oid, 'usage')",
        role,
        role,
    )
    return {name for (name,) in rows}


@pytest.mark.parametrize("asked", [False, True], ids=["when it runs", "now"])
def test_names_are_names_in_statements_and_in_comments(
    attacked: Database, tmp_path: Path, asked: bool
) -> None:
    replication = {"create_publication": False, "publication_name": HOSTILE[2]}
    chosen = {"exclude": ["precious"]}
    for role in HOSTILE[2::3]:
        # Another user's connection is the one way to be asked now about a role that is not there yet.
        file = configuration(
            tmp_path, attacked, "postgres" if asked else role, replication=replication, tables=chosen
        )
        script = granted(file, "--role", role)
        assert ("\n\\gexec\n" in script) is not asked
        run_by_dba(attacked, script)
        assert readable(attacked, role) == set(HOSTILE)
        assert attacked.query("select 1 from pg_roles where rolname = %s and rolreplication", role) == [(1,)]
    published = {name for (name,) in attacked.query("select tablename from pg_publication_tables")}
    assert published == set(HOSTILE)
    assert attacked.query("select count(*) from public.precious") == [(0,)]
    assert attacked.query("select count(*) from pg_publication") == [(1,)]


def test_what_the_server_says_does_not_leave_its_comment(database: Database, tmp_path: Path) -> None:
    """The reason why it cannot be asked quotes the role's name."""
    file = configuration(tmp_path, database, "nobody\ndrop table precious;")
    script = granted(file, "--role", "cdc")
    assert "drop table precious;" in script
    assert not any(line.startswith("drop table") for line in script.splitlines())


def test_a_wrong_choice_of_parts_is_told(database: Database, tmp_path: Path) -> None:
    file = configuration(tmp_path, database, "cdc")
    assert penstock("grant", file, "--only", "elsewhere").stderr == (
        "error: there are no rights to grant at elsewhere. Choose --only from: shop, state\n"
    )
    assert penstock("grant", file, "--triggers").returncode == 2
    for provider, way in (("rds", "grant rds_replication to"), ("azure", "alter role %I with%s")):
        assert way in granted(file, "--provider", provider)


def test_globs_choose_the_same_tables_at_the_server(server: PostgresServer) -> None:
    """The regular expressions that a DBA's session chooses by, against the globs themselves."""
    letters = "ab-]![^*?.\\x$é\n"
    random.seed(7)
    with psycopg.connect(server.dsn()) as connection:
        for _ in range(3000):
            glob = "".join(random.choices(letters, k=random.randint(1, 7)))
            names = ["".join(random.choices(letters, k=random.randint(1, 4))) for _ in range(20)]
            for pattern in (f"s.{glob}", 's."{}"'.format(glob.replace('"', '""'))):
                if pattern.startswith('s."') or "." not in glob:
                    said = expressions(pattern)[1]
                    rows = connection.execute(
                        "select name, name::name ~ %s from unnest(%s::text[]) name", (said, names)
                    ).fetchall()
                    for name, matched in rows:
                        assert matched is matches(pattern, TableName("s", name)), (pattern, said, name)


def test_what_is_never_captured_is_not_chosen(database: Database, tmp_path: Path) -> None:
    database.execute(
        "create schema penstock",
        "create table penstock.streams (id int primary key)",
        "create schema pg_like_but_not".replace("pg_", "xpg_"),
        "create table xpg_like_but_not.t (id int primary key)",
        "create table public.ddl_history (id int primary key)",
    )
    file = configuration(tmp_path, database, "nobody there")
    script = granted(file, "--role", "test nobody", "--publication", "dba")
    run_by_dba(database, script)
    try:
        published = database.query("select schemaname from pg_publication_tables")
        assert published == [("xpg_like_but_not",)]
        assert not TablesConfig().matches(TableName("penstock", "streams"))
    finally:
        database.execute('drop owned by "test nobody"', 'drop role "test nobody"')


@pytest.mark.parametrize("asked", [False, True], ids=["when it runs", "now"])
def test_a_table_whose_updates_would_fail_is_not_published(
    database: Database, tmp_path: Path, asked: bool
) -> None:
    database.execute(
        "create table kept (id int primary key)",
        "create table deferred (id int primary key deferrable, x int); insert into deferred values (1, 1)",
        "create table bare (x int)",
        "create table parted (id int primary key deferrable) partition by range (id)",
        "create table part partition of parted for values from (0) to (9)",
        "drop role if exists grant_cdc",
    )
    replication = {"create_publication": False, "publication_name": "p"}
    file = configuration(tmp_path, database, "postgres" if asked else "grant_cdc", replication=replication)
    script = granted(file, "--role", "grant_cdc")
    if asked:
        assert "public.deferred is left out: it has no replica identity" in script
    run_by_dba(database, script)
    assert database.query("select tablename from pg_publication_tables") == [("kept",)]
    database.execute("update deferred set x = 2")
    run_by_dba(database, granted(file, "--role", "grant_cdc"))
    assert database.query("select tablename from pg_publication_tables") == [("kept",)]
    database.execute("drop owned by grant_cdc", "drop role grant_cdc")


def test_what_is_published_by_the_script_tells_all_of_which_row_is_meant(
    database: Database, tmp_path: Path
) -> None:
    """And is not refused by the server, also where a publication without generated columns is there."""
    modern = database.query("show server_version_num")[0][0] >= "180000"
    stored = "g int generated always as (id) stored"
    database.execute(
        "create table plain (id int primary key)",
        f"create table kept (id int primary key, x int, {stored})",
        f"create table whole (id int, x int, {stored}); alter table whole replica identity full",
        f"create table composed (id int, x int, {stored}, primary key (id, g))",
        "create extension file_fdw; create server files foreign data wrapper file_fdw",
        "create table parted (id int) partition by range (id)",
        "create foreign table far partition of parted for values from (0) to (9)"
        " server files options (filename '/dev/null')",
        "drop role if exists grant_cdc",
    )
    if modern:
        database.execute(
            "create table v (id int, x int, v int generated always as (id))",
            "alter table v replica identity full",
        )
    replication = {"create_publication": False, "publication_name": "p"}
    file = configuration(tmp_path, database, "grant_cdc", replication=replication)

    def published() -> set[str]:
        run_by_dba(database, granted(file, "--role", "grant_cdc"))
        names = {name for (name,) in database.query("select tablename::text from pg_publication_tables")}
        for name in names - {"plain"}:
            database.execute(f"insert into {name} (id) values (1); update {name} set x = 2; truncate {name}")
        return names

    try:
        always = {"plain", "kept"}
        assert published() == always | ({"composed", "whole"} if modern else {"whole"})
        database.execute("drop publication p", "create publication p for table plain")
        assert published() == (always if modern else always | {"whole"})
        database.execute("alter publication p set (publish = 'insert')")
        script = granted(configuration(tmp_path, database, "postgres", replication=replication))
        assert "p does not publish everything" in script
    finally:
        database.execute("drop owned by grant_cdc", "drop role grant_cdc")
