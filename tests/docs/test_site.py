"""The site is built from the pages: all links and anchors lead somewhere, and nothing of it is elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlparse

import pytest

from tests.docs.blocks import PAGES, ROOT
from tests.docs.generated import PARTS, error_classes, whole

LOADED = re.compile(
    r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?(https?:)?//", re.IGNORECASE
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr  # with --quiet mkdocs is not strict
    return folder


def test_every_page_is_there_and_needs_no_internet(site: Path) -> None:
    pages = list(site.glob("*.html"))
    assert len(pages) > 30
    assert [page.name for page in pages if LOADED.search(page.read_text())] == []
    styles = "".join(style.read_text() for style in site.rglob("*.css"))
    assert re.findall(r"url\([\"']?https?:[^)]*\)|@import[^;]*https?:", styles) == []
    assert (site / "search" / "search_index.json").stat().st_size > 100_000
    assert (site / "examples" / "print_changes.py").exists()


@pytest.mark.parametrize("name", PARTS)
def test_what_is_made_from_the_code_is_in_step(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == whole(name), "run: python -m tests.docs.generated"


def test_every_error_has_a_meaning_and_a_remedy_on_its_page() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    kinds = error_classes()
    assert len(kinds) > 50
    assert [kind.__name__ for kind in kinds if f"\n### {kind.__name__}\n" not in page] == []
    assert [kind.__name__ for kind in kinds if not kind.__doc__] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_elsewhere_are_addresses(page: Path) -> None:
    for link in re.findall(r"\]\((https?:[^)\s]*)\)", page.read_text()):
        assert urlparse(link).hostname, link
