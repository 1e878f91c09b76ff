"""The look at a pipeline, every second, in a thread of its own; what HTTP answers is made from the last one.

However many ask, the pipeline's servers and files are asked once a second.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import structlog

from penstock.config import Config
from penstock.model.errors import PenstockError, to_dict
from penstock.model.text import error_summary
from penstock.monitoring import metrics, processes
from penstock.monitoring.events import Events
from penstock.monitoring.history import History
from penstock.monitoring.readiness import STALE, Condition, conditions
from penstock.pipeline import rates
from penstock.pipeline.status import StatusReader

INTERVAL = 1.0
PATIENCE = 3.0
"""Seconds that a source has to answer."""

Document = dict[str, Any]

_log = structlog.get_logger("penstock.monitoring")


@dataclass(frozen=True, slots=True)
class Heart:
    """What the pipeline's process says of itself; a pipeline that runs elsewhere says nothing."""

    pid: int | None = None
    began: float | None = None
    """By `time.time`."""
    silent_seconds: float | None = None
    """Since the pipeline's thread last went round."""


@dataclass(frozen=True)
class Observation:
    """What was seen, and the answers that are made of it once they are asked for."""

    document: Document
    at: float
    """By `time.monotonic`."""
    events: Events

    @property
    def age(self) -> float:
        return time.monotonic() - self.at

    @property
    def conditions(self) -> list[Condition]:
        return conditions(self.document, self.age)

    @cached_property
    def status(self) -> bytes:
        return json.dumps(self.document).encode()

    @cached_property
    def metrics(self) -> bytes:
        return metrics.rendered(self.document, self.events.registry)

    @cached_property
    def outdated(self) -> Observation:
        """The same, once it is old: nothing is known to be ready."""
        return replace(self, document=self.document | _readiness(self.conditions))


class Observer:
    def __init__(self, config: Config, events: Events, *, only_looks: bool = False) -> None:
        self.config = config
        self._only_looks = only_looks
        self.events = events
        self.history = History()
        self.heart = Heart()
        self._look = Observation({"pipeline": config.pipeline, "running": None}, time.monotonic(), events)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)

    @property
    def look(self) -> Observation:
        look = self._look
        return look if look.age < STALE else look.outdated

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Look no more. A look at a server that does not answer is not waited for."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(INTERVAL)

    def _run(self) -> None:
        with closing(StatusReader(self.config, only_looks=self._only_looks)) as reader:
            while not self._stop.is_set():
                began = time.monotonic()
                try:
                    self._observe(reader)
                except Exception as error:  # what is shown grows old, and is told as such
                    _log.error("a look failed", error=error_summary(error))
                self._stop.wait(max(INTERVAL - (time.monotonic() - began), INTERVAL / 2))

    def _observe(self, reader: StatusReader) -> None:
        before = self._look
        try:
            document = reader.read(PATIENCE)
        except PenstockError as error:
            document = before.document | {"error": to_dict(error)}
        except Exception as error:  # whatever it is, it is told; the next look may succeed
            document = before.document | {"error": to_dict(PenstockError(error_summary(error)))}
        else:
            document["error"] = None
            rates.add(document, before.document, time.monotonic() - before.at)
            self._add_heard(document)
        now = time.monotonic()
        document |= self._summary(document)
        document |= _readiness(conditions(document, 0.0))
        self._look = Observation(document, now, self.events)
        self.history.note(time.time(), now, document)

    def _add_heard(self, document: Document) -> None:
        """What only events tell of streams and files."""
        for destination in document["destinations"]:
            for stream in destination["streams"]:
                stream["last_batch"] = self.events.last_batches.get((stream["source"], destination["name"]))
            if destination["files"] is not None:
                destination["files"]["compression_ratio"] = self.events.files.ratio(destination["name"])

    def _summary(self, document: Document) -> Document:
        """What a person with one source wants to know first; of several the sums, and the worst."""
        sources, heart = document.get("sources", []), self.heart
        streams = [stream for each in document.get("destinations", []) for stream in each["streams"]]
        lag = max((source["behind_bytes"] or 0 for source in sources), default=0)
        captured = [source["capture"]["changes"] for source in sources]
        connected = bool(sources) and all(source["error"] is None for source in sources)
        return {
            "status": "connected" if connected else "disconnected",
            "uptime_seconds": int(time.time() - heart.began) if heart.began else None,
            "silent_seconds": heart.silent_seconds,
            "wal_messages_received": None if None in captured else sum(captured),
            "cdc_events_published": sum(stream["rows"] for stream in streams),
            "current_lsn": sources[0]["wal_position"] if len(sources) == 1 else None,
            "is_connected": connected,
            "reconnect_count": self.events.count("reconnects"),
            "nats_reconnect_count": self._nats_reconnects(),
            "last_processing_time_us": int(self.events.last_batch_seconds * 1e6),
            "slot_active": bool(sources) and all(source["slot_state"] == "active" for source in sources),
            "wal_lag_bytes": lag,
            "wal_lag_mb": lag >> 20,
            "memory_bytes": processes.memory(heart.pid),
        }

    def _nats_reconnects(self) -> int:
        names = {each.name for each in self.config.destinations if each.type == "nats"}
        return self.events.waits_of(names)


def _readiness(met: list[Condition]) -> Document:
    return {"ready": all(each.ok for each in met), "conditions": [each.document() for each in met]}
