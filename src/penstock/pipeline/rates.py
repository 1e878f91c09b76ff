"""How much comes in a second: the difference between two looks at a pipeline's status."""

from __future__ import annotations

from penstock.pipeline.status import Document


def add(document: Document, before: Document, seconds: float) -> None:
    """Say of every source and stream how much came in a second, since the look before."""
    captured = {source["name"]: source["capture"]["changes"] for source in before.get("sources", [])}
    for source in document["sources"]:
        changes = source["capture"]["changes"]
        source["rates"] = {"changes": _rate(changes, captured.get(source["name"]), seconds)}
    delivered = {
        (destination["name"], stream["source"]): stream["rows"]
        for destination in before.get("destinations", [])
        for stream in destination["streams"]
    }
    for destination in document["destinations"]:
        for stream in destination["streams"]:
            rows = delivered.get((destination["name"], stream["source"]))
            stream["rates"] = {"rows": _rate(stream["rows"], rows, seconds)}


def _rate(now: int | None, before: int | None, seconds: float) -> float | None:
    if now is None:  # it is not seen from here
        return None
    return round(max(now - before, 0) / seconds, 1) if before is not None and seconds > 0 else 0.0
