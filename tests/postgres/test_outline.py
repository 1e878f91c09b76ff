"""The tables in outline, and which of them are chosen."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from penstock.config import SourceConfig, TablesConfig
from penstock.model import TableName
from penstock.postgres import outline, publication
from penstock.postgres.connection import Connection, connect
from penstock.postgres.selection import Selection, left_out, select
from tests.bed import Database


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    with connect(database.dsn) as opened:
        yield opened


def source(database: Database, **tables: object) -> SourceConfig:
    replication = {"publication_name": "p"}
    given = {"name": "source", "dsn": database.dsn, "replication": replication, "tables": tables}
    return SourceConfig.model_validate(given)


def selected(database: Database, **tables: object) -> Selection:
    with connect(database.dsn) as connection:
        return select(connection, source(database, **tables))


def test_a_table_that_cannot_be_followed_is_left_out_with_its_remedy(database: Database) -> None:
    database.execute(
        'create table "No Key" (x int)',
        "create table nothing ()",
        "create table keyed (id int primary key)",
        "create table deferred (id int primary key deferrable, x int not null)",
        "create table none (id int primary key); alter table none replica identity nothing",
        "create table orphaned (id int not null unique)",
        "alter table orphaned replica identity using index orphaned_id_key",
        "alter table orphaned drop constraint orphaned_id_key",
        "create table parted (id int primary key) partition by range (id)",
        "create table low partition of parted for values from (0) to (9)",
        "create table bare (id int) partition by range (id)",
        "create table part partition of bare for values from (0) to (9)",
    )
    found = selected(database)
    assert {name.name for name in found.fit} == {"keyed", "parted"}
    reasons = {name.name: why for name, why in found.unfit.items()}
    assert "no primary key" in reasons["No Key"]
    assert "no columns" in reasons["nothing"]
    assert "primary key is deferrable" in reasons["deferred"]
    assert "replica identity full" in reasons["deferred"]
    assert "`nothing`" in reasons["none"]
    assert "index of its replica identity" in reasons["orphaned"]
    assert "partition public.part: it has no primary key" in reasons["bare"]
    lenient = selected(database, require_primary_key=False)
    assert {name.name for name in lenient.unfit} == {"nothing"}


def test_what_counts_as_an_identity_is_what_the_server_says(database: Database) -> None:
    """Every table is published in spite of it: those whose updates the server then refuses are the ones that
    are left out."""
    database.execute(
        "create table immediate (id int primary key, x int)",
        "create table deferred (id int primary key deferrable, x int)",
        "create table twice (id int primary key deferrable, x int not null unique)",
        "alter table twice replica identity using index twice_x_key",
        "create table whole (id int primary key deferrable, x int)",
        "alter table whole replica identity full",
        "create table nothing (id int primary key, x int); alter table nothing replica identity nothing",
        "create table bare (id int, x int)",
        "create table invalid (id int primary key, x int not null)",
        "create unique index by_x on invalid (x)",
        "alter table invalid replica identity using index by_x",
        "update pg_index set indisvalid = false where indexrelid = 'by_x'::regclass",
        "create table parted (id int primary key deferrable, x int) partition by range (id)",
        "create table low partition of parted for values from (0) to (9)",
    )
    found = selected(database)
    names = {name.name for name in (*found.fit, *found.unfit)}
    for name in names:
        database.execute(f"insert into {name} values (1, 1)")
    database.execute("create publication p for all tables")
    refused = set()
    for name in names:
        try:
            database.execute(f"update {name} set x = 2")
        except psycopg.errors.ObjectNotInPrerequisiteState:
            refused.add(name)
    assert {name.name for name in found.unfit} == refused
    assert refused == {"deferred", "nothing", "bare", "invalid", "parted"}


def test_a_membership_that_ends_and_begins_again_is_another_one(
    database: Database, connection: Connection
) -> None:
    """By name, by schema, and that of the publication itself."""
    database.execute("create table t (id int primary key)")
    (table,) = outline.look(connection, "p").tables

    def member() -> frozenset[str]:
        return outline.look(connection, "p").published().get(table, frozenset())

    kinds = ["for table t", "for all tables"]
    if connection.info.server_version >= 150000:
        kinds.append("for tables in schema public")
    for kind in kinds:
        database.execute(f"create publication p {kind}")
        first = member()
        assert first
        assert first == member()
        database.execute("drop publication p", f"create publication p {kind}")
        assert member()
        assert first.isdisjoint(member())
        database.execute("drop publication p")
        assert not member()
    database.execute("create publication p for table t")
    first = member()
    database.execute("alter publication p drop table t", "alter publication p add table t")
    assert first.isdisjoint(member())
    if connection.info.server_version >= 150000:
        second = member()
        database.execute("alter publication p add tables in schema public")
        assert member() > second
        database.execute("alter publication p drop table t")
        assert member()
        assert second.isdisjoint(member())


PARTITIONS = [
    ("alter table parted detach partition low; alter table parted attach partition low "
     "for values from (0) to (10)", {"low"}),
    ("truncate low", {"low"}),
    ("truncate parted", {"low", "deep"}),
    ("vacuum full deep", {"deep"}),
    ("drop table low", {"low"}),
    ("alter table parted detach partition sub", {"deep"}),
    ("alter table sub detach partition deep; alter table sub attach partition deep "
     "for values from (10) to (15)", {"deep"}),
    ("create table more partition of sub for values from (15) to (20)", {"more"}),
    ("insert into parted values (3); delete from parted; analyze parted", set()),
]  # fmt: skip


@pytest.mark.parametrize(("statements", "expected"), PARTITIONS, ids=[one for one, _ in PARTITIONS])
def test_what_stands_for_a_partitions_rows_changes_when_they_did_outside_of_the_stream(
    database: Database, connection: Connection, statements: str, expected: set[str]
) -> None:
    database.execute(
        "create table parted (id int primary key) partition by range (id)",
        "create table low partition of parted for values from (0) to (10)",
        "create table sub partition of parted for values from (10) to (20) partition by range (id)",
        "create table deep partition of sub for values from (10) to (15)",
        "insert into parted values (1), (11)",
    )

    def partitions() -> dict[str, str]:
        seen = outline.look(connection, "p")
        (parted,) = [table for table in seen.tables.values() if table.name.name == "parted"]
        names = {str(table.id): table.name.name for table in seen.tables.values()}
        return {names[leaf]: rows for leaf, rows in seen.partitions(parted).items()}

    before = partitions()
    assert before.keys() == {"low", "deep"}
    database.execute(*statements.split("; "))
    after = partitions()
    assert {name for name in {*before, *after} if before.get(name) != after.get(name)} == expected


ALTERS = [
    "alter table t rename x to y",
    "alter table t drop x",
    "alter table t add y int",
    "alter table t alter v type varchar(9)",
    "alter table t alter x type int8",
    "alter table t drop constraint t_pkey",
    "alter table t drop constraint t_pkey, add primary key (x)",
    "alter table t drop x, add x int",
]


@pytest.mark.parametrize("statement", ALTERS)
def test_the_mark_of_a_table_changes_with_its_columns_and_keys(
    database: Database, connection: Connection, statement: str
) -> None:
    database.execute("create table t (id int primary key, x int not null, v varchar(5))", "create table u ()")
    seen = outline.look(connection, "p")
    before = outline.shapes(connection, seen.tables)
    database.execute("insert into t values (1, 1, 'a')", "analyze t", "grant select on t to public")
    assert outline.shapes(connection, seen.tables) == before
    database.execute(statement)
    after = outline.shapes(connection, seen.tables)
    changed = [seen.tables[id].name.name for id in before if before[id].mark != after[id].mark]
    assert changed == ["t"]


def test_a_look_takes_few_statements_and_no_lock(database: Database, connection: Connection) -> None:
    database.execute(*(f"create table t{number} (id int primary key, x text)" for number in range(50)))
    connection.execute("set lock_timeout = '1ms'")
    with database.connect() as other:
        other.execute("begin; lock table t0, t7 in access exclusive mode")
        assert len(select(connection, source(database)).fit) == 50


def test_tables_that_are_left_out_are_told_with_the_reason(
    database: Database, connection: Connection
) -> None:
    database.execute(
        "create table a (id int primary key)", "create table b (id int primary key)", "create table c (x int)"
    )
    chosen = source(database)
    assert left_out(connection, chosen) == {}, "before there is a publication"
    publication.ensure(connection, "p", [TableName("public", "a")], create=True)
    found = {name.name: why for name, why in left_out(connection, chosen).items()}
    assert found.keys() == {"b", "c"}
    assert "not in the publication" in found["b"]
    assert "no primary key" in found["c"]


def test_partitions_come_with_their_table(database: Database) -> None:
    database.execute(
        "create table parted (id int primary key) partition by range (id)",
        "create table sub partition of parted for values from (0) to (9) partition by range (id)",
        "create table leaf partition of sub for values from (0) to (5)",
    )
    with connect(database.dsn) as connection:
        seen = outline.look(connection, "p")
    for include, expected in ((("*.*",), "parted"), (("leaf",), "leaf"), (("sub", "leaf"), "sub")):
        assert [str(t.name) for t in seen.captured(TablesConfig(include=include))] == [f"public.{expected}"]
