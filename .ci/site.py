"""What mkdocs is told beyond mkdocs.yml: pages that stand elsewhere in the repository, and links to them.

README.md is the site's first page, and three other files of the root are pages; examples, and what is in
`deploy/`, can be fetched from it. So one text serves readers of the repository and of the site. A page of
docs/ that mkdocs.yml does not name comes after operations, under its title.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "reporting.md",
}
FOLDERS = ("examples", "deploy")
LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)\s#]+)")
"""Where a link leads to, but for its anchor."""


def on_config(config: MkDocsConfig) -> None:
    """Pages that nobody has put into the navigation yet come after operations."""
    listed = set(_listed(config["nav"]))
    further = [page.name for page in (ROOT / "docs").glob("*.md") if page.name not in listed]
    operations = next(section["Operations"] for section in config["nav"] if "Operations" in section)
    operations.extend(sorted(further))


def _listed(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for item in nav.values() if isinstance(nav, dict) else nav:
            yield from _listed(item)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for origin, name in PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / origin).read_text()))
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "node_modules" not in path.parts and "__pycache__" not in path.parts:
                name = path.relative_to(ROOT).as_posix()
                files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    origins = {name: origin for origin, name in PAGES.items()}
    here = posixpath.dirname(origins.get(page.file.src_uri, f"docs/{page.file.src_uri}"))

    def lead(link: re.Match[str]) -> str:
        return in_site(posixpath.normpath(posixpath.join(here, link[1])))

    return LINK.sub(lead, markdown)


def in_site(path: str) -> str:
    """Return where a file of the repository is in the site."""
    return PAGES.get(path) or path.removeprefix("docs/")
