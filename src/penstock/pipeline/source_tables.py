"""All tables of the sources, for people who choose among them: what there is, what can be followed, what is
captured, and where each arrives.

A look takes a few statements for all tables of a source, without a lock (`postgres/outline.py`); what is
asked of single tables is asked for those that are shown. One look serves for two seconds, whoever asks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.config import Config, SourceConfig
from penstock.config.destination_options import Options
from penstock.config.destinations import DestinationConfig, DestinationTable
from penstock.config.mapping import Decision, TableOfSource
from penstock.model import ReplicaIdentity, TableId, TableName
from penstock.model.errors import ConnectionFailed, PenstockError, to_dict
from penstock.model.schema import NO_TABLE
from penstock.pipeline.table_states import KIND
from penstock.postgres import estimates, obstacle, outline
from penstock.postgres.catalog import TableKind
from penstock.postgres.connection import Connection, connect, explain, wait_briefly
from penstock.postgres.outline import Outline, Outlines
from penstock.state.mapping_records import Mapped
from penstock.state.store import Store, TableState

Document = dict[str, Any]

FRESH = 2.0
"""Seconds for which a look at a source serves."""
PATIENCE = 5.0
"""Seconds that a source has to answer."""
_KINDS = {
    TableKind.ORDINARY: "table",
    TableKind.PARTITIONED: "partitioned table",
    TableKind.FOREIGN: "foreign table",
}


@dataclass(frozen=True, slots=True)
class TableFilter:
    """Which tables are asked for."""

    search: str = ""
    """Part of a name, in capitals or not."""
    source: str | None = None
    captured: bool | None = None
    offset: int = 0
    limit: int = 100
    only: TableName | None = None
    """This one, whether it is there or not."""

    def names(self, table: TableName) -> bool:
        if self.only is not None:
            return table == self.only
        return self.search.casefold() in str(table).casefold()


class SourceCatalog:
    """The tables of one source, looked at when somebody asks. Threads may share it."""

    def __init__(self, source: SourceConfig) -> None:
        self.source = source
        self._seen: Outlines | None = None
        self._looked = 0.0
        self._asking = threading.Lock()

    def look(self) -> Outlines:
        """Return the tables as they are now, or were a moment ago."""
        with self._turn():
            if self._seen is None or time.monotonic() - self._looked >= FRESH:
                with self._connected() as connection:
                    self._seen = outline.look(connection, self.source.publication_name)
                self._looked = time.monotonic()
            return self._seen

    def detail(self, seen: Outlines, tables: Sequence[Outline]) -> dict[TableId, Detail]:
        """Return what is to be said of single tables."""
        leaves = {table.id: [leaf.id for leaf in seen.leaves(table)] for table in tables}
        parts = {*leaves, *(leaf for of_table in leaves.values() for leaf in of_table)}
        with self._turn(), self._connected() as connection:
            shapes = outline.shapes(connection, parts)
            known = estimates.estimates(connection, parts)
        return {
            table.id: Detail(
                _not_logged(table)
                if table.id == NO_TABLE or not table.logged
                else obstacle.unfit(seen, table, shapes, self.source.tables),
                estimates.together(known[leaf] for leaf in leaves[table.id] if leaf in known),
            )
            for table in tables
        }

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """A connection that is closed again: people look at tables now and then."""
        conninfo = self.source.conninfo()
        keywords = {"connect_timeout": f"{PATIENCE:.0f}", **conninfo_to_dict(conninfo)}
        try:
            with connect(make_conninfo(conninfo, **keywords)) as connection:
                wait_briefly(connection)
                connection.execute("select set_config('statement_timeout', %s, false)", (f"{PATIENCE:.0f}s",))
                yield connection
        except (psycopg.Error, PenstockError) as error:
            failure = error if isinstance(error, PenstockError) else explain(error)
            raise failure.at(source=self.source.name) from None

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """One asks the source at a time; who has waited too long for the one before is told so."""
        if not self._asking.acquire(timeout=PATIENCE):
            raise ConnectionFailed("the server does not answer", source=self.source.name)
        try:
            yield
        finally:
            self._asking.release()


class Detail(NamedTuple):
    unfit: str | None
    """Why the table cannot be followed, if so."""
    size: estimates.Estimate


class SourceTables:
    """The tables of a pipeline's sources. Threads may share it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.catalogs = {source.name: SourceCatalog(source) for source in config.sources}

    def under(self, mapped: Mapped) -> Config:
        """Return the configuration as it is under the mapping, where that counts."""
        return self.config.under(mapped.decisions) if self.config.mapping == "database" else self.config

    def browse(self, store: Store | None, wanted: TableFilter) -> Document:
        """Return the tables that are wanted, of all sources that answer, as JSON would have them. Without a
        store: as they are before the first start."""
        counts = store is not None and self.config.mapping == "database"
        mapped = store.mapping.read() if store is not None and counts else Mapped()
        config = self.under(mapped)
        matching: list[Listed] = []
        total, failures = 0, []
        for source in config.sources:
            if wanted.source not in (None, source.name):
                continue
            try:
                seen = self.catalogs[source.name].look()
            except PenstockError as error:
                failures.append(to_dict(error))
                continue
            chosen = chosen_of(source, seen)
            tables = [table for table in seen.tables.values() if not source.tables.is_ours(table.name)]
            tables += _gone(seen, {name for of, name in mapped.decisions if of == source.name}, wanted.only)
            total += len(tables)
            matching += [
                Listed(source, seen, table, table.id in chosen, part)
                for table in sorted(tables, key=lambda table: table.name)
                if wanted.names(table.name)
                for part in [any(above.id in chosen for above in seen.ancestors(table))]
                if wanted.captured in (None, part or table.id in chosen)
            ]
        page = matching[wanted.offset : wanted.offset + wanted.limit]
        return {
            "mapping": config.mapping,
            "revision": mapped.revision if config.mapping == "database" else None,
            "running": store.holder() if store is not None else None,
            "total": total,
            "matching": len(matching),
            "captured": sum(listed.chosen for listed in matching),
            "offset": wanted.offset,
            "tables": self._described(store, config, mapped, page),
            "errors": failures,
        }

    def _described(
        self, store: Store | None, config: Config, mapped: Mapped, page: Sequence[Listed]
    ) -> list[Document]:
        states: dict[tuple[str, TableId], dict[str, TableState]] = {}
        for state in store.tables() if page and store is not None else ():
            states.setdefault((state.key.source, state.key.table), {})[state.key.destination] = state
        documents = []
        for source in config.sources:
            mine = [listed for listed in page if listed.source is source]
            if not mine:
                continue
            catalog, seen = self.catalogs[source.name], mine[0].seen
            tables = [listed.table for listed in mine]
            details = catalog.detail(seen, tables)
            for listed in mine:
                id, name = listed.table.id, listed.table.name
                arriving = _arriving(config, listed, details[id].unfit, states.get((source.name, id), {}))
                documents.append(
                    _catalogued(listed, details[id]) | _decided(mapped, (source.name, name)) | arriving
                )
        return documents


@dataclass(frozen=True, slots=True)
class Listed:
    """A table in a list of them."""

    source: SourceConfig
    seen: Outlines
    table: Outline
    chosen: bool
    part: bool
    """Whether its rows come with a table that it is a partition of."""


def chosen_of(source: SourceConfig, seen: Outlines) -> set[TableId]:
    """Return the tables that are captured, by the configuration where the publication follows it, else by the
    publication as it is."""
    if is_ours(source, seen):
        return {table.id for table in seen.captured(source.tables)}
    return {id for id in seen.published() if not source.tables.is_ours(seen.tables[id].name)}


def is_ours(source: SourceConfig, seen: Outlines) -> bool:
    """Whether Penstock makes the publication, or may alter the one that is there."""
    existing = seen.publication
    made_by_us = existing is None or (existing.ours and not existing.all_tables)
    return source.replication.create_publication and made_by_us


def _catalogued(listed: Listed, detail: Detail) -> Document:
    table, above = listed.table, next(listed.seen.ancestors(listed.table), None)
    return {
        "source": listed.source.name,
        "table": str(table.name),
        "schema": table.name.schema,
        "name": table.name.name,
        "type": _KINDS[table.kind],
        "part_of": None if above is None else str(above.name),
        "rows": detail.size.rows,
        "bytes": detail.size.bytes,
        "can_be_followed": detail.unfit is None,
        "reason": detail.unfit,
    }


def _arriving(
    config: Config, listed: Listed, unfit: str | None, states: Mapping[str, TableState]
) -> Document:
    source, name = listed.source, listed.table.name
    destinations = [
        _at(destination, source.name, name, states.get(destination.name))
        for destination in config.destinations
    ]
    if listed.part:
        state = "part"
    elif listed.chosen and unfit is not None:
        state = "left out"
    else:
        state = _state(listed.chosen, destinations, states)
    return {
        "captured": listed.chosen or listed.part,
        "decided_by": "mapping" if _is_decided(config, source, name) else "file",
        "state": state,
        "destinations": [] if listed.part else destinations,
    }


def _decided(mapped: Mapped, table: TableOfSource) -> Document:
    decision = mapped.decisions.get(table, Decision())
    return {
        "revision": mapped.revision_of(table),
        "decision": {"captured": decision.captured, "destinations": decision.document()},
    }


def _is_decided(config: Config, source: SourceConfig, table: TableName) -> bool:
    return table in source.tables.decided or any(
        (source.name, table) in destination.decided for destination in config.destinations
    )


def _state(wanted: bool, destinations: Iterable[Document], states: Mapping[str, TableState]) -> str:
    """Return what is so, and what is yet to come."""
    if not wanted:
        return "leaving" if states else "not captured"
    if any(each["phase"] is None for each in destinations):
        return "coming"
    return "changing" if any(each["pending"] for each in destinations) else "captured"


def _at(destination: DestinationConfig, source: str, table: TableName, state: TableState | None) -> Document:
    """Return how a table is to arrive at a destination, and how it does. Of expressions only the columns'
    names are told: they may hold a secret, such as what a hash is salted with."""
    rules = destination.rules_of(table, source)
    target = destination.target_by(rules, table)
    arrives = state is not None and (state.target, state.detail.get(KIND, rules.kind)) == (target, rules.kind)
    return {
        "destination": destination.name,
        "type": destination.type,
        "target": str(target),
        "kind": rules.kind,
        "filtered": rules.where is not None,
        "set": sorted(rules.set),
        "drop": sorted(rules.drop),
        "takes_target": takes_target(destination),
        "phase": None if state is None else state.told,
        "pending": state is not None and not arrives,
    }


def takes_target(destination: DestinationConfig) -> bool:
    """Whether a target and a kind mean something to a destination of this type."""
    other = {"t": DestinationTable(target="t", kind="append")}
    misfits = destination.settings(Options).misfits(other, 1, ())
    return not any(key[:1] == ("tables",) for _, key in misfits)


def _gone(seen: Outlines, decided: set[TableName], only: TableName | None) -> list[Outline]:
    """Return tables that were decided about and are not there, or not any more."""
    wanted = decided | ({only} if only is not None else set())
    names = wanted - {table.name for table in seen.tables.values()}
    identity = ReplicaIdentity.DEFAULT
    return [
        Outline(NO_TABLE, name, TableKind.ORDINARY, False, identity, 0, None, "", None, None)
        for name in names
    ]


def _not_logged(table: Outline) -> str:
    if table.id == NO_TABLE:
        return "the source has no such table. If it will have none, take back what was decided of it"
    if table.unlogged:
        return "it is unlogged. Run `alter table … set logged`, or exclude the table"
    return "it is a foreign table: its changes are not in this server's WAL"
