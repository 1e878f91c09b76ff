"""The options of the source."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.model import TableName
from penstock.model.errors import ConfigError
from penstock.spark.cdc.options import KNOWN, CdcOptions

DOCUMENTED = Path(__file__).parents[2] / "docs" / "spark.md"


def test_options_are_read_whatever_their_case() -> None:
    read = CdcOptions.read({"SPOOL": "/a", "Table": "public.users", "textcolumns": "a, b", "BEFORE": "True"})
    assert read.spool == Path("/a")
    assert read.table == TableName("public", "users")
    assert read.text_columns == {"a", "b"}
    assert read.before


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "needs one of the options `spool` and `config`"),
        ({"spool": "/a", "config": "/b"}, "needs one of the options `spool` and `config`"),
        ({"spool": "/a", "tabel": "public.users"}, "postgres_cdc has no option tabel"),
        ({"spool": "/a", "startingPosition": "yesterday"}, "not earliest, latest or an LSN"),
        ({"spool": "/a", "maxRowsPerBatch": "-1"}, "not a number of rows"),
        ({"spool": "/a", "before": "true"}, "belong to `table`"),
        ({"spool": "/a", "table": "t", "before": "maybe"}, "not one of true, false"),
        ({"spool": "/a", "capture": "on"}, "not one of auto, off"),
    ],
)
def test_wrong_options_are_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        CdcOptions.read(given)
    assert said in str(refused.value)


def test_every_option_is_documented() -> None:
    text = DOCUMENTED.read_text()
    assert [name for name in KNOWN if f"`{name}`" not in text] == []
