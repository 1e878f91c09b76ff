"""Type oids to `ColumnType`s, from the source's catalog.

A relation message names types by oid and modifier only. `TypeCatalog` looks up what they are, follows
domains to their base and arrays to their elements, and remembers. It is asked rarely (once for each new
version of a table's schema), maybe hours apart, so it opens its connection when it needs one and opens
another when that one was lost. Whoever keeps it lets go of the connection meanwhile (`close`): one that idles
may go silent, and who asks it then waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, LiteralString

import psycopg

from penstock.model import ColumnType, TypeKind
from penstock.model.errors import ConnectionFailed
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

DEPTH = 64
"""Of domains on domains. Nobody needs so many, but anybody may make more."""

# From a type down: a domain to its base, an array to its elements. A type with elements is an array only if
# it is its element's array type: int2vector and its like are not, and print differently. The modifier of a
# domain is its own, that of an array belongs to the elements.
_LOOK_UP = """
    with recursive chain (oid, place) as (
        select %(oid)s::oid, 0
        union all
        select coalesce(element.oid, t.typbasetype), chain.place + 1
        from chain
        join pg_type t on t.oid = chain.oid
        left join pg_type element on element.oid = t.typelem and element.typarray = t.oid
        where chain.place <= %(depth)s and (element.oid is not null or t.typbasetype <> 0)
    )
    select t.oid, t.typname, t.typtype::text, t.typtypmod, element.oid is not null
    from chain
    join pg_type t on t.oid = chain.oid
    left join pg_type element on element.oid = t.typelem and element.typarray = t.oid
    order by chain.place
"""

# The stream tells 32 bits of a transaction's number; it is the one of these that is nearest to the newest.
_IS_VISIBLE = """
    select pg_is_in_recovery() or pg_visible_in_snapshot(
        (newest - (((newest - %(xid)s + 2147483648) & 4294967295) - 2147483648))::text::xid8, snapshot)
    from (select pg_snapshot_xmax(snapshot)::text::int8 as newest, snapshot
          from (select pg_current_snapshot() as snapshot) now) counted
"""

VISIBLE_WITHIN = 60.0
"""Seconds: how long a transaction that has committed is waited for."""
VISIBLE_POLL = 0.05

Row = tuple[int, str, str, int, bool]


class TypeCatalog:
    def __init__(self, connect: Callable[[], Connection], stop: threading.Event | None = None) -> None:
        """`stop` ends its waiting for a transaction."""
        self._connect = connect
        self._stop = stop or threading.Event()
        self._connection: Connection | None = None
        self._resolved: dict[tuple[int, int], ColumnType] = {}

    def resolve(self, oid: int, modifier: int = -1, xid: int = 0) -> ColumnType:
        """The type, down to its base; a type that was dropped since, or is too deep a nest of domains, is
        `unknown`, and its values text. One that the transaction `xid` made is waited for: the stream has
        transactions that synchronous replication lets nobody see yet."""
        cached = self._resolved.get((oid, modifier))
        if cached is not None:
            return cached
        rows = self._look_up(oid)
        if not rows and xid:
            self._wait_until_visible(xid)
            rows = self._look_up(oid)
        if not rows:
            return ColumnType(oid, "unknown", modifier, TypeKind.UNKNOWN)
        if len(rows) > DEPTH:
            rows = [(oid, "unknown", "", -1, False)]
        modifiers = [modifier]
        for _, _, _, own, is_array in rows:
            modifiers.append(modifiers[-1] if is_array else own)
        resolved: ColumnType | None = None
        for (number, name, kind, _, is_array), its in zip(reversed(rows), modifiers[-2::-1], strict=True):
            type_kind = TypeKind.ARRAY if is_array else _KINDS.get(kind, TypeKind.UNKNOWN)
            resolved = ColumnType(number, name, its, type_kind, resolved)
        assert resolved is not None
        return self._resolved.setdefault((oid, modifier), resolved)

    def _wait_until_visible(self, xid: int) -> None:
        """Not without end: it could be our own feedback that the transaction waits for."""
        until = time.monotonic() + VISIBLE_WITHIN
        while self._ask(_IS_VISIBLE, {"xid": xid})[0] != (True,) and time.monotonic() < until:
            if self._stop.wait(VISIBLE_POLL):
                reason = f"transaction {xid}, which made a type, is not visible yet"
                raise ConnectionFailed(reason, remedy="Nothing is lost: it goes on from there")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _look_up(self, oid: int) -> list[Row]:
        rows = self._ask(_LOOK_UP, {"oid": oid, "depth": DEPTH})
        return [(row[0], row[1], row[2], row[3], row[4]) for row in rows]

    def _ask(self, query: LiteralString, values: dict[str, int]) -> list[tuple[Any, ...]]:
        fresh = self._connection is None
        try:
            if self._connection is None:
                self._connection = self._connect()
            return self._connection.execute(query, values).fetchall()
        except psycopg.OperationalError as error:
            self.close()
            if fresh:
                raise explain(error) from None
            return self._ask(query, values)
