"""The checks of `penstock check` for a destination of files: the base path, and a registry at each source.

They change nothing: whether a file can be written is only seen when the pipeline starts.
"""

from __future__ import annotations

import os
from pathlib import Path

import psycopg
from psycopg import sql

from penstock.config import Config, DestinationConfig, SourceConfig
from penstock.destinations.files.options import FilesOptions
from penstock.destinations.files.permissions import Permissions
from penstock.destinations.files.storage import Storage
from penstock.model.errors import ConfigError, PenstockError
from penstock.postgres.connection import connect, explain, wait_briefly
from penstock.postgres.preflight.check import Check, failure, ok

_REGISTRY = """
select coalesce(
           (select has_schema_privilege(oid, 'create') and has_schema_privilege(oid, 'usage')
            from pg_namespace where nspname = %(schema)s),
           has_database_privilege(current_database(), 'create')),
       to_regclass(%(schema)s || '.table_state') is not null,
       pg_is_in_recovery()
"""


def run(config: Config, destination: DestinationConfig) -> list[Check]:
    options: FilesOptions = destination.settings(FilesOptions)
    storage = Storage(options.base, destination.name, options.keys)
    checks = [_base_path(storage)]
    if options.group is not None:
        checks.append(_group(Permissions.of(options)))
    if options.file_registry.enabled:
        schema = options.file_registry.schema_name
        checks += [_registry(config, destination, source, schema) for source in config.sources]
    return checks


def _base_path(storage: Storage) -> Check:
    shown = storage.shown("").rstrip("/")
    try:
        if not storage.is_local:
            storage.folders("")
            return ok("base_path", f"{shown} can be listed")
    except PenstockError as error:
        return failure("base_path", error.reason, error.remedy)
    folder = Path(storage.base)
    there = next(path for path in (folder, *folder.parents) if os.path.exists(path))  # noqa: PTH110 -- where we may not look is no place for it
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return failure("base_path", f"{there} cannot be written", "Give the folder to Penstock's user")
    return ok("base_path", f"{shown} {'is there' if there == folder else 'will be made'}")


def _group(permissions: Permissions) -> Check:
    try:
        permissions.find_group()
    except ConfigError as error:
        return failure("group", error.reason, error.remedy)
    return ok("group", f"files are {permissions.group}'s to read")


def _registry(config: Config, destination: DestinationConfig, source: SourceConfig, schema: str) -> Check:
    name = f"registry at {source.name}"
    try:
        with connect(source.conninfo()) as connection:
            connection.read_only = True
            wait_briefly(connection)
            may, there, standby = connection.execute(_REGISTRY, {"schema": schema}).fetchone() or (None,) * 3
            if standby:
                return failure(name, "the source is a standby", "Files need a registry that can be written")
            if not may:
                remedy = f"grant create on database …, or on schema {schema}, to the role"
                return failure(name, f"the role may not make or use the schema {schema}", remedy)
            if not there:
                return ok(name, f"{schema} will be made")
            owner = connection.execute(
                sql.SQL("select pipeline, destination from {}.table_state limit 1").format(
                    sql.Identifier(schema)
                )
            ).fetchone()
    except PenstockError as error:
        return failure(name, error.reason, error.remedy)
    except psycopg.Error as error:
        return failure(name, explain(error).reason, explain(error).remedy)
    if owner is not None and owner != (config.pipeline, destination.name):
        detail = f"{schema} is that of pipeline {owner[0]}, destination {owner[1]}"
        return failure(name, detail, "Give this destination a registry of its own: file_registry.schema")
    return ok(name, f"{schema} is there")
