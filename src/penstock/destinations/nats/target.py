"""NATS JetStream as a destination: the driver's part.

It is given changes, no copies: consumers ask for snapshots of the tables that they want (`snapshots`). A
table that arrives, or comes again after a gap, begins with a message that says so.

What a crash leaves, after each step of a batch:
1. some messages are published: the batch comes again, and they are recognised, by the server or by the
   position that was stored with them (`publishing`);
2. all are: the same;
3. the position behind them says so: the same. It is there to be missed, when the stream is restored from a
   backup: what is to be published behind a gap is refused, and consumers are told to begin anew.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nats.aio.client import Client

from penstock.changes.encoded import Encoding
from penstock.config import Config, DestinationConfig
from penstock.destinations.batch import ChangeBatch
from penstock.destinations.ledger import refuse_if_behind
from penstock.destinations.nats import documents, positions, streams
from penstock.destinations.nats.link import NatsLink
from penstock.destinations.nats.messages import Place, Stop
from penstock.destinations.nats.options import NatsOptions
from penstock.destinations.nats.positions import NatsPosition
from penstock.destinations.nats.publishing import Published, PublishWork, Way, publish
from penstock.destinations.nats.schemas import PublishedSchema, SchemaBucket, Versions
from penstock.destinations.nats.snapshots import SnapshotDesk
from penstock.destinations.nats.streams import StreamInfo
from penstock.destinations.nats.subjects import POSITIONS, position_subject, position_subjects, token
from penstock.destinations.protocol import Delivery, Recorded, Stopped, TableChanges, TableCopy, Traits
from penstock.destinations.work import Workers, are_few
from penstock.model import Lsn, TableId, TableName
from penstock.model.errors import DestinationBusy, DestinationUnready, NotReady, PenstockError, Scope

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class NatsTarget:
    """A `Target`."""

    traits = Traits(keeps_position=True, wants_messages=True, wants_descriptions=True, takes_copies=False)
    reloads = None

    def __init__(self, config: Config, destination: DestinationConfig) -> None:
        self.name = destination.name
        self._pipeline = config.pipeline
        self._options: NatsOptions = destination.settings(NatsOptions)
        self._access = self._options.access()
        self._sources = {source.name: source.conninfo() for source in config.sources}
        self._positions: dict[str, NatsPosition] = {}
        """As they were after the last batch, by subject."""
        self._publishing = threading.Lock()
        self._copied: dict[str, Lsn] = {}
        """Where the source was when each table that is to arrive was looked at."""
        self.snapshots: SnapshotDesk | None = None
        self._client: Client | None = None
        self._stream: StreamInfo
        self._workers: Workers

    def open(self, spark: SparkSession) -> None:
        self._workers = Workers(spark)
        self._schemas = SchemaBucket(
            self._link,
            self._options.schema_bucket,
            Encoding(self._options.encoding),
            self._pipeline,
            self._sources,
        )
        self._stream = self._link.run(streams.ensured(self._link, self._options))
        if (flaw := streams.unflushed(self._stream, self._options)) is not None:
            reason, remedy = flaw
            raise NotReady(reason, remedy=remedy, destination=self.name)
        wanted = "allow_atomic" if self._options.delivery == "atomic" else "allow_batched"
        if not self._stream.allows(wanted):
            raise NotReady(
                f"{self._stream.name} does not allow what `delivery: {self._options.delivery}` needs",
                remedy=f"Set `{wanted}` of the stream (NATS server 2.14 or later), or let Penstock make one",
                destination=self.name,
            )
        subjects = position_subjects(self._pipeline, self._sources)
        if self._is_atomic and not all(map(self._stream.stores, subjects)):
            raise NotReady(
                f"{self._stream.name} does not keep {POSITIONS}.>, which `delivery: atomic` needs",
                remedy=f"Let it take {POSITIONS}.>, under `retention: limits`, or leave `delivery` out",
                destination=self.name,
            )
        if not all(map(self._stream.keeps, subjects)):
            self.traits = replace(self.traits, keeps_position=False)
        self.snapshots = SnapshotDesk(self._link, self._options, self._schemas, self._workers)

    @property
    def _link(self) -> NatsLink:
        return NatsLink.of(self._access)

    def _way(self, source: str) -> Way:
        self._look_again()
        several = len(self._sources) > 1
        form = documents.Form(
            Encoding(self._options.encoding), f"{source}-" if several else "", self._stream.largest
        )
        group = self._options.atomic_messages if self._options.delivery == "atomic" else None
        return Way(self._access, form, group, positions.kept_headers(self._stream))

    def _look_again(self) -> None:
        """Ask for the stream again with every new connection: the server may take larger messages now, or not
        flush any more what it acknowledges."""
        client = self._link.run(self._link.client())
        if client is not self._client:
            stream = self._link.run(streams.info(self._link, self._options.stream))
            if stream is None:
                raise DestinationUnready(
                    f"the stream {self._options.stream} is gone",
                    remedy="Make it again, or restart the pipeline: it makes what is missing",
                )
            if (flaw := streams.unflushed(stream, self._options)) is not None:
                reason, remedy = flaw
                raise DestinationUnready(reason, remedy=remedy, destination=self.name)
            self._stream, self._client = stream, client
            self._positions.clear()

    # Positions

    @property
    def _is_atomic(self) -> bool:
        return self._options.delivery == "atomic"

    def position(self, source: str) -> Lsn | None:
        if not self.traits.keeps_position:
            self._link.run(self._link.answers())
            return None
        subject = position_subject(self._pipeline, source)
        return self._link.run(positions.read(self._link, self._stream, source, subject)).reached

    def begin(self, source: str, position: Lsn) -> None:
        if self.traits.keeps_position or self._is_atomic:
            subject = position_subject(self._pipeline, source)
            begun = NatsPosition(source, subject, place=positions.before(position))
            with self._publishing:
                self._store(begun)

    def _stands(self, source: str, start: Lsn) -> NatsPosition | None:
        """Return how far the source came; None: that is not kept. Raises if what begins at `start` would
        leave a gap."""
        if not self.traits.keeps_position:
            return self._position(source) if self._is_atomic else None
        position = self._position(source)
        refuse_if_behind(position.reached, start)
        return position

    def _reach(self, position: NatsPosition | None, end: Lsn) -> None:
        """Put behind a batch how far it came, unless it has come again. Nobody else may have written that
        meanwhile."""
        if position is None or not self.traits.keeps_position:
            return
        if position.reached is not None and position.reached >= end:
            return
        reached = replace(position, place=positions.before(end))
        self._positions.pop(position.subject, None)
        self._positions[position.subject] = self._link.run(
            positions.store(self._link, self._stream, reached, behind=True)
        )

    def _table_position(self, source: str, table: TableId) -> NatsPosition | None:
        """Return how far a table came by itself; None: by ids. Where it stopped by itself it may go on."""
        return replace(self._position(source, table), stops={}) if self._is_atomic else None

    def _position(self, source: str, table: TableId | None = None) -> NatsPosition:
        subject = position_subject(self._pipeline, source, table)
        cached = self._positions.pop(subject, None)  # whatever fails now, it is asked for again
        if cached is not None:
            return replace(
                cached, last_sequence=max(p.last_sequence for p in (cached, *self._positions.values()))
            )
        return self._link.run(positions.read(self._link, self._stream, source, subject))

    # Tables

    def recorded(self, source: str) -> Mapping[TableId, Recorded]:  # noqa: ARG002
        return {}

    def expect(self, source: str, tables: Mapping[TableId, TableName]) -> None: ...

    def copy_table(self, copy: TableCopy) -> int:
        """Note what the copy, if it were one, would have: consumers need a snapshot that is no older."""
        self._copied[copy.id] = copy.lsn
        return 0

    def hand_over(self, copy: str, changes: TableChanges, position: Lsn) -> None:
        self._deliver_table(changes, position, copy)

    def catch_up(self, changes: TableChanges, position: Lsn) -> None:
        self._deliver_table(changes, position, None)

    def _deliver_table(self, changes: TableChanges, position: Lsn, copy: str | None) -> None:
        """Publish what a table has missed; one that arrives begins with a message that says so."""
        delivery = changes.delivery
        way = self._way(delivery.source)
        with self._publishing:
            reached = self._table_position(delivery.source, delivery.id)
            first = None
            if copy is not None and (reached is None or reached.copy != copy):
                start = Place.of_change(changes.start.value, -1)
                since = self._copied.get(copy, position)
                first = documents.reset_message(delivery, way.form, copy, since, start)
                reached = replace(reached, copy=copy, place=None) if reached is not None else None
            versions = self._schemas.put(changes)
            if copy is None and not changes.rows and changes.runs[-1].follow is not None:
                # A schema alone: no change says where it stands, and the next may come at the same position.
                changes = replace(changes, start=position)
                version = versions[delivery.id, delivery.table.version].version
                schema = f"{token(delivery.table.name)}-v{version}"
                if reached is not None and reached.schema == schema:
                    return
                reached = replace(reached, schema=schema, place=None) if reached is not None else None
            elif reached is not None:
                self._refuse_within_batch(reached, position, delivery)
            batch = ChangeBatch(delivery.source, changes.start, position, (changes,))
            published = self._publish(PublishWork(way, batch, versions, first, reached))
            self._copied.pop(copy or "", None)
        for stop in published.stops.values():
            raise stop.error

    def _refuse_within_batch(self, table: NatsPosition, position: Lsn, delivery: Delivery) -> None:
        """Raise while a batch that a crash cut off is published further than the table: it had no part in
        that, and what it has up to there would be taken for published when the batch comes again."""
        stands = max(positions.before(position), table.place or positions.before(position))
        source = self._position(delivery.source)
        if source.place is not None and source.place > stands:
            raise DestinationBusy("a batch that was cut off comes first", table=delivery.table.name)

    # The stream

    def write(self, batch: ChangeBatch) -> Sequence[Stopped]:
        source = batch.source
        with self._publishing:
            way = self._way(source)
            position = self._stands(source, batch.start)
            versions, stops = self._put_schemas(batch)
            tables = tuple(changes for changes in batch.tables if changes.delivery.id not in stops)
            batch = replace(batch, tables=tables)
            if position is not None:
                position = position.stopping(stops, batch.start)
            if batch.tables or batch.messages:
                work = PublishWork(way, batch, versions, position=position if self._is_atomic else None)
                published = self._publish(work)
                stops |= published.stops
                position = published.position or position
            elif position is None:
                self._link.run(self._link.answers())
            for table, stop in stops.items():
                self._stop(source, table, stop.place.before)
            self._reach(position, batch.end)
        return [Stopped(table, stop.error) for table, stop in stops.items()]

    def _put_schemas(self, batch: ChangeBatch) -> tuple[Versions, dict[TableId, Stop]]:
        """Put the tables' schemas into the bucket; one whose schema does not fit in there stops."""
        versions: dict[tuple[TableId, int], PublishedSchema] = {}
        stops = {}
        for changes in batch.tables:
            try:
                versions |= self._schemas.put(changes)
            except PenstockError as error:
                if error.scope is not Scope.TABLE:
                    raise
                stops[changes.delivery.id] = Stop(Place.of_change(changes.start.value, 0).before, error)
        return versions, stops

    def _publish(self, work: PublishWork) -> Published:
        here = self._workers.are_local or are_few(work.batch.tables)
        work = replace(work, batch=replace(work.batch, spark=None))
        (published,) = self._workers.results(publish, [work], here=here)
        if published.position is not None and not published.stops:
            self._positions[published.position.subject] = published.position
        return published

    def _stop(self, source: str, table: TableId, place: Place) -> None:
        """Keep up to where the table's changes are published: what it has missed begins behind that."""
        position = self._table_position(source, table)
        if position is not None:
            self._store(replace(position, place=place))

    def _store(self, position: NatsPosition) -> None:
        """Store a position by itself: where the stream ends is asked for again."""
        self._positions.clear()
        self._link.run(positions.store(self._link, self._stream, position))

    def describe(self, source: str, deliveries: Sequence[Delivery]) -> None:
        self._schemas.renew(source, deliveries)

    def hold(self, source: str, table: TableId, position: Lsn, why: PenstockError) -> None:  # noqa: ARG002
        """Keep how far the table is, where a crash has left more than `position` published."""
        if not self._is_atomic:
            return
        self._look_again()
        with self._publishing:
            reached = self._position(source)
            if reached.place is not None and reached.place > positions.before(position):
                stop = reached.stopping({}, position).stops.get(table)
                self._stop(source, table, stop.place.before if stop is not None else reached.place)

    def forget(self, source: str, table: TableId) -> None:
        self._schemas.forget(source, table)
        if self._is_atomic:
            subject = position_subject(self._pipeline, source, table)
            self._positions.pop(subject, None)
            self._link.run(positions.forget(self._link, self._stream, subject))

    def close(self) -> None:
        self._link.close()

    def tear_down(self) -> None:
        """Messages and schemas stay: they are the consumers'."""
        link = self._link
        stream = link.run(streams.info(link, self._options.stream))
        if stream is not None:
            for source in self._sources:
                own = position_subject(self._pipeline, source)
                for subject in (own, f"{own}.>"):
                    link.run(positions.forget(link, stream, subject))
        self.close()
