"""`penstock reload`: asks for a new full copy of tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cli import patterns
from penstock.cli.arguments import ConfigFile, Tables

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.model import TableId, TableName


def reload(
    config: ConfigFile,
    tables: Tables,
) -> None:
    """Copy tables anew, while the stream goes on for the others.

    Where the source records schema changes this is asked for by a comment on the table, which comes in the
    stream at its own place; elsewhere through the pipeline's state.

    Example: penstock reload shop.yaml public.orders
    """
    from penstock.config import load
    from penstock.config.tables import matches
    from penstock.model.errors import UnknownTable
    from penstock.model.text import printable
    from penstock.state.store import Store

    loaded = load(config)
    patterns.check(tables)
    with Store.open(loaded.state.url.get_secret_value(), loaded.pipeline, exclusive=False) as store:
        existing = {(state.key.source, state.name, state.key.table) for state in store.tables()}
        chosen = sorted(entry for entry in existing if any(matches(pattern, entry[1]) for pattern in tables))
        if not chosen:
            names = ", ".join(sorted(str(name) for _, name, _ in existing)) or "none"
            raise UnknownTable(
                f"no table of the pipeline matches {', '.join(tables)}", remedy=f"Its tables: {names}"
            )
        for source, name, table in chosen:
            if not _mark(loaded, source, name, table):
                store.request("reload", {"tables": [_pattern(name)], "source": source})
            print(printable(f"{name} of {source} will be copied anew"))
        if store.holder() is None:
            print("The pipeline does not run: it will do so when it is started.")


def _mark(config: Config, source: str, name: TableName, table: TableId) -> bool:
    """Ask by a marker; False if that cannot be done here."""
    import uuid
    from datetime import UTC, datetime

    from penstock.model.ddl import START, marker_text
    from penstock.postgres import ddl
    from penstock.postgres.connection import connect

    prefix = config.marker_for(config.source(source))
    if prefix is None:
        return False
    more = {"table_name": str(name), "timestamp": datetime.now(UTC).isoformat(timespec="seconds")}
    with connect(config.source(source).conninfo()) as connection:
        if not ddl.is_installed(connection):
            return False
        return ddl.set_comment(connection, table, marker_text(prefix, START, uuid.uuid4(), more))


def _pattern(table: TableName) -> str:
    from penstock.model.schema import quoted

    return f"{quoted(table.schema)}.{quoted(table.name)}"
