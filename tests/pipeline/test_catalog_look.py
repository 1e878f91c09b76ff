"""Looks at the published tables: what they ask for, what they notice, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from penstock.config import SourceConfig
from penstock.pipeline import unseen_changes
from penstock.pipeline.catalog_look import Look, PublishedTables
from penstock.pipeline.table_facts import Facts
from penstock.postgres.connection import connect
from tests.bed import Database


class Counting(psycopg.Cursor[Any]):
    """Counts what is asked."""

    count = 0

    def execute(self, *arguments: Any, **more: Any) -> Any:
        type(self).count += 1
        return super().execute(*arguments, **more)


@pytest.fixture
def look(source: Database) -> Iterator[Callable[[], PublishedTables]]:
    given = {"name": "source", "dsn": source.dsn, "replication": {"publication_name": "p"}}
    looking = Look(SourceConfig.model_validate(given), lambda _: None)
    with connect(source.dsn) as connection:
        connection.cursor_factory = Counting
        yield lambda: looking.take(connection)


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
