"""What a real server writes, encoded: its floats, its documents, and what `json` lets pass."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from penstock.changes.encoded import Encoding, encoded
from tests.bed import Database
from tests.changes.encoding import decoded_values, packed_value
from tests.changes.made import column_type
from tests.changes.test_encoded import BOTH

pytestmark = pytest.mark.every_server

CHANCE = np.random.default_rng(1)
FLOATS = [0.0, -0.0, 0.1, 1e20, 1e16, 1e15, 123456.789, 5e-324, 1.7976931348623157e308, 2.0**53, 1e-7]
FLOATS += (
    CHANCE.random(200).tolist() + (CHANCE.random(200) * 10.0 ** CHANCE.integers(-300, 300, 200)).tolist()
)
DOCUMENTS = [
    '{"a": [1, -2.50, 1e5, 1E-7, 18446744073709551616, 0.1, -0, 36.599999999999994], "b": {"c": null}}',
    '"\\ud83d\\ude00 \\u00e9 / \\/ \\" \\\\ \\b\\f\\n\\r\\t"',
    " [ true , false , [ ] , { } , 1e300 , 123456789012345678901234567890.123 ] ",
    '{"": "", "a": 1, "a": 2, "ключ": "日本 🚰"}',
]


def written(database: Database, type: str, values: list[Any]) -> list[str]:
    """The values as the server writes them."""
    with database.connect() as connection:
        rows = connection.execute(
            f"select v::{type}::text from unnest(%s::text[]) with ordinality u (v, n) order by n".encode(),
            [list(map(str, values))],
        )
        return [row[0] for row in rows]


@BOTH
def test_floats_of_a_server(database: Database, encoding: Encoding) -> None:
    doubles = encoded(pa.array(written(database, "float8", FLOATS)), column_type("float8"), encoding)
    assert list(map(float, decoded_values(doubles, encoding))) == FLOATS
    singles = np.array([value for value in FLOATS if abs(value) < 1e38], np.float32)
    texts = written(database, "float4", singles.astype(float).tolist())
    column = encoded(pa.array(texts), column_type("float4"), encoding)
    assert np.array(decoded_values(column, encoding), np.float32).tolist() == singles.tolist()


@pytest.mark.parametrize("type", ["json", "jsonb"])
def test_documents_of_a_server(database: Database, type: str) -> None:
    texts = written(database, type, DOCUMENTS)
    column = encoded(pa.array(texts), column_type(type), Encoding.MESSAGE_PACK)
    expected = [packed_value(text, column_type(type)) for text in texts]
    assert repr(decoded_values(column, Encoding.MESSAGE_PACK)) == repr(expected)
    column = encoded(pa.array(texts), column_type(type), Encoding.JSON)
    assert decoded_values(column, Encoding.JSON) == [json.loads(text) for text in texts]


def test_json_lets_pass_what_utf_8_cannot_hold(database: Database) -> None:
    texts = [r'"\ud83d"', r'"\u0000"']
    assert written(database, "json", texts) == texts
    column = encoded(pa.array(texts), column_type("json"), Encoding.MESSAGE_PACK)
    assert decoded_values(column, Encoding.MESSAGE_PACK) == [r"\ud83d", "\0"]
    for text in texts:
        with pytest.raises(
            (psycopg.errors.UntranslatableCharacter, psycopg.errors.InvalidTextRepresentation)
        ):
            written(database, "jsonb", [text])
