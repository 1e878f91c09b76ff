"""How a column of the source is declared at the destination.

Built-in types have the same oids on every server, so the destination itself says how one is written, modifier
and all. A domain is its base type. Other types (enums, composites, those of extensions) are used if the
destination has one of that name and kind in the table's own schema, in `public`, or from an extension; if
not, their values are kept as text. It must not be somebody's whom we do not trust: the checks of a domain
that a type is made of, and casts to a type, which its owner may define, run with our rights.
"""

from __future__ import annotations

from psycopg import sql

from penstock.destinations.postgres.table.target_table import TargetTable
from penstock.model import ColumnType, TypeKind
from penstock.model.schema import FIRST_USER_OID
from penstock.postgres.connection import Connection
from penstock.postgres.ownership import is_trusted

_NUMBERS = ("bool", "int2", "int4", "int8", "oid", "float4", "float8", "numeric", "bit", "varbit")
_TEXTS = ("text", "varchar", "bpchar", "char", "bytea", "json", "jsonb", "uuid")
_TIMES = ("date", "time", "timetz", "timestamp", "timestamptz", "interval")
_ADDRESSES = ("inet", "cidr", "macaddr", "macaddr8")
BINARY = frozenset((*_NUMBERS, *_TEXTS, *_TIMES, *_ADDRESSES))
"""Built-in types that every server sends and reads alike in binary, whatever its version and settings."""

TEXT = sql.SQL("text")


_KINDS = {
    TypeKind.BASE: "b",
    TypeKind.COMPOSITE: "c",
    TypeKind.ENUM: "e",
    TypeKind.RANGE: "r",
    TypeKind.MULTIRANGE: "m",
}

_OF_THAT_NAME = sql.SQL(
    """
    select t.oid::bigint
    from pg_type t
    join pg_namespace n on n.oid = t.typnamespace
    left join pg_depend d on d.classid = 'pg_type'::regclass and d.objid = t.oid and d.deptype = 'e'
    where t.typname = %(name)s and t.typtype = %(kind)s and t.typisdefined
      and (n.nspname in (%(schema)s, 'public') or d.objid is not null)
      and ({} or pg_get_userbyid(t.typowner) = any (%(trusted)s::text[]))
    order by n.nspname <> %(schema)s, n.nspname <> 'public', n.nspname
    limit 1
    """
).format(is_trusted(sql.SQL("t.typowner")))


def declared(connection: Connection, type: ColumnType, target: TargetTable) -> sql.Composable:
    """Return the type as a column's definition at the destination has it."""
    base = type.base
    if base.kind is TypeKind.UNKNOWN:
        return TEXT
    if 0 < base.oid < FIRST_USER_OID:
        return _format(connection, base.oid, base.modifier) or TEXT
    if base.kind is TypeKind.ARRAY and base.inner is not None:
        return sql.SQL("{}[]").format(declared(connection, base.inner, target))
    wanted = {
        "name": base.name,
        "kind": _KINDS.get(base.kind),
        "schema": target.delivery.target.schema,
        "trusted": list(target.trusted),
    }
    row = connection.execute(_OF_THAT_NAME, wanted).fetchone()
    if row is None:
        return TEXT
    return _format(connection, row[0], base.modifier) or TEXT


def is_binary(type: ColumnType) -> bool:
    """Whether its values can be handed from server to server in binary: PostgreSQL reads a row of numbers and
    times so in half the time that it takes to parse them."""
    if type.oid >= FIRST_USER_OID:
        return False
    if type.kind is TypeKind.ARRAY:
        return type.inner is not None and is_binary(type.inner)
    return type.kind is TypeKind.BASE and type.name in BINARY


def _format(connection: Connection, oid: int, modifier: int) -> sql.Composable | None:
    row = connection.execute("select format_type(%s, %s)", (oid, modifier)).fetchone()
    if row is None or row[0] == "???":  # a type of a newer server's
        return None
    return sql.SQL(row[0])
