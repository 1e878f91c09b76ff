"""By what a table's updates and deletes tell which row they mean, decided as the server decides it.

Once a table is published, PostgreSQL refuses updates and deletes of one that has no replica identity. What
counts as one is stricter than it looks: a primary key that is deferrable, or an index that is not valid, does
not (`RelationGetReplicaIndex` and `CheckCmdReplicaIdentity` in its sources).
"""

from __future__ import annotations

from typing import LiteralString

from penstock.model import ReplicaIdentity


def is_identity(table: LiteralString) -> LiteralString:
    """SQL: whether the index `i` is what the replica identity of this row of `pg_class` is made of."""
    return f"""(i.indislive and i.indisvalid and i.indisunique and i.indimmediate and i.indpred is null
        and case {table}.relreplident when 'd' then i.indisprimary when 'i' then i.indisreplident end)"""


def is_told(table: LiteralString, stored: LiteralString) -> LiteralString:
    """SQL: whether updates and deletes of this row of `pg_class` tell all of which row they mean, and are not
    refused, in a publication; `stored` says whether that has stored generated columns."""
    generated = f"""exists (
            select from pg_attribute g
            where g.attrelid = {table}.oid and not g.attisdropped and g.attgenerated"""
    return f"""(case when {table}.relreplident = 'f'
        then not {generated} = 'v') and ({stored} or {_VERSION} < 180000 or not {generated} = 's'))
        else exists (
            select from pg_index i
            where i.indrelid = {table}.oid and {is_identity(table)}
              and ({stored} or not {generated} <> ''
                       and g.attnum = any ((i.indkey::int2[])[0:i.indnkeyatts - 1])))) end)"""


_VERSION = "current_setting('server_version_num')::int"

IS_DEFERRABLE = "(i.indisprimary and not i.indimmediate)"
"""SQL: whether the index `i` is a primary key that is no replica identity."""


def lack(identity: ReplicaIdentity, *, deferrable: bool) -> tuple[str, str]:
    """Return why a table has no replica identity, and what to do about it."""
    if identity is ReplicaIdentity.NOTHING:
        return "its replica identity is `nothing`", "Run `alter table … replica identity default` or `… full`"
    if identity is ReplicaIdentity.INDEX:
        return (
            "the index of its replica identity is gone or not valid",
            "Run `alter table … replica identity using index …` with another, or `… full`",
        )
    if deferrable:
        return (
            "its primary key is deferrable, and so no replica identity to PostgreSQL",
            "Make the key not deferrable, run `alter table … replica identity using index …` with a unique "
            "index that is not, or `… replica identity full`",
        )
    return (
        "it has no primary key and no replica identity",
        "Add a primary key, or run `alter table … replica identity full`",
    )
