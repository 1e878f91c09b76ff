"""Type oids to `ColumnType`s, from the source's catalog.

A relation message names types by oid and modifier only. `TypeCatalog` looks up what they are, follows
domains to their base and arrays to their elements, and remembers. It is asked rarely (once for each new
version of a table's schema), maybe hours apart, so it opens its connection when it needs one and opens
another when that one was lost.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from penstock.model import ColumnType, TypeKind
from penstock.postgres.connection import Connection, explain

_KINDS = {
    "b": TypeKind.BASE,
    "c": TypeKind.COMPOSITE,
    "d": TypeKind.DOMAIN,
    "e": TypeKind.ENUM,
    "m": TypeKind.MULTIRANGE,
    "p": TypeKind.BASE,
    "r": TypeKind.RANGE,
}

# A type with elements is an array only if it is its element's array type: int2vector and its like are not,
# and print differently. The modifier of a domain is its own, that of an array belongs to the elements.
_LOOK_UP = """
    select t.typname, t.typtype::text, t.typbasetype, t.typtypmod, coalesce(element.oid, 0)
    from pg_type t
    left join pg_type element on element.typarray = t.oid
    where t.oid = %s
"""


class TypeCatalog:
    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._connection: Connection | None = None
        self._known: dict[tuple[int, int], ColumnType] = {}

    def resolve(self, oid: int, modifier: int = -1) -> ColumnType:
        """The type, down to its base; a type that was dropped since is `unknown`, and its values text."""
        known = self._known.get((oid, modifier))
        if known is not None:
            return known
        row = self._look_up(oid)
        if row is None:
            return ColumnType(oid, "unknown", modifier, TypeKind.UNKNOWN)
        name, kind, base, base_modifier, element = row
        if element:
            found = ColumnType(oid, name, modifier, TypeKind.ARRAY, self.resolve(element, modifier))
        elif base:
            found = ColumnType(oid, name, modifier, TypeKind.DOMAIN, self.resolve(base, base_modifier))
        else:
            found = ColumnType(oid, name, modifier, _KINDS[kind])
        return self._known.setdefault((oid, modifier), found)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _look_up(self, oid: int) -> tuple[str, str, int, int, int] | None:
        fresh = self._connection is None
        try:
            if self._connection is None:
                self._connection = self._connect()
            row = self._connection.execute(_LOOK_UP, (oid,)).fetchone()
        except psycopg.OperationalError as error:
            self.close()
            if fresh:
                raise explain(error) from None
            return self._look_up(oid)
        return row and (row[0], row[1], row[2], row[3], row[4])
