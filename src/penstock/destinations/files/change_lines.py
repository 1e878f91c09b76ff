"""Changes as lines of CSV: what `streaming.csv` holds.

    _op             I, U, D, T: insert, update, delete, truncate
    _commit_lsn     where the transaction committed; with `_seq` the order and identity of a change
    _lsn            where the change itself stands in the WAL
    _seq            the place in the transaction
    _xid, _committed_at
    _unchanged      the columns whose value PostgreSQL did not send, as its array: they keep what they have

then the table's columns. A delete has those of its key (of a table without one, all), a truncate none. An
update that gives a row another key comes as two lines with the same `_seq`: `D` with the old key, then `U`;
columns that are `_unchanged` then have the value of the row that was just deleted. LSNs have all their
digits, so that they sort as text.

Runs on executors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.csv_text import csv_line, csv_text
from penstock.changes.position_text import fixed_text, lsn_text
from penstock.changes.row_lines import ChangePart
from penstock.destinations.batch import rows_of
from penstock.destinations.protocol import Delivery, Run, TableChanges
from penstock.model import Lsn
from penstock.spool.segment import Op

COLUMNS = ("_op", "_commit_lsn", "_lsn", "_seq", "_xid", "_committed_at", "_unchanged")


@dataclass(slots=True)
class ChangeLines:
    """The lines of a run, and what was seen of them."""

    changes: TableChanges
    run: Run
    rows: int = 0
    first: Lsn | None = None
    last: Lsn | None = None
    """Where the first and the last transaction committed."""

    def blocks(self) -> Iterator[bytes | memoryview]:
        """Yield the lines, the header first; nothing at all if there is no change."""
        for batch in rows_of(self.changes, self.run):
            if self.first is None:
                self.first = Lsn(batch["commit_lsn"][0].as_py())
                yield csv_line([*COLUMNS, *self.run.delivery.table.column_names])
            self.last = Lsn(batch["commit_lsn"][-1].as_py())
            for columns in lines_of(batch, self.run.delivery):
                self.rows += len(columns[0])
                yield from csv_text(columns)


def lines_of(changes: pa.RecordBatch, delivery: Delivery) -> Iterator[list[pa.StringArray]]:
    """Yield the columns of the lines that changes become, in order."""
    truncates = np.flatnonzero(np.asarray(changes["op"]) == Op.TRUNCATE)
    begin = 0
    for place in [*truncates.tolist(), len(changes)]:
        if place > begin:
            yield _row_lines(changes.slice(begin, place - begin), delivery)
        if place < len(changes):
            nothing = pa.nulls(1, pa.string())
            width = len(delivery.table.columns)
            yield [*_about(changes.slice(place, 1), "T"), nothing, *[nothing] * width]
        begin = place + 1


def _row_lines(changes: pa.RecordBatch, delivery: Delivery) -> list[pa.StringArray]:
    table = delivery.table
    part = ChangePart(changes, table)
    key = [place for place, column in enumerate(table.columns) if column.name in delivery.key]
    moved = part.moved(key or range(len(table.columns)))
    columns = [
        *_about(changes, None),
        _unchanged(part, table.column_names),
        *(part.current(place) for place in range(len(table.columns))),
    ]
    if not len(moved):
        return columns
    before = [
        *_about(changes.take(pa.array(moved)), "D"),
        pa.nulls(len(moved), pa.string()),
        *(part.old(moved, place) for place in range(len(table.columns))),
    ]
    order = np.argsort(np.concatenate([np.arange(len(part)) * 2 + 1, moved * 2]), kind="stable")
    return [
        pa.concat_arrays([now, old]).take(pa.array(order)) for now, old in zip(columns, before, strict=True)
    ]


def _about(changes: pa.RecordBatch, op: str | None) -> list[pa.StringArray]:
    """What the lines say of the change itself, but for `_unchanged`."""
    ops = changes["op"] if op is None else pa.array([ord(op)] * len(changes), pa.int8())
    return [
        _letters(np.asarray(ops)),
        lsn_text(np.asarray(changes["commit_lsn"])),
        lsn_text(np.asarray(changes["lsn"])),
        changes["seq"].cast(pa.string()),
        changes["xid"].cast(pa.string()),
        _times(changes["committed_at"]),
    ]


def _letters(codes: npt.NDArray[np.int8]) -> pa.StringArray:
    return fixed_text(codes.astype(np.uint8).reshape(-1, 1))


def _times(at: pa.TimestampArray) -> pa.StringArray:
    """Return times as PostgreSQL prints them. Few differ: all changes of a transaction have the same."""
    encoded = pc.dictionary_encode(at)
    texts = pc.strftime(encoded.dictionary, format="%Y-%m-%d %H:%M:%S+00")
    return texts.take(encoded.indices)


def _unchanged(part: ChangePart, names: Sequence[str]) -> pa.StringArray:
    if not len(part.unsent_rows):
        return pa.nulls(len(part), pa.string())
    texts: list[str | None] = [None] * len(part)
    by_row: dict[int, list[str]] = {}
    for row, place in zip(part.unsent_rows.tolist(), part.unsent_places.tolist(), strict=True):
        by_row.setdefault(row, []).append(_element(names[place]))
    for row, elements in by_row.items():
        texts[row] = "{" + ",".join(elements) + "}"
    return pa.array(texts, pa.string())


def _element(name: str) -> str:
    """A name in the text of an array."""
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
