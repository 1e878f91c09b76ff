"""PostgreSQL's text to typed Arrow, a column at a time, on the executors.

`typed(text, type)` returns an array of `types.arrow_type(type)`, or raises `pa.ArrowInvalid` where some value
is not one that the type holds. Nothing is rounded, cut or made NULL: Arrow's own conversions are used where
they are exact for everything PostgreSQL writes, and guarded where they are not (the tests go through the
differences). The text is what a server writes with datestyle ISO, timezone UTC and bytea_output hex,
which is how capture asks for it.

`first_refused` finds the value to blame, once something failed.
"""

from __future__ import annotations

from binascii import unhexlify

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes import arrays
from penstock.changes.arrow_types import MOST_DIGITS, TEXT, arrow_type, delimiter
from penstock.model import ColumnType


def typed(text: pa.StringArray, type: ColumnType) -> pa.Array:
    """Return the text of a column as typed values. Runs on executors."""
    wanted = arrow_type(type)
    if wanted == TEXT:
        return text
    if pa.types.is_boolean(wanted):
        return _booleans(text)
    if pa.types.is_binary(wanted):
        return _bytes(text)
    if pa.types.is_decimal(wanted):
        return _decimals(text, wanted)
    if pa.types.is_list(wanted):
        element = type.base.inner
        assert element is not None
        separator = delimiter(element)
        assert separator is not None
        offsets, elements = arrays.split(text, separator)
        return pa.ListArray.from_arrays(offsets, typed(elements, element), mask=text.is_null())
    return pc.cast(text, wanted)


def first_refused(text: pa.StringArray, type: ColumnType) -> int:
    """Return the place of the first value that `typed` refuses; there is one."""
    first, last = 0, len(text)
    while last - first > 1:
        middle = (first + last) // 2
        try:
            typed(text.slice(first, middle - first), type)
            first = middle
        except pa.ArrowInvalid:
            last = middle
    return first


def _booleans(text: pa.StringArray) -> pa.BooleanArray:
    true = pc.equal(text, "t")
    if not pc.all(pc.or_(true, pc.equal(text, "f")), min_count=0).as_py():
        raise pa.ArrowInvalid("neither t nor f")
    return true


def _bytes(text: pa.StringArray) -> pa.BinaryArray:
    r"""`\x00ff` to two bytes: the digits of all values are decoded at once, and the offsets halved."""
    if not pc.all(pc.match_substring_regex(text, r"^\\x(?:[0-9a-f]{2})*$"), min_count=0).as_py():
        raise pa.ArrowInvalid("not bytea in hex")
    digits = pc.utf8_slice_codeunits(text, 2)
    digits = pa.concat_arrays([digits])  # a copy without offset, so that the buffers start with it
    _, offsets, data = digits.buffers()
    ends = np.frombuffer(offsets, np.int32, len(digits) + 1)
    start, end = int(ends[0]), int(ends[-1])
    decoded = unhexlify(memoryview(data)[start:end]) if data is not None else b""
    halved = pa.py_buffer(((ends - start) // 2).astype(np.int32).tobytes())
    validity = None if digits.null_count == 0 else digits.buffers()[0]
    return pa.Array.from_buffers(pa.binary(), len(digits), [validity, halved, pa.py_buffer(decoded)])


def _decimals(text: pa.StringArray, wanted: pa.DataType) -> pa.Array:
    """Arrow's parser overflows silently from 39 digits on, so nothing that long gets there."""
    if (pc.max(pc.binary_length(text)).as_py() or 0) > MOST_DIGITS:
        digits = rf"^-?0?[0-9]{{0,{MOST_DIGITS}}}$"
        if not pc.all(
            pc.match_substring_regex(pc.replace_substring(text, ".", ""), digits), min_count=0
        ).as_py():
            raise pa.ArrowInvalid("too many digits")
    return pc.cast(text, wanted)
