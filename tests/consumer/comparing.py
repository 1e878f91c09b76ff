"""A mirror's file beside the tables of a source in small."""

from __future__ import annotations

import json
import math
import sqlite3
from collections import Counter
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

from penstock.model import ColumnType
from tests.consumer.producing import ModelTable, Producer

LIVE = "select token, sqlite_name from __penstock_tables where state = 'live' and token is not null"
"""What a person sees; a table whose name another has taken is hidden until its new one is told."""


def kept(text: str | None, type: ColumnType) -> Any:
    """What SQLite has of a value, by what is documented."""
    if text is None:
        return None
    match type.name:
        case "int4" | "int8":
            return int(text)
        case "float8":
            return float(text) if math.isfinite(float(text)) else text
        case "bool":
            return int(text == "t")
        case "bytea":
            return bytes.fromhex(text[2:])
        case "jsonb":
            document = json.loads(text, parse_int=_whole)
            return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        case _:
            return text


def _whole(digits: str) -> int | float | str:
    """A whole number of a document: beyond 64 bits it is a double, or a text where that is another number."""
    number = Decimal(digits)
    if -(2**63) <= number < 2**64:
        return int(digits)
    return float(digits) if Decimal(repr(float(digits))) == number else digits


def expected(table: ModelTable) -> Counter[str]:
    types = {column.name: column.type for column in table.schema.columns}
    names = table.schema.column_names
    return Counter(repr(tuple(kept(row[name], types[name]) for name in names)) for row in table.rows)


def mirrored(path: Path) -> dict[str, Counter[str]]:
    """The rows of every table that is live, by its token."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("begin")  # names and rows of one moment: the mirror goes on renaming
        live = connection.execute(LIVE)
        tables = {}
        for token, name in live.fetchall():
            quoted = '"' + name.replace('"', '""') + '"'
            tables[token] = Counter(map(repr, connection.execute(f"select * from {quoted}").fetchall()))
        return tables


def differences(path: Path, producer: Producer) -> dict[str, Any]:
    """What the mirror has too much or too little of."""
    here, there = mirrored(path), {token: expected(table) for token, table in producer.tables.items()}
    return {
        token: (here.get(token, Counter()) - rows, rows - here.get(token, Counter()))
        for token, rows in there.items()
        if here.get(token) != rows
    } | dict.fromkeys(here.keys() - there.keys(), "is no table")
