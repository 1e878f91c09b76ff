"""Looks at the published tables: what they ask for, what they notice, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from penstock.config import SourceConfig
from penstock.pipeline import unseen_changes
from penstock.pipeline.catalog_look import Look, PublishedTables
from penstock.pipeline.table_facts import Facts
from penstock.postgres.connection import connect
from tests.bed import Database


class Counting(psycopg.Cursor[Any]):
    """Counts what is asked, and keeps what is done to publications."""

    count = 0
    altered: ClassVar[list[str]] = []

    def execute(self, query: Any, *arguments: Any, **more: Any) -> Any:
        type(self).count += 1
        text = query.as_string() if isinstance(query, sql.Composable) else str(query)
        if text.startswith("alter publication"):
            type(self).altered.append(text)
        return super().execute(query, *arguments, **more)


@contextmanager
def looking(
    dsn: str, tell: Callable[[list[str]], None] = lambda _: None, **replication: Any
) -> Iterator[Callable[[], PublishedTables]]:
    given = {"name": "source", "dsn": dsn, "replication": {"publication_name": "p", **replication}}
    looks = Look(SourceConfig.model_validate(given), tell)
    with connect(dsn) as connection:
        connection.cursor_factory = Counting
        Counting.altered.clear()
        yield lambda: looks.take(connection)


@pytest.fixture
def look(source: Database) -> Iterator[Callable[[], PublishedTables]]:
    with looking(source.dsn) as opened:
        yield opened


def only(found: PublishedTables, name: str) -> Facts:
    (facts,) = [table for table in found.tables.values() if table.schema.name.name == name]
    return facts


def names(found: PublishedTables) -> set[str]:
    return {table.schema.name.name for table in found.tables.values()}


def test_only_a_table_that_changed_is_asked_about(
    source: Database, look: Callable[[], PublishedTables]
) -> None:
    source.execute(*(f"create table t{n} (id int primary key, a text)" for n in range(20)))
    first = look()
    assert len(first.tables) == 20
    Counting.count = 0
    second = look()
    idle = Counting.count
    assert all(second.tables[id].schema is table.schema for id, table in first.tables.items())
    assert second.lsn >= first.lsn
    assert {table.lsn for table in second.tables.values()} == {first.lsn}
    assert all(table.begun >= first.lsn for table in second.tables.values())
    source.execute("alter table t7 rename a to b")
    third = look()
    assert only(third, "t7").schema.column_names == ("id", "b")
    assert only(third, "t7").lsn == third.lsn > only(third, "t7").begun
    assert [
        t.schema.name.name for id, t in third.tables.items() if t.schema is not second.tables[id].schema
    ] == ["t7"]
    assert idle < 15


def test_a_table_that_loses_its_key_leaves_the_publication_and_comes_back_with_one(
    source: Database, look: Callable[[], PublishedTables]
) -> None:
    """Published without a key its updates would fail."""
    source.execute("create table t (id int primary key, a text)", "insert into t values (1, 'a')")
    before = only(look(), "t")
    source.execute("alter table t drop constraint t_pkey, add primary key (id) deferrable")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        source.execute("update t set a = 'b'")
    assert names(look()) == set()
    source.execute("update t set a = 'c'")
    source.execute("alter table t drop constraint t_pkey, add primary key (id)")
    after = only(look(), "t")
    assert unseen_changes.unseen(before.detail(), after) == "it was not published for a while"


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        (["truncate low"], "truncated"),
        (["drop table low"], "dropped"),
        (["alter table parted detach partition low"], "detached"),
        (["create table high partition of parted for values from (10) to (20)"], None),
        (
            [
                "create table high partition of parted for values from (10) to (20)",
                "insert into parted values (11)",
            ],
            "have rows",
        ),
        (
            [
                "create table high (id int primary key); insert into high values (11);"
                "alter table parted attach partition high for values from (10) to (20)"
            ],
            "have rows",
        ),
        (["insert into parted values (2)", "delete from parted where id = 1"], None),
    ],
)
def test_what_happens_to_partitions(
    source: Database, look: Callable[[], PublishedTables], statements: list[str], expected: str | None
) -> None:
    source.execute(
        "create table parted (id int primary key) partition by range (id)",
        "create table low partition of parted for values from (0) to (10)",
        "insert into parted values (1)",
    )
    before = only(look(), "parted")
    source.execute(*statements)
    after = only(look(), "parted")
    why = unseen_changes.unseen(before.detail(), after)
    assert (why is None) == (expected is None)
    assert (expected or "") in (why or "")


def test_a_partition_that_began_empty_stays_one_whose_rows_are_all_in_the_stream(
    source: Database, look: Callable[[], PublishedTables]
) -> None:
    """Also for a destination that compares late."""
    source.execute("create table parted (id int primary key) partition by range (id)")
    copied = only(look(), "parted").detail()
    source.execute("create table low partition of parted for values from (0) to (10)")
    look()
    source.execute("insert into parted values (1)")
    later = only(look(), "parted")
    source.execute("create table high partition of parted for values from (10) to (20)")
    latest = only(look(), "parted")
    assert unseen_changes.unseen(copied, later) is None
    assert unseen_changes.unseen(copied, latest) is None
    followed = unseen_changes.remember(copied, latest)
    source.execute("truncate low")
    assert "truncated" in (unseen_changes.unseen(followed, only(look(), "parted")) or "")


def test_what_earlier_versions_remembered_is_completed(
    source: Database, look: Callable[[], PublishedTables]
) -> None:
    """They knew neither memberships nor partitions."""
    source.execute("create table t (id int primary key)")
    facts = only(look(), "t")
    former = {key: value for key, value in facts.detail().items() if key not in ("member", "leaves")}
    assert unseen_changes.unseen(former, facts) is None
    assert unseen_changes.remember(former, facts) == facts.detail()


def test_values_that_print_otherwise_are_a_reason_for_a_new_copy(
    source: Database, look: Callable[[], PublishedTables]
) -> None:
    """The rows that have them are not in the stream."""
    source.execute(
        "create type mood as enum ('sad', 'ok')",
        "create domain feeling as mood",
        "create type pair as (a int, b feeling[])",
        "create table t (id int primary key, m feeling[], p pair)",
        "create table other (id int primary key, a text)",
    )
    before = look()
    for statement, is_followed in (
        ("alter type mood add value 'happy' before 'ok'", True),
        ("alter type pair rename attribute a to c", True),
        ("create type another as enum ('x')", True),
        ("alter type mood rename value 'sad' to 'unhappy'", False),
        ("alter type pair add attribute d int", False),
        ("alter type pair drop attribute d", False),
    ):
        source.execute(statement)
        after = look()
        assert (unseen_changes.unseen(only(before, "t").detail(), only(after, "t")) is None) is is_followed, (
            statement
        )
        assert unseen_changes.unseen(only(before, "other").detail(), only(after, "other")) is None
        before = after


def test_a_publication_that_published_less_for_a_moment_leaves_a_gap(
    source: Database, look: Callable[[], PublishedTables]
) -> None:
    source.execute("create table t (id int primary key, a text)")
    before = only(look(), "t")
    source.execute("create table u (id int primary key)")
    look()
    assert unseen_changes.unseen(before.detail(), only(look(), "t")) is None, (
        "a table more is no gap for others"
    )
    source.execute(
        "alter publication p set (publish = 'insert')",
        "alter publication p set (publish = 'insert, update, delete, truncate')",
    )
    assert unseen_changes.unseen(before.detail(), only(look(), "t")) == "it was not published for a while"


def test_tables_of_others_are_left_alone(source: Database) -> None:
    """The server locks a table before it looks whose it is, which cancels a vacuum of it."""
    source.execute(
        "drop role if exists maker; create role maker login",
        f'grant create on database "{source.name}" to maker; grant create on schema public to maker',
        *(f"create table strange{n} (id int primary key)" for n in range(5)),
        "set role maker; create table own (id int primary key)",
    )
    told: list[str] = []
    try:
        with looking(make_conninfo(source.dsn, user="maker"), told.extend) as look:
            for _ in range(2):
                assert names(look()) == {"own"}
                assert [s for s in Counting.altered if "strange" in s] == []
            assert any(s.startswith("public.strange3 is left out: it belongs to postgres") for s in told)
            Counting.altered.clear()
            look()
            assert Counting.altered == []
            source.execute("alter table strange3 owner to maker")
            assert names(look()) == {"own", "strange3"}
            source.execute("alter table own owner to postgres")
            assert names(look()) == {"own", "strange3"}, "it is published, and stays so"
            assert len(Counting.altered) == 1
    finally:
        source.execute("drop owned by maker cascade", "drop role maker")


def test_what_the_server_refuses_is_not_tried_at_each_look(source: Database) -> None:
    source.execute(
        "create table a (id int primary key)",
        """
        create function refuse() returns event_trigger language plpgsql
            as $$ begin
                if exists (select from pg_publication_rel where prrelid = to_regclass('public.b')) then
                    raise 'not b';
                end if;
            end $$;
        create event trigger refuse on ddl_command_end when tag in ('ALTER PUBLICATION')
            execute function refuse();
        """,
    )
    told: list[list[str]] = []
    with looking(source.dsn, told.append) as look:
        assert names(look()) == {"a"}
        source.execute("create table b (id int primary key)")
        assert names(look()) == {"a"}
        assert any('"b"' in statement for statement in Counting.altered)
        Counting.altered.clear()
        for _ in range(2):
            assert names(look()) == {"a"}
        assert Counting.altered == []
        assert told[-1] == ["public.b is left out: not b"]
        source.execute("create table c (id int primary key)")
        assert names(look()) == {"a", "c"}, "others are not kept out"
        assert not any('"b"' in statement for statement in Counting.altered)
        source.execute("drop event trigger refuse", "alter table b add x int")
        assert names(look()) == {"a", "b", "c"}, "it looks otherwise"


def test_our_own_publication_publishes_everything_again(
    source: Database, look: Callable[[], PublishedTables]
) -> None:
    modern = source.query("show server_version_num")[0][0] >= "180000"
    source.execute(
        "create table t (id int, g int generated always as (id) stored); alter table t replica identity full",
        "insert into t values (1)",
    )
    before = only(look(), "t")
    for option in ["publish = 'insert, update'"] + ["publish_generated_columns = none"] * modern:
        source.execute(f"alter publication p set ({option})")
        Counting.altered.clear()
        after = only(look(), "t")
        assert len(Counting.altered) == 1, "its tables stay in it"
        assert unseen_changes.unseen(before.detail(), after) == "it was not published for a while"
        source.execute("update t set id = id + 1")
        before = after


def test_an_update_never_fails_for_a_column_that_we_cannot_publish(
    source: Database, look: Callable[[], PublishedTables]
) -> None:
    if source.query("show server_version_num")[0][0] < "180000":
        pytest.skip("virtual generated columns exist from 18 on")
    source.execute(
        "create table late (a int, b int); alter table late replica identity full",
        "create table t (a int, v int generated always as (a * 2)); alter table t replica identity full",
        "insert into t values (1); insert into late values (1)",
    )
    assert names(look()) == {"late"}
    source.execute("update t set a = 2", "delete from t")
    source.execute("alter table late add v int generated always as (a * 2)")
    assert names(look()) == set()
    source.execute("update late set a = 2", "delete from late")


@pytest.mark.parametrize(
    ("lacking", "remedy"),
    [
        ("alter publication p set (publish = 'insert, update, delete')", None),
        (
            "create foreign table far partition of t for values from (10) to (20) server files"
            " options (filename '/dev/null')",
            "alter table t detach partition far",
        ),
        (
            "create unlogged table fleeting partition of t for values from (10) to (20)",
            "alter table t detach partition fleeting",
        ),
    ],
    ids=["truncate", "foreign", "unlogged"],
)
def test_a_table_of_which_not_everything_is_published_is_not_delivered_whoever_publishes_it(
    source: Database, lacking: str, remedy: str | None
) -> None:
    source.execute(
        "create extension file_fdw; create server files foreign data wrapper file_fdw",
        "create table t (id int) partition by range (id); alter table t replica identity full",
        "create table low partition of t for values from (0) to (10); alter table low replica identity full",
        "create publication p for table t with (publish_via_partition_root = true)",
    )
    with looking(source.dsn, create_publication=False) as look:
        assert names(look()) == {"t"}
        source.execute(lacking)
        assert names(look()) == set()
        source.execute(remedy or "alter publication p set (publish = 'insert, update, delete, truncate')")
        assert names(look()) == {"t"}
        assert Counting.altered == []


def test_a_table_of_whose_key_a_part_is_published_is_not_delivered(source: Database) -> None:
    modern = source.query("show server_version_num")[0][0] >= "180000"
    source.execute(
        "create table t (a int, b int, g int generated always as (b) stored, primary key (a, g))",
        "create table u (a int, b int, g int not null generated always as (b) stored unique)",
        "alter table u replica identity using index u_g_key",
        "create table v (a int, g int generated always as (a) stored, primary key (a) include (g))",
        "create publication p for table t, u, v",
    )
    with looking(source.dsn, create_publication=False) as look:
        assert names(look()) == {"v"}
        source.execute(
            "alter publication p set (publish_generated_columns = stored)"
            if modern
            else "alter table t replica identity full; alter table u replica identity full"
        )
        assert names(look()) == {"t", "u", "v"}
