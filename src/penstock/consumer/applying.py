"""What a mirror does with each message, and when a table needs a snapshot.

A change is applied exactly if it is in neither what was applied before (`commit_lsn`, `seq`) nor the snapshot
(its transaction). Where that is not enough, the table is loaded anew. That is so when

- the table is reset after its snapshot was asked for: positions do not tell, for a source that was restored
  from a backup has them again,
- its columns are others, or its description has a new version and nothing in it says why: a column that was
  dropped and added again looks the same, and its values do not,
- a change does not fit: a column too many or too few, a row that is not there, or is there already.

A table is known by its oid, under whatever name its changes come, and keeps its rows when it is renamed.
Names are as descriptions and resets tell them, in the stream's order: a table takes its name from who had it.
A row tells no name: it does not say of which schema, and may come again long after its table was renamed.
What comes twice ends as it did the first time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

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
from penstock.consumer.feed import is_of_a_row, table_of
from penstock.consumer.mirror_file import MirroredTable, MirrorFile, MirrorState, Relation
from penstock.consumer.mirror_table import MirrorTable
from penstock.consumer.ordered import StreamEntry
from penstock.model.errors import FeedUnreadable, MirrorRefused

MOST_TAKEN_BY_OTHER_SOURCES = 3
"""How often tables of other sources may take a name before it is refused."""


class _LoadAgain(Exception):
    """The snapshot at hand will not do."""


class Applier:
    """Applies messages to a mirror's file."""

    def __init__(
        self,
        file: MirrorFile,
        read: Callable[[StreamEntry], FeedEvent | None],
        is_chosen: Callable[[str], bool],
    ) -> None:
        self._file = file
        self._read = read
        self._is_chosen = is_chosen
        self._changed: dict[Relation, MirroredTable] = {}
        self._sources: dict[str, str] = {}
        self._turns: Counter[str] = Counter()

    def apply(self, entries: Sequence[StreamEntry]) -> dict[Relation, str]:
        """Apply messages in one transaction; returns the tables that need a snapshot since, and why."""
        loading: dict[Relation, str] = {}
        with self._file.transaction():
            for entry in entries:
                loading.update(self._taken(entry))
            for table in self._changed.values():
                self._file.save(table)
            self._file.advance(entries[-1].sequence)
        self._changed.clear()
        self._file.sequence = entries[-1].sequence
        return loading

    def finish(
        self, table: MirroredTable, staged: MirrorTable, info: SnapshotInfo, asked_at: int
    ) -> str | None:
        """Let the rows of a snapshot, with what was put aside since, be the table; or return why another
        snapshot is needed."""
        loaded = replace(
            table,
            state=MirrorState.LIVE,
            description=info.table,
            snapshot_lsn=info.lsn,
            asked_at=asked_at,
            visibility=info.visibility,
            visible_until=info.visible_until,
            last=("", 0),
        )
        if loaded.token is None and info.table.token not in self._file.by_token:
            loaded.token = info.table.token
        if loaded.token == info.table.token:
            loaded.name = info.table.name
        try:
            with self._file.transaction():
                self._file.take_place(staged, loaded)
                loaded.prepare()
                for entry in self._file.aside(table.relation):
                    self._replay(loaded, entry)
                self._file.empty_aside(table.relation)
                self._file.save(loaded)
        except _LoadAgain as why:
            with self._file.transaction():
                self._file.empty_aside(table.relation)
            return str(why)
        finally:
            self._changed.pop(table.relation, None)
        return None

    def call(self, table: MirroredTable, token: str, name: str) -> None:
        """Let a table be called so, and no other."""
        if (table.token, table.name) != (token, name):
            self._free(token, table.relation)
            self._file.call(table, token, name)

    def _replay(self, table: MirroredTable, entry: StreamEntry) -> None:
        try:
            event = self._read(entry)
        except FeedUnreadable as error:
            raise _LoadAgain(error.reason) from None
        if event is None or isinstance(event, MessageLogged):
            return
        why = self._followed(table, event)
        if why is not None:
            raise _LoadAgain(why)

    def _taken(self, entry: StreamEntry) -> dict[Relation, str]:
        token = table_of(entry.subject)
        if token is None:
            return {}
        holder = self._file.by_token.get(token)
        if holder is not None and holder.state is MirrorState.LEFT_OUT and is_of_a_row(entry.subject):
            return {}
        try:
            event = self._read(entry)
        except FeedUnreadable as error:
            return self._unread(holder, entry, error)
        if event is None or isinstance(event, MessageLogged):
            return {}
        self._check_source(token, event.relation[0])
        table = self._file.tables.get(event.relation)
        if table is None:
            return self._begun(holder, event)
        if (new_name := _new_name(event)) is not None:
            self.call(table, *new_name)
        if table.state is MirrorState.LEFT_OUT:
            return self._chosen_at_last(table)
        if table.state is MirrorState.LOADING:
            self._file.put_aside(table.relation, entry)
            return {}
        why = self._followed(table, event)
        return self._begun_again(table, why) if why is not None else {}

    def _unread(
        self, table: MirroredTable | None, entry: StreamEntry, error: FeedUnreadable
    ) -> dict[Relation, str]:
        """Load anew the table whose message cannot be read; without one it is more than a table's error."""
        if table is None:
            raise error
        if table.state is MirrorState.LOADING:
            self._file.put_aside(table.relation, entry)
        return self._begun_again(table, error.reason) if table.state is MirrorState.LIVE else {}

    def _begun_again(self, table: MirroredTable, why: str) -> dict[Relation, str]:
        self._load(replace(table, state=MirrorState.LOADING, rows=None, seen=None))
        return {table.relation: why}

    def _begun(self, holder: MirroredTable | None, event: TableEvent) -> dict[Relation, str]:
        """Begin with a table that is not known, unless it had its name before the one that has it now."""
        if _is_late(event, holder):
            return {}
        table = MirroredTable(event.relation)
        if (new_name := _new_name(event)) is not None:
            table.token, table.name = new_name
            self._free(table.token, event.relation)
            if not self._is_chosen(table.name):
                table.state = MirrorState.LEFT_OUT
        self._load(table)
        return {table.relation: "it is new"} if table.state is MirrorState.LOADING else {}

    def _chosen_at_last(self, table: MirroredTable) -> dict[Relation, str]:
        """A table that was left out may be called now as one that is wanted."""
        if table.name is None or not self._is_chosen(table.name):
            return {}
        self._load(replace(table, state=MirrorState.LOADING, chosen_as=table.name))
        return {table.relation: "its name is chosen"}

    def _free(self, token: str, relation: Relation) -> None:
        """Take a name from another table that has it."""
        holder = self._file.by_token.get(token)
        if holder is None or holder.relation == relation:
            return
        if holder.state is MirrorState.LEFT_OUT:
            self._file.remove(holder)
        else:
            self._file.take_name(holder)

    def _check_source(self, token: str, source: str) -> None:
        """A table of another source may take a name, but not again and again: there are two of that name."""
        before = self._sources.setdefault(token, source)
        if before == source:
            return
        self._sources[token] = source
        self._turns[token] += 1
        if self._turns[token] > MOST_TAKEN_BY_OTHER_SOURCES:
            raise MirrorRefused(
                f"two sources, {' and '.join(sorted((before, source)))}, publish a table under the same name",
                table=token,
                remedy="Leave it out (--table), or let each source have a NATS destination of its own",
            )

    def _followed(self, table: MirroredTable, event: TableEvent) -> str | None:
        """Apply what happened to a table that is live; returns why it cannot be followed."""
        if isinstance(event, TableReset):
            if _is_of_before(event, table):
                return None
            return f"changes may be missing: {event.reason}" if event.reason else "changes may be missing"
        if isinstance(event, TableRedescribed):
            return self._redescribed(table, event)
        if event.place <= table.last or self._is_in_snapshot(table, event):
            return None
        assert table.rows is not None
        if not table.rows.apply(self._file.connection, event):
            return f"an {event.operation} does not fit the rows and columns that are here"
        table.last = event.place
        self._changed[table.relation] = table
        return None

    def _redescribed(self, table: MirroredTable, event: TableRedescribed) -> str | None:
        before, after = table.description, event.table
        assert before is not None
        same = _looks(before) == _looks(after)
        if before.token != after.token and same:  # under another name versions count anew
            table.description = after
            self._changed[table.relation] = table
            return None
        if event.lsn <= table.snapshot_lsn:
            return None
        if before.token == after.token and after.version <= before.version - (not same):
            return None  # a repetition
        return "its columns have changed, or may have"

    def _is_in_snapshot(self, table: MirroredTable, change: RowChange) -> bool:
        if table.seen is None:
            return False
        is_in_snapshot = table.seen(change)
        if table.seen.is_over:
            table.seen, table.visibility = None, None
        return is_in_snapshot

    def _load(self, table: MirroredTable) -> None:
        self._changed.pop(table.relation, None)
        self._file.empty_aside(table.relation)
        self._file.save(table)


def _new_name(event: TableEvent) -> tuple[str, str] | None:
    """What an event says that its table is called now, in subjects and by the source."""
    if isinstance(event, TableRedescribed):
        return event.table.token, event.table.name
    if isinstance(event, TableReset) and event.name is not None:
        return event.table, event.name
    return None


def _is_late(event: TableEvent, holder: MirroredTable | None) -> bool:
    """Whether it happened before the snapshot of the table that has the name now."""
    if holder is None or holder.state is not MirrorState.LIVE:
        return False
    if isinstance(event, RowChange):
        seen = SeenBy(holder.visibility, holder.visible_until) if holder.visibility else None
        return seen is not None and seen(event)
    return _is_of_before(event, holder) if isinstance(event, TableReset) else event.lsn <= holder.snapshot_lsn


def _is_of_before(reset: TableReset, table: MirroredTable) -> bool:
    """Whether it was there when the table's snapshot was asked for. Should the stream of changes have been
    restored since, its sequences come again, and positions tell."""
    return reset.sequence <= table.asked_at and reset.lsn <= table.snapshot_lsn


def _looks(description: TableDescription) -> object:
    return description.columns, description.row_key
