"""Destinations as the contract sees them: how one is configured, and what whoever reads it finds there."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from penstock.destinations.memory import Memory
from penstock.embedded.nats import USER, NatsServer
from penstock.model import TableId, TableName, TableSchema
from penstock.model.events import Delete, Event, Insert, Relation, Truncate, Update
from tests.bed import Database
from tests.files.consumer import Consumer
from tests.nats.reading import read_all

Row = tuple[str | None, ...]


class Place(Protocol):
    settings: dict[str, Any]
    """Of the destination, but for its name."""

    def rows(self, table: TableSchema) -> Counter[Row]:
        """What it holds of the table: its columns in order, as text."""

    def copied(self, copy: str, table: TableSchema, source: Database) -> None:
        """Called when the destination was given a copy."""


class _TakesCopies:
    def copied(self, copy: str, table: TableSchema, source: Database) -> None: ...


class InPostgres(_TakesCopies):
    def __init__(self, database: Database, schema: str, **more: Any) -> None:
        self._database = database
        self._schema = schema
        self.settings = {"type": "postgres", "dsn": database.dsn} | more

    def rows(self, table: TableSchema) -> Counter[Row]:
        return rows_of(self._database, TableName(self._schema, table.name.name), table.column_names)


class InFiles(_TakesCopies):
    """A consumer makes tables of them, in a database."""

    def __init__(self, folder: Path, source: Database, rebuilt: Database) -> None:
        self.settings = {"type": "files", "base_path": str(folder)}
        self._rebuilt = rebuilt
        self._consumer = Consumer(source, rebuilt)

    def rows(self, table: TableSchema) -> Counter[Row]:
        self._consumer.run()
        return rows_of(self._rebuilt, table.name, table.column_names)


class InNats:
    """A consumer carries the messages out one by one. It has a snapshot of its own of a table that begins."""

    def __init__(self, server: NatsServer, delivery: str, encoding: str) -> None:
        self.settings = {
            "type": "nats",
            "servers": server.url,
            "user": USER,
            "password": server.password,
            "delivery": delivery,
            "encoding": encoding,
        }
        self._server = server
        self._encoding = encoding
        self._snapshots: dict[tuple[str, TableId], list[dict[str, Any]]] = {}

    def copied(self, copy: str, table: TableSchema, source: Database) -> None:
        quoted = '"{}"'.format(table.name.name.replace('"', '""'))
        rows = source.query(f"select to_jsonb(t) from public.{quoted} t")
        self._snapshots[copy, table.id] = [row for (row,) in rows]

    def rows(self, table: TableSchema) -> Counter[Row]:
        rows: list[dict[str, Any]] = []
        applied: tuple[Any, ...] = ()
        for message in read_all(self._server, encoding=self._encoding):
            change = message.body
            if change["relation_id"] != table.id or change["operation"] == "SCHEMA":
                continue
            if change["operation"] == "RESET":
                copy = change["msg_id"].split("-")[1]
                rows = [_typed(row, table) for row in self._snapshots[copy, table.id]]
                continue
            place = change["commit_lsn"], change["seq"]
            if place > applied:
                applied = place
                _carry_out(rows, change, [column.name for column in table.columns if column.key])
        return Counter(tuple(_text(row.get(name)) for name in table.column_names) for row in rows)


def _carry_out(rows: list[dict[str, Any]], change: dict[str, Any], key: list[str]) -> None:
    data, operation = change["data"], change["operation"]
    if operation == "TRUNCATE":
        rows.clear()
        return
    old: dict[str, Any] = {}
    if operation != "INSERT":
        sought = change.get("old") or {name: data[name] for name in key}
        at = next(n for n, row in enumerate(rows) if {name: row.get(name) for name in sought} == sought)
        old = rows.pop(at)
    if operation != "DELETE":
        rows.append(data | {name: old[name] for name in change.get("unchanged", ())})


def _typed(row: dict[str, Any], table: TableSchema) -> dict[str, Any]:
    """A row of a snapshot, with numerics as text, as messages have them."""
    texts = {column.name for column in table.columns if column.type.name == "numeric"}
    return {n: f"{v:.2f}" if n in texts and v is not None else v for n, v in row.items()}


def _text(value: Any) -> str | None:
    return json.dumps(value) if isinstance(value, dict | list) else None if value is None else str(value)


def rows_of(database: Database, table: TableName, columns: Iterable[str]) -> Counter[Row]:
    quoted = ['"{}"'.format(name.replace('"', '""')) for name in (*columns, table.schema, table.name)]
    *names, schema, name = quoted
    return Counter(database.query(f"select {', '.join(f'{n}::text' for n in names)} from {schema}.{name}"))


class InMemory(_TakesCopies):
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
