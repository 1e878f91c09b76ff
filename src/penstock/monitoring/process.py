"""The process of a pipeline's HTTP server, as `launch` begins it.

The first line of standard input says what to serve; each further one is an event of the pipeline, or what it
says of itself. When the input ends, so does the pipeline, and this. What the pipeline must know goes to
standard output.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import signal
import sys
import threading
from typing import Any

import structlog

from penstock import logs
from penstock.model.errors import PenstockError, to_dict
from penstock.monitoring.events import Events
from penstock.monitoring.observing import Heart, Observer
from penstock.monitoring.serving import HttpServer

METRICS = 15.0
"""Seconds between two lines of the log with the most important numbers."""


def main() -> int:
    os.nice(10)  # the stream comes first
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    first = sys.stdin.readline()
    if not first.endswith("\n"):
        return 0  # the pipeline has ended already
    given = json.loads(first)
    logs.to_stderr(given["level"], given["format"])
    # Only the pipeline writes to our input.
    config = pickle.loads(base64.b64decode(given["config"]))
    observer = Observer(config, Events())
    try:
        server = HttpServer(observer, lambda: _tell(stop=True))
    except PenstockError as error:
        _tell(error=to_dict(error))
        return 1
    threading.Thread(target=_listen, args=(observer, server), daemon=True).start()
    threading.Thread(target=_tell_metrics, args=(observer,), daemon=True).start()
    _tell(listening=server.url)
    server.run()
    return 0


def _listen(observer: Observer, server: HttpServer) -> None:
    """Hear what the pipeline says, until it ends, be it in the middle of a line."""
    try:
        for line in sys.stdin:
            message: dict[str, Any] = json.loads(line) if line.endswith("\n") else {}
            if "heart" in message:
                observer.heart = Heart(**message["heart"])
            elif message:
                observer.events.take(message)
    finally:
        server.end()


def _tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def _tell_metrics(observer: Observer) -> None:
    log = structlog.get_logger("penstock.monitoring")
    while not threading.Event().wait(METRICS):
        document = observer.look.document
        if "sources" in document:
            log.info(
                "METRICS",
                uptime=document["uptime_seconds"],
                wal_messages=document["wal_messages_received"],
                cdc_events=document["cdc_events_published"],
                lsn=document["current_lsn"],
                connected=int(document["is_connected"]),
                reconnects=document["reconnect_count"],
                nats_reconnects=document["nats_reconnect_count"],
                lag_bytes=document["wal_lag_bytes"],
                slot_active=int(document["slot_active"]),
            )
