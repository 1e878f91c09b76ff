"""Publications: made, kept in step, and left alone where they are not ours."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from psycopg.conninfo import make_conninfo

from penstock.model import TableName
from penstock.model.errors import ConnectionFailed, NotReady, PenstockError, PublicationMissing
from penstock.postgres import outline, publication
from penstock.postgres.connection import Connection, connect, wait_briefly
from tests.bed import Database

A, B = TableName("public", "a"), TableName("public", "b")
WEIRD = TableName('Scheme "x"', 'Täble; drop table a; --"')
LONG = TableName("public", "ü" * 31 + "x")


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    database.execute(
        "create table a (id int primary key)",
        "create table b (id int primary key, secret text)",
        'create schema "Scheme ""x"""',
        'create table "Scheme ""x"""."Täble; drop table a; --""" (id int primary key)',
        f'create table "{LONG.name}" (id int primary key)',
        "create table parted (id int primary key) partition by range (id)",
        "create table part partition of parted for values from (0) to (9)",
    )
    with connect(database.dsn) as opened:
        yield opened


@contextmanager
def ordinary(database: Database) -> Iterator[Connection]:
    """As a role that may create publications, and owns a schema."""
    database.execute(
        "create role maker login",
        f'grant create on database "{database.name}" to maker',
        "create schema mine authorization maker",
    )
    try:
        with connect(make_conninfo(database.dsn, user="maker")) as own:
            yield own
    finally:
        database.execute("drop owned by maker cascade", "drop role maker")


def published(connection: Connection, name: str = "p") -> set[TableName]:
    return {entry.table for entry in publication.tables(connection, name)}


def test_it_is_made_for_the_tables(connection: Connection) -> None:
    done = publication.ensure(connection, "p", [A, WEIRD, LONG], create=True)
    assert done == ["created publication p (tables: 3)"]
    assert published(connection) == {A, WEIRD, LONG}
    found = publication.describe(connection, "p")
    assert found is not None
    assert found.ours
    assert found.via_partition_root
    assert not found.all_tables
    assert found.actions == {"insert", "update", "delete", "truncate"}
    assert found.generated_columns is (connection.info.server_version >= 180000)


def test_it_follows_the_configured_tables(connection: Connection) -> None:
    publication.ensure(connection, 'odd "name', [A, B], create=True)
    assert publication.ensure(connection, 'odd "name', [A, B], create=True) == []
    assert publication.ensure(connection, 'odd "name', [B, WEIRD], create=True) == [
        f'{WEIRD} added to publication odd "name',
        'public.a removed from publication odd "name',
    ]
    assert published(connection, 'odd "name') == {B, WEIRD}


def test_it_publishes_everything_again_that_somebody_had_it_leave_out(connection: Connection) -> None:
    """Or that an upgrade from 17 to 18 did."""
    publication.ensure(connection, "p", [A], create=True)
    options = ["publish = 'insert'"]
    if connection.info.server_version >= 180000:
        options.append("publish_generated_columns = none")
    for option in options:
        connection.execute(f"alter publication p set ({option})".encode())
        told = publication.ensure(connection, "p", [A], create=True)
        assert told == ["publication p publishes everything again: its options were other ones"]
        found = publication.describe(connection, "p")
        assert found is not None
        assert found.is_whole(connection.info.server_version)
        assert not found.unpublished
    assert publication.ensure(connection, "p", [A], create=True) == []
    assert published(connection) == {A}


def test_it_may_be_empty_and_filled_later(connection: Connection) -> None:
    publication.ensure(connection, "p", [], create=True)
    publication.ensure(connection, "p", [A], create=True)
    assert published(connection) == {A}


def test_a_partitioned_table_is_published_as_one(connection: Connection) -> None:
    parted = TableName("public", "parted")
    publication.ensure(connection, "p", [parted], create=True)
    assert published(connection) == {parted}
    publication.ensure(connection, "q", [parted], create=True, via_partition_root=False)
    assert published(connection, "q") == {TableName("public", "part")}


def test_children_by_inheritance_are_tables_of_their_own(connection: Connection) -> None:
    connection.execute("create table public.child () inherits (public.a)")
    publication.ensure(connection, "p", [A], create=True)
    assert published(connection) == {A}


def test_a_foreign_publication_is_left_alone(connection: Connection) -> None:
    connection.execute("create publication p for table public.a")
    assert publication.ensure(connection, "p", [B], create=True) == [
        "publication p is used as it is: Penstock did not make it"
    ]
    assert publication.ensure(connection, "p", [B], create=False) == []
    assert not publication.drop(connection, "p")
    assert published(connection) == {A}


def test_a_publication_for_all_tables_is_left_alone(connection: Connection) -> None:
    connection.execute("create publication p for all tables")
    connection.execute("comment on publication p is 'managed by penstock'")
    (said,) = publication.ensure(connection, "p", [B], create=True)
    assert "for all tables" in said
    assert A in published(connection)


def test_a_missing_one_that_is_not_ours_to_make_is_an_error(connection: Connection) -> None:
    with pytest.raises(PublicationMissing, match=r"does not exist \(publication p\)"):
        publication.ensure(connection, "p", [A], create=False)


def test_ours_is_dropped(connection: Connection) -> None:
    publication.ensure(connection, "p", [A], create=True)
    assert publication.drop(connection, "p")
    assert publication.describe(connection, "p") is None


def test_column_lists_and_row_filters_are_told(connection: Connection) -> None:
    if connection.info.server_version < 150000:
        pytest.skip("column lists and row filters exist from 15 on")
    connection.execute("create publication p for table public.a, public.b (id) where (id > 5)")
    a, b = publication.tables(connection, "p", filters=True)
    assert (a.columns, a.row_filter) == (("id",), None)
    assert (b.columns, b.row_filter) == (("id",), "(id > 5)")


@pytest.mark.parametrize("mark", ["is 'managed by penstock'", "is null"])
def test_one_of_an_ordinary_role_is_not_taken_for_ours(
    database: Database, connection: Connection, mark: str
) -> None:
    with ordinary(database) as own:
        own.execute("create publication p")
        own.execute(f"comment on publication p {mark}".encode())
        with pytest.raises(NotReady, match=r"publication p belongs to maker.*create_publication: false"):
            publication.ensure(connection, "p", [A], create=True)
        assert publication.ensure(connection, "p", [A], create=False) == []
        assert published(connection) == set()


def test_what_cannot_be_added_keeps_nobody_else_out(database: Database, connection: Connection) -> None:
    gone, view, locked = (TableName("public", name) for name in ("gone", "view", "locked"))
    connection.execute("create view public.view as select 1")
    connection.execute("create table public.locked (id int primary key)")
    wait_briefly(connection)
    with database.connect() as other:
        other.execute("begin; lock table public.locked in share mode")
        said = publication.ensure(connection, "p", [A, gone, view, locked], create=True)
        assert said[0] == "created publication p (tables: 1)"
        assert [sentence.split(":")[0] for sentence in said[1:]] == [
            "public.gone is left out",
            "public.locked is left out",
            "public.view is left out",
        ]
        assert "does not exist" in said[1]
        assert "holds a lock" in said[2]
        assert published(connection) == {A}
        told = publication.ensure(connection, "p", [gone, A, B], create=True)
        assert told == ["public.b added to publication p", said[1]]
        assert publication.ensure(connection, "p", [A, locked], create=True) == [
            "public.b removed from publication p",
            said[2],
        ]
    assert publication.ensure(connection, "p", [A, locked], create=True) == [
        "public.locked added to publication p"
    ]


def test_many_that_are_locked_are_not_waited_for(database: Database, connection: Connection) -> None:
    names = [TableName("public", f"t{number}") for number in range(220)]
    with connection.pipeline():
        for name in names:
            connection.execute(f"create table {name} (id int primary key)".encode())
    wait_briefly(connection)
    with database.connect() as other:
        other.execute("begin")
        for number in range(20):
            mode = ("access exclusive", "share update exclusive")[number % 2]
            other.execute(f"lock table public.t{number} in {mode} mode".encode())
        begun = time.monotonic()
        publication.ensure(connection, "p", names, create=True)
        assert published(connection) == set(names[20:])
        assert time.monotonic() - begun < 15, "of those that are vacuumed one is waited for"


def test_a_lost_connection_is_no_matter_of_a_table(database: Database, connection: Connection) -> None:
    publication.ensure(connection, "p", [A], create=True)
    database.execute(
        """
        create function public.gone() returns event_trigger language plpgsql
            as $$ begin perform pg_terminate_backend(pg_backend_pid()); end $$;
        create event trigger gone on ddl_command_end when tag in ('ALTER PUBLICATION')
            execute function public.gone();
        """
    )
    with pytest.raises(ConnectionFailed):
        publication.ensure(connection, "p", [A, B], create=True)


@pytest.mark.parametrize("root", ["true", "false"])
@pytest.mark.parametrize(
    "what",
    [
        "for all tables",
        "for table public.a, public.parted",
        "for table public.part, public.b (secret, id) where (id > 5), only public.a",
        "for tables in schema public, other",
        "for table public.b, other.deep, tables in schema other",
        "",
    ],
)
def test_it_publishes_what_the_server_says(connection: Connection, what: str, root: str) -> None:
    if connection.info.server_version < 150000:
        pytest.skip("schemas, column lists and row filters exist from 15 on")
    connection.execute(
        """
        create schema other;
        create table other.t (id int primary key, g int generated always as (id + 1) stored);
        create table other.parted (id int primary key) partition by range (id);
        create table other.sub partition of other.parted for values from (0) to (9) partition by range (id);
        create table other.deep partition of other.sub for values from (0) to (5);
        create table public.elsewhere partition of other.parted for values from (10) to (20);
        create table public.child () inherits (public.a);
        create unlogged table public.unlogged (id int primary key);
        create table public.nothing ();
        """
    )
    connection.execute(f"create publication p {what} with (publish_via_partition_root = {root})".encode())
    rows = connection.execute(
        "select schemaname, tablename, attnames::text[], rowfilter from pg_publication_tables order by 1, 2"
    )
    # Before 18 the view has generated columns, which the stream has not.
    unsent = {"g"} if connection.info.server_version < 180000 else set()
    said = {TableName(row[0], row[1]): (set(row[2] or ()) - unsent, row[3]) for row in rows}
    found = publication.tables(connection, "p", filters=True)
    assert {entry.table: (set(entry.columns), entry.row_filter) for entry in found} == said
    assert len(found) == len(said)
    (oid,) = connection.execute("select 'public.part'::regclass::oid").fetchone() or ()
    part = TableName("public", "part")
    assert [entry.table for entry in publication.tables(connection, "p", [oid])] == [part] * (part in said)
    seen = outline.look(connection, "p")
    assert {seen.tables[id].name for id in seen.published()} == said.keys()
    family = outline.look(connection, "p", only=oid)
    assert family.published().get(oid) == seen.published().get(oid)


def test_what_is_published_is_told_while_tables_are_locked(
    database: Database, connection: Connection
) -> None:
    filtered = "where (id > 5)" if connection.info.server_version >= 150000 else ""
    connection.execute(f"create publication p for table public.a {filtered}, public.b".encode())
    connection.execute("set lock_timeout = '10ms'")
    with database.connect() as other:
        other.execute("begin; lock table public.a, public.b in access exclusive mode")
        assert published(connection) == {A, B}


def test_it_is_never_left_without_its_mark(connection: Connection) -> None:
    connection.execute(
        """
        create function public.refuse() returns event_trigger language plpgsql
            as $$ begin raise 'not now'; end $$;
        create event trigger refuse on ddl_command_end when tag in ('COMMENT')
            execute function public.refuse();
        """
    )
    with pytest.raises(PenstockError, match="not now"):
        publication.ensure(connection, "p", [A], create=True)
    assert publication.describe(connection, "p") is None


def test_a_role_that_does_not_own_a_table_is_told_what_it_needs(
    database: Database, connection: Connection
) -> None:
    with ordinary(database) as own:
        own.execute("create table mine.own (id int primary key)")
        said = publication.ensure(own, "p", [A, TableName("mine", "own")], create=True)
        assert said[0] == "created publication p (tables: 1)"
        assert re.search(
            r"public\.a is left out: must be owner of table a\. .*create_publication: false", said[1]
        )
        assert published(connection) == {TableName("mine", "own")}
