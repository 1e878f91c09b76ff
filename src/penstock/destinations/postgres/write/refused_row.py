"""Which row it was that the destination refused.

A statement for many rows fails as a whole, and mostly does not say for which of them. So the failing half is
looked for, and the failing half of that, within savepoints: together about as much work as the statement
itself once more. What is found is the row that fails by itself, or the last of those that fail together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import psycopg
from psycopg import sql

from penstock.changes import unreadable
from penstock.destinations.postgres.session import kind_of_refusal
from penstock.destinations.postgres.table.target_table import TargetTable
from penstock.destinations.postgres.write.staging import copy_lines
from penstock.model.errors import RowRefused
from penstock.model.text import is_text
from penstock.postgres.connection import Connection, without_values

Try = Callable[[int, int], None]
"""Applies the rows `[first, end)` alone; raises if one of them is refused."""

_COLUMN = re.compile(r"COPY .*, line \d+, column (.*?)(?:: |$)")
_PLACE = re.compile(r"[co](\d+)")

_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_CHARACTERS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v"}

CUT = 60


def first_refused(connection: Connection, count: int, attempt: Try) -> tuple[int, psycopg.Error | None]:
    """Return the number of the refused row, of `count` that were refused together, and what is said against
    it alone."""
    first, end = 0, count
    while end - first > 1:
        middle = (first + end) // 2
        if _failure(connection, attempt, first, middle):
            end = middle
        else:
            first = middle
    return first, _failure(connection, attempt, first, first + 1)


def _failure(connection: Connection, attempt: Try, first: int, end: int) -> psycopg.Error | None:
    try:
        with connection.transaction():
            attempt(first, end)
            raise psycopg.Rollback
    except psycopg.Error as error:
        if error.sqlstate is None:
            raise
        return error
    return None


def refused(
    target: TargetTable, error: psycopg.Error, columns: Sequence[str], values: Sequence[str | None]
) -> RowRefused:
    """Return the error of one row, with what the row is found by: its key, and nothing else of it."""
    return kind_of_refusal(error)(
        without_values(error).replace(target.name.name, target.delivery.target.name),
        table=target.delivery.table.name,
        key=described(columns, values),
        column=error.diag.column_name or _column(target, error),
        remedy=unreadable.REMEDY if isinstance(error, psycopg.errors.CharacterNotInRepertoire) else None,
    )


def _column(target: TargetTable, error: psycopg.Error) -> str | None:
    """Return the column that COPY names, in English messages only. In a staging table columns go by
    their place."""
    match = _COLUMN.search(error.diag.context or "")
    if match is None:
        return None
    numbered = _PLACE.fullmatch(match[1])
    if numbered is not None and match[1] not in target.columns:
        with suppress(IndexError):
            return target.columns[int(numbered[1])]
    return match[1]


def described(columns: Sequence[str], values: Sequence[str | None]) -> str:
    """Return a key for people: `id=7`; long values are cut."""
    cut = [
        "NULL" if value is None else value if len(value) <= CUT else value[: CUT - 1] + "…"
        for value in values
    ]
    return ", ".join(f"{name}={value}" for name, value in zip(columns, cut, strict=True))


def refused_in_copy(
    connection: Connection, target: TargetTable, error: psycopg.Error, blocks: Iterable[bytes]
) -> RowRefused | psycopg.Error:
    """Return the error of one row of a refused copy, looked for among the copy's rows, which come as COPY's
    text in blocks of whole lines; the error itself if none of them is refused without the others."""
    names = [sql.Identifier(name) for name in target.columns]
    for block in blocks:
        lines = [line + b"\n" for line in block.split(b"\n")[:-1]]

        def attempt(first: int, end: int, lines: list[bytes] = lines) -> None:
            copy_lines(connection, target.identifier, names, [b"".join(lines[first:end])])

        if _failure(connection, attempt, 0, len(lines)):
            number, alone = first_refused(connection, len(lines), attempt)
            return refused_line(target, alone or error, lines[number].rstrip(b"\n"))
    return error


def refused_line(target: TargetTable, error: psycopg.Error, line: bytes) -> RowRefused:
    """Return the error of one row, given as a line of COPY's text."""
    fields = dict(zip(target.columns, line.split(b"\t"), strict=False))
    columns = [name for name in target.key or target.columns if name in fields]
    refusal = refused(target, error, columns, [_value(fields[name]) for name in columns])
    refusal.at(column=next((name for name, field in fields.items() if not is_text(field)), None))
    return refusal


def _value(field: bytes) -> str | None:
    text = field.decode(errors="replace")
    return None if text == r"\N" else _ESCAPED.sub(lambda match: _CHARACTERS.get(match[1], match[1]), text)
