"""Why tables cannot be followed: what is published does not tell everything, or the server refuses it."""

from __future__ import annotations

from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.capture.plain_decoder import ReferenceDecoder
from penstock.changes import old_rows
from penstock.config import SourceConfig
from penstock.model import ZERO, ReplicaIdentity, TableName, TableSchema
from penstock.model.errors import NotReady
from penstock.postgres import exported_snapshot, preflight
from penstock.postgres.connection import connect
from penstock.postgres.preflight import Check
from penstock.postgres.selection import Selection, left_out, select
from penstock.postgres.snapshot import Snapshot
from penstock.spool.segment import BeforeKind
from tests.bed import Database
from tests.capture.decoding import Versions, cut, drive, wrapped
from tests.postgres.reading import oid

FOREIGN = (
    "create extension file_fdw; create server files foreign data wrapper file_fdw",
    "create table parted (line text) partition by list (line); alter table parted replica identity full",
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
    "alter table parted replica identity full",
    "alter table full_plain replica identity full; alter table full_stored replica identity full",
)
VIRTUAL = (
    "create table full_virtual (id int, x int, v int generated always as (id * 2))",
    "alter table full_virtual replica identity full",
    "create table key_virtual (id int primary key, x int, v int generated always as (id * 2))",
    "create table root (id int primary key, x int, v int generated always as (id * 2))"
    " partition by range (id)",
    "create table leaf partition of root for values from (0) to (9)",
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
        database.execute("alter table root replica identity full; alter table leaf replica identity full")
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


ROOTS = {
    "bare": "",
    "keyed": "alter table {0} add primary key (id)",
    "full": "alter table {0} replica identity full",
    "both": "alter table {0} add primary key (id), replica identity full",
    "indexed": "alter table {0} add primary key (id), add constraint {0}_both unique (x, id),"
    " replica identity using index {0}_both",
    "nothing": "alter table {0} add primary key (id), replica identity nothing",
}
LEAVES = {
    "as_attached": "",
    "full": "alter table {0} replica identity full",
    "none": "alter table {0} replica identity nothing",
    "by_x": "alter table {0} add constraint {0}_x unique (x), replica identity using index {0}_x",
    "by_more": "alter table {0} add constraint {0}_m unique (x, id), replica identity using index {0}_m",
    "own_key": "alter table {0} add primary key (id)",
}
OLD_ROWS = [["5", "50", "b" * 3000], ["5", "51", "b" * 3000], ["6", "51", "b" * 3000]]


def sent_whole(schema: TableSchema, changes: list[dict[str, Any]]) -> bool:
    """Whether the changes, two updates and a delete, tell what the root's identity says they tell."""
    if len(changes) != len(OLD_ROWS):
        return False
    if schema.identity is ReplicaIdentity.FULL:
        return [change["before"] for change in changes] == OLD_ROWS
    for change, old in zip(changes, OLD_ROWS, strict=True):
        row = change["before"] if change["before_kind"] == BeforeKind.KEY else change["after"]
        if not schema.key or [row[place] for place in schema.key] != [old[place] for place in schema.key]:
            return False
    return True


def test_partitions_tell_what_the_identity_of_the_whole_table_needs(database: Database) -> None:
    """The server takes the old row by the partition's identity, and says that it is by that of the root."""
    names = []
    for root, leaf in product(ROOTS, LEAVES):
        if leaf == "own_key" and "primary key" in ROOTS[root]:
            continue
        names.append(name := f"{root}_{leaf}")
        database.execute(
            f"create table {name} (id int not null, x int not null, big text) partition by range (id)",
            f"create table {name}_l (big text, gone int, x int not null, id int not null)",
            f"alter table {name}_l drop column gone, alter big set storage external",
            ROOTS[root].format(name),
            f"alter table {name} attach partition {name}_l for values from (0) to (9)",
            LEAVES[leaf].format(f"{name}_l"),
            f"insert into {name} values (5, 50, repeat('b', 3000))",
        )
    before = selected(database)
    database.execute(
        "create publication p for all tables with (publish_via_partition_root = true)",
        "select pg_create_logical_replication_slot('s', 'pgoutput')",
    )
    for name in names:
        try:
            database.execute(f"update {name} set x = 51", f"update {name} set id = 6", f"delete from {name}")
        except psycopg.errors.ObjectNotInPrerequisiteState:
            continue
    sent = database.query(
        """select lsn::text, data from pg_logical_slot_peek_binary_changes('s', null, null,
             'proto_version', '1', 'publication_names', 'p')"""
    )
    versions = Versions()
    runs = cut([wrapped(lsn, data) for lsn, data in sent], ())
    changes = defaultdict(list)
    for change in drive(ReferenceDecoder(versions, ZERO), runs).listed():
        changes[change["table_id"]].append(change)
    schemas = {known[-1].name.name: known[-1] for known in versions.known.values()}
    whole = {n for n in schemas if sent_whole(schemas[n], changes[schemas[n].id])}
    untold = {n for n in schemas if not old_rows.are_told(schemas[n])}
    found = selected(database)
    assert {name.name for name in found.fit} == whole | untold
    assert whole == {
        *("keyed_as_attached", "keyed_full", "keyed_by_more", "full_full", "both_full"),
        *("indexed_full", "indexed_by_more"),
    }
    assert untold == {
        *("bare_full", "bare_by_x", "bare_by_more", "bare_own_key"),
        *("nothing_as_attached", "nothing_full", "nothing_by_x", "nothing_by_more"),
    }, "their first update stops them"
    assert before.unfit == found.unfit, "before there is a publication"
    database.execute("alter publication p set (publish_via_partition_root = false)")
    assert TableName("public", "bare_full") in selected(database).fit, "each partition is a table then"
    for name in ("bare_none", "full_own_key"):
        assert f"for public.{name} and for each of its partitions" in found.unfit[TableName("public", name)]
    assert found.unfit[TableName("public", "keyed_by_x")].startswith("of its partition public.keyed_by_x_l: ")
    for name in names:
        identity = "default" if "primary key" in ROOTS[name.partition("_")[0]] else "full"
        database.execute(*(f"alter table {part} replica identity {identity}" for part in (name, f"{name}_l")))
    assert not selected(database).unfit


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
