"""Our own sessions: nothing that a user made is found by its bare name, whatever it is called."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.capture.receiver import Receiver
from penstock.config import TablesConfig
from penstock.destinations import sql_ledger
from penstock.destinations.files.registry import Registry
from penstock.model import TableName
from penstock.model.errors import NotReady
from penstock.postgres import catalog, publication, slot
from penstock.postgres.connection import connect, replication_conninfo
from penstock.state.database import Database as StateDatabase
from tests.bed import Database
from tests.security.attacker import Attacker

PATH = "pg_catalog,pg_temp"

# A function that fits better than PostgreSQL's own is taken, where both are found.
TRAPS = """
create function public.to_jsonb(pg_publication) returns jsonb language sql
    as $$ select pg_catalog.jsonb_build_object('x', mine.trap('to_jsonb')) $$;
create function public.to_jsonb(pg_replication_slots) returns jsonb language sql
    as $$ select pg_catalog.jsonb_build_object('x', mine.trap('to_jsonb of slots')) $$;
create function public.format_type(oid, int) returns text language sql
    as $$ select mine.trap('format_type') $$;
create function public.obj_description(oid, text) returns text language sql
    as $$ select mine.trap('obj_description') $$;
create function public.pg_current_wal_lsn(int default 0) returns pg_lsn language sql
    as $$ select mine.trap('wal')::pg_lsn $$;
create table public.pg_publication (pubname text);
create table public.pg_class (relname text);
create function public.equal(name, text) returns boolean language sql
    as $$ select mine.trap('=') is not null $$;
create operator public.= (leftarg = name, rightarg = text, function = public.equal);
"""


def _plain(row: Sequence[str] | None) -> str:
    return row[0].replace(" ", "") if row else ""


@pytest.mark.every_server
def test_no_session_finds_what_a_user_made(source: Database, attacker: Attacker) -> None:
    attacker.execute(TRAPS)
    source.execute(
        f"alter database {source.name} set search_path = public, pg_catalog",
        "create table public.t (id int primary key)",
    )
    with connect(source.dsn) as connection:
        assert _plain(connection.execute("show search_path").fetchone()) == PATH
        publication.ensure(connection, "p", [TableName("public", "t")], create=True)
        assert publication.describe(connection, "p") is not None
        slot.describe(connection, "nothing")
        catalog.matching(connection, TablesConfig())
    with Receiver(replication_conninfo(source.dsn)) as receiver:
        shown = receiver._query(b"show search_path").get_value(0, 0) or b""
        assert _plain([shown.decode()]) == PATH
    store = StateDatabase.open(source.server.url(source.name))
    with store.reading() as state:
        assert _plain(state.exec_driver_sql("show search_path").one()) == PATH
    with store.session() as session:
        assert _plain(session.execute("show search_path").fetchone()) == PATH
    store.close()
    assert not attacker.caught()


@pytest.mark.parametrize(
    "made",
    [
        "create schema penstock",
        "create schema penstock; create view penstock.streams as select mine.trap('view')",
    ],
)
def test_records_are_not_kept_in_somebody_elses_schema(
    source: Database, attacker: Attacker, made: str
) -> None:
    attacker.execute(made, "create schema cdc_registry")
    with connect(source.dsn, autocommit=False) as connection:
        with pytest.raises(NotReady, match=f"belongs to {attacker.role}"):
            sql_ledger.create(connection)
        with pytest.raises(NotReady, match=f"belongs to {attacker.role}"):
            Registry("cdc_registry", "test", "files").create(connection)
    with pytest.raises(NotReady, match=f"belongs to {attacker.role}"):
        StateDatabase.open(source.server.url(source.name))
    assert not attacker.caught()
