"""What ruff has no rule for: names that mean one thing, and files that can be read in one go.

No file name occurs twice in one room (a folder of `src/penstock`), but for the parts that every destination
and every Spark source plays; no class name occurs twice at all; no file, of the tests neither, has more than
400 lines.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parent.parent
PACKAGE = PROJECT / "src" / "penstock"
ROLES = {"__init__", "__main__", "options", "plugin", "preflight", "source", "target"}
MOST_LINES = 400


def findings() -> Iterator[str]:
    files = sorted(PACKAGE.rglob("*.py"))
    names: dict[tuple[str, str], list[Path]] = defaultdict(list)
    classes: dict[str, list[Path]] = defaultdict(list)
    for file in files:
        within = file.relative_to(PACKAGE)
        names[within.parts[0], file.stem].append(within)
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(within)
    for file in [*files, *(PROJECT / "tests").rglob("*.py"), *(PROJECT / "bench").rglob("*.py")]:
        if file.read_text().count("\n") > MOST_LINES:
            yield f"{file.relative_to(PROJECT)} has more than {MOST_LINES} lines"
    for (_, name), places in names.items():
        if len(places) > 1 and name not in ROLES:
            yield f"one file name for several things: {', '.join(map(str, places))}"
    for name, places in classes.items():
        if len(places) > 1:
            yield f"one class name for several things: {name} in {', '.join(map(str, places))}"


if __name__ == "__main__":
    sys.exit("\n".join(findings()) or None)
