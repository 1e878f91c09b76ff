"""A script of SQL for a DBA, made of queries whose rows are its statements.

Such a query asks the catalogs and gives statements, quoted by the server itself (`format('… %I …')`). Where
the server can be asked, its answers are printed: plain SQL that any client runs. Where it cannot (the role
that the script is for need not exist yet), the queries are printed themselves, with psql's `\\gexec`: the
DBA's session then asks and runs the answers. Either way it is the same SQL.

Names of others' objects stand in the script. A name can hold anything, so it is quoted in statements, and in
comments nothing passes that could end one.
"""

from __future__ import annotations

from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from penstock.model.text import printable
from penstock.postgres.connection import Connection

SAFE_PATH = "set search_path = pg_catalog, pg_temp"
"""Whoever runs the script is powerful: nobody else's functions and operators are found."""


class Script:
    """`connection`: the server, if it can be asked. `tables`: a query, for others to have as `chosen`."""

    def __init__(self, connection: Connection | None, tables: sql.Composable | None = None) -> None:
        self._connection = connection
        self._tables = tables
        self._parts: list[str] = []

    def note(self, text: str) -> None:
        self._parts.append(f"-- {printable(text)}\n")

    def blank(self) -> None:
        self._parts.append("\n")

    def text(self, statements: str) -> None:
        """Write SQL as it is."""
        self._parts.append(statements.rstrip().removesuffix(";") + ";\n")

    def begin(self) -> None:
        if self._connection is None:
            self._parts.append("\\pset pager off\n")  # the transaction would wait for a key
        self.text("begin")
        self.text(SAFE_PATH.replace("set ", "set local ", 1))
        if self._connection is None and self._tables is not None:
            view = sql.SQL("create temporary view chosen as\n{}").format(self._tables)
            self.text(view.as_string(None))

    def end(self) -> None:
        if self._connection is None and self._tables is not None:
            self.text("drop view pg_temp.chosen")
        self.text("commit")

    def run(self, query: sql.Composable) -> None:
        """Write the statements that this query returns."""
        if self._connection is None:
            self._parts.append(f"{query.as_string(None).strip()}\n\\gexec\n")
            return
        for row in self._answers(query):
            self.text(row)

    def remark(self, query: sql.Composable) -> None:
        """Write, as comments, the remarks that this query returns."""
        if self._connection is None:
            self.text(query.as_string(None).strip())
            return
        for row in self._answers(query):
            self.note(row)

    def __str__(self) -> str:
        return "".join(self._parts)

    def _answers(self, query: sql.Composable) -> list[str]:
        assert self._connection is not None
        tables = self._tables or sql.SQL("select")
        asked = sql.SQL("with chosen as (\n{}\n)\n{}").format(tables, query)
        return [row[0] for row in self._connection.execute(asked)]


def user(conninfo: str) -> str:
    """Return the role that a connection names."""
    return given(conninfo, "user") or "penstock"


def given(conninfo: str, keyword: str) -> str:
    """Return a keyword's value as libpq would find it: given, or from the environment."""
    defaults = {option.keyword.decode(): option.val for option in Conninfo.get_defaults()}
    return str(conninfo_to_dict(conninfo).get(keyword) or (defaults[keyword] or b"").decode())
