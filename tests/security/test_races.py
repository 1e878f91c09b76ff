"""What is made beside us, at the very moment at which we make ours, is not taken for ours."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from penstock.destinations import sql_ledger
from penstock.destinations.files.registry import Registry
from penstock.destinations.ledger import StreamId
from penstock.destinations.sql_ledger import SqlLedger
from penstock.model import Column, ColumnType
from penstock.model.errors import NotReady, PenstockError, TableBusy
from penstock.postgres import ddl
from penstock.postgres.connection import connect
from penstock.postgres.snapshot import Snapshot, copy_out
from penstock.spark.snapshot.fetch import fetch_text
from penstock.state.database import Database as StateDatabase
from tests.bed import Database
from tests.security.attacker import Attacker

pytestmark = pytest.mark.every_server


def _ledger(source: Database) -> None:
    with connect(source.dsn, autocommit=False) as connection:
        sql_ledger.create(connection)
        SqlLedger(connection, StreamId("p", "d", "s")).lock()


def _registry(source: Database) -> None:
    with connect(source.dsn, autocommit=False) as connection:
        Registry("cdc_registry", "test", "files").create(connection)


def _state(source: Database) -> None:
    StateDatabase.open(source.server.url(source.name)).close()


def _triggers(source: Database) -> None:
    with connect(source.dsn) as connection:
        ddl.install(connection, "CDC_RELOAD:")


MAKERS: dict[str, tuple[Callable[[Database], None], str, str]] = {
    "ledger": (
        _ledger,
        "penstock",
        "streams (pipeline text, destination text, source text, position pg_lsn)",
    ),
    "registry": (_registry, "cdc_registry", "table_state (pipeline text, destination text)"),
    "state": (_state, "penstock", "state_format (format int)"),
    "triggers": (_triggers, "penstock", "comments (table_id oid primary key, comment text)"),
}


@pytest.mark.parametrize("what", MAKERS)
def test_a_schema_made_while_we_make_ours_is_refused(source: Database, attacker: Attacker, what: str) -> None:
    """His is not committed yet when we look; ours waits for it; then it is there, with a trigger on it."""
    work, schema, table = MAKERS[what]
    raised: list[PenstockError] = []

    def make() -> None:
        try:
            work(source)
        except PenstockError as error:
            raised.append(error)

    source.execute("create table t (id int)", "comment on table t is 'to be kept'")
    with attacker.connect(source) as connection:
        connection.execute("begin")
        connection.execute(f"create schema {schema}".encode())
        thread = threading.Thread(target=make)
        thread.start()
        _until_somebody_waits(source)
        name = f"{schema}.{table.split(' ', 1)[0]}"
        for statement in (
            f"create table {schema}.{table}",
            f"create trigger t before insert on {name} for each row execute function mine.trap()",
            f"alter table {name} enable always trigger t",
            f"grant all on schema {schema} to public",
            f"grant all on {name} to public",
            "commit",
        ):
            connection.execute(statement.encode())
        thread.join()
    if isinstance(raised[-1], TableBusy):  # it is tried again by itself
        make()
    error = raised[-1]
    assert isinstance(error, NotReady)
    assert f"belongs to {attacker.role}" in str(error)
    assert not attacker.caught()
    assert source.query(f"select count(*) from {name}") == [(0,)]


def test_a_view_that_takes_the_tables_name_during_a_copy_is_not_read(
    source: Database, attacker: Attacker
) -> None:
    """The lock keeps the table, not its schema's name. (What his function does there is anything that a
    superuser may do in a transaction that writes nothing, such as to write a file.)"""
    attacker.execute(
        "create table mine.t (id int primary key)",
        "insert into mine.t values (1)",
        "create schema evil",
        "create function public.evil() returns int language plpgsql as 'begin return 666; end'",
        "create view evil.t as select public.evil() as id",
    )
    ((oid,),) = source.query("select 'mine.t'::regclass::oid")
    column = Column("id", ColumnType(23, "int4"))
    with Snapshot.open(source.dsn, oid) as snapshot:
        (part,) = snapshot.ranges(("id",))
        attacker.execute(
            "begin; alter schema mine rename to hidden; alter schema evil rename to mine; commit"
        )
        with pytest.raises(PenstockError):
            list(copy_out(source.dsn, snapshot.name, part))
        with pytest.raises(PenstockError):
            list(fetch_text(source.dsn, snapshot.name, part, [column]))


def _until_somebody_waits(source: Database) -> Any:
    while not source.query("select from pg_locks where not granted"):
        pass
