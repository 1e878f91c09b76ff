"""A local SQLite file that is kept equal to the source, for some tables or all.

The stream of changes is followed by one task, which alone moves the position. Beside it each table that needs
a snapshot has a task that asks for it and loads it; meanwhile its changes are put aside, and the other
tables go on. `mirror_file` has what a crash leaves, `applying` what is done with each message.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import aclosing
from fnmatch import fnmatchcase
from pathlib import Path

from penstock.consumer.access import ConsumerAccess
from penstock.consumer.applying import Applier
from penstock.consumer.documents import TableDescription
from penstock.consumer.feed import Feed, FeedBroken
from penstock.consumer.mirror_file import MirroredTable, MirrorFile, MirrorState, Relation
from penstock.consumer.mirror_table import MISFITS, MirrorTable
from penstock.consumer.ordered import TRANSIENT, answered
from penstock.consumer.snapshots import Rows
from penstock.model.errors import (
    FeedUnreadable,
    PenstockError,
    SnapshotRefused,
    SnapshotUnanswered,
    UnknownTable,
)

AT_ONCE = 4
"""Snapshots that are waited for or loaded at a time."""
_LONGEST_PAUSE = 30.0
_LOOK_ONCE = 0.5
_LOOK_AFTER_NAMELESS = 10.0

Note = Callable[[str], None]


class Mirror:
    """Keeps a file. `tables` are globs such as `users` or `sales.*`, without a schema in `public`; none
    means all. `note` is given a sentence whenever something happens that a person may want to know."""

    def __init__(
        self, access: ConsumerAccess, path: Path, tables: Iterable[str] = (), note: Note = lambda _: None
    ) -> None:
        self._access = access
        self._path = path
        self._globs = [glob if "." in glob else f"public.{glob}" for glob in tables]
        self._note = note

    async def run(self, *, once: bool = False) -> None:
        """Follow the source until cancelled; `once`: until all is applied that was in the stream at the
        start."""
        async with Feed.open(self._access) as feed:
            with MirrorFile.open(self._path) as file:
                await _Keeper(feed, file, self._globs, self._note).keep(once)


class _Keeper:
    def __init__(self, feed: Feed, file: MirrorFile, globs: list[str], note: Note) -> None:
        self._feed = feed
        self._file = file
        self._globs = globs
        self._note = note
        self._applier = Applier(file, feed.read, self._is_chosen)
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._loaders: dict[Relation, asyncio.Task[None]] = {}
        self._failures: dict[Relation, PenstockError] = {}
        self._once = False
        self._next_look = 0.0
        self._undescribed: set[Relation] = set()
        self._group = asyncio.TaskGroup()

    async def keep(self, once: bool) -> None:
        self._once = once
        target = (await answered(self._feed.facts)).last
        if not self._file.stream:
            await answered(self._start_over)
        await answered(self._choose)
        try:
            async with self._group:
                self._load_all()
                await self._follow(target)
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        if self._failures:
            raise next(iter(self._failures.values()))

    async def _follow(self, target: int) -> None:
        wait = {"wait": _LOOK_ONCE} if self._once else {}
        while True:
            try:
                entries = self._feed.entries(self._file.sequence, self._file.created, **wait)
                async with aclosing(entries) as batches:
                    async for batch in batches:
                        for relation, why in (self._applier.apply(batch) if batch else {}).items():
                            self._note(f"{self._file.tables[relation].called}: a snapshot is needed: {why}")
                            self._load(relation)
                        self._end_loaders_of_the_gone()
                        is_last = self._once and self._file.sequence >= target and not self._loaders
                        await self._look_after_the_nameless(at_once=is_last)
                        if is_last:
                            return
            except FeedBroken as broken:
                self._note(f"{broken.reason}: all tables are loaded anew")
                while self._loaders:
                    self._loaders.popitem()[1].cancel()
                await answered(self._start_over)
                await answered(self._choose)
                self._load_all()

    async def _start_over(self) -> None:
        """Begin where the stream ends now. What tables are called was told before that, if at all."""
        facts = await self._feed.facts()
        self._file.start_over(self._feed.access.stream, facts.created, facts.last)
        for description in (await self._feed.tables()).values():
            table = self._file.tables.get(description.relation)
            if table is not None:
                with self._file.transaction():
                    self._applier.call(table, description.token, description.name)

    async def _choose(self) -> None:
        """Begin with tables that are chosen and not here yet; remove those that no longer are."""
        described = {table.relation: table for table in (await self._feed.tables()).values()}
        names = {table.name for table in described.values()}
        names |= {table.chosen_as for table in self._file.tables.values() if table.chosen_as}
        for glob in self._globs:
            if not any(fnmatchcase(name, glob) for name in names):
                listed = ", ".join(sorted(table.name for table in described.values()))
                raise UnknownTable(
                    f"no table is called {glob} at this destination",
                    remedy=f"Tables: {listed}" if listed else "It has none yet: start the pipeline",
                )
        for table in [*self._file.tables.values()]:
            description = described.get(table.relation)
            known_as = [each for each in (description and description.name, table.chosen_as) if each]
            is_chosen = any(map(self._is_chosen, known_as))
            if table.state is MirrorState.LEFT_OUT:
                if is_chosen:
                    self._forget(table)
            elif known_as and not is_chosen:  # it may not be known yet
                self._note(f"{table.called}: it is no longer chosen, and removed")
                self._leave_out(table)
        for description in described.values():
            if description.relation not in self._file.tables:
                self._add(description)

    async def _look_after_the_nameless(self, *, at_once: bool) -> None:
        """Let tables without a name have the one that the bucket tells: what told it in the stream may have
        come before this mirror began. Remove those that the bucket has not had for two looks."""
        nameless = self._nameless()
        if not nameless or (time.monotonic() < self._next_look and not at_once):
            return
        try:
            tables = await asyncio.wait_for(self._feed.tables(), _LOOK_AFTER_NAMELESS)
        except TRANSIENT:
            return
        described = {
            table.relation: table
            for table in tables.values()
            if table.relation in self._file.tables and _is_newer(table, self._file.tables[table.relation])
        }
        with self._file.transaction():
            while named := [table for table in self._nameless() if table.relation in described]:
                for table in named:  # who loses his name thereby is named in the next round
                    description = described[table.relation]
                    self._applier.call(table, description.token, description.name)
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK_AFTER_NAMELESS
            undescribed = {table.relation for table in nameless if table.relation not in described}
            for relation in undescribed & self._undescribed:
                if self._file.tables[relation].state is MirrorState.LIVE:
                    self._forget(self._file.tables[relation])
            self._undescribed = undescribed

    def _nameless(self) -> list[MirroredTable]:
        return [table for table in self._file.tables.values() if table.name is None]

    def _add(self, description: TableDescription) -> None:
        """Begin with a table. If the name is another's here, the stream will tell whose it is."""
        token = description.token if description.token not in self._file.by_token else None
        table = MirroredTable(description.relation, token, description.name if token else None)
        if self._is_chosen(description.name):
            table.chosen_as = description.name
        else:
            table.state = MirrorState.LEFT_OUT
        with self._file.transaction():
            self._file.save(table)

    def _is_chosen(self, name: str) -> bool:
        return not self._globs or any(fnmatchcase(name, glob) for glob in self._globs)

    def _forget(self, table: MirroredTable) -> None:
        with self._file.transaction():
            self._file.remove(table)

    def _leave_out(self, table: MirroredTable) -> None:
        with self._file.transaction():
            self._file.remove(table)
            self._file.save(
                MirroredTable(table.relation, table.token, table.name, state=MirrorState.LEFT_OUT)
            )

    def _load_all(self) -> None:
        for relation, table in self._file.tables.items():
            if table.state is MirrorState.LOADING and relation not in self._loaders:
                self._load(relation)

    def _end_loaders_of_the_gone(self) -> None:
        for relation in self._loaders.keys() - self._file.tables.keys():
            self._loaders.pop(relation).cancel()

    def _load(self, relation: Relation) -> None:
        before = self._loaders.pop(relation, None)
        if before is not None:
            before.cancel()
        self._failures.pop(relation, None)
        self._loaders[relation] = self._group.create_task(self._loading(self._file.tables[relation]))

    async def _loading(self, table: MirroredTable) -> None:
        """Load a table, however often that takes."""
        task, pause, last_reason = asyncio.current_task(), 1.0, ""
        while self._is_to_load(table):
            try:
                async with self._turns:
                    if await self._loaded(table):
                        break
                    continue
            except (SnapshotRefused, SnapshotUnanswered, FeedUnreadable) as error:
                failure: PenstockError = error
            except TRANSIENT as error:
                failure = SnapshotUnanswered(
                    f"NATS does not answer ({type(error).__name__})", table=table.called
                )
            if self._once:
                self._give_up(table, failure)
                break
            if failure.reason != last_reason:
                last_reason = failure.reason
                self._note(str(failure))
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        if self._loaders.get(table.relation) is task:
            del self._loaders[table.relation]

    def _is_to_load(self, table: MirroredTable) -> bool:
        return self._file.tables.get(table.relation) is table and table.state is MirrorState.LOADING

    def _give_up(self, table: MirroredTable, failure: PenstockError) -> None:
        """Of a table that was neither asked for by name nor ever here, it is told and no more: the pipeline
        may have no part in it any longer."""
        if (
            isinstance(failure, SnapshotRefused)
            and not table.sqlite_name
            and table.chosen_as not in self._globs
        ):
            self._note(str(failure))
        else:
            self._failures[table.relation] = failure

    async def _loaded(self, table: MirroredTable) -> bool:
        """Load a table from one snapshot; whether that sufficed."""
        token, name = await self._present_name(table)
        if token is None:
            self._note(f"{table.called}: it has no name any more at this destination, until it is told anew")
            self._forget(table)
            return True
        if self._globs:
            if name is None:
                raise SnapshotUnanswered("the bucket has no description of a table yet", table=token)
            if not any(self._is_chosen(each) for each in (name, table.chosen_as) if each):
                self._leave_out(table)
                return True
        table.chosen_as = table.chosen_as or name
        asked_at = (await self._feed.facts()).last
        async with self._feed.snapshots(token, name).taken() as (info, chunks):
            if info.table.relation != table.relation:
                raise SnapshotUnanswered("its name has passed to another table", table=token)
            staged = self._file.staged(info.table)
            try:
                async for rows in chunks:
                    self._fill(staged, rows, token)
                if not self._is_to_load(table):
                    return True  # it has been removed meanwhile
                why = self._applier.finish(table, staged, info, asked_at)
                if why is not None:
                    self._note(f"{token}: another snapshot is needed: {why}")
                    return False
            finally:
                self._file.drop_staged(staged)
        self._note(f"{token}: {info.row_count} rows are loaded, and it is followed")
        return True

    async def _present_name(self, table: MirroredTable) -> tuple[str | None, str | None]:
        """Return what a table is called now, in subjects and by the source, which may be more than the stream
        has told so far. None: its name is another's, and it has none."""
        held = await self._feed.table(table.token) if table.token is not None else None
        if held is not None and held.relation == table.relation:
            return held.token, held.name
        for other in (await self._feed.tables()).values():
            if other.relation == table.relation:
                return other.token, other.name
        return (table.token, table.name) if held is None else (None, None)

    def _fill(self, staged: MirrorTable, rows: Rows, token: str) -> None:
        try:
            with self._file.transaction():
                staged.fill(self._file.connection, rows)
        except MISFITS:
            raise SnapshotUnanswered(
                "the rows of a snapshot do not fit its own description", table=token
            ) from None


def _is_newer(description: TableDescription, table: MirroredTable) -> bool:
    """Whether it tells of a table as it is now: under former names the bucket may have older ones."""
    before = table.description
    return before is None or description.token == before.token or description.timestamp > before.timestamp
