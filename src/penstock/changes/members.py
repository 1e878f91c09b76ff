"""Maps and lists whose members are not the same in every row: written into rows as they are put together.

MessagePack says first how many members there are; JSON separates them by commas. Either hangs on which
members a row has.

Runs on executors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from penstock.changes.encoded import EncodedColumn, Encoding
from penstock.changes.joined import Joiner, Mask
from penstock.changes.message_pack import array_header, map_header


class Member(NamedTuple):
    name: bytes
    """Encoded; of a list, the member itself."""
    values: EncodedColumn | None = None
    where: Mask | None = None
    """In which rows it is; None: in all."""


class _Form(NamedTuple):
    header: Callable[[int], bytes]
    between_members: bytes = b""
    before_value: bytes = b""
    end: bytes = b""


_MAPS = {
    Encoding.MESSAGE_PACK: _Form(map_header),
    Encoding.JSON: _Form(lambda _: b"{", b",", b":", b"}"),
}
_LISTS = {
    Encoding.MESSAGE_PACK: _Form(array_header),
    Encoding.JSON: _Form(lambda _: b"[", b",", b"", b"]"),
}


def add_map(row: Joiner, encoding: Encoding, members: Sequence[Member], where: Mask | None = None) -> None:
    """Add a map to the rows, or to some of them. A name may come several times, each time in other rows."""
    _add(row, _MAPS[encoding], members, where)


def add_list(row: Joiner, encoding: Encoding, members: Sequence[Member], where: Mask | None = None) -> None:
    """Add a list to the rows, or to some of them."""
    _add(row, _LISTS[encoding], members, where)


def _add(row: Joiner, form: _Form, members: Sequence[Member], where: Mask | None) -> None:
    _add_header(row, form, members, where)
    begun: Mask | None = np.zeros(len(row), np.bool_)
    for member in members:
        here = _both(where, member.where)
        for separator, rows in _separated(form.between_members, begun, here):
            prefix = separator + member.name + form.before_value
            if member.values is None:
                row.constant(prefix, rows)
            else:
                row.values(member.values, rows, prefix)
        begun = None if begun is None or here is None else _unless_all(begun | here)
    row.constant(form.end, where)


def _add_header(row: Joiner, form: _Form, members: Sequence[Member], where: Mask | None) -> None:
    always = sum(member.where is None for member in members)
    sometimes = [member.where for member in members if member.where is not None]
    if not sometimes:
        row.constant(form.header(always), where)
        return
    counts, numbers = np.unique(always + np.sum(sometimes, axis=0, dtype=np.int64), return_inverse=True)
    row.choice([form.header(count) for count in counts.tolist()], numbers, where)


def _separated(
    separator: bytes, begun: Mask | None, here: Mask | None
) -> Iterator[tuple[bytes, Mask | None]]:
    """What stands before a member, and in which rows: `begun` are those that have one already, None: all."""
    if not separator or begun is None:
        yield separator, here
        return
    for before, rows in ((separator, begun), (b"", ~begun)):
        if rows.all():
            yield before, here
        elif (both := _both(here, rows)) is not None and both.any():
            yield before, both


def _both(some: Mask | None, others: Mask | None) -> Mask | None:
    if some is None or others is None:
        return some if others is None else others
    return some & others


def _unless_all(rows: Mask) -> Mask | None:
    return None if rows.all() else rows
