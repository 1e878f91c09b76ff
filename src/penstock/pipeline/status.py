"""What a pipeline is doing, for people and programs, whether it runs or not.

Everything is read from where it is kept: the store, the spool's manifest, the source's slot. A source that
cannot be reached is told as such; the rest is still there.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from penstock.capture import state as capture_state
from penstock.capture.launch import spec_of
from penstock.config import Config, SourceConfig
from penstock.config.destinations import DestinationConfig
from penstock.model import Lsn
from penstock.model.errors import ConnectionFailed, PenstockError, SpoolUnreachable, StateUnreachable, to_dict
from penstock.model.phases import Phase
from penstock.pipeline import consumers, stored
from penstock.pipeline.followed_mapping import FollowedMapping
from penstock.pipeline.table_facts import wal_position
from penstock.postgres import selection, slot
from penstock.postgres.connection import Connection, connect, explain, wait_briefly
from penstock.spool.identity import spool_exists
from penstock.spool.manifest import Manifest
from penstock.spool.writer import captured_by
from penstock.state.store import Store, TableState

Document = dict[str, Any]


LEFT_OUT = 30.0
"""Seconds between two looks at which tables are left out: those ask for the whole catalog."""


def collect(config: Config) -> Document:
    """Return everything there is to know, as JSON would have it. No secret is part of it."""
    with closing(StatusReader(config)) as reader:
        return reader.read()


class StatusReader:
    """Reads it, and again if it is kept, by connections that stay open. Where there is no state store one is
    made, unless it `only_looks`."""

    def __init__(self, config: Config, *, only_looks: bool = False) -> None:
        self._config = config
        self._only_looks = only_looks
        self._store: Store | None = None
        self._sources = [_SourceReader(config, source) for source in config.sources]
        self._mapping = FollowedMapping(config)

    def read(self, patience: float | None = None) -> Document:
        """Read it. A source that has not answered in so many seconds is told as such."""
        config, store = self._config, self._opened()
        try:
            self._mapping.look(store)
            for source in self._sources:
                source.ask()
            until = None if patience is None else time.monotonic() + patience
            sources = [source.answer(until) for source in self._sources]
            running = store.holder()
            if running:
                _forget_unseen_captures(sources)
            files = {source["name"]: source.pop("files") for source in sources}
            ends = {source["name"]: source["wal_position"] for source in sources}
            return {
                "pipeline": config.pipeline,
                "at": _time(datetime.now(UTC)),
                "running": running,
                "sources": sources,
                "destinations": [
                    _destination(store, each, ends) | {"files": stored.files(each, files)}
                    for each in config.destinations
                ],
                "state": {"bytes": stored.size_of_state(store.file)},
            }
        except StateUnreachable:
            self._close_store()
            raise

    def close(self) -> None:
        self._close_store()
        for source in self._sources:
            source.close()

    def _opened(self) -> Store:
        if self._store is None:
            url = self._config.state.url.get_secret_value()
            if self._only_looks:
                self._store = Store.existing(url, self._config.pipeline)
            else:
                self._store = Store.open(url, self._config.pipeline, exclusive=False)
        return self._store

    def _close_store(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None


class _SourceReader:
    def __init__(self, config: Config, source: SourceConfig) -> None:
        self._config = config
        self._source = source
        self._spec = spec_of(config, source)
        self._connection: Connection | None = None
        self._left_out: list[Document] = []
        self._looked = -LEFT_OUT
        self._files = stored.DeliveredFiles(config)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"status-{source.name}")
        self._asking: Future[Document] | None = None

    def ask(self) -> None:
        if self._asking is None:
            self._asking = self._thread.submit(self._read)

    def answer(self, until: float | None) -> Document:
        """Return the answer, or that there is none yet, by `time.monotonic`."""
        assert self._asking is not None
        patience = None if until is None else max(until - time.monotonic(), 0)
        if not wait([self._asking], patience).done:
            silent = ConnectionFailed("the server does not answer", source=self._source.name)
            return self._known_here() | {"error": to_dict(silent)}
        asked, self._asking = self._asking, None
        return asked.result()

    def _known_here(self) -> Document:
        """Return what is known without the server."""
        source = self._source
        return {
            "name": source.name,
            "slot": source.slot_name,
            "publication": source.publication_name,
            "error": None,
            "wal_position": None,
            "slot_state": None,
            "confirmed_position": None,
            "restart_position": None,
            "retained_bytes": None,
            "behind_bytes": None,
            "safe_wal_bytes": None,
            "left_out": self._left_out,
            "capture": _capture(self._spec.spool),
            "consumers": _consumers(self._config, source),
            "files": {},
            "registry": None,
        }

    def _read(self) -> Document:
        source, document = self._source, self._known_here()
        try:
            connection = self._connected()
            position = wal_position(connection)
            state = slot.describe(connection, source.slot_name)
            self._look(connection)
            document |= self._files.look(connection)
        except (PenstockError, psycopg.Error) as error:
            self._disconnect()
            failure = error if isinstance(error, PenstockError) else explain(error)
            return document | {"error": to_dict(failure.at(source=source.name))}
        document |= {"wal_position": str(position), "left_out": self._left_out}
        if state is None:
            return document | {"slot_state": "missing"}
        lost = slot.loss(state)
        return document | {
            "slot_state": f"lost: {lost}" if lost else "active" if state.active else "inactive",
            "confirmed_position": str(state.confirmed_flush) if state.confirmed_flush else None,
            "restart_position": str(state.restart_lsn) if state.restart_lsn else None,
            "retained_bytes": state.retained,
            "behind_bytes": state.behind,
            "safe_wal_bytes": state.safe_wal_size,
        }

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = connect(self._spec.conninfo)
            wait_briefly(self._connection)
        return self._connection

    def _look(self, connection: Connection) -> None:
        if time.monotonic() - self._looked >= LEFT_OUT:
            reasons = selection.left_out(connection, self._source)
            self._left_out = [{"table": str(name), "reason": why} for name, why in reasons.items()]
            self._looked = time.monotonic()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Let go of the server, without waiting for one that does not answer."""
        with suppress(RuntimeError):  # the process ends: so does the connection
            self._thread.submit(self._disconnect)
        self._thread.shutdown(wait=self._asking is None)


def _capture(spool: Path) -> Document:
    document: Document = {
        "state": "unknown",
        "since": None,
        "pid": None,
        "position": None,
        "error": None,
        "changes": 0,
        "spooled_bytes": 0,
        **stored.disk(spool),
    }
    try:
        reported = capture_state.read(spool)
        document |= {key: reported.get(key) for key in ("since", "error")}
        document["pid"] = captured_by(spool)
        document["state"] = reported.get("state") if document["pid"] else "stopped"
        if spool_exists(spool):
            with closing(Manifest.open(spool)) as opened:
                document["position"] = str(opened.position)
                document["changes"] = opened.recorded
                document["spooled_bytes"] = opened.size()
    except PenstockError as error:  # also of a full disk: where no process has it open, opening takes room
        document["error"] = to_dict(error)
    except OSError as error:
        unread = SpoolUnreachable(f"the spool cannot be read: {error.strerror}", folder=str(spool))
        document["error"] = to_dict(unread)
    return document


def _forget_unseen_captures(sources: list[Document]) -> None:
    """Say nothing of captures on another machine: the pipeline runs, and has no spool here."""
    for source in sources:
        if source["capture"]["room_bytes"] is None:
            source["capture"] = dict.fromkeys(source["capture"])


def _consumers(config: Config, source: SourceConfig) -> list[Document]:
    try:
        return consumers.listed(config, source)
    except (PenstockError, OSError):  # reported with the capture
        return []


def _destination(store: Store, destination: DestinationConfig, ends: dict[str, str | None]) -> Document:
    streams = []
    for source, end in ends.items():
        progress = store.progress(source, destination.name)
        through = progress.complete_through if progress else None
        waiting = store.waiting(source, destination.name)
        streams.append(
            {
                "source": source,
                "position": str(progress.position) if progress else None,
                "complete_through": _time(through),
                "lag_bytes": max(Lsn.parse(end) - progress.position, 0) if progress and end else None,
                "lag_seconds": round((datetime.now(UTC) - through).total_seconds(), 1) if through else None,
                "rows": progress.rows if progress else 0,
                "batches": progress.batches if progress else 0,
                "waiting_since": _time(waiting[0]) if waiting else None,
                "error": to_dict(waiting[1]) if waiting else None,
            }
        )
    through_of = {str(stream["source"]): stream["complete_through"] for stream in streams}
    tables = [_table(state, through_of) for state in store.tables(destination=destination.name)]
    return {"name": destination.name, "type": destination.type, "streams": streams, "tables": tables}


def _table(state: TableState, through_of: dict[str, Any]) -> Document:
    return {
        "source": state.key.source,
        "table": str(state.name),
        "target": str(state.target),
        "phase": state.told,
        "since": _time(state.since),
        "rows": state.rows,
        "complete_through": through_of.get(state.key.source) if state.phase.streams else None,
        "waiting_from": str(state.position) if state.position else None,
        "copy": _copy(state) if state.phase is Phase.DATA_SYNC else None,
        "error": to_dict(state.error) if state.error else None,
        "attempts": state.attempts,
        "retry_at": _time(state.retry_at),
    }


def _copy(state: TableState) -> Document:
    """Return how far a copy is, and how long it will take if it goes on as it did."""
    seconds = (datetime.now(UTC) - state.since).total_seconds()
    done, total = state.copied_bytes, state.total_bytes
    left = seconds * (total - done) / done if done else None
    return {
        "bytes": done,
        "total_bytes": total,
        "seconds": round(seconds, 1),
        "seconds_left": None if left is None else round(left, 1),
    }


def _time(at: datetime | None) -> str | None:
    return at.astimezone(UTC).isoformat(timespec="milliseconds") if at else None
