"""JSON documents as values, beside what Python's own reader makes of them."""

from __future__ import annotations

import json
import re
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.changes.encoded import EncodedColumn, Encoding, encoded
from penstock.model.errors import ValueRefused
from tests.changes.encoding import among_others, packed_value
from tests.changes.made import column_type
from tests.changes.test_encoded import BOTH, LENGTHS

JSON = column_type("json")
DEPTH = 10_000

_integers = st.integers(-(2**70), 2**70) | st.sampled_from([2**63, 2**64, -(2**63), 2**53, 10**20, 10**22])
_numbers = st.one_of(
    st.tuples(_integers, st.integers(-2, 2)).map(lambda pair: str(sum(pair))),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.from_regex(r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    st.sampled_from(
        ["-0", "0", "-0.0", "0e99", "1.50", "1E5", "1e-5", "1e400", "-1e-400", "36.599999999999994"]
    ),
)
_characters = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_strings = st.tuples(_characters, st.booleans(), st.booleans()).map(
    lambda drawn: json.dumps(drawn[0], ensure_ascii=drawn[1]).replace("/", "\\/" if drawn[2] else "/")
)
_spaces = st.sampled_from(["", "", " ", "\n\t\r "])


def _containers(members: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def filled(drawn: tuple[list[str], str]) -> str:
        values, space = drawn
        return f"[{space}{f'{space},'.join(values)}{space}]"

    def named(drawn: tuple[dict[str, str], str]) -> str:
        pairs, space = drawn
        return f"{{{space}{f',{space}'.join(f'{name}{space}:{value}' for name, value in pairs.items())}}}"

    lists = st.tuples(st.lists(members, max_size=20), _spaces).map(filled)
    return lists | st.tuples(st.dictionaries(_strings, members, max_size=20), _spaces).map(named)


_scalars = _numbers | _strings | st.sampled_from(["true", "false", "null"])
documents = st.recursive(_scalars, _containers, max_leaves=30)


def packed(*texts: str | None) -> EncodedColumn:
    return encoded(pa.array(texts, pa.string()), JSON, Encoding.MESSAGE_PACK)


def value_of(text: str) -> Any:
    return msgpack.unpackb(packed(text)[0])


@settings(max_examples=400)
@given(texts=st.lists(st.none() | documents, max_size=6), before=st.integers(0, 5))
def test_a_document_has_the_values_that_python_reads(texts: list[str | None], before: int) -> None:
    column = encoded(among_others(texts, before), JSON, Encoding.MESSAGE_PACK)
    expected = [None if text is None else packed_value(text, JSON) for text in texts]
    assert repr([msgpack.unpackb(column[row]) for row in range(len(column))]) == repr(expected)


@settings(max_examples=400)
@given(text=_numbers)
def test_a_number_is_never_another_one(text: str) -> None:
    assert repr(value_of(text)) == repr(packed_value(text, JSON))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("18446744073709551615", 2**64 - 1),
        ("18446744073709551616", "18446744073709551616"),
        ("-9223372036854775808", -(2**63)),
        ("-9223372036854775809", "-9223372036854775809"),
        ("100000000000000000000000", 1e23),
        ("0.1", 0.1),
        ("0.10", 0.1),
        ("0.1000000000000000055511151231257827", "0.1000000000000000055511151231257827"),
        ("1e5", 100000.0),
        ("1e400", "1e400"),
        ("1e-400", "1e-400"),
        ("4.9e-324", "4.9e-324"),
        ("5e-324", 5e-324),
        ("1.7976931348623157e308", 1.7976931348623157e308),
        ("9007199254740993", 9007199254740993),
        ("9007199254740993.0", "9007199254740993.0"),
        ("3.14159265358979323846", "3.14159265358979323846"),
    ],
)
def test_a_number_that_no_binary_number_is_comes_as_its_text(text: str, value: object) -> None:
    assert repr(value_of(text)) == repr(value)


@BOTH
@pytest.mark.parametrize(
    ("begin", "middle", "end"), [("[", "", "]"), ('{"a":', "1", "}"), ('[{"":', "null", "}]")]
)
def test_documents_may_be_as_deep_as_they_like(encoding: Encoding, begin: str, middle: str, end: str) -> None:
    text = begin * DEPTH + middle + end * DEPTH
    column = encoded(pa.array([text, "7"]), JSON, encoding)
    if encoding is Encoding.JSON:
        assert column[0] == text.encode()
    elif begin == "[":
        assert column[0] == b"\x91" * (DEPTH - 1) + b"\x90"
    elif middle == "1":
        assert column[0] == b"\x81\xa1a" * DEPTH + b"\x01"
    else:
        assert column[0] == b"\x91\x81\xa0" * DEPTH + b"\xc0"
    assert column[1] in (b"7", b"\x07")


@pytest.mark.parametrize("count", [0, 1, 15, 16, 255, 65_535, 65_536])
def test_containers_of_any_size(count: int) -> None:
    elements, names = list(range(count)), {str(number): None for number in range(count)}
    assert packed(json.dumps(elements))[0] == msgpack.packb(elements)
    assert packed(json.dumps(names))[0] == msgpack.packb(names)


def test_strings_of_any_length() -> None:
    for letter in ("a", "é", "\n", "😀"):
        texts = [letter * length for length in LENGTHS]
        for ascii in (True, False):
            column = packed(*(json.dumps(text, ensure_ascii=ascii) for text in texts))
            assert [column[row] for row in range(len(column))] == [msgpack.packb(text) for text in texts]


def test_escapes_are_what_they_mean() -> None:
    text = r'"\"\\\/\b\f\n\r\t\u0041\u00e9\u65e5\ud83d\ude00\uD83D\uDE00\u0000"'
    assert value_of(text) == '"\\/\b\f\n\r\tAé日😀😀\0'


@pytest.mark.parametrize(
    "half", [r"\ud83d", r"\ude00", r"\ud83d\u0041", r"\ude00\ud83d", r"a\n\ud83d", r"\ud83d\ud83d\ude00"]
)
def test_a_string_with_half_a_pair_comes_as_it_stands(half: str) -> None:
    assert value_of(f'["{half}", {{"{half}": "\\n"}}]') == [half, {half: "\n"}]


def test_names_that_are_repeated_are_repeated() -> None:
    assert packed('{"a": 1, "a": 2}')[0] == b"\x82\xa1a\x01\xa1a\x02"


def _is_document(text: str) -> bool:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


WRONG = [
    *(
        "",
        " ",
        "hidden",
        "[1,]",
        "[,1]",
        "{",
        "}",
        "[1]]",
        "[}",
        "{]",
        "01",
        "1.",
        "+1",
        ".5",
        "1e",
        "-",
        "--1",
    ),
    *(
        '"',
        '"\x01"',
        '"\\x"',
        '"\\u12g4"',
        '"\\u12"',
        '"\\',
        '{"a" 1}',
        '{"a"}',
        "{1:2}",
        '{"a":1,}',
        "[1 2]",
    ),
    *(
        "nul",
        "truex",
        "tru",
        "falsy",
        "1 2",
        "'a'",
        "NaN",
        "Infinity",
        "-Infinity",
        "[1:2]",
        '{"a",1}',
        "1,",
        ":",
    ),
    *("\ufeff1", "é", "\0", "1.2.3", "1e5e5", "[[]", '{"a":}', '{"a":1 "b":2}', "nulll", "1-2"),
]


@BOTH
@pytest.mark.parametrize("text", WRONG)
def test_text_that_is_no_document_is_refused(text: str, encoding: Encoding) -> None:
    with pytest.raises(ValueRefused, match="no value of type json"):
        encoded(pa.array(["{}", None, text, "[]"]), JSON, encoding)


@BOTH
@settings(max_examples=400)
@given(
    document=documents,
    place=st.integers(0),
    put=st.sampled_from(['"', "\\", "[", "}", ",", ":", "1", ".", "e", "u", ""]),
)
@example(document='"a"', place=1, put="\x1f")
def test_what_is_a_document_is_told_as_python_tells_it(
    encoding: Encoding, document: str, place: int, put: str
) -> None:
    place %= len(document)
    text = document[:place] + put + document[place + 1 :]
    try:
        column = encoded(pa.array([text]), JSON, encoding)
    except ValueRefused:
        assert not _is_document(text)
    else:
        assert _is_document(text)
        assert encoding is Encoding.MESSAGE_PACK or column[0] == text.encode()


def test_a_message_does_not_show_all_of_a_wrong_document() -> None:
    with pytest.raises(ValueRefused) as refused:
        packed("x" * 100_000)
    assert len(str(refused.value)) < 300
    assert re.search("xxx", str(refused.value))
