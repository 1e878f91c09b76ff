"""`penstock check`: whether everything that a configuration names can be reached and is ready.

Sources and PostgreSQL destinations have checks of their own; the rules for a destination's tables, the state
store and a class of the user's are looked at here. Nothing is made on the way: no file, no table, no object
of the user's class. Spark is started only where a rule has an expression: nobody else can read one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.arguments import ConfigFile

if TYPE_CHECKING:
    from penstock.capture.spec import CaptureSpec
    from penstock.config import Config, DestinationConfig, SourceConfig
    from penstock.model import Reached, TableSchema
    from penstock.pipeline.transform.rules import Finding
    from penstock.postgres.preflight import Check

COLOURS = {"ok": "green", "warning": "yellow", "failure": "red"}

About = tuple[str, str]
"""What checks are about: `source`, `destination` or `state`, and its name."""


def check(
    config: ConfigFile,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for each check.")] = False,
) -> None:
    """Check that sources, destinations and the state store are ready; change nothing.

    Exits with 1 if a check fails; a warning is no failure.

    Example: penstock check shop.yaml
    """
    from penstock.config import load

    failed = False
    for about, checks in checks_of(_mapped(load(config))):
        failed = failed or any(check.outcome == "failure" for check in checks)
        (_as_json if as_json else show)(about, checks)
    if failed:
        raise typer.Exit(1)


def _mapped(config: Config) -> Config:
    """The configuration under what was decided of single tables; the state store's own checks tell if that
    cannot be read."""
    from penstock.model.errors import ConfigError, PenstockError
    from penstock.state.mapping_records import mapped

    try:
        return mapped(config)
    except ConfigError:
        raise
    except PenstockError:
        return config


def checks_of(config: Config) -> Iterator[tuple[About, list[Check]]]:
    from penstock.destinations.plugin import type_of
    from penstock.model.errors import PenstockError
    from penstock.pipeline.table_facts import foreseen
    from penstock.postgres import preflight

    by_source: dict[str, list[TableSchema]] = {}
    reachable = True
    for source in config.sources:
        captured, spool_checks = _spool(config, source)
        checks = preflight.run(source, config.spool.path, captured)
        # What `_spool` found says more than the check of that name.
        checks = [result for result in checks if not spool_checks or result.name != "spool"]
        if config.mapping == "database":
            checks = [_none_yet(result) for result in checks]
        yield ("source", source.name), checks + spool_checks
        try:
            by_source[source.name] = foreseen(source) if config.destinations else []
        except PenstockError:
            reachable = False  # that the source cannot be asked is told by its own checks
    tables = [table for schemas in by_source.values() for table in schemas]
    for destination in config.destinations:
        rules = _rules(config, destination, tables) if reachable and destination.tables else []
        checks = type_of(destination).check(config, destination, tables)
        yield ("destination", destination.name), checks + rules
    if wrong := _collisions(config, by_source):
        yield ("destinations", config.pipeline), wrong
    yield ("state", config.pipeline), [_state(config), *_state_tls(config)]


def _none_yet(check: Check) -> Check:
    """No table at all is no failure where people decide about them later."""
    from dataclasses import replace

    if check.name != "tables" or check.outcome != "failure":
        return check
    remedy = "Choose some: the dashboard's `Source tables`, or `penstock map CONFIG TABLE --capture`"
    return replace(check, outcome=type(check.outcome)("warning"), remedy=remedy)


def _collisions(config: Config, tables: dict[str, list[TableSchema]]) -> list[Check]:
    """Tables that would overwrite each other."""
    from penstock.pipeline.shared_targets import REMEDY, collisions
    from penstock.postgres.preflight.check import failure

    return [failure("targets", sentence, REMEDY) for sentence in collisions(config, tables)]


def _spool(config: Config, source: SourceConfig) -> tuple[Reached | None, list[Check]]:
    """How far capture came, and what is wrong with the spool. From another's nothing is concluded."""
    import sqlite3

    from penstock.capture.launch import spec_of
    from penstock.model import private
    from penstock.model.errors import NotPrivate, SpoolDamaged, WrongSpool
    from penstock.postgres.preflight.check import failure
    from penstock.spool import manifest

    spec = spec_of(config, source)
    try:
        private.look(spec.spool)
        return manifest.reached(_found(spec)), []
    except (NotPrivate, WrongSpool) as error:
        return None, [failure("spool", f"{error.where['file']}: {error.reason}", error.remedy)]
    except PermissionError as error:
        remedy = "Run it as the user that the pipeline runs as"
        return None, [failure("spool", f"{error.filename}: {error.strerror}", remedy)]
    except (SpoolDamaged, sqlite3.Error) as error:
        remedy = "Restore it from a backup, or remove the spool and copy the tables anew"
        return None, [failure("spool", f"its manifest does not open: {error}", remedy)]


def _found(spec: CaptureSpec) -> Path:
    from penstock.capture.spool_identity import find
    from penstock.model.errors import AccessDenied, ConnectionFailed, NotReady

    try:
        return find(spec)
    except (AccessDenied, ConnectionFailed, NotReady):  # the source's own checks tell of it
        return spec.spool


def _rules(config: Config, destination: DestinationConfig, tables: list[TableSchema]) -> list[Check]:
    """Which rule holds for which tables, and what is wrong with it."""
    from penstock.model.errors import PenstockError
    from penstock.pipeline.transform.rules import REMEDY, applied, findings, has_expressions
    from penstock.postgres.preflight.check import failure, ok, some, warning

    problems = findings(destination, tables)
    unknown: list[Check] = []
    if has_expressions(destination):
        try:
            problems += _expressions(config, destination, tables)
        except PenstockError as error:
            unknown = [failure("rules", f"expressions could not be read: {error.reason}", error.remedy)]
    mend = REMEDY.partition(";")[0]  # without the advice to be less strict, where that was followed
    checks = [
        failure("rules", str(finding), REMEDY)
        if finding.certain and destination.strict
        else warning("rules", str(finding), mend if finding.certain else "")
        for finding in problems
    ]
    holds = "; ".join(
        f"{glob} → {some(table.name for table in taken)}"
        for glob, taken in applied(destination, tables).items()
        if taken
    )
    return [*([ok("rules", f"{holds} (the first that matches wins)")] if holds else []), *checks, *unknown]


def _expressions(config: Config, destination: DestinationConfig, tables: list[TableSchema]) -> list[Finding]:
    import tempfile

    from penstock.pipeline.transform.analysis import Analysis
    from penstock.spark.session import session

    with tempfile.TemporaryDirectory(prefix="penstock-check-") as folder:
        spark = session("local[1]", config.spark.conf, config.pipeline, Path(folder) / "spark.log")
        return list(Analysis(spark).findings(destination, tables))


def _state(config: Config) -> Check:
    """Whether the store can be used, and who uses it now."""
    import psycopg

    from penstock.model.errors import PenstockError, StateOlder
    from penstock.postgres.connection import explain
    from penstock.postgres.preflight.check import failure, ok
    from penstock.state.store import Store

    url = config.state.url.get_secret_value()
    try:
        new = _new_state(url)
        if new is not None:
            return new
        with Store.open(url, config.pipeline, exclusive=False) as store:  # it is there: nothing is made
            held = store.holder() if _may_be_held(url, config.pipeline) else None
    except StateOlder:
        return ok("state store", "is of an earlier version: `penstock run` brings it up to date")
    except PenstockError as error:
        return failure("state store", error.reason, error.remedy)
    except psycopg.Error as error:
        return failure("state store", explain(error).reason, explain(error).remedy)
    return ok("state store", f"in use by {held}" if held else "is there, no pipeline uses it now")


def _state_tls(config: Config) -> list[Check]:
    """Check that the connection to a store at a server is safe; `_state` tells if it cannot be reached."""
    from penstock.model.errors import PenstockError
    from penstock.postgres.connection import connect
    from penstock.postgres.preflight.tls import tls

    scheme, _, rest = config.state.url.get_secret_value().partition("://")
    if not scheme.startswith("postgres"):
        return []
    try:
        with connect(f"postgresql://{rest}") as connection:
            return [result] if (result := tls(connection)) else []
    except PenstockError:
        return []


def _new_state(url: str) -> Check | None:
    """What there is to say of a store that is not there yet; None if it is."""
    from penstock.postgres.preflight.check import failure

    scheme, _, rest = url.partition("://")
    if scheme == "sqlite" and len(rest) > 1:
        return _new_file(Path(rest[1:]))
    if scheme in ("postgresql", "postgres", "postgresql+psycopg", "postgres+psycopg"):
        return _new_schema(f"postgresql://{rest}")
    return failure(
        "state store",
        "`state.url` is not one that Penstock knows",
        "Give sqlite:///path/to/file or postgresql://…",
    )


def _new_file(file: Path) -> Check | None:
    import os
    import sqlite3
    from contextlib import closing

    from penstock.model import private
    from penstock.model.errors import NotPrivate
    from penstock.postgres.preflight.check import failure, ok

    try:
        private.look(file)
    except NotPrivate as error:
        return failure("state store", f"{error.where['file']}: {error.reason}", error.remedy)
    if not file.exists():
        folder = next(path for path in file.absolute().parents if path.exists())
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            return failure(
                "state store", f"{folder} cannot be written to", "Correct state.url, or the folder's owner"
            )
        return ok("state store", f"{file} will be created")
    if not os.access(file, os.W_OK) or not os.access(file.parent, os.W_OK | os.X_OK):
        return failure("state store", f"{file} cannot be written to", "Correct its owner")
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
            ours = database.execute("select 1 from sqlite_master where name = 'state_format'").fetchone()
    except sqlite3.Error as error:
        return failure("state store", f"{file} does not open: {error}", "Give another `state.url`")
    return None if ours else ok("state store", f"its tables will be created in {file}")


def _new_schema(dsn: str) -> Check | None:
    from penstock.postgres.connection import connect
    from penstock.postgres.preflight.check import failure, ok

    with connect(dsn) as connection:
        row = connection.execute(
            """
            select to_regclass('penstock.state_format') is not null,
                   coalesce((select has_schema_privilege(oid, 'create') and has_schema_privilege(oid, 'usage')
                             from pg_namespace where nspname = 'penstock'),
                            has_database_privilege(current_database(), 'create'))
            """
        ).fetchone()
    there, may_create = row or (False, False)
    if there:
        return None
    if not may_create:
        return failure(
            "state store",
            "the role may not create the schema penstock, or tables in it",
            "Run: grant create on database … to …",
        )
    return ok("state store", "its tables will be created in the schema penstock")


def _may_be_held(url: str, pipeline: str) -> bool:
    """Whether to ask who holds the store: asking would make the lock's file, without which nobody does."""
    from urllib.parse import quote

    scheme, _, file = url.partition(":///")
    return scheme != "sqlite" or Path(f"{file}.{quote(pipeline, safe='')}.lock").exists()


def _as_json(about: About, checks: list[Check]) -> None:
    from dataclasses import asdict

    from penstock.model.text import as_json

    for result in checks:
        print(as_json({about[0]: about[1], **asdict(result)}))


def _stop(sentence: str) -> str:
    return "" if sentence.endswith(("?", ".")) else "."


def show(about: About, checks: list[Check]) -> None:
    """Plain lines in a pipe; colours on a terminal."""
    from penstock.model.text import printable

    kind, name = about
    typer.secho(name if kind == "source" else f"{kind} {name}", bold=True)
    for result in checks:
        outcome = typer.style(f"{result.outcome.value:<8}", fg=COLOURS[result.outcome.value])
        remedy = f"{_stop(result.detail)} {result.remedy}" if result.remedy else ""
        typer.echo(f"  {outcome} {printable(f'{result.name}: {result.detail}{remedy}')}")
