"""A developer who alters a table of a real server at random: names come back, and rows come in between."""

from __future__ import annotations

from random import Random

from tests.bed import Database

NAMES = ("a", "b", "c", "d")


class Developer:
    def __init__(self, database: Database, table: str, random: Random) -> None:
        self._database = database
        self._table = table
        self._random = random
        self._written = 0
        database.execute(
            f"create table {table} (id int primary key, k int not null, a text, b text, c varchar)",
            f"alter table {table} add constraint {table}_id unique (id)",
            f"insert into {table} select n, 0, 'a ' || n, 'b ' || n, 'c ' || n from generate_series(1, 5) n",
        )

    def transaction(self) -> None:
        """A few statements, mostly with a row at the end; or one that cannot be in a transaction."""
        if self._random.random() < 0.05:
            self._database.execute(f"vacuum full {self._table}")
            return
        columns = self._columns()
        statements = []
        for _ in range(self._random.randint(1, 3)):
            statements += self._alter(columns) if self._random.random() < 0.6 else [self._write(columns)]
        if self._random.random() < 0.7:
            statements.append(self._write(columns))
        self._database.execute("; ".join(["begin", *statements, "commit"]))

    def _columns(self) -> dict[str, str]:
        """Those that are no key, in order, with their types."""
        return dict(
            self._database.query(
                "select attname::text, format_type(atttypid, null) from pg_attribute"
                " where attrelid = %s::regclass and attnum > 2 and not attisdropped order by attnum",
                self._table,
            )
        )

    def _write(self, columns: dict[str, str]) -> str:
        self._written += 1
        values = ", ".join(f"'{name} {self._written}'" for name in columns)
        names = ", ".join(("id", "k", *columns))
        sets = ", ".join(f"{name} = excluded.{name}" for name in ("k", *columns))
        key = f"{self._random.randint(1, 9)}, {self._random.randint(0, 2)}"
        return (
            f"insert into {self._table} ({names}) values ({key}"
            f"{', ' if values else ''}{values}) on conflict (id) do update set {sets}"
        )

    def _alter(self, columns: dict[str, str]) -> list[str]:
        """Statements; `columns` is what there is after them."""
        free = [name for name in NAMES if name not in columns]
        kinds = ["key"] + (["add"] if free else [])
        if columns:
            kinds += ["drop", "make again", "move on", "swap", "compute", "widen", "set default"]
        if columns and free:
            kinds += ["rename"]
        kind, table = self._random.choice(kinds), f"alter table {self._table}"
        one = self._random.choice(list(columns)) if columns else ""
        other = self._random.choice([name for name in columns if name != one] or [one])
        default = self._random.choice(["", f" default 'default {self._written}'"])
        match kind:
            case "key":
                return self._identify()
            case "add":
                name = self._random.choice(free)
                columns[name] = "text"
                return [f"{table} add {name} text{default}"]
            case "drop":
                del columns[one]
                return [f"{table} drop {one}"]
            case "make again":
                del columns[one]
                columns[one] = "text"
                return [f"{table} drop {one}", f"{table} add {one} text{default}"]
            case "move on" if one != other:
                del columns[one]
                _rename(columns, {other: one})
                return [f"{table} drop {one}", f"{table} rename {other} to {one}"]
            case "swap" if one != other:
                _rename(columns, {one: other, other: one})
                return [
                    f"{table} rename {one} to aside",
                    f"{table} rename {other} to {one}",
                    f"{table} rename aside to {other}",
                ]
            case "rename":
                name = self._random.choice(free)
                _rename(columns, {one: name})
                return [f"{table} rename {one} to {name}"]
            case "compute":
                return [f"{table} alter {one} type {columns[one]} using {one} || '!'"]
            case "widen":
                columns[one] = "text"
                return [f"{table} alter {one} type text"]
            case _:
                return [f"{table} alter {one} set default 'later'"]

    def _identify(self) -> list[str]:
        """Have rows found in another way."""
        table = f"alter table {self._table}"
        anew = [f"{table} replica identity full", f"{table} drop constraint if exists {self._table}_pkey"]
        key = self._random.choice(["", "id", "id, k", "k, id"])
        if key:
            anew += [f"{table} add primary key ({key})", f"{table} replica identity default"]
        if self._random.random() < 0.3:
            anew.append(f"{table} replica identity using index {self._table}_id")
        return anew


def _rename(columns: dict[str, str], names: dict[str, str]) -> None:
    renamed = {names.get(name, name): type for name, type in columns.items()}
    columns.clear()
    columns.update(renamed)
