"""Where a destination is and how it writes: what the driver and every task need to know of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from penstock.config.tables import matches
from penstock.destinations.ledger import StreamId
from penstock.destinations.postgres.session import session
from penstock.destinations.postgres.table.target_table import TargetTable
from penstock.destinations.protocol import Delivery, Stopped
from penstock.model import TableName
from penstock.model.errors import DestinationBusy
from penstock.postgres.connection import Connection


@dataclass(frozen=True, slots=True)
class Endpoint:
    pipeline: str
    name: str
    conninfo: str = field(repr=False)
    """Holds the password: not for any output."""
    source_column: str | None = None
    """None: there is one source."""
    create_tables: bool = True
    trusted_owners: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    """Of the source's tables those that the configuration names, each by itself."""
    beside: tuple[str, ...] = ()
    """The pipeline's other destinations, which may write to the same database."""
    patient: bool = True
    """Whether who keeps us from a table is waited for, for longer than a moment."""
    hasty: bool = False
    """Whether what a foreign key refuses is said at once."""

    def stream(self, source: str) -> StreamId:
        return StreamId(self.pipeline, self.name, source)

    def target(self, delivery: Delivery, *, ours: bool = True) -> TargetTable:
        return TargetTable(
            delivery,
            self.source_column,
            ours=ours,
            trusted=self.trusted_owners,
            patient=self.patient,
            hasty=self.hasty,
        )

    def after(self, stopped: Sequence[Stopped]) -> Endpoint:
        """Return the destination as the next table is to be written, in the same batch as these."""
        busy = any(isinstance(table.error, DestinationBusy) for table in stopped)
        return replace(self, patient=False) if busy else self

    def names(self, table: TableName) -> bool:
        return any(matches(name, table) for name in self.named)

    @contextmanager
    def session(self) -> Iterator[Connection]:
        """Yield a session for one transaction."""
        with session(self.conninfo, self.name) as connection:
            yield connection
