"""New rows as chosen changes left them, column by column, complete as far as the changes tell.

A value that PostgreSQL did not send (TOAST, left alone by an update) is that of the same row's change before:
the nearest one that has it, back to the insert. Where there is none, the destination has to keep its own.
Nothing is gathered across record batches but such values, so no column grows beyond what came.

Runs on executors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.columns import offsets_of
from penstock.changes.row_lines import ChangePart, Ints, RowLines
from penstock.spool.segment import Op

_NO_CELLS = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Gathered:
    columns: list[pa.ChunkedArray]
    kept: pa.ListArray
    """Per row: the places of columns whose value no change of the row has."""


def all_rows(parts: Sequence[ChangePart], width: int) -> Gathered:
    """Return the new rows of all changes, which are inserts and lack nothing."""
    columns = _columns(parts, [part.after.first for part in parts], width)
    return Gathered(columns, _lists(_NO_CELLS, _NO_CELLS, sum(len(part) for part in parts)))


def gathered(parts: Sequence[ChangePart], lines: RowLines, chosen: Ints, width: int) -> Gathered:
    """Return the rows as these changes (in order, no deletes) left them."""
    firsts = np.cumsum([0, *(len(part) for part in parts)])
    bounds = np.searchsorted(chosen, firsts)
    taken = [
        part.after.first[chosen[bounds[number] : bounds[number + 1]] - firsts[number]]
        for number, part in enumerate(parts)
    ]
    columns = _columns(parts, taken, width)
    rows, places = _unsent(parts, firsts)
    number = np.full(len(lines.op), -1, np.int64)
    number[chosen] = np.arange(len(chosen))
    wanted = number[rows] >= 0
    if not wanted.any():
        return Gathered(columns, _lists(_NO_CELLS, _NO_CELLS, len(chosen)))

    sources = np.full(len(rows), -1, np.int64)
    for place in np.unique(places[wanted]):
        here = np.flatnonzero(places == place)
        sources[here] = _last_sent(lines, rows[here], wanted[here])
        filled = here[sources[here] >= 0]
        if len(filled):
            values = pa.chunked_array([part.after.column(int(place)) for part in parts])
            values = values.take(pa.array(sources[filled]))
            columns[place] = _patched(columns[place], number[rows[filled]], values)
    unknown = np.flatnonzero(wanted & (sources < 0))
    return Gathered(columns, _lists(number[rows[unknown]], places[unknown], len(chosen)))


def _columns(parts: Sequence[ChangePart], firsts: Sequence[Ints], width: int) -> list[pa.ChunkedArray]:
    return [
        pa.chunked_array(
            [part.after.values.take(pa.array(at + place)) for part, at in zip(parts, firsts, strict=True)],
            pa.string(),
        )
        for place in range(width)
    ]


def _unsent(parts: Sequence[ChangePart], firsts: Ints) -> tuple[Ints, Ints]:
    """The cells (change, place) that were not sent, in order."""
    rows = [part.unsent_rows + first for part, first in zip(parts, firsts, strict=False)]
    places = [part.unsent_places for part in parts]
    return np.concatenate([_NO_CELLS, *rows]), np.concatenate([_NO_CELLS, *places])


def _last_sent(lines: RowLines, lacking: Ints, wanted: np.ndarray) -> Ints:
    """For each change that lacks a column: the nearest change before, of the same row, that has it; -1 if
    there is none, or if it is not wanted."""
    several = np.bincount(lines.line, minlength=lines.count) > 1
    sources = np.full(len(lacking), -1, np.int64)
    ask = np.flatnonzero(wanted & several[lines.line[lacking]])
    if not len(ask):
        return sources
    asked = np.zeros(lines.count, np.bool_)
    asked[lines.line[lacking[ask]]] = True
    changes = np.flatnonzero(asked[lines.line])
    changes = changes[np.argsort(lines.line[changes], kind="stable")]

    # The changes of a line now stand side by side, in order: what was last sent is a running maximum.
    sent = lines.op != Op.DELETE
    sent[lacking] = False
    line, place = lines.line[changes], np.arange(len(changes))
    begins = (lines.op[changes] != Op.UPDATE) | np.r_[True, line[1:] != line[:-1]]
    began = np.maximum.accumulate(np.where(begins, place, 0))
    last = np.maximum.accumulate(np.where(sent[changes], place, -1))
    source = np.full(len(lines.op), -1, np.int64)
    source[changes] = np.where(last >= began, changes[last], -1)
    sources[ask] = source[lacking[ask]]
    return sources


def _patched(column: pa.ChunkedArray, rows: Ints, values: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column with other values in these rows, which are in order."""
    mask = np.zeros(len(column), np.bool_)
    mask[rows] = True
    chunks, first, used = [], 0, 0
    for chunk in column.chunks:
        here = mask[first : first + len(chunk)]
        count = int(here.sum())
        if count:
            new = pa.concat_arrays(values.slice(used, count).chunks)
            chunk = pc.replace_with_mask(chunk, pa.array(here), new)
        chunks.append(chunk)
        first, used = first + len(here), used + count
    return pa.chunked_array(chunks, column.type)


def _lists(rows: Ints, places: Ints, count: int) -> pa.ListArray:
    """Places as a list for each of `count` rows; the cells are in order of rows."""
    lengths = np.bincount(rows, minlength=count)
    return pa.ListArray.from_arrays(offsets_of(lengths), pa.array(places, pa.int32()))
