"""Rebuild the tables of a `files` destination in DuckDB, and keep them so: each run takes what is new.

    python files_duckdb.py POSTGRES_DSN DUCKDB_FILE

All columns are VARCHAR and hold PostgreSQL's own text: cast them in a view. How far a table is stands in
DuckDB, written in the transaction that changed the table: a file is applied once, whatever crashes. The
registry is told of it, so that no file is removed that was not read.
"""

# ruff: noqa: S608 (names cannot be parameters: they are quoted)

import re
import sys
from typing import Any

import duckdb
import psycopg
import yaml

NEW = """
select end_lsn, file_type, file_path from cdc_registry.file_log
where table_name = %s and end_lsn > %s order by end_lsn
"""
READ = """
insert into cdc_registry.consumers (consumer, table_name, last_lsn) values ('duckdb', %s, %s)
on conflict (consumer, table_name) do update set last_lsn = excluded.last_lsn, updated_at = now()
"""
# Nothing at all is NULL, "" is an empty string; what else is said here keeps DuckDB from guessing. A line may
# have 32 MB: of a buffer, by default sixteen times as large, it allocates all.
CSV = """read_csv($path, all_varchar = true, header = true, delim = ',', quote = '"', escape = '"', skip = 0,
    new_line = '\\n', nullstr = '', allow_quoted_nulls = false, comment = '',
    max_line_size = 32000000, buffer_size = 64000000)"""
NAME = '"(?:[^"]|"")+"'
ALTER = re.compile(
    rf"^alter table {NAME}\.{NAME} (?:rename column (?P<old>{NAME}) to (?P<new>{NAME})"
    rf"|drop column (?P<drop>{NAME})|alter column {NAME} type .+?"
    rf"|add column (?P<add>{NAME}) .+?(?: default +(?P<default>E?'(?:[^']|'')*'))?);\n",
    re.DOTALL | re.MULTILINE,
)


def main(dsn: str, file: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as registry, duckdb.connect(file) as duck:
        duck.execute("create schema if not exists penstock")
        duck.execute("""create table if not exists penstock.followed
                        (name varchar primary key, target varchar, key varchar[], last_lsn varchar)""")
        names = registry.execute(
            "select distinct table_name from cdc_registry.file_log order by 1"
        ).fetchall()
        for (name,) in names:
            table = Table(duck, name)
            registry.execute(READ, (name, table.last))
            for end, kind, path in registry.execute(NEW, (name, table.last)).fetchall():
                table.take(end, kind, path)
            registry.execute(READ, (name, table.last))


class Table:
    def __init__(self, duck: duckdb.DuckDBPyConnection, name: str) -> None:
        self.duck, self.name = duck, name
        self.run("insert or ignore into penstock.followed values ($name, null, [], '0/0')", name=name)
        found = self.run("select target, key, last_lsn from penstock.followed where name = $name", name=name)
        self.target, self.key, self.last = found[0]

    def run(self, statement: str, **values: Any) -> list[Any]:
        return self.duck.execute(statement, values or None).fetchall()

    def take(self, end: str, kind: str, path: str) -> None:
        self.duck.begin()
        if self.target is None and kind != "schema":
            sys.exit(f"{self.name}: its full copy is gone. Have it copied anew: penstock reload")
        match kind:
            case "schema":
                self.describe(yaml.safe_load(self.text(path)))
            case "full_reload":
                self.run(f"create or replace table {self.target} as from {CSV}", path=path)
            case "ddl":
                self.alter(self.text(path))
            case "streaming":
                self.apply(path)
        self.run(
            "update penstock.followed set target = $target, key = $key, last_lsn = $end where name = $name",
            **{"target": self.target, "key": self.key, "end": end, "name": self.name},
        )
        self.duck.commit()
        self.last = end

    def text(self, path: str) -> str:
        return str(self.run("select content from read_text($path)", path=path)[0][0])

    def describe(self, described: dict[str, Any]) -> None:
        schema, name = (quoted(described["table"][part]) for part in ("schema", "name"))
        self.run(f"create schema if not exists {schema}")
        self.target, self.key = f"{schema}.{name}", described["metadata"]["key"]

    def alter(self, text: str) -> None:
        """Types are of no concern here, and keys do not change: such a table is copied anew. A statement that
        is not understood must not be passed over."""
        if any(line and not line.startswith("--") for line in ALTER.sub("", text).splitlines()):
            sys.exit(f"{self.name}: this schema change is not understood:\n{text}")
        for old, new, drop, add, default in (found.groups() for found in ALTER.finditer(text)):
            if old:
                self.run(f"alter table {self.target} rename column {old} to {new}")
            elif drop:
                self.run(f"alter table {self.target} drop column {drop}")
            elif add:
                self.run(f"alter table {self.target} add column {add} varchar default {default or 'null'}")

    def apply(self, path: str) -> None:
        self.run(
            f"""create or replace temp table file as
                select *, row_number() over (order by _commit_lsn, _seq::bigint, _op) as _n from {CSV}""",
            path=path,
        )
        if truncated := self.run("select max(_n) from file where _op = 'T'")[0][0]:
            self.run(f"delete from {self.target}")
            self.run(f"delete from file where _n <= {truncated}")
        columns = [row[0] for row in self.run(f"describe {self.target}")]
        (self.apply_by_key if self.key else self.apply_by_row)(columns)

    def apply_by_key(self, columns: list[str]) -> None:
        """Each key gets what its last line says. Where that leaves a value `_unchanged` it is the one of the
        line `_before`: the last one with that key or, if the row had another key, with that. Rows that the
        table has already are lines too. Each round looks twice as far back as the one before."""
        key = quoted(*self.key)
        self.run(f"""
            create or replace temp table lines as
            with line as (
                select 'I' as _op, -row_number() over () as _n, *
                from {self.target} semi join file using ({key})
                union all by name from file
            ), found as (
                select *, lag(_n) over (partition by {key} order by _n) as _same_key from line
            )
            select {quoted(*columns)}, _op, _n,
                coalesce(('[' || _unchanged[2:-2] || ']')::varchar[], []) as _kept,
                if(_op = 'U' and lag(_op) over pair = 'D', lag(_same_key) over pair, _same_key) as _before
            from found window pair as (partition by _commit_lsn, _seq order by _op)
        """)
        before = ", ".join(
            f"{quoted(c)} = if({literal(c)} in l._kept, b.{quoted(c)}, l.{quoted(c)})" for c in columns
        )
        while self.run(f"""
            update lines l set {before}, _kept = list_intersect(l._kept, b._kept), _before = b._before
            from lines b where b._n = l._before and l._kept <> []
        """) != [(0,)]:
            pass
        if lost := self.run(f"select {key} from lines where _kept <> []"):
            sys.exit(f"{self.name}: rows that were changed are not there: {lost}")
        self.run(f"delete from {self.target} where ({key}) in (select ({key}) from lines)")
        self.run(f"""
            insert into {self.target} by name select {quoted(*columns)} from lines
            qualify _n = max(_n) over (partition by {key}) and _op <> 'D'
        """)

    def apply_by_row(self, columns: list[str]) -> None:
        """Without a key a row is all of its values, as often as it is there."""
        names = quoted(*columns)
        self.run(f"""
            create or replace temp table counted as
            select {names}, sum(_times)::bigint as _times from (
                select {names}, 1 as _times from {self.target}
                union all by name
                select {names}, case _op when 'I' then 1 when 'D' then -1
                    else count(*) over (partition by _commit_lsn, _seq) - 1 end as _times from file
            ) group by {names}
        """)
        self.run(f"delete from {self.target}")
        self.run(f"insert into {self.target} by name select {names} from counted, range(_times)")


def quoted(*names: str) -> str:
    return ", ".join('"' + name.replace('"', '""') + '"' for name in names)


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


if __name__ == "__main__":
    main(*sys.argv[1:])
