"""Publications: made, kept in step, and left alone where they are not ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from psycopg.conninfo import make_conninfo

from penstock.model import TableName
from penstock.model.errors import AccessDenied, PenstockError, PublicationMissing
from penstock.postgres import publication
from penstock.postgres.connection import Connection, connect
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
    a, b = publication.tables(connection, "p")
    assert (a.columns, a.row_filter) == (("id",), None)
    assert (b.columns, b.row_filter) == (("id",), "(id > 5)")


def test_a_table_that_is_not_there_changes_nothing(connection: Connection) -> None:
    publication.ensure(connection, "p", [A], create=True)
    with pytest.raises(PenstockError, match="does not exist"):
        publication.ensure(connection, "p", [B, TableName("public", "nothing")], create=True)
    assert published(connection) == {A}


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


def test_a_role_that_does_not_own_the_tables_is_told_what_it_needs(
    database: Database, connection: Connection
) -> None:
    connection.execute("create role maker login")
    connection.execute(f'grant create on database "{database.name}" to maker'.encode())
    try:
        with (
            connect(make_conninfo(database.dsn, user="maker")) as own,
            pytest.raises(
                AccessDenied, match=r"must be owner of table a .*create_publication: false; `penstock grant`"
            ),
        ):
            publication.ensure(own, "p", [A], create=True)
    finally:
        connection.execute("drop owned by maker")
        connection.execute("drop role maker")
