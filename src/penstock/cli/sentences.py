"""Errors of a status document, as sentences for people."""

from __future__ import annotations

from typing import Any


def of_error(error: dict[str, Any]) -> str:
    """Return what happened, where, and what to do."""
    place = ", ".join(f"{key} {value}" for key, value in error["where"].items())
    remedy = error["remedy"]
    stop = "." if remedy and not remedy.endswith((".", "?", "!")) else ""
    return f"{error['reason']}{f' ({place})' if place else ''}. {remedy}{stop}".rstrip()
