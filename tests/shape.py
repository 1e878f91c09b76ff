"""The shape of tables as the catalog has it now: what a writer needs to know of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from psycopg import sql

from penstock.model import TableName
from penstock.postgres.connection import Connection
from tests.checker import SCHEMA_CHANGES

_SHAPE = """
select c.oid, n.nspname, c.relname, c.relreplident, c.relkind, a.attname,
       format_type(a.atttypid, a.atttypmod), a.attstorage = 'e',
       a.attnum = 1 or exists (select from pg_index i where i.indrelid = c.oid and a.attnum = any (i.indkey)),
       exists (select from pg_constraint f
                where f.conrelid = c.oid and f.contype = 'f' and a.attnum = any (f.conkey)),
       a.attidentity = 'a',
       exists (select from pg_index i where i.indrelid = c.oid and i.indisunique and i.indkey::text = '1')
  from pg_class c
  join pg_namespace n on n.oid = c.relnamespace
  join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
 where c.oid in (select r.prrelid
                   from pg_publication_rel r join pg_publication p on p.oid = r.prpubid
                  where p.pubname = %s)
   and n.nspname <> 'penstock'
 order by c.oid, a.attnum
"""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str
    wide: bool
    fixed: bool
    """Part of some index: it may be renamed, not dropped."""
    reference: bool
    generated: bool


@dataclass(frozen=True, slots=True)
class Table:
    oid: int
    name: TableName
    identity: str
    partitioned: bool
    unique: bool
    """Whether the first column alone identifies a row."""
    columns: tuple[Column, ...]

    @property
    def quoted(self) -> sql.Identifier:
        return sql.Identifier(self.name.schema, self.name.name)

    @property
    def find(self) -> sql.Identifier:
        return sql.Identifier(self.columns[0].name)

    @property
    def frozen(self) -> bool:
        """Rows can be inserted and truncated, not updated or deleted."""
        return self.identity == "n"

    @property
    def written(self) -> list[Column]:
        return [column for column in self.columns if not column.generated]


@dataclass(frozen=True, slots=True)
class Published:
    """Tables that are written to: those of a publication."""

    name: str
    """The publication's."""
    lasting: tuple[int, ...]
    """The tables that are never dropped."""


def look(connection: Connection, publication: str) -> dict[int, Table]:
    """The tables of a publication that are the writers' own, by oid."""
    tables = {}
    for oid, found in groupby(connection.execute(_SHAPE, (publication,)).fetchall(), key=itemgetter(0)):
        rows = list(found)
        _, schema, name, identity, kind, *_, unique = rows[0]
        columns = tuple(Column(*row[5:11]) for row in rows)
        if TableName(schema, name) != SCHEMA_CHANGES:
            tables[oid] = Table(oid, TableName(schema, name), identity, kind == "p", unique, columns)
    return tables
