"""What a capture knows of the published tables, and of types whose transactions nobody sees yet."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from penstock.model import ColumnType, TypeKind
from penstock.spool.manifest import Manifest
from tests.bed import Database
from tests.capture.running import captured, eventually, running, spec_for


def test_the_published_tables_are_known_before_anything_happens_to_them(
    source: Database, tmp_path: Path
) -> None:
    with running(spec_for(source, tmp_path)) as capture:
        with closing(Manifest.open(tmp_path)) as opened:
            (known,) = opened.schemas().values()
        assert str(known.name) == "public.people"
        assert [(c.name, c.type.name, c.key) for c in known.columns] == [
            ("id", "int4", True),
            ("name", "text", False),
            ("note", "text", False),
        ]
        source.execute("insert into people values (1)")
        capture.until_past(source)
    assert captured(tmp_path)[0].table == known


def test_a_type_whose_transaction_is_not_visible_yet_is_waited_for(
    own_database: Database, tmp_path: Path
) -> None:
    """Under synchronous replication the stream has a transaction before anybody sees what it made."""
    own_database.execute("create publication p for all tables")
    local = Database(own_database.server, own_database.name)
    with running(spec_for(own_database, tmp_path)) as capture:
        own_database.execute(
            "alter system set synchronous_standby_names = 'somebody'", "select pg_reload_conf()"
        )
        eventually(lambda: local.query("show synchronous_standby_names") == [("somebody",)])
        writer = threading.Thread(
            target=own_database.execute,
            args=(
                "create domain euros as numeric(10, 2); create table bill (id int primary key, amount euros);"
                " insert into bill values (1, 9.99)",
            ),
        )
        writer.start()
        waiting = "select 1 from pg_stat_activity where wait_event = 'SyncRep'"
        eventually(lambda: local.query(waiting))
        time.sleep(1)
        assert captured(tmp_path) == []
        own_database.execute("alter system reset synchronous_standby_names", "select pg_reload_conf()")
        writer.join()
        capture.until_past(own_database)
    (change,) = captured(tmp_path)
    assert change.table is not None
    amount = change.table.columns[1].type
    assert (amount.name, amount.kind, amount.base.name) == ("euros", TypeKind.DOMAIN, "numeric")


def test_a_capture_that_waits_for_a_transaction_to_be_visible_stops_when_told(
    own_database: Database, tmp_path: Path
) -> None:
    own_database.execute("create publication p for all tables")
    with running(spec_for(own_database, tmp_path)) as capture:
        own_database.execute(
            "alter system set synchronous_standby_names = 'somebody'", "select pg_reload_conf()"
        )
        time.sleep(0.5)
        writer = own_database.connect()
        writer.pgconn.send_query(
            b"create domain d as int; create table t (id d primary key); insert into t values (1)"
        )
        eventually(lambda: own_database.query("select 1 from pg_stat_activity where wait_event = 'SyncRep'"))
        time.sleep(0.5)
        capture.stop()
        assert capture.error is None
    assert captured(tmp_path) == []
    own_database.execute("alter system reset synchronous_standby_names", "select pg_reload_conf()")
    writer.close()


def test_a_type_that_was_unknown_is_looked_for_again_when_the_table_is_described_anew(
    source: Database, tmp_path: Path
) -> None:
    """As in the spool of an earlier version, which did not wait."""
    source.execute("create domain euros as numeric(10, 2)", "alter table people add amount euros")
    spec = spec_for(source, tmp_path)
    with running(spec) as capture:
        capture.until_past(source)
    with closing(Manifest.open(tmp_path)) as opened:
        (schema,) = opened.schemas().values()
        lost = schema.columns[-1]
        unknown = ColumnType(lost.type.oid, "unknown", lost.type.modifier, TypeKind.UNKNOWN)
        columns = (*schema.columns[:-1], replace(lost, type=unknown))
        opened.record(opened.position, [], [replace(schema, columns=columns)])
    with running(spec) as capture:
        source.execute("insert into people values (1, 'Ada', null, 9.99)")
        capture.until_past(source)
    (change,) = captured(tmp_path)
    assert change.table is not None
    assert (change.table.version, change.table.columns[-1].type.name) == (2, "euros")
