"""What the pipeline's log and metrics learn of a capture that loses its connection."""

from __future__ import annotations

import os
from pathlib import Path

from structlog.testing import capture_logs

from penstock.capture.state import reporter
from penstock.model.errors import ConnectionFailed
from penstock.monitoring.events import Events
from penstock.pipeline.capture_trouble import LOOK, CaptureTrouble


def test_an_outage_is_counted_once_however_short_and_however_many_attempts(tmp_path: Path) -> None:
    report, trouble, events = reporter("eu", tmp_path), CaptureTrouble("eu", tmp_path), Events()
    now = 0.0

    def look() -> int:
        nonlocal now
        now += LOOK
        with capture_logs() as logged:
            trouble.look(os.getpid(), now)
        for event in logged:
            events.take({"level": event["log_level"], **event})
        return events.count("reconnects")

    report("starting")
    report("streaming")
    assert look() == 0
    for reason in ("it shuts down", "nobody listens", "it starts up"):
        report("retrying", ConnectionFailed(reason))
        assert look() == 0
        report("starting")
    report("streaming")
    assert look() == 1
    report("paused")  # the disk was full for a moment: the connection stayed
    report("streaming")
    assert look() == 1
    report("retrying", ConnectionFailed("an outage that was over before anybody looked"))
    report("starting")
    report("streaming")
    assert look() == 2
    assert look() == 2
    assert [event["source"] for event in events.recent()] == ["eu"] * len(events.recent())
