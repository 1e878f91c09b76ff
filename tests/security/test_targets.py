"""Tables at the destination that are somebody else's: what is put on them does not run with our rights."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.model import TableName
from penstock.model.phases import Phase
from tests.bed import Database
from tests.pipeline.running import configuration, contents, running, to_postgres
from tests.security.attacker import Attacker

TRIGGER = """
create trigger t after insert or update or delete on {table} for each row execute function mine.trap();
alter table {table} enable always trigger t;
"""


def test_a_table_that_somebody_else_made_or_put_in_the_place_of_ours_is_refused(
    spark: SparkSession, source: Database, destination: Database, attacker: Attacker, tmp_path: Path
) -> None:
    """The pipeline is a superuser's at the destination. Of four tables two are the attacker's there: one that
    he made beforehand, and one in his own schema, which he drops and makes again; the others go on."""
    source.execute(
        "create schema mine2",
        *(
            f"create table {name} (id int primary key, v text); insert into {name} values (1, 'a')"
            for name in ("public.good", "public.theirs", "mine2.ours", "public.typed")
        ),
        "create type public.feeling as enum ('fine')",
        "alter table public.typed add column f public.feeling default 'fine'",
    )
    with attacker.connect(destination) as connection:
        connection.execute("create table public.theirs (id int primary key, v text)")
        connection.execute(TRIGGER.format(table="public.theirs").encode())
        connection.execute("create schema mine2")
        connection.execute(
            "create domain public.feeling as text check (mine.trap('the check of a domain') is not null)"
        )
        connection.execute(
            "create function public.equal(int, int) returns boolean language sql"
            " as $$ select mine.trap('=') is not null $$;"
            "create operator public.= (leftarg = int, rightarg = int, function = public.equal)"
        )
    sources = [{"name": "source", "dsn": source.dsn, "tables": {"exclude_schemas": ["mine"]}}]
    config = configuration(tmp_path, source, to_postgres(destination), sources=sources)
    with running(config, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.good", "mine2.ours", "public.typed")
        pipeline.until_phase(Phase.ERRORED, "public.theirs")
        assert f"belongs to {attacker.role}" in str(pipeline.tables()["public.theirs"].error)
        destination.execute("alter schema mine2 owner to " + attacker.role)
        with attacker.connect(destination) as connection:
            connection.execute("drop table mine2.ours")
            connection.execute("create table mine2.ours (id int primary key, v text)")
            connection.execute(TRIGGER.format(table="mine2.ours").encode())
        source.execute(
            *(
                f"insert into {name} (id, v) values (2, 'b'); update {name} set v = 'c' where id = 1"
                for name in ("public.good", "mine2.ours", "public.typed")
            )
        )
        pipeline.until_phase(Phase.ERRORED, "mine2.ours")
        good = [TableName("public", "good"), TableName("public", "typed")]
        pipeline.until_equal(source, destination, lambda: good)
    assert contents(destination, "mine2.ours") == contents(destination, "public.theirs") == []
    assert not attacker.caught(destination)
    assert destination.query(
        "select atttypid::regtype::text from pg_attribute where attrelid = 'public.typed'::regclass"
        " and attname = 'f'"
    ) == [("text",)], "a domain is no enum, whatever it is called"


@pytest.mark.parametrize("extension", ["citext"])
def test_keys_of_an_extensions_type_are_found_by_its_own_equality(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path, extension: str
) -> None:
    if not source.query("select from pg_available_extensions where name = %s", extension):
        pytest.skip("the server has no citext")
    for database in (source, destination):
        database.execute(f"create extension {extension}")
    source.execute(
        "create table mails (mail citext primary key, n int)",
        "insert into mails select 'Mail' || i, i from generate_series(1, 100) i",
    )
    config = configuration(tmp_path, source, to_postgres(destination))
    tables = [TableName("public", "mails")]
    with running(config, spark) as pipeline:
        pipeline.until_equal(source, destination, lambda: tables)
        source.execute(
            "update mails set n = n + 1 where mail < 'mail3'",
            "delete from mails where mail = 'MAIL77'",
            "update mails set mail = upper(mail::text)::citext where n > 90",
            "insert into mails values ('new', 1)",
        )
        pipeline.until_equal(source, destination, lambda: tables)
        assert destination.query(
            "select atttypid::regtype::text from pg_attribute where attrelid = 'mails'::regclass"
            " and attname = 'mail'"
        ) == [("citext",)]
