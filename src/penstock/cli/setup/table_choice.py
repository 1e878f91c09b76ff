"""The tables of a new configuration: shown as they are, and chosen from."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.cli.setup.questions import Question, Questions
from penstock.config.tables import check_pattern, matches
from penstock.model import TableName
from penstock.model.schema import quoted
from penstock.model.text import printable
from penstock.postgres.preflight.check import size, some
from penstock.postgres.survey import SurveyedTable

MOST_NAMED = 20
"""Tables that cannot be followed of which each is shown; the file has them all."""
_PATTERNS = re.compile(r'(?:"[^"]*"|[^,"])+')


@dataclass(frozen=True, slots=True)
class ChosenTables:
    include: Sequence[str]
    words: str
    exclude: Mapping[str, str]
    """Patterns of tables that cannot be followed, with the reason."""


def described(tables: Sequence[SurveyedTable]) -> str:
    """Return what there is, for people."""
    return "\n".join(map(printable, _lines(tables)))


def _lines(tables: Sequence[SurveyedTable]) -> Iterator[str]:
    schemas: dict[str, list[SurveyedTable]] = defaultdict(list)
    for table in tables:
        schemas[table.name.schema].append(table)
    for schema, there in schemas.items():
        fit = [table for table in there if table.obstacle is None]
        named = f": {some(table.name.name for table in fit)}" if fit else ""
        yield f"  {schema}: {_counted(fit)} can be followed{named}"
    unfit = [table for table in tables if table.obstacle is not None]
    for table in unfit[:MOST_NAMED]:
        yield f"  {table.name} cannot: {table.obstacle}. {table.remedy}"
    if len(unfit) > MOST_NAMED:
        yield f"  and {len(unfit) - MOST_NAMED} more cannot"


def _counted(tables: Sequence[SurveyedTable]) -> str:
    number = f"{len(tables)} table{'' if len(tables) == 1 else 's'}"
    return f"{number}, {size(sum(table.bytes for table in tables))}" if tables else "no table"


def choose(
    questions: Questions, tables: Sequence[SurveyedTable], given: Sequence[str] | None
) -> ChosenTables:
    """Return which are taken. Those that cannot be followed are left out, each by its name."""

    def understood(answer: str) -> ChosenTables:
        patterns = [pattern.strip() for pattern in _PATTERNS.findall(answer)]
        for pattern in (*patterns, *([answer] if answer.count('"') % 2 else [])):
            check_pattern(pattern)
        taken = [table for table in tables if any(matches(pattern, table.name) for pattern in patterns)]
        fit = [table for table in taken if table.obstacle is None]
        if not fit:
            raise ValueError(
                "no table that can be followed matches; a pattern is schema.table, and case matters"
            )
        exclude = {literal(table.name): table.obstacle for table in taken if table.obstacle is not None}
        return ChosenTables(patterns, f"globs over schema.table; now {_counted(fit)}", exclude)

    schemas = dict.fromkeys(table.name.schema for table in tables if table.obstacle is None)
    everything = ", ".join(f"{_part(schema)}.*" for schema in schemas)
    question = Question("Tables (globs, with commas)", "--include", everything or "public.*")
    return questions.answer(question, ", ".join(given) if given else None, understood)


def literal(name: TableName) -> str:
    """Return the pattern that this table alone matches."""
    return f"{_part(name.schema)}.{_part(name.name)}"


def _part(part: str) -> str:
    return quoted(part) if re.search(r'[*?\[."]', part) else part
