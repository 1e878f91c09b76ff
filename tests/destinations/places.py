"""Destinations as the contract sees them: how one is configured, and what whoever reads it finds there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from penstock.destinations.memory import Memory
from penstock.model import TableId, TableName, TableSchema
from penstock.model.events import Delete, Event, Insert, Relation, Truncate, Update
from tests.bed import Database
from tests.files.consumer import Consumer

Row = tuple[str | None, ...]


class Place(Protocol):
    settings: dict[str, Any]
    """Of the destination, but for its name."""

    def rows(self, table: TableSchema) -> Counter[Row]:
        """What it holds of the table: its columns in order, as text."""


class InPostgres:
    def __init__(self, database: Database, schema: str, **more: Any) -> None:
        self._database = database
        self._schema = schema
        self.settings = {"type": "postgres", "dsn": database.dsn} | more

    def rows(self, table: TableSchema) -> Counter[Row]:
        return rows_of(self._database, TableName(self._schema, table.name.name), table.column_names)


class InFiles:
    """A consumer makes tables of them, in a database."""

    def __init__(self, folder: Path, source: Database, rebuilt: Database) -> None:
        self.settings = {"type": "files", "base_path": str(folder)}
        self._rebuilt = rebuilt
        self._consumer = Consumer(source, rebuilt)

    def rows(self, table: TableSchema) -> Counter[Row]:
        self._consumer.run()
        return rows_of(self._rebuilt, table.name, table.column_names)


def rows_of(database: Database, table: TableName, columns: Iterable[str]) -> Counter[Row]:
    quoted = ['"{}"'.format(name.replace('"', '""')) for name in (*columns, table.schema, table.name)]
    *names, schema, name = quoted
    return Counter(database.query(f"select {', '.join(f'{n}::text' for n in names)} from {schema}.{name}"))


class InMemory:
    """A class of three methods; its events are carried out one by one."""

    def __init__(self, key: str, **settings: Any) -> None:
        own = {"type": "python", "class": "penstock.destinations.memory.Memory"}
        self.settings = (settings or own) | {"options": {"key": key}}
        self._key = key

    def rows(self, table: TableSchema) -> Counter[Row]:
        memory = Memory.of(self._key)
        carried_out = CarriedOut()
        for copied in memory.schemas.values():
            texts = [
                [None if value is None else str(value) for value in row.values()]
                for row in memory.copies[copied.name].to_pylist()
            ]
            carried_out.take(Relation(None, None, copied))  # type: ignore[arg-type]
            carried_out.tables[copied.id] = [
                dict(zip(copied.column_names, row, strict=True)) for row in texts
            ]
        for event in memory.events:
            carried_out.take(event)
        return Counter(
            tuple(row.get(name) for name in table.column_names) for row in carried_out.tables[table.id]
        )


class CarriedOut:
    """Tables as their events make them. What comes again is passed over, by its place in the stream."""

    def __init__(self) -> None:
        self.tables: dict[TableId, list[dict[str, str | None]]] = {}
        self._schemas: dict[TableId, TableSchema] = {}
        self._taken: set[tuple[int, int]] = set()

    def take(self, event: Event) -> None:
        if isinstance(event, Relation):
            self._schemas[event.table_schema.id] = event.table_schema
            self.tables.setdefault(event.table_schema.id, [])
        elif isinstance(event, Insert | Update | Delete | Truncate):
            place = (event.commit_lsn.value, event.seq)
            if place not in self._taken:
                self._taken.add(place)
                self._carry_out(event)

    def _carry_out(self, event: Insert | Update | Delete | Truncate) -> None:
        if isinstance(event, Truncate):
            for id in event.rel_ids:
                self.tables[id].clear()
            return
        table, names = self.tables[event.table_id], self._schemas[event.table_id].column_names
        old: dict[str, str | None] = {}
        if not isinstance(event, Insert):
            old = self._removed(event)
        if not isinstance(event, Delete):
            new = dict(zip(names, event.table_row, strict=True))
            table.append(new | {names[place]: old[names[place]] for place in event.unchanged})

    def _removed(self, event: Update | Delete) -> dict[str, str | None]:
        table, schema = self.tables[event.table_id], self._schemas[event.table_id]
        if event.old_table_row is not None:
            of_key, values = event.old_table_row
        else:
            assert isinstance(event, Update)
            of_key, values = True, event.table_row
        sought = {
            column.name: value
            for column, value in zip(schema.columns, values, strict=True)
            if column.key or not of_key
        }
        place = next(n for n, row in enumerate(table) if {name: row.get(name) for name in sought} == sought)
        return table.pop(place)
