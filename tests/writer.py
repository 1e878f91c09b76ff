"""A writer of random transactions: one connection, one source of chance, many kinds of steps.

A transaction is a few steps drawn from `Writer.STEPS` by weight. It may end in a rollback; a savepoint is a
step that holds steps. A writer knows of the tables only what the catalog says (`Table`), and looks again
after a schema change or a failure.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, ClassVar

import psycopg
from psycopg import errors, sql

from penstock.postgres.connection import Connection
from tests import values
from tests.altering import Altering
from tests.bed import Database
from tests.checker import SCHEMA_CHANGES
from tests.shape import Column, Published, Table, look

EXPECTED = (
    errors.IntegrityError, errors.CardinalityViolation,
    # A table that has got another one's name is referenced, and cannot lose its key or be emptied.
    errors.DependentObjectsStillExist, errors.FeatureNotSupported,
)  # fmt: skip
"""How a transaction may fail without anybody else around."""
RACES = (
    errors.DeadlockDetected, errors.SerializationFailure, errors.LockNotAvailable, errors.InternalError_,
    errors.DuplicateTable,
    # A name is nobody's by now, or another column's of another type; a column is there twice: beside ALTERs
    # the catalog has shown two rows for one table.
    psycopg.ProgrammingError, psycopg.DataError,
)  # fmt: skip
"""How one may fail beside others."""
_LARGE = 1_000_000


class Writer:
    STEPS: ClassVar[dict[str, int]] = {
        "insert": 20, "copy": 5, "upsert": 6, "update": 20, "touch": 8, "rekey": 8, "swap": 5, "delete": 10,
        "truncate": 2, "savepoint": 8, "message": 4, "schema": 6, "unpublished": 3, "large": 1,
    }  # fmt: skip

    def __init__(
        self,
        database: Database,
        published: Published,
        random: Random,
        done: Counter[str],
        number: int = 0,
    ) -> None:
        self._database = database
        self._published = published
        self._random = random
        self._number = number
        self._connection: Connection
        self._tables: dict[int, Table] = {}
        self._depth = 0
        self._done = done

    @contextmanager
    def connected(self) -> Iterator[None]:
        with self._database.connect() as self._connection:
            self._execute("set deadlock_timeout = '50ms'; set lock_timeout = '5s'")
            self._look()
            yield

    def transaction(self, forgiven: tuple[type[psycopg.Error], ...]) -> None:
        """One transaction; an error of a forgiven kind only ends it."""
        isolation = "repeatable read" if self._random.random() < 0.15 else "read committed"
        steps = 0 if self._random.random() < 0.05 else self._random.randint(1, 6)
        self._depth = 0
        self._execute(f"begin isolation level {isolation}")
        try:
            self._take_steps(steps)
            end = "rollback" if self._random.random() < 0.1 else "commit"
            self._execute(end)
            self._done[end if steps or end == "rollback" else "empty"] += 1
            if end == "rollback":
                self._look()
        except forgiven as error:
            self._execute("rollback")
            self._done[f"failed: {type(error).__name__}"] += 1
            self._look()

    def _take_steps(self, count: int) -> None:
        for step in self._random.choices(list(self.STEPS), list(self.STEPS.values()), k=count):
            getattr(self, f"_{step}")()
            self._done[step] += 1

    # Steps

    def _insert(self) -> None:
        """One row or several, of as many columns as come to mind; where a key is taken, nothing."""
        table = self._pick()
        columns = [table.columns[0], *self._some(table.written[1:], least=self._key_width(table) - 1)]
        rows = [self._row(columns) for _ in range(self._random.choice((1, 1, 2, 5, 30)))]
        self._statement(
            "insert into {} ({}) values {} on conflict do nothing",
            table.quoted, _names(columns), sql.SQL(", ").join(map(_tuple, rows)),
        )  # fmt: skip

    def _copy(self) -> None:
        """Many rows in one WAL record, into a range that is emptied first."""
        table = self._pick()
        if table.frozen:
            return self._copy_rows(table, _LARGE, 10)
        first = self._random.randrange(990)
        self._delete_from(table, first, first + 10)
        return self._copy_rows(table, first, 10)

    def _upsert(self) -> None:
        table = self._pick(unique=True)
        columns = table.written
        rows = {self._random.randrange(1000): self._row(columns) for _ in range(3)}
        set_all = [sql.SQL("{0} = excluded.{0}").format(sql.Identifier(c.name)) for c in columns]
        self._statement(
            "insert into {} ({}) values {} on conflict ({}) do update set {}",
            table.quoted, _names(columns),
            sql.SQL(", ").join(_tuple([sql.Literal(id), *row[1:]]) for id, row in rows.items()),
            table.find, sql.SQL(", ").join(set_all),
        )  # fmt: skip

    def _update(self) -> None:
        table = self._pick(frozen=False)
        free = [c for c in table.written if not c.fixed]
        if free:
            columns = self._some(free, least=1)
            pairs = zip(columns, self._row(columns), strict=True)
            self._update_range(
                table, [sql.SQL("{} = {}").format(sql.Identifier(c.name), v) for c, v in pairs]
            )

    def _touch(self) -> None:
        """An update that changes nothing, or one short column beside long ones that stay."""
        table = self._pick(frozen=False)
        columns = [c for c in table.written if not c.wide]
        if columns:
            name = sql.Identifier(self._random.choice(columns).name)
            self._update_range(table, [sql.SQL("{0} = {0}").format(name)])

    def _rekey(self) -> None:
        table = self._pick(frozen=False)
        old, new = self._random.randrange(1000), self._random.randrange(1000)
        self._statement(
            """update {0} set {1} = {2}
                where {1} = (select min({1}) from {0} where {1} >= {3})
                  and not exists (select from {0} where {1} = {2})""",
            table.quoted, table.find, sql.Literal(new), sql.Literal(old),
        )  # fmt: skip

    def _swap(self) -> None:
        """Two rows change places, by way of a third key."""
        table = self._pick(unique=True)
        found = self._statement(
            "select {1} from {0} where {1} >= {2} order by 1 limit 2",
            table.quoted, table.find, sql.Literal(self._random.randrange(900)),
        ).fetchall()  # fmt: skip
        if len(found) == 2:
            (one,), (other,) = found
            aside = -1 - self._number
            for old, new in ((one, aside), (other, one), (aside, other)):
                self._statement(
                    "update {0} set {1} = {2} where {1} = {3}",
                    table.quoted, table.find, sql.Literal(new), sql.Literal(old),
                )  # fmt: skip

    def _delete(self) -> None:
        table = self._pick(frozen=False)
        first = self._random.randrange(1000)
        self._delete_from(table, first, first + self._random.choice((1, 5, 50)))

    def _truncate(self) -> None:
        tables = self._random.sample(list(self._tables.values()), self._random.choice((1, 1, 2, 3)))
        cascade = self._tables[self._published.lasting[0]] in tables or self._random.random() < 0.3
        self._statement(
            "truncate {} {} {}",
            sql.SQL(", ").join(table.quoted for table in tables),
            sql.SQL(self._random.choice(("restart identity", "continue identity"))),
            sql.SQL("cascade" if cascade else "restrict"),
        )

    def _savepoint(self) -> None:
        self._depth += 1
        name = f"s{self._depth}"
        self._execute(f"savepoint {name}")
        try:
            self._take_steps(self._random.randint(1, 3) if self._depth < 3 else 0)
            kept = self._random.random() < 0.5
        except errors.IntegrityError:
            kept = False
        self._execute(f"release savepoint {name}" if kept else f"rollback to savepoint {name}")
        if not kept:
            self._look()
            self._done["rollback to savepoint"] += 1
        self._depth -= 1

    def _message(self) -> None:
        """Inside a savepoint only immediate ones: a transactional message that was streamed and then rolled
        back with its savepoint cannot be taken back, since PostgreSQL sends it with the xid of the whole
        transaction (15 to 18 do)."""
        transactional = self._depth == 0 and self._random.random() < 0.7
        self._statement(
            "select pg_logical_emit_message({}, 'scenario.note', {})",
            sql.Literal(transactional), sql.Literal(values.text(self._random)),
        )  # fmt: skip

    def _unpublished(self) -> None:
        self._execute("insert into scratch values (1)")

    def _large(self) -> None:
        """Thousands of rows in one go, some of them taken back: enough to be streamed before the commit."""
        table = self._pick(frozen=False)
        first = _LARGE * (1 + self._number)
        last = first + _LARGE
        self._delete_from(table, first, last)
        self._copy_rows(table, first, self._random.randint(1000, 2500))
        self._execute("savepoint large")
        self._copy_rows(table, first + 5000, self._random.randint(300, 1000))
        self._execute(self._random.choice(("rollback to savepoint large", "release savepoint large")))
        if self._random.random() < 0.7:
            self._delete_from(table, first, last)

    # Schema changes: what they did to the rows goes into the stream as a row of `schema_changes`

    def _schema(self) -> None:
        altering = Altering(self._statement, self._random, self._published, self._tables)
        table = self._pick()
        if not self._hold(table):
            return self._look()
        kind, effects = altering.alter(table)
        leaves = self._statement("select relid::oid from pg_partition_tree({})", sql.Literal(table.oid))
        tables = [table.oid, *(leaf for (leaf,) in leaves)]
        for effect in effects:
            told = {"tables": tables, "did": effect}
            name = sql.Identifier(SCHEMA_CHANGES.schema, SCHEMA_CHANGES.name)
            self._statement("insert into {} (told) values ({})", name, sql.Literal(json.dumps(told)))
        self._done[f"schema: {kind}"] += 1
        return self._look()

    def _hold(self, table: Table) -> bool:
        """Lock a table under its name. False if another writer has given that name to another table since
        the last look: what an ALTER then did would be told of the wrong one."""
        self._statement("lock table {} in access exclusive mode", table.quoted)
        name = sql.Literal(table.quoted.as_string(self._connection))
        return bool(
            self._statement("select {}::regclass = {}", name, sql.Literal(table.oid)).fetchall()[0][0]
        )

    # What steps are made of

    def _pick(self, *, unique: bool | None = None, frozen: bool | None = None) -> Table:
        fitting = [
            table
            for table in self._tables.values()
            if unique in (None, table.unique) and frozen in (None, table.frozen)
        ]
        return self._random.choice(fitting)

    def _some(self, columns: Sequence[Column], least: int = 0) -> list[Column]:
        """The first `least` of the columns, and of the others as many as come."""
        return [c for n, c in enumerate(columns) if n < least or self._random.random() < 0.6]

    def _key_width(self, table: Table) -> int:
        return sum(1 for column in table.written if column.fixed)

    def _row(self, columns: Sequence[Column]) -> list[sql.Composable]:
        return [self._value(column) for column in columns]

    def _value(self, column: Column) -> sql.Composable:
        if column.fixed:
            return sql.Literal(self._random.randrange(1000))
        if column.reference:
            simple = self._tables[self._published.lasting[0]]
            return sql.SQL("(select min({}) from {} where {} >= {})").format(
                simple.find, simple.quoted, simple.find, sql.Literal(self._random.randrange(1000))
            )
        return sql.Literal(values.value(self._random, column.type, wide=column.wide))

    def _copy_rows(self, table: Table, first: int, count: int) -> None:
        columns = [c for c in table.written if not c.reference]
        command = sql.SQL("copy {} ({}) from stdin").format(table.quoted, _names(columns))
        with self._connection.cursor() as cursor, cursor.copy(command) as copy:
            for number in range(first, first + count):
                rest = [
                    str(self._random.randrange(5)) if c.fixed
                    else values.value(self._random, c.type, wide=c.wide and count < 100)
                    for c in columns[1:]
                ]  # fmt: skip
                copy.write_row([str(number), *rest])

    def _update_range(self, table: Table, changes: list[sql.Composed]) -> None:
        first = self._random.randrange(1000)
        self._statement(
            "update {0} set {1} where {2} >= {3} and {2} < {4}",
            table.quoted, sql.SQL(", ").join(changes), table.find,
            sql.Literal(first), sql.Literal(first + self._random.choice((5, 50, 200))),
        )  # fmt: skip

    def _delete_from(self, table: Table, first: int, last: int) -> None:
        self._statement(
            "delete from {0} where {1} >= {2} and {1} < {3}",
            table.quoted, table.find, sql.Literal(first), sql.Literal(last),
        )  # fmt: skip

    def _look(self) -> None:
        """Learn the tables' shape as it is now, for this transaction."""
        self._tables = look(self._connection, self._published.name)

    def _statement(
        self, statement: str, *parts: sql.Composable, **named: sql.Composable
    ) -> psycopg.Cursor[tuple[Any, ...]]:
        return self._connection.execute(sql.SQL(statement).format(*parts, **named))

    def _execute(self, statement: str) -> None:
        self._connection.execute(statement.encode())


def _names(columns: Sequence[Column]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(column.name) for column in columns)


def _tuple(row: Sequence[sql.Composable]) -> sql.Composed:
    return sql.SQL("({})").format(sql.SQL(", ").join(row))
