"""`penstock snowflake`: the SQL with which Snowflake loads a table from its files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.arguments import ConfigFile, table_names

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.destinations.files.options import FilesOptions
    from penstock.destinations.files.snowflake import Export, ExportedFile
    from penstock.destinations.files.storage import Storage
    from penstock.model import TableName
    from penstock.postgres.connection import Connection


def snowflake(
    config: ConfigFile,
    table: Annotated[str, typer.Argument(help="The table (schema.table).", autocompletion=table_names)],
    source: Annotated[str | None, typer.Option(help="The source, where there are several.")] = None,
    destination: Annotated[
        str | None, typer.Option(help="The destination of files, where there are several.")
    ] = None,
) -> None:
    """Print the SQL with which Snowflake loads a table from the files of its newest full copy on.

    Example: penstock snowflake shop.yaml public.users > users.sql
    """
    from penstock.config import load
    from penstock.destinations.files.snowflake import script
    from penstock.destinations.files.storage import Storage
    from penstock.model import TableName

    loaded = load(config)
    conninfo = loaded.source(source).conninfo()
    name, options = _files(loaded, destination)
    storage = Storage(options.base, name, options.keys)
    export = _export(conninfo, options.file_registry.schema_name, storage, TableName.parse(table))
    print(script(export), end="")


def _files(config: Config, name: str | None) -> tuple[str, FilesOptions]:
    from penstock.destinations.files.options import FilesOptions
    from penstock.model.errors import ConfigError

    matching = [
        destination
        for destination in config.destinations
        if destination.type == "files" and name in (None, destination.name)
    ]
    if not matching:
        names = ", ".join(
            destination.name for destination in config.destinations if destination.type == "files"
        )
        raise ConfigError(
            f"there is no destination of files called {name}" if name else "there is no destination of files",
            remedy=f"Destinations of files: {names}" if names else "Add one: `type: files`",
        )
    if len(matching) > 1:
        names = ", ".join(destination.name for destination in matching)
        raise ConfigError(
            "there are several destinations of files", remedy=f"Choose by --destination: {names}"
        )
    options: FilesOptions = matching[0].settings(FilesOptions)
    if not options.file_registry.enabled:
        raise ConfigError(
            "the files of this destination are not registered",
            destination=matching[0].name,
            remedy="Set `file_registry: {enabled: true}`",
        )
    return matching[0].name, options


def _export(conninfo: str, registry: str, storage: Storage, table: TableName) -> Export:
    import psycopg
    import yaml

    from penstock.destinations.files.layout import DDL
    from penstock.destinations.files.snowflake import Export
    from penstock.postgres.connection import connect, explain

    with connect(conninfo) as connection:
        try:
            schema, files = _newest(connection, registry, storage.shown(""), table)
        except psycopg.Error as error:
            raise explain(error) from None
    described = yaml.safe_load(b"".join(storage.read(schema)))
    files = tuple(file for file in files if file.type != DDL or _has_statements(storage, file))
    base = storage.shown("").rstrip("/").removeprefix("file://")
    return Export(described, str(table), base, registry, files)


def _has_statements(storage: Storage, ddl: ExportedFile) -> bool:
    """Whether the columns changed: what else was done to the table stands there in comments."""
    lines = b"".join(storage.read(ddl.path)).decode().splitlines()
    return any(line and not line.startswith("--") for line in lines)


def _newest(
    connection: Connection, registry: str, base: str, table: TableName
) -> tuple[str, tuple[ExportedFile, ...]]:
    """The path of the newest `schema.yml`, and the files after it: the full copy first."""
    from psycopg import sql

    from penstock.destinations.files.layout import SCHEMA
    from penstock.destinations.files.snowflake import ExportedFile
    from penstock.model.errors import NotReady, UnknownTable

    log = sql.Identifier(registry, "file_log")
    if connection.execute("select to_regclass(%s)", (log.as_string(None),)).fetchone() == (None,):
        raise NotReady(
            f"nothing was exported yet: there is no registry {registry}",
            remedy="Run the pipeline: penstock run",
        )
    rows = connection.execute(
        sql.SQL("select file_type, file_path, end_lsn from {} where table_name = %s order by end_lsn").format(
            log
        ),
        (str(table),),
    ).fetchall()
    files = [ExportedFile(kind, path.removeprefix(base), end) for kind, path, end in rows]
    copies = [place for place, file in enumerate(files) if file.type == SCHEMA]
    if copies:
        newest = copies[-1]
        return files[newest].path, tuple(files[newest + 1 :])
    state = sql.Identifier(registry, "table_state")
    tables = connection.execute(sql.SQL("select table_name from {} order by 1").format(state)).fetchall()
    if (str(table),) in tables or files:
        raise NotReady(
            "the registry has no full copy of the table",
            table=table,
            remedy="Wait until it is copied; if its files were cleaned up: penstock reload",
        )
    names = ", ".join(name for (name,) in tables)
    raise UnknownTable(
        f"the registry has no files of {table}",
        remedy=f"Tables with files: {names}" if names else "No table has files yet: run the pipeline",
    )
