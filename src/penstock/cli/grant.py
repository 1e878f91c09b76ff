"""`penstock grant`: the SQL for roles with exactly the rights that a configuration needs.

One part for each source, PostgreSQL destination and state store. Servers are asked what there is, by the
configuration's own roles; one that cannot be asked gets SQL that asks when it is run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.arguments import ConfigFile
from penstock.postgres.providers import WAYS, Provider, Ways

if TYPE_CHECKING:
    from psycopg.sql import Composable

    from penstock.config import Config, DestinationConfig, SourceConfig
    from penstock.model import TableSchema
    from penstock.postgres.connection import Connection
    from penstock.postgres.script import Script


class By(StrEnum):
    ROLE = "role"
    DBA = "dba"


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the command line says."""

    ways: Ways
    role: str | None
    publication: By | None
    triggers: bool | None


def grant(
    config: ConfigFile,
    provider: Annotated[
        Provider, typer.Option(help="Who runs the servers: the rules for roles differ.")
    ] = Provider.SELF,
    publication: Annotated[
        By | None,
        typer.Option(
            help="Who makes the publication. Default: the role, unless create_publication is false."
        ),
    ] = None,
    triggers: Annotated[
        bool | None,
        typer.Option(
            "--triggers/--no-triggers",
            help="Event triggers, which a DBA installs, record schema changes. Default: as ddl_capture says.",
        ),
    ] = None,
    role: Annotated[
        str | None, typer.Option(help="The role. Default: the one that each connection names.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="This source or destination alone, or `state`. Default: all.")
    ] = None,
) -> None:
    """Print the SQL for roles with exactly the rights that sources, destinations and the state store need.

    It changes nothing: a DBA reads it, and runs each part with psql in its database.

    Example: penstock grant shop.yaml --only eu | psql -d shop
    """
    from penstock.config import load
    from penstock.model.errors import ConfigError
    from penstock.state.mapping_records import mapped

    loaded = mapped(load(config))
    parts = list(_parts(loaded, Wishes(WAYS[provider], role, publication, triggers), only))
    if not parts:
        there = [*(one.name for one in loaded.sources), *(one.name for one in loaded.destinations), "state"]
        raise ConfigError(
            f"there are no rights to grant at {only}", remedy=f"Choose --only from: {', '.join(there)}"
        )
    print("\n".join(parts), end="")


def _parts(config: Config, wishes: Wishes, only: str | None) -> Iterator[str]:
    for source in config.sources:
        if only in (None, source.name):
            yield _source(config, source, wishes)
    for destination in config.destinations:
        if only in (None, destination.name):
            yield from _destination(config, destination, wishes)
    url = config.state.url.get_secret_value()
    if url.startswith("postgres") and only in (None, "state"):
        yield _state(url, wishes)


def _source(config: Config, source: SourceConfig, wishes: Wishes) -> str:
    from psycopg import sql

    from penstock.destinations.plugin import type_of
    from penstock.postgres import catalog, grants
    from penstock.postgres.script import user

    publishes, marker = _publication(config, source, wishes)
    needs = grants.SourceNeeds(
        wishes.role or user(source.conninfo()),
        wishes.ways,
        source.publication_name,
        publishes,
        marker,
        {
            schema: kept
            for destination in config.destinations
            for schema, kept in type_of(destination).owns(destination).items()
        },
    )

    def tables(connection: Connection | None) -> Composable:
        if connection is None:
            return grants.chosen(grants.matched(source.tables))
        oids = [sql.Literal(int(table.id)) for table in catalog.matching(connection, source.tables)]
        return grants.chosen(sql.SQL("c.oid = any (array[{}]::oid[])").format(sql.SQL(", ").join(oids)))

    def write(script: Script) -> None:
        script.note(f"Logical decoding: {wishes.ways.decoding}.")
        grants.source(script, needs)

    return _part(f"source {source.name}", source.conninfo(), tables, (wishes, write))


def _publication(config: Config, source: SourceConfig, wishes: Wishes) -> tuple[bool, str | None]:
    """Whether the role makes the publication, and how markers begin if triggers are to be installed. A table
    is published by its owner, and the history belongs to whoever installs the triggers."""
    from penstock.config.destination_options import MARKER_PREFIX
    from penstock.model.errors import ConfigError

    wanted = wishes.publication
    publishes = wanted is By.ROLE if wanted else source.replication.create_publication
    marker = config.marker_for(source)
    triggers = wishes.triggers
    if triggers is None:
        triggers = marker is not None and (not publishes or source.ddl_capture == "on")
    if triggers and publishes:
        raise ConfigError(
            "event triggers record into a table that the role does not own, and cannot publish",
            source=source.name,
            remedy="Let a DBA make the publication (--publication dba, create_publication: false), or do "
            "without (--no-triggers, ddl_capture: off)",
        )
    return publishes, (marker or MARKER_PREFIX) if triggers else None


def _destination(config: Config, destination: DestinationConfig, wishes: Wishes) -> Iterator[str]:
    from penstock.destinations.plugin import type_of
    from penstock.model.errors import PenstockError
    from penstock.pipeline.table_facts import foreseen

    def tables() -> list[TableSchema]:
        with suppress(PenstockError):  # a source that cannot be asked has its own part
            return [table for source in config.sources for table in foreseen(source)]
        return []

    rights = type_of(destination).rights(destination, tables, wishes.role, wishes.ways)
    if rights is not None:
        what = f"destination {destination.name}"
        yield _part(what, rights.conninfo, lambda _: rights.tables, (wishes, rights.write))


def _state(url: str, wishes: Wishes) -> str:
    from penstock.postgres import grants
    from penstock.postgres.script import user
    from penstock.state.tables import metadata

    dsn = f"postgresql://{url.partition('://')[2]}"
    role = wishes.role or user(dsn)

    def write(script: Script) -> None:
        grants.make_role(script, role)
        grants.connect(script, role)
        grants.own_schemas(script, role, {grants.OWN: sorted(metadata.tables)})

    return _part("the state store", dsn, lambda _: None, (wishes, write))


def _part(
    what: str,
    conninfo: str,
    tables: Callable[[Connection | None], Composable | None],
    how: tuple[Wishes, Callable[[Script], None]],
) -> str:
    """One server's part of the script, by its answers if it gives any."""
    import psycopg

    from penstock.model.errors import PenstockError
    from penstock.postgres.connection import connect, explain
    from penstock.postgres.script import SAFE_PATH, Script

    wishes, write = how
    try:
        with connect(conninfo, autocommit=False) as connection:
            connection.read_only = True
            connection.execute(SAFE_PATH)
            connection.execute("set statement_timeout = '30s'")
            script = Script(connection, tables(connection))
            _head(script, what, conninfo, wishes)
            _write(script, write)
            return str(script)
    except PenstockError as error:
        reason = error.reason
    except psycopg.Error as error:
        reason = explain(error).reason
    script = Script(None, tables(None))
    _head(script, what, conninfo, wishes)
    script.note(f"The server could not be asked ({reason}):")
    script.note("psql asks it when this runs; it needs psql, for \\gexec.")
    _write(script, write)
    return str(script)


def _head(script: Script, what: str, conninfo: str, wishes: Wishes) -> None:
    from penstock.postgres.script import given, user

    database = given(conninfo, "dbname") or user(conninfo)
    host = given(conninfo, "host") or "this machine"
    script.note(f"For {what}. Run this in the database {database} on {host}, as {wishes.ways.run_by}.")


def _write(script: Script, write: Callable[[Script], None]) -> None:
    script.begin()
    write(script)
    script.end()
