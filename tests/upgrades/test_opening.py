"""What earlier versions left opens in this one, and goes on; what a later one left is refused."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

from penstock import __version__
from penstock.consumer import mirror_file
from penstock.consumer.mirror_file import MirrorFile
from penstock.destinations import sql_ledger
from penstock.destinations.files.registry import Registry
from penstock.destinations.ledger import StreamId
from penstock.destinations.sql_ledger import SqlLedger
from penstock.embedded.nats import NatsServer
from penstock.model import Lsn
from penstock.model.errors import (
    LedgerNewer,
    MirrorRefused,
    StateInUse,
    StateOlder,
    StateUnreachable,
    WrongSpool,
    WrongState,
)
from penstock.model.phases import Phase
from penstock.postgres.connection import connect
from penstock.spool import manifest as manifests
from penstock.spool import segment
from penstock.spool.identity import identity_of
from penstock.spool.manifest import Manifest
from penstock.spool.writer import SpoolWriter
from penstock.state import Store
from penstock.state.lease import FileLock
from penstock.state.tables import FORMAT
from tests.bed import Database
from tests.consumer.staging import Stage, items, row, staged
from tests.spool.rows import transaction
from tests.state.conftest import url_of


@pytest.fixture(params=["sqlite", "postgres"])
def old_state(
    request: pytest.FixtureRequest, left_behind: Path, old_destination: Database
) -> tuple[str, str]:
    """The URL of an earlier version's state store, and the name of its pipeline."""
    if request.param == "sqlite":
        return f"sqlite:///{left_behind}/state.db", "test"
    return url_of(old_destination), "other"


# The state store


def test_a_state_store_goes_on(old_state: tuple[str, str]) -> None:
    url, pipeline = old_state
    with Store.open(url, pipeline, exclusive=True) as store:
        tables = store.tables()
        assert {(str(state.name), state.phase) for state in tables} == {
            ("public.item", Phase.READY),
            ("public.line", Phase.READY),
        }
        state = tables[0]
        before = store.progress(state.key.source, state.key.destination)
        assert before is not None
        later = Lsn(before.position.value + 1)
        store.put(replace(state, phase=Phase.ERRORED), "of today")
        store.advance(
            state.key.source, state.key.destination, later, complete_through=datetime.now(UTC), rows=5
        )
    with Store.open(url, pipeline, exclusive=False) as reader:
        found = reader.table(state.key)
        assert found is not None
        assert found.phase is Phase.ERRORED
        progress = reader.progress(state.key.source, state.key.destination)
        assert progress is not None
        assert (progress.position, progress.rows) == (later, before.rows + 5)
        assert reader.history(state.key)[-1].why == "of today"


def test_who_only_looks_changes_nothing_and_is_told(old_state: tuple[str, str]) -> None:
    url, pipeline = old_state
    for _ in range(2):
        with pytest.raises(StateOlder, match="`penstock run` of this version brings it up to date"):
            Store.open(url, pipeline, exclusive=False)


def test_a_store_on_which_the_earlier_version_is_at_work_is_left_alone(left_behind: Path) -> None:
    url = f"sqlite:///{left_behind}/state.db"
    lock = FileLock(left_behind / "state.db.test.lock")
    assert lock.take()
    with pytest.raises(
        StateInUse, match=r"pipeline test is at work on it.* Stop it, then start this version"
    ):
        Store.open(url, "another", exclusive=True)
    lock.release()
    with pytest.raises(StateOlder):
        Store.open(url, "test", exclusive=False)
    Store.open(url, "another", exclusive=True).close()


def test_a_migration_that_fails_leaves_the_store_as_it_was(
    left_behind: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.state import migrations

    url = f"sqlite:///{left_behind}/state.db"
    with monkeypatch.context() as patched:
        patched.setattr(migrations, "STEPS", {1: [*migrations.STEPS[1], "delete from nowhere"]})
        with pytest.raises(StateUnreachable, match="no such table"):
            Store.open(url, "test", exclusive=True)
    with closing(sqlite3.connect(left_behind / "state.db")) as file:
        assert file.execute("select * from state_format").fetchall() == [(1,)]
    Store.open(url, "test", exclusive=True).close()
    with closing(sqlite3.connect(left_behind / "state.db")) as file:
        assert file.execute("select * from state_format").fetchall() == [(FORMAT, __version__)]


def test_a_later_state_store_is_refused_with_who_wrote_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/state.db"
    Store.open(url, "shop", exclusive=True).close()
    with closing(sqlite3.connect(tmp_path / "state.db")) as file, file:
        file.execute("update state_format set format = 99, written_by = '7.0.0'")
        file.execute("alter table state_format add column unheard_of text")
    for exclusive in (True, False):
        with pytest.raises(
            WrongState,
            match=r"format 99, written by Penstock 7\.0\.0.*Use Penstock 7\.0\.0 or newer, or another",
        ):
            Store.open(url, "shop", exclusive=exclusive)


# Spools


def test_a_spool_goes_on(left_behind: Path) -> None:
    spool = left_behind / "spool"
    identity = identity_of(spool)
    assert identity is not None
    with closing(Manifest.open(spool)) as manifest:
        start = manifest.consumers()["spark"]
    with closing(SpoolWriter(spool, identity, Lsn(1))) as writer:
        ended = writer.manifest.position
        commit = ended.value + 100
        writer.append(transaction(commit, 1), ended=1, position=Lsn(commit + 8))
        writer.cut()
    with closing(Manifest.open(spool)) as manifest:
        assert [table.name.name for table in manifest.schemas().values()].count("item") == 1
        rows = [
            values["after"]
            for entry in manifest.entries(start, manifest.position)
            for part in entry.segment.parts
            for batch in segment.read(spool / entry.segment.file, part)
            for values in batch.to_pylist()
        ]
    assert ["100", None] in rows
    assert rows[-1] == [str(commit), "0", "x", None]


def test_a_spool_is_brought_up_to_date_by_its_writer_alone(
    left_behind: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = left_behind / "spool"
    identity = identity_of(spool)
    assert identity is not None
    monkeypatch.setattr(manifests, "FORMAT", 3)
    monkeypatch.setattr(manifests, "STEPS", {2: ["alter table segments add column added text", "nonsense"]})
    with pytest.raises(WrongSpool, match="Start capture with this version"):
        Manifest.open(spool)
    with pytest.raises(sqlite3.OperationalError, match="nonsense"):
        SpoolWriter(spool, identity, Lsn(1))
    monkeypatch.setattr(manifests, "STEPS", {2: ["alter table segments add column added text"]})
    SpoolWriter(spool, identity, Lsn(1)).close()
    with closing(Manifest.open(spool)) as manifest:
        assert manifest.rows("select count(added), count(*) > 0 from segments") == [(0, 1)]


def test_a_later_spool_is_refused_by_readers_and_writers(left_behind: Path) -> None:
    spool = left_behind / "spool"
    identity = identity_of(spool)
    assert identity is not None
    with closing(sqlite3.connect(spool / "manifest.db")) as file, file:
        file.execute("update meta set value = '99' where key = 'format'")
        file.execute("insert or replace into meta values ('written_by', '7.0.0')")
    refused = (
        r"the format 99, written by Penstock 7\.0\.0, and this is Penstock .*Use Penstock 7\.0\.0 or newer"
    )
    with pytest.raises(WrongSpool, match=refused):
        Manifest.open(spool)
    with pytest.raises(WrongSpool, match=refused):
        SpoolWriter(spool, identity, Lsn(1))


# Ledgers and registries


def test_a_ledger_goes_on(old_destination: Database) -> None:
    with connect(old_destination.dsn, autocommit=False) as connection:
        sql_ledger.create(connection)
        ledger = SqlLedger(connection, StreamId("test", "copy", "source"))
        position = ledger.lock()
        assert position is not None
        assert len(ledger.known()) == 2
        ledger.move(Lsn(position.value + 1), None)
    told = old_destination.query("select position::text from penstock.progress where pipeline = 'test'")
    assert told == [(str(Lsn(position.value + 1)),)] * 2


def test_a_registry_goes_on(old_source: Database) -> None:
    registry = Registry("cdc_registry", "test", "files")
    with connect(old_source.dsn, autocommit=False) as connection:
        sql_ledger.create(connection)
        registry.create(connection)
        known = SqlLedger(connection, StreamId("test", "files", "source")).names()
        assert sorted(known.values()) == ["public.item", "public.line"]
        assert connection.execute("select count(*) > 3 from cdc_registry.file_log").fetchone() == (True,)


def test_a_ledger_is_brought_up_to_date_and_a_later_one_refused(
    old_destination: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step has to make the table that has the number: version 0.1 made none."""
    made = """
        create table if not exists penstock.ledger_format (
            only_row boolean primary key default true, format integer not null, written_by text not null)
    """
    with monkeypatch.context() as patched, connect(old_destination.dsn, autocommit=False) as connection:
        patched.setattr(sql_ledger, "FORMAT", 2)
        patched.setattr(
            sql_ledger, "STEPS", {1: [made, "alter table penstock.streams add column added text"]}
        )
        sql_ledger.create(connection)
        sql_ledger.create(connection)
    assert old_destination.query("select format, written_by from penstock.ledger_format") == [
        (2, __version__)
    ]
    with (
        connect(old_destination.dsn, autocommit=False) as connection,
        pytest.raises(
            LedgerNewer, match=rf"the schema penstock has the format 2, written by Penstock {__version__}"
        ),
    ):
        sql_ledger.create(connection)


def test_a_new_ledger_says_who_made_it(database: Database) -> None:
    with connect(database.dsn, autocommit=False) as connection:
        sql_ledger.create(connection)
    assert database.query("select format, written_by from penstock.ledger_format") == [
        (sql_ledger.FORMAT, __version__)
    ]
    with pytest.raises(psycopg.errors.UniqueViolation):
        database.execute("insert into penstock.ledger_format (format, written_by) values (2, '')")


# Mirrors


def test_a_mirror_goes_on(left_behind: Path, nats: NatsServer) -> None:
    """Also where the stream it followed is gone: it then takes a snapshot, and equals its source."""
    path = left_behind / "mirror.db"
    with MirrorFile.open(path) as mirror:
        (table,) = mirror.tables.values()
        assert table.name == "public.items"
        assert mirror.connection.execute("select id, name from items order by id").fetchall() == [
            (1, "x"),
            (2, "x"),
            (3, "change"),
        ]
        before = mirror.sequence
        with mirror.transaction():
            mirror.advance(before + 1)

    async def scenario(stage: Stage) -> None:
        table = items()
        await stage.producer.add(table)
        table.rows = [row(7)]
        await stage.check()

    staged(nats, left_behind, scenario)


def test_a_mirror_is_brought_up_to_date_and_a_later_one_refused(
    left_behind: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = left_behind / "mirror.db"
    with monkeypatch.context() as patched:
        patched.setattr(mirror_file, "_FORMAT", 2)
        patched.setattr(mirror_file, "STEPS", {1: ["create table __penstock_added (x text)", "nonsense"]})
        with pytest.raises(MirrorRefused, match="nonsense"), MirrorFile.open(path):
            pass
        patched.setattr(mirror_file, "STEPS", {1: ["create table __penstock_added (x text)"]})
        for _ in range(2):
            with MirrorFile.open(path) as mirror:
                assert mirror.connection.execute("select * from __penstock_added").fetchall() == []
    with (
        pytest.raises(MirrorRefused, match="the mirror has the format 2, and this is Penstock"),
        MirrorFile.open(path),
    ):
        pass
