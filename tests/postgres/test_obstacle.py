"""Why tables cannot be followed: what is published does not tell everything, or the server refuses it."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from penstock.config import SourceConfig
from penstock.model import TableName
from penstock.model.errors import NotReady
from penstock.postgres import exported_snapshot, preflight
from penstock.postgres.connection import connect
from penstock.postgres.preflight import Check
from penstock.postgres.selection import Selection, left_out, select
from penstock.postgres.snapshot import Snapshot
from tests.bed import Database
from tests.postgres.reading import oid

FOREIGN = (
    "create extension file_fdw; create server files foreign data wrapper file_fdw",
    "create table parted (line text) partition by list (line)",
    "create table near partition of parted for values in ('a'); alter table near replica identity full",
    "create foreign table far partition of parted for values in ('b')"
    " server files options (filename '/dev/null')",
)


def source(database: Database, *, create: bool = True, **tables: object) -> SourceConfig:
    replication = {"publication_name": "p", "create_publication": create}
    given = {"name": "source", "dsn": database.dsn, "replication": replication, "tables": tables}
    return SourceConfig.model_validate(given)


def selected(database: Database, **tables: bool) -> Selection:
    with connect(database.dsn) as connection:
        return select(connection, source(database, **tables))


def checked(database: Database, tmp_path: Path) -> dict[str, Check]:
    return {check.name: check for check in preflight.run(source(database), tmp_path / "spool")}


GENERATED = (
    "create table full_plain (id int, x int)",
    "create table full_stored (id int, x int, g int generated always as (id) stored)",
    "create table key_beside (id int primary key, x int, g int generated always as (id) stored)",
    "create table key_stored (id int, x int, g int generated always as (id) stored, primary key (id, g))",
    "create table index_stored (id int, x int, g int not null generated always as (id) stored unique)",
    "alter table index_stored replica identity using index index_stored_g_key",
    "create table covering (id int, x int, g int generated always as (id) stored,"
    " primary key (id) include (g))",
    "create table parted (id int, x int, g int generated always as (id) stored) partition by range (id)",
    "create table low partition of parted for values from (0) to (9); alter table low replica identity full",
    "alter table full_plain replica identity full; alter table full_stored replica identity full",
)
VIRTUAL = (
    "create table full_virtual (id int, x int, v int generated always as (id * 2))",
    "alter table full_virtual replica identity full",
    "create table key_virtual (id int primary key, x int, v int generated always as (id * 2))",
    "create table root (id int primary key, x int, v int generated always as (id * 2))"
    " partition by range (id)",
    "create table leaf partition of root for values from (0) to (9); alter table root replica identity full",
)


@pytest.mark.parametrize("option", ["none", "stored"])
def test_generated_columns_count_as_the_server_says(database: Database, option: str) -> None:
    """From 18 on it refuses updates whose identity has columns that are not published. Before, it has such
    updates tell a part of the key."""
    modern = database.query("show server_version_num")[0][0] >= "180000"
    publication = "create publication p for all tables with (publish_via_partition_root = true{})"
    if not modern and option == "stored":
        pytest.skip("it is an option from 18 on")
    database.execute(*GENERATED, *(VIRTUAL if modern else ()))
    before = selected(database)
    database.execute(publication.format(f", publish_generated_columns = {option}" if modern else ""))
    found = selected(database)
    refused = set()
    for name in (name.name for name in (*found.fit, *found.unfit)):
        database.execute(f"insert into {name} (id, x) values (1, 1)")
        try:
            database.execute(f"update {name} set x = 2")
        except (psycopg.errors.ObjectNotInPrerequisiteState, psycopg.errors.InvalidColumnReference):
            refused.add(name)
    unfit = {name.name for name in found.unfit}
    if not modern:
        assert refused == set()
        assert unfit == {"key_stored", "index_stored"}
        assert all("replica identity full" in why for why in found.unfit.values())
    elif option == "none":
        assert unfit == refused
        assert refused == {"key_stored", "index_stored", "full_stored", "full_virtual", "parted"}
        assert "publish_generated_columns = stored" in found.unfit[TableName("public", "full_stored")]
    else:
        assert unfit == refused == {"full_virtual"}
        assert before.unfit == found.unfit, "before there is a publication"
        database.execute("alter table leaf replica identity full")
        assert (
            "partition public.leaf: its replica identity is full, and it has a virtual"
            in (selected(database).unfit[TableName("public", "root")])
        )


def test_a_list_of_columns_without_all_of_the_key_is_a_gap(database: Database) -> None:
    if database.query("show server_version_num")[0][0] < "150000":
        pytest.skip("column lists exist from 15 on")
    database.execute(
        "create table part (a int, b int, x int, primary key (a, b))",
        "create table whole (a int, b int, x int, primary key (a, b))",
        "create publication p for table part (a, x), whole (b, a)",
    )
    found = selected(database)
    assert {name.name: why for name, why in found.unfit.items()} == {
        "part": "a part of its key is not published. Publish all columns of the key; or exclude it"
    }


def test_a_partition_that_is_a_foreign_table_has_the_whole_left_out(database: Database) -> None:
    database.execute(*FOREIGN)
    for lenient in ({}, {"require_primary_key": False}):
        (why,) = selected(database, **lenient).unfit.values()
        assert why.startswith("of its partition public.far: it is a foreign table")
        assert "detach partition" in why
    database.execute("alter table parted detach partition far")
    assert selected(database).fit == {TableName("public", "parted")}


@pytest.mark.parametrize("published", ["insert", "insert, update, delete", "update, delete, truncate"])
def test_by_a_publication_that_publishes_less_nothing_can_be_followed(
    database: Database, published: str
) -> None:
    database.execute(
        "create table t (id int primary key)",
        "create table u (id int primary key)",
        f"create publication p for table t, u with (publish = '{published}')",
    )
    chosen = source(database, create=False, include=["t"])
    with connect(database.dsn) as connection:
        reasons = left_out(connection, chosen)
    assert {name.name for name in reasons} == {"t", "u"}, "also of what is published and not chosen"
    for why in reasons.values():
        assert "the publication does not publish" in why
        assert "set (publish = 'insert, update, delete, truncate')" in why
    database.execute("alter publication p set (publish = 'insert, update, delete, truncate')")
    with connect(database.dsn) as connection:
        assert left_out(connection, chosen) == {}


def test_a_foreign_table_is_not_copied(database: Database) -> None:
    """Nobody would follow its rows. A partition can be one, or be put in the place of one that was not."""
    database.execute(*FOREIGN)
    with (
        Snapshot.open(database.dsn, oid(database, "parted")) as snapshot,
        pytest.raises(NotReady, match=r"foreign table.*detach partition"),
    ):
        snapshot.ranges(("line",))
    if database.query("select from pg_settings where name = 'restrict_nonsystem_relation_kind'"):
        with database.connect() as connection:
            exported_snapshot.settle(connection)
            with pytest.raises(psycopg.Error, match="restricted"):
                connection.execute("select from far")


def test_what_else_keeps_a_table_from_being_followed_is_named(database: Database, tmp_path: Path) -> None:
    assert "left out" not in checked(database, tmp_path)
    database.execute(
        "create table composed (a int, g int generated always as (a) stored, primary key (a, g))"
    )
    modern = database.query("show server_version_num")[0][0] >= "180000"
    found = checked(database, tmp_path)
    if not modern:
        assert "public.composed: a part of its key is not published" in found["left out"].detail
        assert "replica identity full" in found["left out"].remedy
        return
    assert "left out" not in found
    database.execute(
        "create table v (id int, v int generated always as (id)); alter table v replica identity full"
    )
    found = checked(database, tmp_path)
    assert "public.v: its replica identity is full, and it has a virtual" in found["left out"].detail
