"""What /health and /ready are about: conditions, each with its name, and what to do if it does not hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

Document = dict[str, Any]

STALE = 8.0
"""Seconds without a look after which nothing is known."""
STUCK = 120.0
"""Seconds without a round of the pipeline's thread after which it is not ready."""
DEAD = 900.0
"""Seconds after which it does not live. A start may take long: an object store is asked for each table, and
what a killed run has left there is removed."""


class Condition(NamedTuple):
    name: str
    ok: bool
    reason: str = ""
    remedy: str = ""

    def document(self) -> Document:
        why_not = {"reason": self.reason, "remedy": self.remedy} if not self.ok else {}
        return {"name": self.name, "ok": self.ok, **why_not}


def conditions(document: Document, age: float) -> list[Condition]:
    """Return what must hold for a pipeline to be ready, by a document that is so many seconds old."""
    return [
        *_observed(document, age),
        _running(document),
        *(condition for source in document.get("sources", []) for condition in _of_source(source)),
        *(condition for destination in document.get("destinations", []) for condition in _waits(destination)),
        _streams(document),
    ]


def _observed(document: Document, age: float) -> Iterator[Condition]:
    if document.get("error"):
        yield _failed("state_store", document["error"])
    else:
        yield Condition(
            "state_store", age < STALE, f"nothing was heard of it for {age:.0f} seconds", "Look at the log"
        )


def _running(document: Document) -> Condition:
    runs, stuck = bool(document.get("running")), document.get("silent_seconds") or 0
    if runs and stuck > STUCK:
        return Condition(
            "startup", False, f"the pipeline has done nothing for {stuck:.0f} seconds", "Look at its log"
        )
    return Condition("startup", runs, "the pipeline does not run, or not yet", "Start it with `penstock run`")


def _of_source(source: Document) -> Iterator[Condition]:
    name, capture = source["name"], source["capture"]
    yield (
        _failed(f"database:{name}", source["error"])
        if source["error"]
        else Condition(f"database:{name}", True)
    )
    state = source["slot_state"]
    yield Condition(
        f"slot:{name}",
        state == "active" or source["error"] is not None,
        f"the slot {source['slot']} is {state}",
        "It becomes active when the capture is connected; a slot that is lost needs `on_slot_lost`",
    )
    if capture["changes"] is None and (state == "active" or source["error"]):
        return  # it is on another machine: that the slot is read tells of it
    if registry := source.get("registry"):
        error = registry["error"]
        yield _failed(f"registry:{name}", error) if error else Condition(f"registry:{name}", True)
    streams = capture["state"] == "streaming"
    if streams or capture["error"] is None:
        yield Condition(
            f"capture:{name}",
            streams,
            f"the capture is {capture['state'] or 'not seen from here'}",
            "Its log is in the spool's folder",
        )
    else:
        yield _failed(f"capture:{name}", capture["error"])


def _waits(destination: Document) -> Iterator[Condition]:
    for stream in destination["streams"]:
        name = f"destination:{destination['name']}"
        if len(destination["streams"]) > 1:
            name += f":{stream['source']}"
        yield _failed(name, stream["error"]) if stream["error"] else Condition(name, True)


def _streams(document: Document) -> Condition:
    """At least one table is past its copy, or there is none and the streams have begun."""
    destinations = document.get("destinations", [])
    tables = [table for destination in destinations for table in destination["tables"]]
    begun = [
        stream["position"] is not None for destination in destinations for stream in destination["streams"]
    ]
    return Condition(
        "streaming",
        any(table["phase"] == "ready" for table in tables) if tables else bool(begun) and all(begun),
        "no table is past its copy yet",
        "Wait for the copies, or see in /status what stops them",
    )


def _failed(name: str, error: Document) -> Condition:
    place = ", ".join(f"{key} {value}" for key, value in error["where"].items())
    return Condition(name, False, error["reason"] + (f" ({place})" if place else ""), error["remedy"])
