"""A closed database with an application's tables, and what `penstock grant` gives to roles of our own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from penstock.embedded.postgres import PostgresServer, bundled_bin
from penstock.model import TableName
from tests.bed import Database, fresh_database

PENSTOCK = [sys.executable, "-c", "from penstock.cli import main; main()"]

OWNER, CDC, WRITER, KEEPER = "test app", "test cdc", "test writer", "test keeper"
ROLES = OWNER, CDC, WRITER, KEEPER

TABLES = [
    TableName("App", "Users"),
    TableName("App", "orders"),
    TableName("App", "notes"),
    TableName("public", "plain"),
]
SHOP = """
create schema "App" authorization "test app";
grant usage on schema public to "test app";
set role "test app";
create table "App"."Users" ("Id" bigint generated always as identity primary key, "Name" text);
create table "App".orders (id serial, day date, total numeric(10, 2), primary key (id, day))
    partition by range (day);
create table "App".orders_2025 partition of "App".orders
    for values from ('2025-01-01') to ('2026-01-01');
create table "App".orders_2026 partition of "App".orders
    for values from ('2026-01-01') to ('2027-01-01') partition by list (id);
create table "App".orders_2026_rest partition of "App".orders_2026 default;
create table "App".notes (id int primary key, who text default current_user, body text);
create table "App".hidden (id int primary key);
alter table "App".notes enable row level security;
create policy own on "App".notes using (who = current_user);
insert into "App"."Users" ("Name") select 'user ' || i from generate_series(1, 100) i;
insert into "App".orders (day, total)
    select '2025-06-01'::date + i * 10, i from generate_series(1, 50) i;
insert into "App".notes (id, body) select i, 'note' from generate_series(1, 20) i;
reset role;
create table public.plain (id int primary key, body text);
alter table public.plain owner to "test app";
insert into public.plain values (1, 'a');
"""
CHANGES = """
set role "test app";
insert into "App"."Users" ("Name") select 'new' from generate_series(1, 3000);
update "App"."Users" set "Name" = 'changed' where "Id" < 3000;
delete from "App"."Users" where "Id" = 20;
update "App".orders set total = total + 1;
insert into "App".orders (day, total) values ('2025-02-02', 7), ('2026-12-31', 8);
update "App".notes set body = 'changed' where id < 5;
truncate public.plain;
insert into public.plain values (2, 'b');
"""


@contextmanager
def closed_database(server: PostgresServer, *setup: str) -> Iterator[Database]:
    """A database in which nobody may do anything that was not granted."""
    with contextmanager(fresh_database)(server) as database:
        database.execute(
            f'revoke all on database "{database.name}" from public',
            "revoke all on schema public from public",
            *setup,
        )
        yield database


@contextmanager
def roles_gone(server: PostgresServer, *roles: str) -> Iterator[None]:
    """Roles are the whole server's: there are none of these before and after."""
    for role in roles:
        server.execute(f'drop role if exists "{role}"')
    yield
    for role in roles:
        found = f"select 1 from pg_roles where rolname = '{role}'"
        server.execute(
            f"do $$ begin if exists ({found}) then execute 'drop owned by \"{role}\"'; end if; end $$"
        )
        server.execute(f'drop role if exists "{role}"')


@dataclass(frozen=True, slots=True)
class Pipes:
    """A source, a destination, and a configuration in which restricted roles go from one to the other."""

    source: Database
    destination: Database
    state: Database
    folder: Path

    def configuration(self, superuser: bool = False, **source: Any) -> Path:
        def dsn(database: Database, role: str) -> str:
            return database.server.dsn(database.name, user="postgres" if superuser else role)

        keeper, server = KEEPER.replace(" ", "%20"), self.state.server
        state = f"postgresql://{keeper}@127.0.0.1:{server.port}/{self.state.name}"
        tables = {"include": ["App.*", "plain"], "exclude": ["*.hidden"]}
        replication = {"create_publication": False}
        given = {"name": "shop", "dsn": dsn(self.source, CDC), "tables": tables, "replication": replication}
        document = {
            "pipeline": "test",
            "sources": [given | {"ddl_capture": "off"} | source],
            "destinations": [
                {
                    "name": "copy",
                    "type": "postgres",
                    "dsn": dsn(self.destination, WRITER),
                    "tables": {"public.plain": {"target": '"In There"."Plain"'}},
                },
                {"name": "files", "type": "files", "base_path": str(self.folder / "files")},
            ],
            "batch_control": {"interval": "50ms"},
            "spool": {"path": str(self.folder / "spool")},
            "state": {"url": server.url(self.state.name) if superuser else state},
            "spark": {"master": "local[2]"},
            "retry": {"initial": "100ms", "max": "1s", "attempts": 2},
        }
        file = self.folder / "pipeline.yaml"
        file.write_text(yaml.safe_dump(document))
        return file


def penstock(*arguments: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*PENSTOCK, *map(str, arguments)], capture_output=True, check=False, timeout=120)
    # Decoded here: as text, its line ends would be made one, those in names, too.
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def granted(*arguments: object) -> str:
    done = penstock("grant", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def run_by_dba(database: Database, script: str) -> None:
    """As a DBA does it."""
    done = subprocess.run(
        [str(bundled_bin() / "psql"), "-X", "-v", "ON_ERROR_STOP=1", "-d", database.dsn],
        input=script.encode(),
        capture_output=True,
        check=False,
        env=os.environ | {"PGCLIENTENCODING": "UTF8"},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr.decode() + script
    assert b"ERROR" not in done.stderr, done.stderr
