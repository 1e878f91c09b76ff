"""Random schema changes, one at a time: of a table's columns, and of who is called what.

Names come back, of columns and of tables: all of a schema's tables draw theirs from the same few. Beside the
tables that are there from the beginning a few others come and go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import psycopg
from psycopg import sql

from penstock.model import TableName
from tests import values
from tests.shape import Published, Table

ADDABLE = (
    "integer",
    "text",
    "numeric(10,2)",
    "character varying(20)",
    "boolean",
    "jsonb",
    "integer[]",
    "mood",
)
WIDER = {
    "integer": "bigint",
    "character varying(20)": "text",
    "numeric(10,2)": "numeric(20,2)",
}
NEW = (
    "create table {} (id integer primary key, n integer, label text)",
    "create table {0} (n integer, mood mood, body text); alter table {0} replica identity full",
)
_ANY_LEFT = "select 1 / count(*) from pg_attribute where attrelid = {} and attnum > 0 and not attisdropped"
MOST_NEW = 3
"""So many tables there are at most besides the lasting ones."""
NAMES = tuple(f"{word}~{number}" for word in ("simple", "whole", "measure", "log") for number in range(4))
WIDEST = 16

Effect = tuple[str | None, ...]
"""What became of one column: `add`, its name, what rows have in it; `drop`, its name; `rename`, from, to."""


class Altering:
    def __init__(
        self,
        statement: Callable[..., psycopg.Cursor[tuple[Any, ...]]],
        random: Random,
        published: Published,
        tables: Mapping[int, Table],
    ) -> None:
        self._statement = statement
        self._random = random
        self._published = published
        self._tables = tables

    def alter(self, table: Table) -> tuple[str, list[Effect]]:
        """Something that suits the table: what, and what it did to the table's columns."""
        kind = self._random.choice(self._kinds(table))
        alter: Callable[[Table], list[Effect]] = getattr(self, f"_{kind.replace(' ', '_')}")
        return kind, alter(table)

    def _kinds(self, table: Table) -> list[str]:
        if len(table.columns) > WIDEST:
            return ["drop"]
        kinds = ["add", "add with default", "rename", "rename", "swap names", "move", "swap tables", "widen"]
        kinds += ["identity"]
        if self._free(table) and len(table.columns) > 1:  # one stays: rows have to have something
            kinds += ["drop", "drop", "make again", "move on"]
        if len(self._tables) < len(self._published.lasting) + MOST_NEW:
            kinds += ["make table", "replace table"]
        if table.oid not in self._published.lasting:
            kinds += ["drop table", "drop table", "make table again"]
        return kinds

    # Columns

    def _add(self, table: Table) -> list[Effect]:
        name, type = self._new_name(table), self._random.choice(ADDABLE)
        self._alter(table, "add {} {}", sql.Identifier(name), sql.SQL(type))
        return [("add", name, None)]

    def _add_with_default(self, table: Table) -> list[Effect]:
        return [self._add_filled(table, self._new_name(table), self._random.choice(ADDABLE))]

    def _add_filled(self, table: Table, name: str, type: str) -> Effect:
        default = sql.Literal(values.VALUES[type](self._random))
        null = sql.SQL(self._random.choice(("null", "not null")))
        self._alter(table, "add {} {} {} default {}", sql.Identifier(name), sql.SQL(type), null, default)
        (printed,) = self._statement("select concat({}::{})", default, sql.SQL(type)).fetchall()[0]
        return "add", name, printed

    def _drop(self, table: Table) -> list[Effect]:
        return [self._drop_column(table, self._random.choice(self._free(table)))]

    def _drop_column(self, table: Table, name: str) -> Effect:
        """Fails where it was the last one: another writer may have dropped the others. A table without any
        column cannot be followed."""
        self._alter(table, "drop {}", sql.Identifier(name))
        self._statement(_ANY_LEFT, sql.Literal(table.oid))
        return "drop", name

    def _make_again(self, table: Table) -> list[Effect]:
        """Drop a column and add one of its name."""
        name = self._random.choice(self._free(table))
        type = next(column.type for column in table.columns if column.name == name)
        type = type if type in ADDABLE else "text"
        return [self._drop_column(table, name), self._add_filled(table, name, type)]

    def _move_on(self, table: Table) -> list[Effect]:
        """Drop a column and give its name to another one."""
        name = self._random.choice(self._free(table))
        other = self._random.choice([column.name for column in table.columns if column.name != name])
        return [self._drop_column(table, name), self._rename_column(table, other, name)]

    def _rename(self, table: Table) -> list[Effect]:
        return [self._rename_column(table, self._random.choice(table.columns).name, self._new_name(table))]

    def _swap_names(self, table: Table) -> list[Effect]:
        if len(table.columns) < 2:
            return []
        one, other = (column.name for column in self._random.sample(table.columns, 2))
        names = (one, "aside"), (other, one), ("aside", other)
        return [self._rename_column(table, old, new) for old, new in names]

    def _rename_column(self, table: Table, old: str, new: str) -> Effect:
        self._alter(table, "rename {} to {}", sql.Identifier(old), sql.Identifier(new))
        return "rename", old, new

    def _widen(self, table: Table) -> list[Effect]:
        """To a type under which every value prints as before."""
        candidates = [c for c in table.columns if c.type in WIDER and not (c.fixed and table.partitioned)]
        if candidates:
            column = self._random.choice(candidates)
            self._alter(table, "alter {} type {}", sql.Identifier(column.name), sql.SQL(WIDER[column.type]))
        return []

    def _identity(self, table: Table) -> list[Effect]:
        if table.unique and not table.partitioned and table.identity in "df":
            self._alter(table, "replica identity {}", sql.SQL("full" if table.identity == "d" else "default"))
        return []

    # Tables

    def _move(self, table: Table) -> list[Effect]:
        """To a name that nobody has now."""
        self._call(table.name, self._random.choice(self._unused(table.name.schema)))
        return []

    def _swap_tables(self, table: Table) -> list[Effect]:
        schema = table.name.schema
        others = [t for t in self._tables.values() if t.name.schema == schema and t != table]
        if others:
            other, aside = self._random.choice(others).name, TableName(schema, "aside")
            for old, new in ((table.name, aside), (other, table.name), (aside, other)):
                self._call(old, new.name)
        return []

    def _make_table(self, table: Table) -> list[Effect]:
        """A new one, under a name that another may have had."""
        schema = table.name.schema
        self._create(TableName(schema, self._random.choice(self._unused(schema))))
        return []

    def _replace_table(self, table: Table) -> list[Effect]:
        """The table gets another name, and a new one its own."""
        self._move(table)
        self._create(table.name)
        return []

    def _drop_table(self, table: Table) -> list[Effect]:
        self._statement("drop table {}", table.quoted)
        return []

    def _make_table_again(self, table: Table) -> list[Effect]:
        self._drop_table(table)
        self._create(table.name)
        return []

    def _create(self, name: TableName) -> None:
        quoted = sql.Identifier(name.schema, name.name)
        self._statement(self._random.choice(NEW), quoted)
        self._statement("alter publication {} add table {}", sql.Identifier(self._published.name), quoted)

    def _call(self, old: TableName, new: str) -> None:
        quoted = sql.Identifier(old.schema, old.name)
        self._statement("alter table {} rename to {}", quoted, sql.Identifier(new))

    # What they are made of

    def _free(self, table: Table) -> list[str]:
        """Columns that can be dropped."""
        return [c.name for c in table.columns if not (c.fixed or c.reference)]

    def _new_name(self, table: Table) -> str:
        """For a column: one of a few."""
        taken = {column.name for column in table.columns}
        names = [f"{word} {number}" for word in ("c", "Neue Spalte", "order") for number in range(7)]
        return self._random.choice([name for name in names if name not in taken])

    def _unused(self, schema: str) -> list[str]:
        """Names of tables that nobody has now."""
        taken = {table.name.name for table in self._tables.values() if table.name.schema == schema}
        return [name for name in NAMES if name not in taken]

    def _alter(self, table: Table, action: str, *parts: sql.Composable) -> None:
        self._statement("alter table {} " + action, table.quoted, *parts)
