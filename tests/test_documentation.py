"""The documentation says what there is, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.spark.cdc.options import KNOWN
from penstock.spark.cdc.shapes import ALL_TABLES, SYSTEM_COLUMNS

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_options_and_columns_of_the_spark_source_are_documented() -> None:
    text = (ROOT / "docs" / "spark.md").read_text()
    columns = [*ALL_TABLES.names, *(field.name for field in SYSTEM_COLUMNS)]
    assert [name for name in (*KNOWN, *columns) if not re.search(rf"`[^`\n]*\b{name}\b[^`\n]*`", text)] == []


def test_the_way_of_a_change_names_the_folders_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"\| `(\w+)/` \|", text))
    assert {name for name in named if (ROOT / "src" / "penstock" / name).is_dir()} == named
