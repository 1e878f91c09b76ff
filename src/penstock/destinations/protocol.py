"""What a destination is, and the values it is given.

Two protocols. `Destination` is what users write: three methods, in terms of Spark. `Target` is what the
pipeline drives: it also knows how far the data itself says it came, takes a copy and makes it visible
later, and tells which tables it could not write. The built-in destinations are `Target`s; a user's
`Destination` is wrapped into one (`python/target.py`).

All values here travel to Spark's executors.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.changes.slices import Slice
from penstock.destinations.schema_change import SchemaChange
from penstock.model import ZERO, Lsn, TableId, TableName, TableSchema
from penstock.model.errors import PenstockError
from penstock.model.visibility import Visibility

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.destinations.batch import ChangeBatch
    from penstock.postgres.snapshot import CopyRange


class Kind(StrEnum):
    CLONE = "clone"
    APPEND = "append"
    HISTORY = "history"


@dataclass(frozen=True, slots=True)
class Delivery:
    """How one table arrives at one destination."""

    source: str
    """The source's name; the value of the source column where several sources meet."""
    table: TableSchema
    """As it is delivered: transforms applied. Its version is that of the source's table."""
    target: TableName
    kind: Kind = Kind.CLONE
    primary_key: tuple[str, ...] = ()
    """Of the table at the source, if all of it is delivered."""
    computed: frozenset[str] = frozenset()
    """Columns that a rule makes: what the source says of one of that name is not for the destination."""

    @property
    def id(self) -> TableId:
        return self.table.id

    @property
    def key(self) -> tuple[str, ...]:
        """Return the columns that a row is found by; none: by all of it, as often as it is there."""
        identity = tuple(column.name for column in self.table.columns if column.key)
        if len(identity) < len(self.table.columns) and identity:
            return identity
        return self.primary_key or (identity if self.table.identity != "f" else ())

    def at(self, table: TableSchema, primary_key: tuple[str, ...]) -> Delivery:
        return replace(self, table=table, primary_key=primary_key)


@dataclass(frozen=True, slots=True)
class Run:
    """Changes of a table, in order, all under one version of its schema."""

    delivery: Delivery
    slices: tuple[Slice, ...]
    follow: SchemaChange | None = None
    """What the destination has to do before these changes."""


@dataclass(frozen=True, slots=True)
class TableChanges:
    """Changes of one table, in order."""

    runs: tuple[Run, ...]
    start: Lsn
    """Changes that committed before are not meant, though the slices may hold some."""
    copied: Visibility | None = None
    """Changes of transactions that are visible here are in the copy already, and are not meant."""

    @property
    def rows(self) -> int:
        """Return how many changes there are at most: a slice may hold some that are not meant."""
        return sum(part.rows for run in self.runs for part in run.slices)

    @property
    def delivery(self) -> Delivery:
        """Return the delivery as it is at the end."""
        return self.runs[-1].delivery


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a destination that keeps its position knows of a table."""

    copy: str
    """Which copy of the table is visible there."""
    version: int
    """The version of its schema that was followed last."""
    position: Lsn | None
    """All changes before it are there; None: as far as the stream."""
    error: PenstockError | None = None
    """Why it stopped at its position, if it did."""


@dataclass(frozen=True, slots=True)
class TableCopy:
    """A full copy of a table, to be made under one snapshot of the source."""

    id: str
    """Another for each attempt."""
    delivery: Delivery
    conninfo: str
    """Of the source. Holds the password: not for any output."""
    snapshot: str
    """What the source's snapshot is called, as `Snapshot.name` has it."""
    ranges: tuple[CopyRange, ...]
    """Each a part of the table for one task, disjoint, together all of it."""
    lsn: Lsn = ZERO
    """Where the WAL was when the snapshot was taken."""
    rows: DataFrame | None = None
    """If transforms are at work: what to write, every column as PostgreSQL's text. Otherwise the ranges."""
    rows_read: Callable[[], None] = field(default=lambda: None, compare=False)
    """Of the driver: to be called when all rows are read. The table is free then, however long the rest
    takes. Raises if they are not of one moment."""

    def __repr__(self) -> str:
        return f"TableCopy({self.delivery.table.name}, {len(self.ranges)} ranges)"


class Stopped(NamedTuple):
    """A table that could not be written: it stays where it was."""

    table: TableId
    error: PenstockError


class ReloadStatus(StrEnum):
    QUEUED = "queued"
    ACTIVE = "active"
    EXPORTED = "exported"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class Reload:
    """A full copy of a table that was asked for by a marker in the stream."""

    export_id: uuid.UUID
    table: TableId
    name: TableName
    status: ReloadStatus
    external: bool
    """Whether whoever asked makes the copy himself."""
    ended: bool = False
    """Whether END was seen."""
    snapshot: str | None = None
    """Of an external one that has ended: what its snapshot saw, if that was told."""
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Traits:
    """What the pipeline has to know of a destination, each for one thing."""

    keeps_position: bool = False
    """It keeps how far it came with its data: a batch that comes a second time is recognised there."""
    keeps_tables: bool = False
    """It keeps, besides, which copy of a table it has, under which version, and what has stopped it."""
    waits_for_interval: bool = False
    """Batches wait for their interval even though there is much to deliver."""
    recopies_on_new_key: bool = False
    """A table with another name or key begins with a new copy."""
    wants_ddl: bool = False
    """It is given a table's schema changes even where no row of the table changed."""
    wants_messages: bool = False
    """It is given logical messages."""
    wants_descriptions: bool = False
    """It is told of every table at the start, and when anything of its columns is another one in the catalog,
    also what the stream does not tell: defaults, and whether they may be NULL."""
    takes_copies: bool = True
    """It is given the rows that a table has already. If not, it is given empty copies."""


class Reloading(Protocol):
    """Records of reloads that a destination keeps."""

    at_once: int
    """Tables that may be reloaded at the same time."""

    def unfinished(self, source: str) -> Sequence[Reload]:
        """Return the reloads that are not completed, the oldest first."""

    def begin(self, source: str, reload: Reload) -> None:
        """Record that the reload is active."""

    def complete(self, source: str, reload: Reload) -> None:
        """Record that it is over although END was not seen: nobody could set it."""


class WantedSnapshot(NamedTuple):
    """Somebody wants the rows that a table has now."""

    id: str
    """Of the snapshot that is to be made."""
    table: str
    """What whoever asked calls it."""


class Snapshots(Protocol):
    """Snapshots that a destination's consumers ask for; they are made while the stream goes on."""

    at_once: int
    """Snapshots that may be made at the same time."""

    def asked(self) -> Sequence[WantedSnapshot]:
        """Return the requests that were not taken yet, the oldest first."""

    def names(self, request: WantedSnapshot, table: TableName) -> bool:
        """Tell whether a request is for this table."""

    def take(self, request: WantedSnapshot) -> None:
        """Tell who asked that the snapshot will be made."""

    def refuse(self, request: WantedSnapshot, why: str) -> None:
        """Tell who asked why there is no snapshot."""

    def pass_on(self, request: WantedSnapshot, why: str) -> None:
        """Leave a table that is none of ours to another pipeline; tell who asked why if there is none."""

    def forget(self, request: WantedSnapshot) -> None:
        """Make no snapshot: whoever asks again, asks for another one."""

    def make(self, request: WantedSnapshot, copy: TableCopy, seen: Visibility, position: Lsn) -> int:
        """Publish the snapshot, of which it is known what it contains (`seen`), and that it contains all that
        committed before `position`. Return its rows."""


class Destination(Protocol):
    """A destination that users write."""

    name: str

    def truncate_table(self, table: TableSchema) -> None:
        """Empty the table, before a full copy."""

    def write_table_rows(self, table: TableSchema, rows: DataFrame) -> None:
        """Write rows of a full copy."""

    def write_events(self, batch: ChangeBatch) -> None:
        """Write changes. The same ones may come again after a crash."""


class Target(Protocol):
    """A destination as the pipeline drives it: from one thread at a time, but for `copy_table`."""

    name: str
    traits: Traits

    @property
    def reloads(self) -> Reloading | None:
        """Return its records of reloads; None: it keeps none, and a table to be reloaded is copied anew at
        once."""

    @property
    def snapshots(self) -> Snapshots | None:
        """Return what its consumers ask for; None: they ask for nothing."""

    def open(self, spark: SparkSession) -> None:
        """Connect and make ready whatever it needs for itself. Raises what keeps it from working."""

    def position(self, source: str) -> Lsn | None:
        """Return how far this source's stream came, as the data's own transaction has it; None: unknown."""

    def begin(self, source: str, position: Lsn) -> None:
        """Let this source's stream go on from here, whatever was recorded. From then on, to be given what
        begins further on than its own position means `DestinationWentBack`. A destination that keeps no
        position is told when the stream begins for the first time, or further back than it was."""

    def recorded(self, source: str) -> Mapping[TableId, Recorded]:
        """Return what is recorded there of the tables; empty for a destination that does not keep them."""

    def expect(self, source: str, tables: Mapping[TableId, TableName]) -> None:
        """Record that these are to be copied, when it is their turn."""

    def copy_table(self, copy: TableCopy) -> int:
        """Make the copy, set aside from readers where that can be; return its rows. Called for several
        tables at once. A copy that was begun before and not handed over is replaced. It calls `rows_read`."""

    def hand_over(self, copy: str, changes: TableChanges, position: Lsn) -> None:
        """Make a finished copy visible in the place of what was there, with these changes applied to it: the
        table is then at `position`, as the stream is."""

    def catch_up(self, changes: TableChanges, position: Lsn) -> None:
        """Apply what a table that was stopped has missed: it is then at `position`, as the stream is."""

    def write(self, batch: ChangeBatch) -> Sequence[Stopped]:
        """Apply a batch. Return the tables that could not be written, which stay at the batch's start. Raises
        what concerns the whole destination."""

    def describe(self, source: str, deliveries: Sequence[Delivery]) -> None:
        """Look again at what the catalog says of these tables: it has changed, or a process has begun. Their
        columns are those that were followed last. Called if the destination wants descriptions."""

    def hold(self, source: str, table: TableId, position: Lsn, why: PenstockError) -> None:
        """Record that a table stops at `position`, not by the destination's fault: what follows waits."""

    def forget(self, source: str, table: TableId) -> None:
        """Forget a table that is no longer delivered. Its data stays."""

    def close(self) -> None: ...

    def tear_down(self) -> None:
        """Remove what it keeps for itself there; not the data. Called on its own, without `open`."""
