"""A capture: one source's changes, from its slot into its spool, until it is told to stop.

The receiver's thread reads the socket and sends feedback; the worker's decodes and writes. Whatever can be
tried again is tried again, from the recorded position, with pauses that grow and that start over once the
stream flows; only a temporary slot cannot be, since it ends with its connection. A slot that is missing,
invalidated or not where we left it stops the capture: going on would mean to lose changes without a word. So
does a server that went back behind what we have: it would skip as much of what comes.

What a crash leaves at the very start, after each step:
1. the slot created: the next start finds it, and no spool, and begins where the slot begins;
2. the slot taken (nobody else can move it now) and the manifest made: from now on a missing slot is a loss;
3. the consumers registered: nothing is acknowledged before they have it;
4. the tables' schemas recorded: only so that readers know them early.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import psycopg

from penstock.capture.decoder import warm_up
from penstock.capture.diagnosis import AGAIN, Diagnosis, check_publication
from penstock.capture.heartbeat import Heartbeat
from penstock.capture.receiver import Receiver
from penstock.capture.runs import MessageRun
from penstock.capture.schemas import SpoolSchemas, published
from penstock.capture.spec import CaptureSpec
from penstock.capture.state import reporter
from penstock.capture.worker import ROOM_PAUSE, Worker
from penstock.model import ZERO, Lsn
from penstock.model.backoff import Backoff
from penstock.model.errors import ConnectionFailed, PenstockError, ServerSilent, SpoolFull, SpoolInUse
from penstock.postgres import libpq, slot
from penstock.postgres.connection import Connection, connect, explain, replication_conninfo
from penstock.postgres.slot import SlotState
from penstock.postgres.types import TypeCatalog
from penstock.spool import manifest, room
from penstock.spool.identity import Identity, check_identity
from penstock.spool.writer import SpoolWriter, held

FEEDBACK = 1.0
"""Seconds between two feedbacks at the most."""
LET_GO = 20.0
"""Seconds that the disk may be full before the server is let go."""
LONGEST_SILENCE = 3600.0
"""Seconds."""


@contextmanager
def _explained() -> Iterator[None]:
    """Raise errors of catalog queries as such: they are no failure of the stream."""
    try:
        yield
    except psycopg.Error as error:
        raise explain(error) from None


class Capture:
    def __init__(self, spec: CaptureSpec, stop: threading.Event) -> None:
        self._spec = spec
        self._stop = stop
        self._backoff = Backoff(spec.retry_initial, spec.retry_max)
        self._diagnosis = Diagnosis(spec)
        self._report = reporter(spec.source, spec.spool)
        self._silence = (ZERO, 0.0)
        """Where a connection began that went silent, and after how many seconds it was given up."""

    def run(self) -> None:
        """Capture until told to stop; raises what cannot be tried again."""
        warm_up()
        libpq.warm_up()
        while not self._stop.is_set():
            try:
                with room.explained(self._spec.spool):
                    self._stream()
            except (PenstockError, psycopg.Error) as raised:
                error = raised if isinstance(raised, PenstockError) else self._diagnosed(raised)
                error.at(source=self._spec.source)
                if not error.retry or self._spec.temporary_slot:
                    self._report("failed", error)
                    raise error from None
                pause = self._backoff.pause()
                if isinstance(error, SpoolFull):
                    with suppress(OSError, SpoolInUse), held(self._spec.spool):
                        self._report("paused", error)
                        room.release(self._spec.spool)
                        self._stop.wait(pause)
                    continue
                self._report("retrying", error, seconds=round(pause, 1))
                self._stop.wait(pause)
        self._report("stopped")

    def _diagnosed(self, error: psycopg.Error) -> PenstockError:
        return self._diagnosis.of(error, lambda: manifest.position(self._spec.spool) or ZERO)

    def _stream(self) -> None:
        """Stream for as long as one connection lasts."""
        spec = self._spec
        self._report("starting")
        with Receiver(replication_conninfo(spec.conninfo)) as receiver:
            reached = manifest.reached(spec.spool)
            server = receiver.identify()
            identity = Identity(server.system_id, server.database, spec.slot)
            check_identity(spec.spool, identity)
            if reached is not None:
                receiver.check_history(server, reached)
            position = self._find_position(receiver)
            if position is None:
                return
            if receiver.identify().timeline != server.timeline:
                raise ConnectionFailed("the server was promoted while we connected", remedy=AGAIN)
            self._be_patient(receiver, position)
            receiver.start(spec.slot, spec.publication, position, streaming=spec.streaming)
            with closing(SpoolWriter(spec.spool, identity, position)) as writer:
                try:
                    writer.manifest.enter_timeline(server.timeline)
                    self._fill(receiver, writer)
                except ServerSilent:
                    self._silence = (position, receiver.patience)
                    raise
                except SpoolFull as full:
                    if spec.temporary_slot:
                        raise
                    receiver.close()  # a server that shuts down would wait for us
                    self._wait_for_room(full, writer)

    def _fill(self, receiver: Receiver, writer: SpoolWriter) -> None:
        room.reserve(self._spec.spool)
        for consumer in self._spec.consumers:
            writer.manifest.register(consumer, writer.recorded)
        if not writer.manifest.schemas():
            self._learn_tables(writer)
        self._report("streaming", slot=self._spec.slot, position=str(writer.recorded))
        self._pump(receiver, writer)

    def _wait_for_room(self, full: SpoolFull, writer: SpoolWriter) -> None:
        """Wait without a connection, the spool held: its consumers may go on, and make room."""
        self._report("paused", full.at(source=self._spec.source))
        room.release(self._spec.spool)
        while not self._stop.wait(ROOM_PAUSE):
            with suppress(SpoolFull), room.explained(self._spec.spool):
                writer.retire(min(writer.manifest.consumers().values(), default=ZERO))
            if room.is_there(self._spec.spool):
                return

    def _be_patient(self, receiver: Receiver, position: Lsn) -> None:
        """Twice as patient as the last time, if that ended at the same position: over one large transaction
        of tables that nobody follows a server can be silent for longer than usual, again and again."""
        began, seconds = self._silence
        if position == began:
            receiver.patience = max(receiver.patience, min(2 * seconds, LONGEST_SILENCE))

    def _find_position(self, receiver: Receiver) -> Lsn | None:
        """Where to begin: where the spool ends, having checked that the slot still has what follows;
        without a spool, where the slot begins. None if told to stop while the slot was being made."""
        spec = self._spec
        with _explained(), connect(spec.conninfo) as connection:
            existing, position = self._look(connection)
            if existing is None and position is not None:  # another capture may have made both in between
                existing, position = self._look(connection)
            is_new = existing is None and position is None
            if not is_new:
                slot.refuse_unpromoted(connection, existing)
            check_publication(connection, spec.publication)
            if spec.temporary_slot:
                return self._cancelled_on_stop(
                    receiver.cancel, lambda: receiver.create_temporary_slot(spec.slot)
                )
            if is_new and spec.create_slot:
                return self._create_slot(connection)
        slot.check_usable(existing, position or ZERO)
        assert existing is not None
        return position or existing.confirmed_flush or ZERO

    def _look(self, connection: Connection) -> tuple[SlotState | None, Lsn | None]:
        """Return the slot, then how far the spool is: who captures into it now moves the spool first."""
        return slot.describe(connection, self._spec.slot), manifest.position(self._spec.spool)

    def _create_slot(self, connection: Connection) -> Lsn | None:
        start = self._cancelled_on_stop(
            lambda: connection.cancel_safe(timeout=5),
            lambda: slot.create(connection, self._spec.slot, failover=self._spec.failover),
        )
        if start is not None:
            self._report("starting", created=self._spec.slot, position=str(start))
        return start

    def _cancelled_on_stop(self, cancel: Callable[[], None], create: Callable[[], Lsn]) -> Lsn | None:
        """Make a slot. That waits for running transactions, maybe for hours. Who is told to stop must not
        leave the server at it: it would make a slot that nobody reads, and keep its WAL."""
        done = threading.Event()
        watcher = threading.Thread(target=self._cancel_on_stop, args=(cancel, done), daemon=True)
        watcher.start()
        try:
            return create()
        except (PenstockError, psycopg.Error):
            if self._stop.is_set():
                return None
            raise
        finally:
            done.set()
            watcher.join()

    def _cancel_on_stop(self, cancel: Callable[[], None], done: threading.Event) -> None:
        while not done.wait(0.1):
            if self._stop.is_set():
                with suppress(psycopg.Error):
                    cancel()

    def _learn_tables(self, writer: SpoolWriter) -> None:
        with (
            _explained(),
            connect(self._spec.conninfo) as connection,
            closing(TypeCatalog(lambda: connection)) as types,
        ):
            schemas = SpoolSchemas(writer, types)
            for relation in published(connection, self._spec.publication):
                schemas.resolve(relation)
        writer.record_schemas()

    def _pump(self, receiver: Receiver, writer: SpoolWriter) -> None:
        with closing(TypeCatalog(lambda: connect(self._spec.conninfo), self._stop)) as types:
            worker = Worker(self._spec, writer, types, self._report)
            heartbeat = Heartbeat(self._spec.conninfo, self._spec.heartbeat)
            worker.start()
            heartbeat.start()
            try:
                self._receive(receiver, worker)
            finally:
                heartbeat.finish()
                worker.finish()
        receiver.feedback(worker.recorded, worker.acknowledged)

    def _receive(self, receiver: Receiver, worker: Worker) -> None:
        last_feedback = 0.0
        while not self._stop.is_set() and worker.error is None and not worker.lacks_room(LET_GO):
            if worker.has_room:
                self._pass_on(receiver.receive(seconds=0.1, has_room=lambda: worker.has_room), worker)
            else:
                time.sleep(0.005)
            if time.monotonic() - last_feedback >= FEEDBACK:
                receiver.feedback(worker.recorded, worker.acknowledged)
                last_feedback = time.monotonic()

    def _pass_on(self, run: MessageRun | None, worker: Worker) -> None:
        if run is not None:
            worker.put(run)
            self._backoff.reset()
