"""The pipeline with just what `penstock grant` gives: as much as it needs, and nothing that it does not."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from penstock.config import load
from penstock.embedded.postgres import PostgresServer
from penstock.model.errors import PenstockError
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.source_feed import DISCOVERY
from tests.bed import Database
from tests.files.consumer import Consumer
from tests.pipeline.running import difference, running
from tests.security.granting import (
    CDC,
    CHANGES,
    KEEPER,
    OWNER,
    ROLES,
    SHOP,
    TABLES,
    WRITER,
    Pipes,
    closed_database,
    granted,
    penstock,
    roles_gone,
    run_by_dba,
)

pytestmark = pytest.mark.every_server


@contextmanager
def laid(server: PostgresServer, destinations: PostgresServer, folder: Path) -> Iterator[Pipes]:
    folder.mkdir(exist_ok=True)
    with roles_gone(server, *ROLES), roles_gone(destinations, *ROLES):
        server.execute(f'create role "{OWNER}"')
        with (
            closed_database(server, SHOP) as source,
            closed_database(destinations) as destination,
            closed_database(server) as state,
        ):
            yield Pipes(source, destination, state, folder)


@pytest.fixture
def pipes(server: PostgresServer, destination_server: PostgresServer, tmp_path: Path) -> Iterator[Pipes]:
    with laid(server, destination_server, tmp_path) as made:
        yield made


def parts(pipes: Pipes) -> list[tuple[str, Database, str]]:
    return [
        ("shop", pipes.source, CDC),
        ("copy", pipes.destination, WRITER),
        ("state", pipes.state, KEEPER),
    ]


def undelivered(pipes: Pipes) -> str:
    """How the copy differs from the source; one table goes by another name there."""
    pipes.destination.execute('create or replace view public.plain as select * from "In There"."Plain"')
    return difference(pipes.source, pipes.destination, TABLES)


def ran(file: Path, spark: SparkSession) -> bool:
    return Pipeline(load(file), threading.Event(), spark).run(once=True)


def outcomes(file: Path) -> set[tuple[str, str, str]]:
    """What `check` finds: of what, which check, and how it comes out."""
    lines = [json.loads(line) for line in penstock("check", file, "--json").stdout.splitlines()]
    return {(next(iter(one.values())), one["name"], one["outcome"]) for one in lines}


def test_the_pipeline_runs_with_what_grant_prints(
    spark: SparkSession, server: PostgresServer, pipes: Pipes
) -> None:
    """The roles do not exist yet: the script asks the server when the DBA runs it."""
    file = pipes.configuration()
    for part, database, role in parts(pipes):
        script = granted(file, "--only", part)
        assert f'role "{role}" does not exist' in script
        run_by_dba(database, script)
    # Which schemas there will be at the destination was known of one table only; now the source can be asked.
    run_by_dba(pipes.destination, granted(file, "--only", "copy"))
    assert {outcome for *_, outcome in outcomes(file)} == {"ok", "warning"}
    assert ran(file, spark)
    assert undelivered(pipes) == ""
    pipes.source.execute(CHANGES)
    assert ran(file, spark)
    assert undelivered(pipes) == ""
    with closed_database(pipes.destination.server) as into:
        Consumer(pipes.source, into).run()
        assert difference(pipes.source, into, TABLES) == ""
    with psycopg.connect(server.dsn(pipes.source.name, user=CDC), autocommit=True) as session:
        for statement in ('table "App".hidden', 'delete from "App"."Users"', "create table public.x ()"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                session.execute(statement.encode())
    # A second look says what there is, and needs no psql.
    again = granted(file)
    assert "\\gexec" not in again
    assert not re.search('create (role|schema "|publication)', again)


@pytest.mark.slow
def test_a_publication_of_a_dba_is_used_as_it_is_and_that_is_said_once(
    spark: SparkSession, pipes: Pipes
) -> None:
    file = pipes.configuration(superuser=True)
    for part, database, role in parts(pipes):
        run_by_dba(database, granted(file, "--only", part, "--role", role, "--publication", "dba"))
    file = pipes.configuration(replication={"create_publication": True})
    with capture_logs() as logs, running(file, spark) as pipeline:
        pipeline.until(lambda: not undelivered_quietly(pipes))
        time.sleep(3 * DISCOVERY)  # so that it looks at the publication a few times
    told = [entry["event"] for entry in logs if "used as it is" in entry["event"]]
    assert told == ["publication penstock_test_shop is used as it is: Penstock did not make it"]


def undelivered_quietly(pipes: Pipes) -> str:
    try:
        return undelivered(pipes)
    except psycopg.errors.UndefinedTable as error:
        return str(error)


@pytest.mark.slow
def test_a_role_that_makes_the_publication_itself_has_what_it_takes(
    spark: SparkSession, pipes: Pipes
) -> None:
    file = pipes.configuration(superuser=True)
    for part, database, role in parts(pipes):
        run_by_dba(database, granted(file, "--only", part, "--role", role, "--publication", "role"))
    file = pipes.configuration(replication={"create_publication": True})
    assert ran(file, spark)
    assert undelivered(pipes) == ""
    assert pipes.source.query("select pubowner::regrole::text from pg_publication") == [(f'"{CDC}"',)]


@pytest.mark.slow
def test_schema_changes_are_recorded_for_a_role_that_may_not_create_triggers(
    spark: SparkSession, pipes: Pipes
) -> None:
    file = pipes.configuration(ddl_capture="on")
    for part, database, _ in parts(pipes):
        run_by_dba(database, granted(file, "--only", part))
    run_by_dba(pipes.destination, granted(file, "--only", "copy"))
    assert {outcome for *_, outcome in outcomes(file)} == {"ok", "warning"}
    assert ran(file, spark)
    pipes.source.execute(
        f'set role "{OWNER}"; alter table "App"."Users" add column age int default 7;'
        ' update "App"."Users" set age = 8',
    )
    assert ran(file, spark)
    assert undelivered(pipes) == ""
    recorded = pipes.source.query("select ddl_tag from public.ddl_history where table_id is not null")
    assert ("ALTER TABLE",) in recorded
    published = pipes.source.query("select tablename from pg_publication_tables order by 1")
    assert ("ddl_history",) in published


def statements(script: str) -> list[str]:
    """Those that give something."""
    given = [part.strip() for part in re.sub("(?m)^--.*$", "", script).split(";\n")]
    return [part for part in given if part and not re.match("begin|set local|commit", part)]


def without_one(statement: str) -> list[str]:
    """All ways to grant one thing less."""
    found = re.match(r"(grant )([a-z, ]+)( on .*)|(alter role .* with )([a-z ]+)()", statement)
    if found is None:
        return [""]
    before, given, after = (group for group in found.groups() if group is not None)
    sign = ", " if before == "grant " else " "
    rights = given.split(sign)
    return [
        f"{before}{sign.join(r for r in rights if r != right)}{after}" if len(rights) > 1 else ""
        for right in rights
    ]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_without_any_one_of_the_grants_it_does_not_work(
    spark: SparkSession, server: PostgresServer, destination_server: PostgresServer, tmp_path: Path
) -> None:
    """Each right that is printed is left out once: then a check comes out worse, or the pipeline fails."""
    with laid(server, destination_server, tmp_path / "whole") as pipes:
        told = {}
        for part, _, role in parts(pipes):
            told[part] = statements(
                granted(pipes.configuration(superuser=True), "--only", part, "--role", role)
            )
        good = works(pipes, told, spark)
        assert good is not None
    superfluous = []
    number = 0
    for part, given in told.items():
        for place, statement in enumerate(given):
            for less in without_one(statement):
                number += 1
                with laid(server, destination_server, tmp_path / str(number)) as pipes:
                    fewer = told | {part: [*given[:place], less, *given[place + 1 :]]}
                    if works(pipes, fewer, spark) == good:
                        superfluous.append(f"{part}: {statement} -> {less}")
    assert superfluous == []
    assert number > 30


def works(pipes: Pipes, told: dict[str, list[str]], spark: SparkSession) -> set[tuple[str, str, str]] | None:
    """What `check` finds with these grants before the pipeline runs; None if either fails."""
    names = (pipes.source.name, pipes.destination.name, pipes.state.name)
    try:
        for (part, database, _), name in zip(parts(pipes), names, strict=True):
            for statement in told[part]:
                if statement:
                    database.execute(re.sub(r"on database \w+", f"on database {name}", statement))
        file = pipes.configuration()
        found = outcomes(file)
        if any(outcome == "failure" for *_, outcome in found):
            return None
        for changes in (CHANGES, "select"):
            if not ran(file, spark) or undelivered(pipes):
                return None
            pipes.source.execute(changes)
    except (psycopg.Error, PenstockError):
        return None
    return found
