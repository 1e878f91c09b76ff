"""A destination that keeps what it is given in memory: for tests of pipelines, yours too.

    destinations:
      - {name: memory, type: python, class: penstock.destinations.memory.Memory, options: {key: mine}}

`Memory.of("mine")` is then what it was given: the rows of each copy and the events, in order.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, ClassVar

from penstock.model import TableName, TableSchema
from penstock.model.events import Event

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from penstock.destinations.batch import ChangeBatch


class Memory:
    name = "memory"
    _made: ClassVar[dict[str, Memory]] = {}

    def __init__(self, key: str = "memory") -> None:
        self.copies: dict[TableName, pa.Table] = {}
        self.schemas: dict[TableName, TableSchema] = {}
        self.events: list[Event] = []
        self._lock = threading.Lock()
        Memory._made[key] = self

    @classmethod
    def of(cls, key: str = "memory") -> Memory:
        return cls._made[key]

    def truncate_table(self, table: TableSchema) -> None:
        with self._lock:
            self.copies.pop(table.name, None)

    def write_table_rows(self, table: TableSchema, rows: DataFrame) -> None:
        copied = rows.toArrow()
        with self._lock:
            self.copies[table.name] = copied
            self.schemas[table.name] = table

    def write_events(self, batch: ChangeBatch) -> None:
        events = list(batch.events())
        with self._lock:
            self.events += events
