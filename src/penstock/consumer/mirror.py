"""A local SQLite file that is kept equal to the source, for some tables or all.

The stream of changes is followed by one task, which alone moves the position. Beside it each table that needs
a snapshot has a task that asks for it and loads it; meanwhile its changes are put aside, and the other
tables go on. `mirror_file` has what a crash leaves, `applying` what is done with each message.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import aclosing
from fnmatch import fnmatchcase
from pathlib import Path

from penstock.consumer.access import ConsumerAccess
from penstock.consumer.applying import Applier
from penstock.consumer.documents import TableDescription
from penstock.consumer.feed import Feed, FeedBroken
from penstock.consumer.mirror_file import MirroredTable, MirrorFile, MirrorState
from penstock.consumer.mirror_table import MirrorTable
from penstock.consumer.ordered import TRANSIENT
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
_LOOK_FOR_OTHERS = 10.0

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
        self._applier = Applier(file, feed.read)
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._loaders: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, PenstockError] = {}
        self._tried: dict[tuple[str, int], set[str]] = {}
        self._once = False
        self._looked = time.monotonic()
        self._group = asyncio.TaskGroup()

    async def keep(self, once: bool) -> None:
        self._once = once
        target = (await self._feed.facts()).last
        if not self._file.stream:
            await self._start_over()
        await self._choose()
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
                        for token, why in (self._applier.apply(batch) if batch else {}).items():
                            self._note(f"{token}: a snapshot is needed: {why}")
                            self._load(token)
                        self._end_loaders_of_the_gone()
                        await self._look_for_others()
                        if self._once and self._file.sequence >= target and not self._loaders:
                            return
            except FeedBroken as broken:
                self._note(f"{broken.reason}: all tables are loaded anew")
                while self._loaders:
                    self._loaders.popitem()[1].cancel()
                await self._start_over()
                await self._choose()
                self._load_all()

    async def _start_over(self) -> None:
        facts = await self._feed.facts()
        self._file.start_over(self._feed.access.stream, facts.created, facts.last)

    async def _choose(self) -> None:
        """Begin with tables that are chosen and not here yet; remove those that no longer are."""
        described = await self._feed.tables()
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
            name = described[table.token].name if table.token in described else table.chosen_as
            known_as = [each for each in (name, table.chosen_as) if each]  # it may not be known yet
            if table.state is MirrorState.LEFT_OUT:
                if table.token in described and self._is_chosen(described[table.token].name):
                    self._forget(table)
            elif known_as and not any(map(self._is_chosen, known_as)):
                self._note(f"{table.token}: it is no longer chosen, and removed")
                self._leave_out(table)
        for token, description in described.items():
            if token not in self._file.tables:
                self._add(description)

    async def _look_for_others(self) -> None:
        """Begin now and then with tables that the bucket has and the file has not: tables that swap names
        while they are loaded can be lost sight of."""
        if time.monotonic() - self._looked < _LOOK_FOR_OTHERS:
            return
        self._looked = time.monotonic()
        try:
            described = await asyncio.wait_for(self._feed.tables(), _LOOK_FOR_OTHERS)
        except TRANSIENT:
            return
        for token, description in described.items():
            if token not in self._file.tables:
                self._add(description)
        self._load_all()

    def _add(self, description: TableDescription) -> None:
        """Begin with a table. Where it has only been renamed, the stream will tell."""
        if self._file.by_relation(description.relation) is not None:
            return
        if self._is_chosen(description.name):
            table = MirroredTable(description.token, chosen_as=description.name, description=description)
        else:
            table = MirroredTable(description.token, MirrorState.LEFT_OUT)
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
            self._file.save(MirroredTable(table.token, MirrorState.LEFT_OUT))

    def _load_all(self) -> None:
        for token, table in self._file.tables.items():
            if table.state is MirrorState.LOADING and token not in self._loaders:
                self._load(token)

    def _end_loaders_of_the_gone(self) -> None:
        for token in self._loaders.keys() - self._file.tables.keys():
            self._loaders.pop(token).cancel()

    def _load(self, token: str) -> None:
        before = self._loaders.pop(token, None)
        if before is not None:
            before.cancel()
        self._failures.pop(token, None)
        self._loaders[token] = self._group.create_task(self._loading(token))

    async def _loading(self, token: str) -> None:
        """Load a table, however often that takes."""
        task, pause, last_reason = asyncio.current_task(), 1.0, ""
        table = self._file.tables.get(token)
        while table is not None and self._file.tables.get(token) is table:
            try:
                async with self._turns:
                    if await self._loaded(table):
                        break
                    continue
            except (SnapshotRefused, SnapshotUnanswered, FeedUnreadable) as error:
                failure: PenstockError = error
            except TRANSIENT as error:
                failure = SnapshotUnanswered(f"NATS does not answer ({type(error).__name__})", table=token)
            if isinstance(failure, SnapshotRefused) and await self._goes_by_another_name(table):
                break
            if self._once:
                self._give_up(table, failure)
                break
            if failure.reason != last_reason:
                last_reason = failure.reason
                self._note(str(failure))
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        if self._loaders.get(token) is task:
            del self._loaders[token]

    async def _goes_by_another_name(self, table: MirroredTable) -> bool:
        """Look whether the table was renamed, and if so load it under a name that was not tried yet, unless
        it is here under that name already."""
        if table.description is None:
            return False
        relation = table.description.relation
        if any(other.state is MirrorState.LIVE for other in self._file.all_of(relation)):
            self._forget(table)
            return True
        tried = self._tried.setdefault(relation, set())
        tried.add(table.token)
        names = [each for each in await self._feed.descriptions() if each.relation == relation]
        for description in sorted(names, key=lambda each: -each.timestamp):
            if description.token not in tried | self._file.tables.keys():
                self._applier.call_otherwise(table, description)
                self._load(description.token)
                return True
        tried.clear()
        return False

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
            self._failures[table.token] = failure

    async def _loaded(self, table: MirroredTable) -> bool:
        """Load a table from one snapshot; whether that sufficed."""
        description = await self._feed.table(table.token)
        name = description.name if description is not None else table.chosen_as
        if self._globs:
            if name is None:
                raise SnapshotUnanswered("the bucket has no description of a table yet", table=table.token)
            if not any(self._is_chosen(each) for each in (name, table.chosen_as) if each):
                self._leave_out(table)
                return True
        table.chosen_as = table.chosen_as or name
        table.description = table.description or description
        async with self._feed.snapshots(table.token, name).taken() as (info, chunks):
            staged = self._file.staged(info.table)
            try:
                async for rows in chunks:
                    self._fill(staged, rows, table.token)
                if self._file.tables.get(table.token) is not table:
                    return True  # it has been renamed or removed meanwhile
                why = self._applier.finish(table, staged, info)
                if why is not None:
                    self._note(f"{table.token}: another snapshot is needed: {why}")
                    return False
            finally:
                self._file.drop_staged(staged)
        self._note(f"{table.token}: {info.row_count} rows are loaded, and it is followed")
        return True

    def _fill(self, staged: MirrorTable, rows: Rows, token: str) -> None:
        try:
            with self._file.transaction():
                staged.fill(self._file.connection, rows)
        except (KeyError, sqlite3.IntegrityError):
            raise SnapshotUnanswered(
                "the rows of a snapshot do not fit its own description", table=token
            ) from None
