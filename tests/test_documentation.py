"""The documentation says what there is, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.spark.cdc.options import KNOWN
from penstock.spark.cdc.shapes import ALL_TABLES, SYSTEM_COLUMNS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "penstock"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_options_and_columns_of_the_spark_source_are_documented() -> None:
    text = (ROOT / "docs" / "spark.md").read_text()
    columns = [*ALL_TABLES.names, *(field.name for field in SYSTEM_COLUMNS)]
    assert [name for name in (*KNOWN, *columns) if not re.search(rf"`[^`\n]*\b{name}\b[^`\n]*`", text)] == []


def test_every_room_has_its_line_and_no_other() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rooms = {init.parent.name for init in PACKAGE.glob("*/__init__.py")}
    assert set(re.findall(r"(?m)^\| `(\w+)/` \|", text)) == rooms


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_files_that_are_named_are_there(page: str) -> None:
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", (ROOT / page).read_text()))
    assert len(named) > 5
    assert {name for name in named if not any((base / name).exists() for base in (ROOT, PACKAGE))} == set()


def test_files_that_the_code_names_are_there() -> None:
    """In its own words: `file.py`, from wherever it is."""
    known = {str(file.relative_to(ROOT)) for file in ROOT.glob("*/**/*.py") if ".venv" not in file.parts}
    named = {
        (str(file), name)
        for file in PACKAGE.rglob("*.py")
        for name in re.findall(r"`((?:\w+/)*\w+\.py)`", file.read_text())
    }
    assert [one for one in named if not any(path.endswith(f"/{one[1]}") for path in known)] == []
