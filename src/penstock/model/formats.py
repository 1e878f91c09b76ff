"""Formats of what outlives a version of Penstock: the state store, spools, mirrors, ledgers.

Each has a number, which grows when a change could mislead a version that does not know of it. What an earlier
version left is brought up to date at opening, step by step, in one transaction with its new number: a crash
leaves the one or the other. What a later version wrote is refused, by everybody, with what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from penstock import __version__

Steps = Mapping[int, Sequence[str]]
"""The statements that make of a format the next one."""


def carry_out(steps: Steps, stored: int, execute: Callable[[str], object]) -> int:
    """Execute, in the caller's transaction, what brings this format up to date; return the format reached."""
    while stored in steps:
        for statement in steps[stored]:
            execute(statement)
        stored += 1
    return stored


def refusal(what: str, stored: object, format: int, written_by: str | None) -> dict[str, str]:
    """Return `reason` and `remedy` of an error about a format that is not the one we know."""
    writer = f", written by Penstock {written_by}" if written_by else ""
    ours = f"and this is Penstock {__version__}, which has the format {format}"
    version = f"Penstock {written_by} or newer" if written_by else "the version of Penstock that wrote it"
    return {"reason": f"{what} has the format {stored}{writer}, {ours}", "remedy": f"Use {version}"}
