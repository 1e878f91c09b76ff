"""Which tables of a source are captured: globs over `schema.table`, and whole schemas.

A pattern is a glob for the schema, a dot, a glob for the table: `public.*`, `shop_*.order?`. Without a dot
it is a table of `public`. A part in double quotes is taken literally, for names that hold a dot or a star.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, WithJsonSchema

from penstock.model import TableName
from penstock.model.schema import QUOTED, literal

SYSTEM_SCHEMAS = ("pg_*", "information_schema", "cdc_registry", "penstock")
"""Never captured: PostgreSQL's own, and ours."""
HISTORY = TableName("penstock", "ddl_history")
"""Where schema changes are recorded (`postgres/ddl.py`): captured, but not as one of the tables."""
FORMER_HISTORY = TableName("public", "ddl_history")
"""Where earlier versions had it, and where a view of it is."""

_PATTERN = re.compile(rf'(?:({QUOTED}|[^".]+)\.)({QUOTED}|[^"]+)|({QUOTED}|[^".]+)')


def check_pattern(text: str) -> str:
    if not _PATTERN.fullmatch(text):
        raise ValueError('expected a pattern such as public.* or "My Schema"."my.table"')
    return text


Pattern = Annotated[
    str,
    AfterValidator(check_pattern),
    WithJsonSchema({"type": "string", "pattern": f"^(?:{_PATTERN.pattern})$"}),
]


class TablesConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    include: tuple[Pattern, ...] = Field(
        default=(), description="Tables to capture, as globs. Without it and `include_schemas`: every table"
    )
    exclude: tuple[Pattern, ...] = Field(default=(), description="Tables not to capture, although included")
    include_schemas: tuple[str, ...] = Field(
        default=(), description="Schemas of which to capture every table"
    )
    exclude_schemas: tuple[str, ...] = Field(default=(), description="Schemas of which to capture no table")
    require_primary_key: bool = Field(
        default=True,
        description="Leave out, by name, a table that has neither a key (a deferrable one is none) nor a "
        "replica identity; if false it is published all the same, and PostgreSQL then refuses its updates "
        "and deletes",
    )

    _registries: frozenset[str] = PrivateAttr(frozenset())
    """Schemas of registries that our own destinations keep in the source's database."""
    _decided: Mapping[TableName, bool] = PrivateAttr({})
    """Tables of which it was decided otherwise than here (`config/mapping.py`)."""

    @property
    def registries(self) -> frozenset[str]:
        return self._registries

    @property
    def decided(self) -> Mapping[TableName, bool]:
        return self._decided

    def is_ours(self, table: TableName) -> bool:
        """Whether a table is PostgreSQL's own, or one that we keep there."""
        system = any(fnmatchcase(table.schema, system) for system in SYSTEM_SCHEMAS)
        return system or table.schema in self._registries or table == FORMER_HISTORY

    def matches(self, table: TableName, above: Iterable[TableName] = ()) -> bool:
        """Whether the table is chosen, by a decision about it or else by the file. `above`: what it is a
        partition of, the nearest first: a decision about that is one about its rows."""
        if self.is_ours(table):
            return False
        if self._decided:
            for name in (table, *above):
                if name in self._decided:
                    return self._decided[name]
        return self.lists(table)

    def lists(self, table: TableName) -> bool:
        """Whether the file chooses it."""
        if table.schema in self.exclude_schemas or _any(self.exclude, table):
            return False
        everything = not self.include and not self.include_schemas
        return everything or table.schema in self.include_schemas or _any(self.include, table)

    def __str__(self) -> str:
        wanted = (*self.include, *(f"{schema}.*" for schema in self.include_schemas)) or ("*.*",)
        unwanted = (*self.exclude, *(f"{schema}.*" for schema in self.exclude_schemas))
        return ", ".join(wanted) + (f" without {', '.join(unwanted)}" if unwanted else "")


def _any(patterns: tuple[str, ...], table: TableName) -> bool:
    return any(matches(pattern, table) for pattern in patterns)


def matches(pattern: str, table: TableName) -> bool:
    match = _PATTERN.fullmatch(pattern)
    assert match is not None
    return _part(match[1] or "public", table.schema) and _part(match[2] or match[3], table.name)


def expressions(pattern: str) -> tuple[str, str]:
    """Return the pattern as regular expressions of PostgreSQL's, for the schema and for the table."""
    match = _PATTERN.fullmatch(pattern)
    assert match is not None
    return _expression(match[1] or "public"), _expression(match[2] or match[3])


def _expression(part: str) -> str:
    if part.startswith('"'):
        return f"^{''.join(map(_plain, literal(part)))}$"
    pieces = re.findall(r"\[!?+\]?+[^]]*\]|.", part, re.DOTALL)
    return f"^{''.join(map(_piece, pieces))}$"


def _piece(piece: str) -> str:
    """Of a glob: a star, a question mark, a set in brackets, or what stands for itself."""
    if len(piece) > 1:
        return _set(piece[1:-1])
    return {"*": ".*", "?": "."}.get(piece) or _plain(piece)


def _set(content: str) -> str:
    negated = content.startswith("!")
    members = re.findall(r".-.|.", content[negated:], re.DOTALL)
    whole = [member for member in members if len(member) == 1 or member[0] <= member[2]]
    if not whole:
        return "." if negated else "$."  # anything, nothing
    escaped = (
        "-".join(map(_plain, (member[0], member[2]) if len(member) > 1 else member)) for member in whole
    )
    return f"[{'^' if negated else ''}{''.join(escaped)}]"


def _plain(character: str) -> str:
    return character if character.isalnum() or character == "_" else f"\\{character}"


def is_for_many(pattern: str) -> bool:
    """Whether it is a glob: without one it is the name of a table."""
    return re.search(r"[*?[]", re.sub(QUOTED, "", pattern)) is not None


def _part(pattern: str, name: str) -> bool:
    return literal(pattern) == name if pattern.startswith('"') else fnmatchcase(name, pattern)
