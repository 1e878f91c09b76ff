"""What a mirror does with each message, and when a table needs a snapshot.

A change is applied exactly if it is in neither what was applied before (`commit_lsn`, `seq`) nor the snapshot
(its transaction). Where that is not enough, the table is loaded anew. That is so when

- the table is reset,
- its columns are others, or its description has a new version and nothing in it says why: a column that was
  dropped and added again looks the same, and its values do not,
- a change does not fit: a column too many or too few, a row that is not there, or is there already,
- its name was given to another table.

A table is known by its oid. Renamed, it keeps its rows. A table whose name another has taken is loaded anew
when it turns up under its new one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from penstock.consumer.documents import (
    FeedEvent,
    MessageLogged,
    RowChange,
    SeenBy,
    SnapshotInfo,
    TableDescription,
    TableEvent,
    TableRedescribed,
    TableReset,
)
from penstock.consumer.feed import table_of
from penstock.consumer.mirror_file import MirroredTable, MirrorFile, MirrorState
from penstock.consumer.mirror_table import MirrorTable
from penstock.consumer.ordered import StreamEntry
from penstock.model.errors import MirrorRefused

CLOCKS_DIFFER = timedelta(hours=1)
"""So much later than a snapshot by the source's clock, no transaction can be in it. Without that bound the
ids of transactions, of 32 bits in changes, would one day come round to those of the snapshot."""


MOST_TAKEN_BY_OTHER_SOURCES = 3
"""How often tables of other sources may take a name before it is refused."""


class _LoadAgain(Exception):
    """The snapshot at hand will not do."""


class Applier:
    """Applies messages to a mirror's file."""

    def __init__(self, file: MirrorFile, read: Callable[[StreamEntry], FeedEvent | None]) -> None:
        self._file = file
        self._read = read
        self._changed: dict[str, MirroredTable] = {}
        self._other_sources: Counter[str] = Counter()

    def apply(self, entries: Sequence[StreamEntry]) -> dict[str, str]:
        """Apply messages in one transaction; returns the tables that need a snapshot since, and why."""
        loading: dict[str, str] = {}
        with self._file.transaction():
            for entry in entries:
                loading.update(self._taken(entry))
            for table in self._changed.values():
                self._file.save(table)
            self._file.advance(entries[-1].sequence)
        self._changed.clear()
        self._file.sequence = entries[-1].sequence
        return loading

    def finish(self, table: MirroredTable, staged: MirrorTable, info: SnapshotInfo) -> str | None:
        """Let the rows of a snapshot, with what was put aside since, be the table; or return why another
        snapshot is needed."""
        loaded = MirroredTable(
            table.token,
            MirrorState.LIVE,
            table.chosen_as,
            table.sqlite_name,
            info.table,
            info.lsn,
            info.visibility,
            _text(info.timestamp),
        )
        try:
            with self._file.transaction():
                for other in self._file.all_of(info.table.relation):
                    if other.token != table.token and other.state is MirrorState.LIVE:
                        self._file.remove(other)  # one that is loading may have the newer name
                self._file.take_place(staged, loaded)
                loaded.prepare()
                for entry in self._file.aside(table.token):
                    self._replay(loaded, entry)
                self._file.empty_aside(table.token)
                self._file.save(loaded)
        except _LoadAgain as why:
            with self._file.transaction():
                self._file.empty_aside(table.token)
            return str(why)
        finally:
            self._changed.pop(table.token, None)
        return None

    def call_otherwise(self, table: MirroredTable, description: TableDescription) -> None:
        """Let a table that is loading have another name, under which there may be a snapshot of it."""
        with self._file.transaction():
            self._file.move_aside(table.token, description.token)
            self._file.forget(table.token)
            self._file.save(replace(table, token=description.token, description=description))

    def _replay(self, table: MirroredTable, entry: StreamEntry) -> None:
        event = self._read(entry)
        if event is None or isinstance(event, MessageLogged):
            return
        if not isinstance(event, RowChange) and event.lsn <= table.snapshot_lsn:
            return
        if _is_its(table, event):
            why = self._followed(table, event)
            if why is not None:
                raise _LoadAgain(why)
        elif not self._was_before(table, event):
            raise _LoadAgain("another table has its name")

    def _taken(self, entry: StreamEntry) -> dict[str, str]:
        token = table_of(entry.subject)
        if token is None:
            return {}
        holder = self._file.tables.get(token)
        if holder is not None and holder.state is MirrorState.LEFT_OUT:
            return {}
        if holder is not None and holder.state is MirrorState.LOADING:
            self._file.put_aside(token, entry)
            return {}
        event = self._read(entry)
        if event is None or isinstance(event, MessageLogged):
            return {}
        if holder is None or not _is_its(holder, event):
            return self._newcomer(token, holder, event, entry)
        why = self._followed(holder, event)
        if why is not None:
            self._load(replace(holder, state=MirrorState.LOADING, rows=None, seen=None))
            return {token: why}
        return {}

    def _newcomer(
        self, token: str, holder: MirroredTable | None, event: TableEvent, entry: StreamEntry
    ) -> dict[str, str]:
        """Take a message of a table that is not the one of this name here."""
        same = self._file.by_relation(event.relation)
        if same is not None and not _is_newer(same, event):
            if same.state is MirrorState.LOADING:
                self._file.put_aside(same.token, entry)
            return {}
        if holder is not None:
            if self._was_before(holder, event):
                return {}
            self._remove(holder)
        if same is not None and isinstance(event, TableRedescribed) and _only_renamed(same, event.table):
            self._rename(same, event.table)
            return {}
        if same is not None:
            self._remove(same)
        description = event.table if isinstance(event, TableRedescribed) else None
        chosen_as = same.chosen_as if same is not None else None
        self._load(MirroredTable(token, chosen_as=chosen_as, description=description))
        return {token: "it is new under this name"}

    def _was_before(self, table: MirroredTable, event: TableEvent) -> bool:
        """Whether it happened before the table's snapshot, to who had the name then. A table of another
        source may take a name, too, but not again and again: there are two of that name."""
        assert table.description is not None
        source, other = table.description.source, event.relation[0]
        if source == other:
            return _was_before(table, event)
        self._other_sources[table.token] += 1
        if self._other_sources[table.token] > MOST_TAKEN_BY_OTHER_SOURCES:
            raise MirrorRefused(
                f"two sources, {source} and {other}, publish a table under the same name",
                table=table.token,
                remedy="Leave it out (--table), or let each source have a NATS destination of its own",
            )
        return False

    def _followed(self, table: MirroredTable, event: TableEvent) -> str | None:
        """Apply what happened to a table that is live; returns why it cannot be followed."""
        if isinstance(event, TableReset):
            return f"changes may be missing: {event.reason}" if event.reason else "changes may be missing"
        if isinstance(event, TableRedescribed):
            return self._redescribed(table, event.table)
        if event.place <= table.last or self._is_in_snapshot(table, event):
            return None
        assert table.rows is not None
        if not table.rows.apply(self._file.connection, event):
            return f"an {event.operation} does not fit the rows and columns that are here"
        table.last = event.place
        self._changed[table.token] = table
        return None

    def _redescribed(self, table: MirroredTable, description: TableDescription) -> str | None:
        before = table.description
        assert before is not None
        if description.token != before.token:
            return "it has another name"
        if description.version < before.version:
            return None
        if description.version == before.version:
            return None if _looks(description) == _looks(before) else "its columns have changed"
        return "its columns have changed, or may have"

    def _is_in_snapshot(self, table: MirroredTable, change: RowChange) -> bool:
        if table.seen is None:
            return False
        if change.committed_at > table.visible_until:
            table.seen, table.visibility = None, None
            return False
        return table.seen(change.xid)

    def _rename(self, table: MirroredTable, description: TableDescription) -> None:
        assert table.sqlite_name is not None
        self._file.forget(table.token)
        self._changed.pop(table.token, None)
        before, after = table.sqlite_name, self._file.free_name(description.name, but=table.sqlite_name)
        if before != after:
            self._file.rename(before, after)
        table.token, table.sqlite_name, table.description = description.token, after, description
        table.prepare()
        self._file.save(table)

    def _load(self, table: MirroredTable) -> None:
        self._changed.pop(table.token, None)
        self._file.empty_aside(table.token)
        self._file.save(table)

    def _remove(self, table: MirroredTable) -> None:
        self._changed.pop(table.token, None)
        self._file.remove(table)


def _is_its(table: MirroredTable, event: TableEvent) -> bool:
    return table.description is not None and table.description.relation == event.relation


def _was_before(table: MirroredTable, event: TableEvent) -> bool:
    """Whether it happened before the table's snapshot, to who had the name then."""
    if isinstance(event, RowChange):
        seen = SeenBy(table.visibility) if table.visibility else None
        return seen is not None and event.committed_at <= table.visible_until and seen(event.xid)
    return event.lsn <= table.snapshot_lsn


def _is_newer(table: MirroredTable, event: TableEvent) -> bool:
    """Whether a message of this table under another name is more than a late one or a repetition."""
    if table.state is MirrorState.LOADING or _was_before(table, event):
        return False
    if isinstance(event, RowChange):
        return event.place > table.last
    return event.lsn >= table.last[0]


def _only_renamed(table: MirroredTable, description: TableDescription) -> bool:
    before = table.description
    return (
        table.state is MirrorState.LIVE
        and before is not None
        and before.name != description.name
        and _looks(before) == _looks(description)
    )


def _looks(description: TableDescription) -> object:
    return description.columns, description.row_key


def _text(timestamp: float) -> str:
    """The time by which no further transaction can be in the snapshot, as changes have times."""
    return (datetime.fromtimestamp(timestamp, UTC) + CLOCKS_DIFFER).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
