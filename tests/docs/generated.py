"""The parts of the documentation that are made from the code: docs/errors.md and docs/http-api.md.

`python -m tests.docs.generated` writes them. What stands by hand in these pages, before the mark, stays.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.model.errors import PenstockError, Scope
from penstock.monitoring import openapi
from tests.docs.blocks import ROOT

MARK = "<!-- What follows is made from the code: python -m tests.docs.generated -->\n"
SOURCES = ROOT / "src"

GROUPS = {
    "penstock.model.errors.source": "Sources, slots and spools",
    "penstock.model.errors.destination": "Destinations",
    "penstock.model.errors.run": "Configuration, state and Spark",
    "penstock.model.errors.consumer": "Consumers of NATS",
    "penstock.consumer": "Consumers of NATS",
    "penstock.monitoring": "HTTP",
}
CONCERNS = {
    Scope.TABLE: "One table; the others go on",
    Scope.SOURCE: "A whole source or destination",
    Scope.RUN: "The command as a whole",
}


def error_classes() -> list[type[PenstockError]]:
    """Return every error that the code defines, wherever that is, in the order of the files."""
    known, defined = {"PenstockError"}, dict[str, str]()
    definitions = [(file, node) for file in sorted(SOURCES.rglob("*.py")) for node in _classes(file)]
    for _ in range(3):  # the base of an error may be an error of another file
        for file, node in definitions:
            if known & {base.id for base in node.bases if isinstance(base, ast.Name)}:
                known.add(node.name)
                module = ".".join(file.relative_to(SOURCES).with_suffix("").parts)
                defined[node.name] = module
    return [getattr(import_module(module), name) for name, module in defined.items()]


def _classes(file: Path) -> Iterator[ast.ClassDef]:
    text = file.read_text()
    if "Error" in text or "Failed" in text:
        yield from (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))


def errors() -> str:
    """Return a section for each error."""
    groups: dict[str, list[type[PenstockError]]] = {title: [] for title in GROUPS.values()}
    for kind in error_classes():
        title = next((GROUPS[place] for place in GROUPS if kind.__module__.startswith(place)), "Others")
        groups.setdefault(title, []).append(kind)
    return "\n".join(
        line for title, kinds in groups.items() for line in (f"## {title}\n", *map(_error, _by_name(kinds)))
    )


def _by_name(kinds: Iterable[type[PenstockError]]) -> list[type[PenstockError]]:
    return sorted(kinds, key=lambda kind: kind.__name__)


def _error(kind: type[PenstockError]) -> str:
    what = " ".join(inspect.cleandoc(kind.__doc__ or "").split())
    remedy = kind.remedy or "The message says what to do"
    return (
        f"### {kind.__name__}\n\n{what}\n\n"
        f"- **What to do:** {remedy.rstrip('.')}.\n"
        f"- **Concerns:** {CONCERNS[kind.scope]}.\n"
        f"- **May pass by itself:** {_passes(kind)}.\n"
    )


def _passes(kind: type[PenstockError]) -> str:
    if not kind.retry:
        return "no"
    return "yes; it is tried again for as long as it lasts" if kind.endless else "yes"


def http_api() -> str:
    """Return a section for each address of the API."""
    described = {
        f"{method.upper()} {path}": each
        for path, methods in openapi.DOCUMENT["paths"].items()
        for method, each in methods.items()
    }
    told = [
        {(code, answer["description"]) for code, answer in each["responses"].items()}
        for each in described.values()
    ]
    common = {one for one in set.union(*told) if sum(one in each for each in told) > len(told) / 2}
    sections = [
        "Of any address, unless another meaning stands below:\n\n" + _answers(common),
        *(_address(title, each, common) for title, each in described.items()),
    ]
    return "\n".join(sections) + "\n" + _schemas()


def _answers(answers: Iterable[tuple[str, str]]) -> str:
    rows = [f"| {code} | {what} |" for code, what in sorted(answers)]
    return "\n".join(["| answer | means |", "|---|---|", *rows, ""])


def _address(title: str, described: dict[str, Any], common: set[tuple[str, str]]) -> str:
    lines = [f"### {title}\n", f"{described['summary']}.\n"]
    if described.get("parameters"):
        lines += ["| parameter | in | is |", "|---|---|---|"]
        for parameter in described["parameters"]:
            needed = " (required)" if parameter.get("required") else ""
            lines.append(
                f"| `{parameter['name']}` | {parameter['in']} | {parameter['description']}{needed} |"
            )
        lines.append("")
    answers = {(code, each["description"]) for code, each in described["responses"].items()}
    return "\n".join([*lines, _answers(answers - common)])


def _schemas() -> str:
    lines = ["## Answers\n"]
    for name, schema in openapi.DOCUMENT["components"]["schemas"].items():
        lines += [f"### {name}\n", "| field | type | |", "|---|---|---|"]
        for field, described in schema.get("properties", {}).items():
            needed = "always there" if field in schema.get("required", ()) else ""
            what = "; ".join(filter(None, (described.get("description", ""), needed)))
            lines.append(f"| `{field}` | {_type(described)} | {what} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if several := schema.get("oneOf") or schema.get("anyOf"):
        return " or ".join(map(_type, several))
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    kinds = schema.get("type", "anything")
    return kinds if isinstance(kinds, str) else " or ".join(kinds)


PARTS = {"errors.md": errors, "http-api.md": http_api}


def by_hand(page: Path) -> str:
    """Return what stands before the generated part."""
    return page.read_text().partition(MARK)[0]


def whole(name: str) -> str:
    return f"{by_hand(ROOT / 'docs' / name)}{MARK}\n{PARTS[name]().rstrip()}\n"


if __name__ == "__main__":
    for name in PARTS:
        text = whole(name)
        (ROOT / "docs" / name).write_text(text)
