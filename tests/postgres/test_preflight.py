"""The checks before a capture, each against a server that has what it warns of."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.capture.spool_identity import own
from penstock.config import SourceConfig
from penstock.embedded.postgres import PostgresServer
from penstock.model import Lsn, Reached, TableName, filesystem
from penstock.model.errors import NotReady
from penstock.postgres import preflight, publication, slot, timeline
from penstock.postgres.connection import connect, replication_conninfo
from penstock.postgres.preflight import Check
from tests.bed import Database
from tests.capture.running import eventually, spec_for

Role = Callable[[str], str]


@pytest.fixture
def shop(database: Database) -> Database:
    database.execute("create table users (id int primary key)", "insert into users values (1)")
    return database


@pytest.fixture
def role(database: Database) -> Iterator[Role]:
    """Makes a role with these attributes; returns a DSN that uses it."""
    name = f"role_of_{database.name}"

    def make(attributes: str) -> str:
        database.execute(f"create role {name} login {attributes}")
        return make_conninfo(database.dsn, user=name)

    yield make
    database.execute(f"drop owned by {name}", f"drop role {name}")


def checks(dsn: str, tmp_path: Path, **more: Any) -> dict[str, Check]:
    captured = more.pop("captured", None)
    source = SourceConfig.model_validate(
        {"name": "eu", "dsn": dsn, **more}
        | {"replication": {"slot_name": slot_name(dsn), **more.get("replication", {})}}
    )
    return {check.name: check for check in preflight.run(source, tmp_path / "spool", captured)}


def slot_name(dsn: str) -> str:
    return f"s_{conninfo_to_dict(dsn)['dbname']}"


def outcomes(found: dict[str, Check]) -> dict[str, str]:
    return {name: check.outcome.value for name, check in found.items()}


def test_a_good_source_passes_every_check(shop: Database, tmp_path: Path) -> None:
    found = checks(shop.dsn, tmp_path)
    assert outcomes(found) == dict.fromkeys(found, "ok") | {"max_slot_wal_keep_size": "warning"}
    assert "unlimited" in found["max_slot_wal_keep_size"].detail
    assert "public.users" in found["tables"].detail


CATALOG = """
    select json_build_object(
        'slots', (select json_agg(s.slot_name) from pg_replication_slots s),
        'publications', (select json_agg(p) from pg_publication p),
        'relations', (select json_agg(c.relname order by c.oid) from pg_class c),
        'comments', (select count(*) from pg_description),
        'roles', (select count(*) from pg_roles),
        'triggers', (select count(*) from pg_event_trigger),
        'settings', (select count(*) from pg_db_role_setting)
    )::text
"""


def test_it_changes_nothing(shop: Database, tmp_path: Path) -> None:
    before = shop.query(CATALOG)
    writes = "select xact_commit >= 0, tup_inserted, tup_updated from pg_stat_database where datname = %s"
    counted = shop.query(writes, shop.name)
    checks(shop.dsn, tmp_path)
    assert shop.query(CATALOG) == before
    assert shop.query(writes, shop.name) == counted
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("shop")
def test_a_role_without_rights_fails_by_what_it_lacks(role: Role, tmp_path: Path) -> None:
    found = checks(role("password 'hush'"), tmp_path, ddl_capture=True)
    assert outcomes(found) | {
        "role": "failure",
        "replication connection": "failure",
        "privileges": "failure",
        "publication": "failure",
        "ddl_capture": "failure",
    } == outcomes(found)
    assert "replication" in found["role"].remedy
    assert "public.users" in found["privileges"].detail
    assert "grant create on database" in found["publication"].remedy


def test_partitions_are_read_one_by_one(shop: Database, role: Role, tmp_path: Path) -> None:
    dsn = role("replication")
    name = f"role_of_{shop.name}"
    shop.execute(
        "create table parted (id int primary key) partition by range (id)",
        "create table parted_1 partition of parted for values from (0) to (10)",
        f"grant select on users, parted to {name}",
    )
    assert checks(dsn, tmp_path)["privileges"].detail == "the role may not read public.parted_1"
    shop.execute(f"grant select on parted_1 to {name}")
    assert outcomes(checks(dsn, tmp_path))["privileges"] == "ok"


def test_a_role_that_owns_nothing_cannot_make_the_publication(
    shop: Database, role: Role, tmp_path: Path
) -> None:
    dsn = role("replication")
    name = f"role_of_{shop.name}"
    shop.execute(f'grant create on database "{shop.name}" to {name}', f"grant select on users to {name}")
    found = checks(dsn, tmp_path)
    assert found["role"].detail.endswith("has REPLICATION")
    assert outcomes(found)["privileges"] == "ok"
    assert outcomes(found)["ddl_capture"] == "ok"
    assert "does not own public.users" in found["publication"].detail
    shop.execute(f"alter table users owner to {name}")
    assert outcomes(checks(dsn, tmp_path))["publication"] == "ok"


def test_row_level_security_that_hides_rows_fails(shop: Database, role: Role, tmp_path: Path) -> None:
    dsn = role("replication")
    shop.execute(
        f"grant select on users to role_of_{shop.name}", "alter table users enable row level security"
    )
    assert outcomes(checks(shop.dsn, tmp_path))["row level security"] == "ok"
    found = checks(dsn, tmp_path)["row level security"]
    assert found.outcome == "failure"
    assert "public.users" in found.detail
    shop.execute(f"alter role role_of_{shop.name} bypassrls")
    assert outcomes(checks(dsn, tmp_path))["row level security"] == "ok"


def test_tables_without_a_key_fail_by_name(shop: Database, tmp_path: Path) -> None:
    shop.execute('create table "Key less" (x int)', "create table whole (x int)")
    shop.execute("alter table whole replica identity full")
    found = checks(shop.dsn, tmp_path)["replica identity"]
    assert (found.outcome, found.detail) == (
        "failure",
        "left out: public.Key less: it has no primary key and no replica identity",
    )
    shop.execute("create table deferred (id int primary key deferrable)")
    found = checks(shop.dsn, tmp_path)["replica identity"]
    assert "public.deferred: its primary key is deferrable" in found.detail
    assert "Make the key not deferrable" in found.remedy
    shop.execute("drop table deferred")
    lenient = {"tables": {"require_primary_key": False}}
    assert outcomes(checks(shop.dsn, tmp_path, **lenient))["replica identity"] == "warning"
    with shop.connect() as writer:
        writer.execute('insert into "Key less" values (1)')
        writer.execute('update "Key less" set x = 2')
    # Before 15 a server counts what was done a moment after it is done.
    eventually(lambda: shop.query("select 1 from pg_stat_user_tables where n_tup_upd > 0"))
    found = checks(shop.dsn, tmp_path, **lenient)["replica identity"]
    assert found.outcome == "failure"
    assert "public.Key less had updates or deletes, which the server will refuse" in found.detail


def test_tables_that_are_not_in_the_wal_are_named(shop: Database, tmp_path: Path) -> None:
    shop.execute(
        "create unlogged table fleeting (id int primary key)",
        "create extension file_fdw",
        "create server files foreign data wrapper file_fdw",
        "create foreign table far (line text) server files options (filename '/dev/null')",
    )
    found = checks(shop.dsn, tmp_path)["not captured"]
    assert found.outcome == "warning"
    assert found.detail.startswith("unlogged: public.fleeting; foreign: public.far")


def test_generated_columns_that_are_not_published_are_named(shop: Database, tmp_path: Path) -> None:
    shop.execute("alter table users add double int generated always as (id * 2) stored")
    found = checks(shop.dsn, tmp_path)
    if shop.query("show server_version_num")[0][0] >= "180000":
        assert "generated columns" not in found
        shop.execute(f"create publication {slot_name(shop.dsn)} for table users")
        found = checks(shop.dsn, tmp_path)
    assert found["generated columns"].outcome == "warning"
    assert "public.users.double" in found["generated columns"].detail


def test_partitions_under_their_own_names_are_a_warning(shop: Database, tmp_path: Path) -> None:
    shop.execute(
        "create table parted (id int primary key) partition by range (id)",
        "create table part partition of parted for values from (0) to (9)",
    )
    assert outcomes(checks(shop.dsn, tmp_path))["partitions"] == "ok"
    shop.execute(f"create publication {slot_name(shop.dsn)} for table users, parted")
    found = checks(shop.dsn, tmp_path)
    assert found["partitions"].outcome == "warning"
    assert found["publication"].outcome == "ok"


def test_no_table_matched_fails_with_the_patterns(shop: Database, tmp_path: Path) -> None:
    found = checks(shop.dsn, tmp_path, tables={"include": ["Public.*"], "exclude": ["public.x"]})["tables"]
    assert (found.outcome, found.detail) == ("failure", "no table matches Public.* without public.x")


def test_the_publication_as_it_is_found(shop: Database, tmp_path: Path) -> None:
    name = slot_name(shop.dsn)
    shop.execute("create table orders (id int primary key)")
    as_it_is = {"replication": {"create_publication": False}}
    assert outcomes(checks(shop.dsn, tmp_path, **as_it_is))["publication"] == "failure"
    shop.execute(f"create publication {name} for table users")
    for more in ({}, as_it_is):
        found = checks(shop.dsn, tmp_path, **more)["publication"]
        assert found.outcome == "warning"
        assert "lacks public.orders" in found.detail
    only = {"tables": {"include": ["users"]}}
    shop.execute(f"alter publication {name} set (publish = 'insert')")
    found = checks(shop.dsn, tmp_path, **only)["publication"]
    assert found.outcome == "failure"
    assert "does not publish delete, truncate, update: no table can be followed" in found.detail
    shop.execute(f"alter publication {name} set (publish = 'insert, update, delete, truncate')")
    none = {"tables": {"include": ["orders"]}}
    assert checks(shop.dsn, tmp_path, **none)["publication"].outcome == "failure"
    shop.execute(f"drop publication {name}", f"create publication {name} for all tables")
    assert "also publishes public.orders" in checks(shop.dsn, tmp_path, **only)["publication"].detail


def test_our_own_publication_will_be_adjusted(shop: Database, tmp_path: Path) -> None:
    with connect(shop.dsn) as connection:
        publication.ensure(connection, slot_name(shop.dsn), [], create=True)
    found = checks(shop.dsn, tmp_path)["publication"]
    assert found.outcome == "ok"
    assert found.detail.endswith("will be adjusted: public.users added")
    with connect(shop.dsn) as connection:
        publication.ensure(connection, slot_name(shop.dsn), [TableName("public", "users")], create=True)
    assert "will be adjusted" not in checks(shop.dsn, tmp_path)["publication"].detail
    shop.execute(f"alter publication {slot_name(shop.dsn)} set (publish = 'insert')")
    found = checks(shop.dsn, tmp_path)["publication"]
    assert found.outcome == "ok"
    assert found.detail.endswith("will be adjusted: its options set back")


def test_the_slot_as_it_is_found(shop: Database, tmp_path: Path) -> None:
    with connect(shop.dsn) as connection:
        slot.create(connection, slot_name(shop.dsn))
    assert "behind" in checks(shop.dsn, tmp_path)["slot"].detail
    if shop.query("show server_version_num")[0][0] >= "170000":
        found = checks(shop.dsn, tmp_path, replication={"failover": True})["slot"]
        assert found.outcome == "warning"
        assert "failover = false" in found.detail


def test_an_invalidated_slot_fails(own_database: Database, tmp_path: Path) -> None:
    own_database.execute(
        "create table users (id int primary key)",
        "alter system set max_slot_wal_keep_size = '1MB'",
        "alter system set wal_sender_timeout = '2s'",
        "select pg_reload_conf()",
    )
    with connect(own_database.dsn) as connection:
        slot.create(connection, slot_name(own_database.dsn))
        for _ in range(4):
            connection.execute("select pg_logical_emit_message(false, 'x', 'x')")
            connection.execute("select pg_switch_wal()")
        connection.execute("checkpoint")
    found = checks(own_database.dsn, tmp_path)
    assert found["slot"].outcome == "failure"
    assert "removed WAL that the slot still needed" in found["slot"].detail
    assert found["max_slot_wal_keep_size"].outcome == "warning"
    assert found["wal_sender_timeout"].outcome == "warning"


def test_a_server_set_up_for_something_else(own_database: Database, tmp_path: Path) -> None:
    server = own_database.server
    server.stop()
    server.settings |= {"wal_level": "replica", "max_replication_slots": "0", "max_wal_senders": "0"}
    server.settings |= {"wal_sender_timeout": "0", "max_slot_wal_keep_size": "8GB"}
    server.start()
    found = checks(own_database.dsn, tmp_path)
    assert outcomes(found) | {
        "wal_level": "failure",
        "free slots": "failure",
        "free senders": "failure",
        "replication connection": "failure",
        "wal_sender_timeout": "warning",
        "max_slot_wal_keep_size": "ok",
    } == outcomes(found)


def test_a_database_without_an_encoding_is_a_warning(server: PostgresServer, tmp_path: Path) -> None:
    server.execute("create database ascii encoding 'SQL_ASCII' locale 'C' template template0")
    try:
        assert outcomes(checks(server.dsn("ascii"), tmp_path))["encoding"] == "warning"
    finally:
        server.execute("drop database ascii with (force)")


def test_a_standby_says_what_it_means(own_server: PostgresServer, tmp_path: Path) -> None:
    own_server.execute("create table users (id int primary key)")
    own_server.stop()
    (own_server.data / "standby.signal").touch()
    own_server.settings["hot_standby"] = "on"
    own_server.start()
    found = checks(own_server.dsn(), tmp_path)["standby"]
    assert found.outcome == "failure"


def test_a_spool_that_cannot_be_written_fails(shop: Database, tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("a file in the way")
    found = checks(shop.dsn, tmp_path)["spool"]
    assert (found.outcome, found.detail) == ("failure", f"{tmp_path}/spool cannot be written to")


def test_without_a_connection_there_is_one_failure(own_server: PostgresServer, tmp_path: Path) -> None:
    own_server.stop()
    found = checks(own_server.dsn(password="hush"), tmp_path)
    assert outcomes(found) == {"connection": "failure"}
    assert "hush" not in json.dumps([check.detail + check.remedy for check in found.values()])


def test_failover_needs_17(shop: Database, tmp_path: Path) -> None:
    modern = shop.query("show server_version_num")[0][0] >= "170000"
    found = checks(shop.dsn, tmp_path, replication={"failover": True})["slot"]
    assert found.outcome == ("ok" if modern else "failure")


def test_a_server_that_lacks_what_was_captured_fails(shop: Database, tmp_path: Path) -> None:
    with psycopg.connect(replication_conninfo(shop.dsn), autocommit=True) as connection:
        server = timeline.identify(timeline.asking(connection.pgconn))
    ahead = Reached(Lsn(server.end.value + (1 << 40)), server.timeline, server.system_id)
    found = checks(shop.dsn, tmp_path, captured=ahead)["history"]
    assert found.outcome == "failure"
    assert f"and we had read up to {ahead.position}" in found.detail
    assert "on_slot_lost: resync" in found.remedy
    resync = {"on_slot_lost": "resync"}
    assert checks(shop.dsn, tmp_path, captured=ahead, replication=resync)["history"].outcome == "warning"
    there = replace(ahead, position=Lsn(server.end.value - 1))
    assert checks(shop.dsn, tmp_path, captured=there)["history"].outcome == "ok"
    assert "history" not in checks(shop.dsn, tmp_path)


def test_a_failover_slot_that_standbys_need_not_have_is_warned_of(
    own_database: Database, tmp_path: Path
) -> None:
    with own_database.connect() as connection:
        if connection.info.server_version < 170000:
            pytest.skip("failover slots came with PostgreSQL 17")
    wanted = {"replication": {"failover": True}}
    found = checks(own_database.dsn, tmp_path, **wanted)["failover"]
    assert found.outcome == "warning"
    assert "synchronized_standby_slots is empty" in found.detail
    own_database.execute("select pg_create_physical_replication_slot('standby')")
    own_database.execute("alter system set synchronized_standby_slots = 'standby'", "select pg_reload_conf()")
    eventually(lambda: own_database.query("show synchronized_standby_slots") == [("standby",)])
    assert checks(own_database.dsn, tmp_path, **wanted)["failover"].outcome == "ok"
    assert "failover" not in checks(own_database.dsn, tmp_path)


def test_a_two_phase_slot_fails(shop: Database, tmp_path: Path) -> None:
    shop.query("select pg_create_logical_replication_slot(%s, 'pgoutput', false, true)", slot_name(shop.dsn))
    found = checks(shop.dsn, tmp_path)["slot"]
    assert (found.outcome, "two_phase" in found.detail) == ("failure", True)


def test_a_spool_on_a_network_file_system_fails(
    shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        f"1 0 0:1 / / rw - ext4 /dev/sda rw\n2 1 0:2 / {tmp_path} rw shared:1 - nfs4 host:/x rw\n"
    )
    monkeypatch.setattr(filesystem, "MOUNTS", mounts)
    found = checks(shop.dsn, tmp_path)["spool"]
    assert found.outcome == "failure"
    assert "network file system (nfs4)" in found.detail
    with pytest.raises(NotReady, match="network file system"):
        own(spec_for(shop, tmp_path / "spool"))
