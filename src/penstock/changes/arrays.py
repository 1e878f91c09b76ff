r"""PostgreSQL's array text to elements: `{1,NULL,"a \"b\""}`.

One-dimensional arrays that begin at 1, which is what Spark's arrays are; others raise `pa.ArrowInvalid`.
Plain arrays (nothing escaped, no delimiter or brace inside quotes) are split as a column; only the others
are read value by value.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def split(text: pa.StringArray, delimiter: str) -> tuple[pa.Int32Array, pa.StringArray]:
    """Return offsets, one more than rows, and the text of all elements, null where the element is NULL."""
    simple = rf'(?:"[^"\\{{}}{delimiter}]*"|[^"\\{{}}{delimiter}]+)'
    plain = pc.match_substring_regex(text, rf"^\{{(?:{simple}(?:{delimiter}{simple})*)?\}}$")
    if pc.all(plain, min_count=0).as_py():
        return _split_plain(text, delimiter)
    return _split_any(text, delimiter)


def _split_plain(text: pa.StringArray, delimiter: str) -> tuple[pa.Int32Array, pa.StringArray]:
    inside = pc.utf8_slice_codeunits(text, 1, -1)
    lists = pc.split_pattern(pc.if_else(pc.equal(inside, ""), None, inside), delimiter)
    lengths = np.asarray(pc.fill_null(pc.list_value_length(lists), 0))
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    elements = lists.flatten()
    quoted = pc.starts_with(elements, '"')
    null = pc.and_(pc.equal(elements, "NULL"), pc.invert(quoted))
    elements = pc.if_else(quoted, pc.utf8_trim(elements, '"'), elements)
    return pa.array(offsets, pa.int32()), pc.if_else(null, pa.scalar(None, pa.string()), elements)


def _split_any(text: pa.StringArray, delimiter: str) -> tuple[pa.Int32Array, pa.StringArray]:
    element = re.compile(
        rf'(?:"((?:[^"\\]|\\.)*)"|([^"\\{{}}{delimiter}]+))(?:{delimiter}(?!\}})|(?=\}}$))', re.DOTALL
    )
    offsets, elements = [0], []
    for value in text.to_pylist():
        if value is not None:
            elements += _elements(value, element)
        offsets.append(len(elements))
    return pa.array(offsets, pa.int32()), pa.array(elements, pa.string())


def _elements(value: str, element: re.Pattern[str]) -> list[str | None]:
    if value == "{}":
        return []
    elements: list[str | None] = []
    place, last = 1, len(value) - 1
    while place < last:
        match = element.match(value, place)
        if match is None or value[0] != "{":
            raise pa.ArrowInvalid("an array of several dimensions, or one that does not begin at 1")
        quoted, bare = match.groups()
        elements.append(
            _ESCAPED.sub(r"\1", quoted) if quoted is not None else None if bare == "NULL" else bare
        )
        place = match.end()
    if not elements or place != last:
        raise pa.ArrowInvalid("not an array")
    return elements
