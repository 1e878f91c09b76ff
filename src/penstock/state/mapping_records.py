"""Decisions about single tables (`config/mapping.py`), as the store keeps them.

The mapping has a revision, which grows with every decision; a decision remembers the one that it came with.
Whoever decides says what he had seen of the table: if another has decided meanwhile, nothing is changed.
Anybody may decide, whether the pipeline runs or not; the pipeline looks at the revision every second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sqlalchemy import Connection, delete, insert, select, update

from penstock.config import Config
from penstock.config.mapping import Decision, Decisions, TableOfSource
from penstock.model import TableName
from penstock.model.errors import MappingChanged
from penstock.state import tables as t
from penstock.state.database import Database

UNDECIDED = 0
"""The revision of a table of which nothing was decided."""


@dataclass(frozen=True, slots=True)
class Mapped:
    """The mapping at one moment."""

    revision: int = UNDECIDED
    decisions: Decisions = field(default_factory=dict)
    revisions: Mapping[TableOfSource, int] = field(default_factory=dict)

    def revision_of(self, table: TableOfSource) -> int:
        return self.revisions.get(table, UNDECIDED)


class MappingRecords:
    def __init__(self, database: Database, pipeline: str) -> None:
        self._database = database
        self._pipeline = pipeline

    def revision(self) -> int:
        if self._database.is_older:
            return UNDECIDED
        with self._database.reading() as connection:
            return self._revision(connection)

    def read(self) -> Mapped:
        if self._database.is_older:
            return Mapped()
        with self._database.reading() as connection:
            return self._read(connection)

    def decide(
        self,
        table: TableOfSource,
        decision: Decision,
        seen: int | None = None,
        check: Callable[[Decisions], None] = lambda _: None,
    ) -> Mapped:
        """Put a decision in the place of what was decided of the table before; an empty one takes that back.
        `seen`: the revision of the table that whoever decides had before him; None: whatever it is. `check`
        is given the decisions as they will be, and raises if they cannot be: nobody else decides meanwhile.
        """
        with self._database.writing() as connection:
            self._begin(connection)
            before = self._read(connection)
            if seen is not None and seen != before.revision_of(table):
                raise MappingChanged(
                    f"somebody else has decided about the table meanwhile (revision "
                    f"{before.revision_of(table)}, not {seen})",
                    table=table[1],
                )
            others = {key: other for key, other in before.decisions.items() if key != table}
            check({**others, table: decision} if decision else others)
            self._put(connection, table, decision, before.revision + 1)
            return self._read(connection)

    def _begin(self, connection: Connection) -> None:
        """Keep others from deciding until the transaction ends: the row of the revision is locked by being
        written."""
        ours = t.mapping_revisions.c.pipeline == self._pipeline
        same = update(t.mapping_revisions).where(ours).values(revision=t.mapping_revisions.c.revision)
        if connection.execute(same).rowcount == 0:
            connection.execute(
                insert(t.mapping_revisions).values(pipeline=self._pipeline, revision=UNDECIDED)
            )

    def _put(self, connection: Connection, table: TableOfSource, decision: Decision, revision: int) -> None:
        source, name = table
        key = {"source": source, "schema_name": name.schema, "table_name": name.name}
        of_table = [t.mapping.c[column] == value for column, value in key.items()]
        connection.execute(delete(t.mapping).where(t.mapping.c.pipeline == self._pipeline, *of_table))
        if decision:
            connection.execute(
                insert(t.mapping).values(
                    pipeline=self._pipeline,
                    **key,
                    revision=revision,
                    at=datetime.now(UTC),
                    captured=decision.captured,
                    placings=decision.document(),
                )
            )
        ours = t.mapping_revisions.c.pipeline == self._pipeline
        connection.execute(update(t.mapping_revisions).where(ours).values(revision=revision))

    def _read(self, connection: Connection) -> Mapped:
        rows = connection.execute(select(t.mapping).where(t.mapping.c.pipeline == self._pipeline)).fetchall()
        decisions, revisions = {}, {}
        for row in rows:
            table = row.source, TableName(row.schema_name, row.table_name)
            decisions[table] = Decision.of(row.captured, row.placings)
            revisions[table] = row.revision
        return Mapped(self._revision(connection), decisions, revisions)

    def _revision(self, connection: Connection) -> int:
        asked = select(t.mapping_revisions.c.revision).where(t.mapping_revisions.c.pipeline == self._pipeline)
        return connection.execute(asked).scalar() or UNDECIDED


def mapped(config: Config) -> Config:
    """Return the configuration with what was decided before what it says, if it is to be so. Nothing is made
    where there is no store yet."""
    if config.mapping == "database":
        database = Database.find(config.state.url.get_secret_value())
        if database is not None:
            with closing(database):
                config.decide(MappingRecords(database, config.pipeline).read().decisions)
    return config
