"""Whose a table at the destination is, and whether it is there for us.

What the owner of a table puts on it (triggers, checks, rules) runs with the rights of whoever writes to it,
and can do to every other table what we can. So a table, with its partitions, must be ours, somebody's above
us, or of an owner whom the configuration names (`trusted_owners`).

The owner of a schema can put another table in the place of one, by its name, and no lock on a table keeps him
from renaming the schema. A superuser writes to no such schema. An ordinary role does, since that is how
schemas are given out; it looks afterwards whether it wrote to the table that it looked at before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from penstock.destinations.ledger import StreamId
from penstock.destinations.postgres.endpoint import Endpoint
from penstock.destinations.postgres.table.target_table import TargetTable
from penstock.destinations.protocol import Delivery
from penstock.model import TableName
from penstock.model.errors import TargetShared, TargetUnfit
from penstock.postgres.connection import Connection
from penstock.postgres.ownership import is_trusted, make_schema

UNWRITTEN = 0
"""The version of a table of which nothing could be written yet."""

MARK = "made by penstock"

LONG, SHORT = "5s", "50ms"
"""How long a table is waited for that somebody else has locked, or reads while it is to be altered: it alone
is late then. `patience.py` says which it is."""


def trusted(owner: str, listed: Sequence[str]) -> sql.Composable:
    """SQL: whether a role, by its oid, is one whose objects we use."""
    return sql.SQL("({} or pg_get_userbyid({}) = any ({}::text[]))").format(
        is_trusted(sql.SQL(owner)), sql.SQL(owner), sql.Literal(list(listed))
    )


@dataclass(frozen=True, slots=True)
class Guarded:
    """A table that was looked at."""

    oid: int
    steady: bool
    """Whether its name cannot come to mean another one before the transaction ends."""
    referenced: bool = False
    """Whether foreign keys of other rows watch over its own, which a role that may not set
    session_replication_role cannot keep them from."""
    cascades: bool = False
    """Whether these delete or change the other rows when one of its own is deleted."""


def guard(connection: Connection, target: TargetTable, name: TableName | None = None) -> Guarded:
    """Lock the table, and refuse it if it is somebody's who would gain by what we do to it."""
    name = name or target.name
    cursor = connection.execute(
        sql.SQL("{}{}{}").format(
            sql.SQL("set local lock_timeout = {}; ").format(sql.Literal(LONG if target.patient else SHORT)),
            sql.SQL("") if not target.ours and _is_foreign(connection, name) else _lock(name),
            _OWNERS.format(
                schema=sql.Literal(name.schema),
                name=sql.Literal(name.name),
                trusted=trusted("l.relowner", target.trusted),
                steady=trusted("n.nspowner", target.trusted),
            ),
        )
    )
    while cursor.nextset():
        pass
    row = cursor.fetchone()
    if row is None:
        raise TargetUnfit("the table is not at the destination any more", target=name, remedy=_ANEW)
    oid, owner, schema_owner, referenced, cascades = row
    if owner is not None:
        raise _somebodys("table", owner, name, connection)
    if schema_owner is not None and _is_superuser(connection):
        raise _somebodys("schema of the table", schema_owner, name, connection)
    return Guarded(oid, schema_owner is None, referenced, cascades)


def unchanged(connection: Connection, guarded: Guarded, target: TargetTable) -> None:
    """Raise, so that all is rolled back, if it was another table that was written to. While we have it locked
    that one cannot be renamed; but its schema may have had the name for a moment."""
    if guarded.steady:
        return
    row = connection.execute(
        _ANOTHER.format(
            schema=sql.Literal(target.name.schema),
            name=sql.Literal(target.name.name),
            oid=sql.Literal(guarded.oid),
            trusted=trusted("c.relowner", target.trusted),
        )
    ).fetchone()
    if row is not None:
        raise TargetUnfit(
            "another table took its place while it was written to; nothing was",
            target=target.name,
            remedy="See who owns the schema and has renamed it; then `penstock retry CONFIG TABLE`",
        )


def make_target_schema(connection: Connection, target: TargetTable) -> None:
    """Make the schema of a table that is to be made, if it is missing. A superuser makes none in, or for,
    just anybody's."""
    make_schema(connection, target.name.schema)
    if not _is_superuser(connection):
        return
    row = connection.execute(
        sql.SQL("select pg_get_userbyid(nspowner) from pg_namespace where nspname = {} and not {}").format(
            sql.Literal(target.delivery.target.schema), trusted("nspowner", target.trusted)
        )
    ).fetchone()
    if row is not None:
        raise _somebodys("schema of the table", row[0], target.delivery.target, connection)


def mark(connection: Connection, target: TargetTable) -> None:
    """Mark the table as ours, for when nothing else is remembered of it."""
    connection.execute(sql.SQL("comment on table {} is {}").format(target.identifier, sql.Literal(MARK)))


def is_made(connection: Connection, stream: StreamId, target: TargetTable) -> bool:
    """Whether the table that is there was made by us, for a table of the source's that had the name before:
    it is then ours to alter, unless another stream delivers to it as well."""
    row = connection.execute(
        sql.SQL(
            """
            select from pg_class c
            join pg_namespace n on n.oid = c.relnamespace
            where n.nspname = {schema} and c.relname = {name} and c.relkind in ('r', 'p')
              and obj_description(c.oid, 'pg_class') = {mark} and {trusted}
              and not exists (select from penstock.tables
                              where target = {target} and (pipeline, destination, source) <> ({stream}))
            """
        ).format(
            schema=sql.Literal(target.name.schema),
            name=sql.Literal(target.name.name),
            mark=sql.Literal(MARK),
            trusted=trusted("c.relowner", target.trusted),
            target=sql.Literal(str(target.name)),
            stream=sql.SQL(", ").join(map(sql.Literal, stream.key)),
        )
    ).fetchone()
    return row is not None


def check_rows(connection: Connection, endpoint: Endpoint, target: TargetTable) -> None:
    """Raise if the table has rows that are not from us: it must not lose them because somebody at the source
    makes one of that name, unless the operator said that it is meant."""
    if not endpoint.create_tables or endpoint.names(target.delivery.table.name):
        return
    ours = connection.execute(
        """
        select from pg_class c
        join pg_namespace n on n.oid = c.relnamespace
        join pg_roles r on r.oid = c.relowner
        where n.nspname = %(schema)s and c.relname = %(name)s and (
            obj_description(c.oid, 'pg_class') = %(mark)s
            or (r.rolname = current_user and not r.rolsuper)
            or exists (select from penstock.tables
                       where target = %(target)s and schema_version <> %(unwritten)s))
        """,
        {
            "schema": target.name.schema,
            "name": target.name.name,
            "mark": MARK,
            "target": str(target.name),
            "unwritten": UNWRITTEN,
        },
    ).fetchone()
    if ours is not None:
        return
    if connection.execute(sql.SQL("select from {} limit 1").format(target.identifier)).fetchone() is not None:
        raise TargetUnfit(
            "the table at the destination has rows that Penstock did not write, and would lose them",
            target=target.name,
            remedy="If they may go, name the table under `tables` of the destination "
            f"(`{target.delivery.table.name}: {{}}`), or set `create_tables: false`; if not, give the "
            "source's another `target` there; then start again and `penstock retry CONFIG TABLE`",
        )


def check_free(connection: Connection, endpoint: Endpoint, delivery: Delivery) -> None:
    """Raise if another stream arrives at the same table: they would overwrite each other. Tables of one
    stream are kept apart by the stream itself, since names pass from one to another."""
    stream = endpoint.stream(delivery.source)
    row = connection.execute(
        """
        select source_table, pipeline, destination, source from penstock.tables
        where target = %(target)s and schema_version <> %(unwritten)s
          and (pipeline, destination, source) <> (%(pipeline)s, %(destination)s, %(source)s)
          and case when pipeline <> %(pipeline)s then not %(several)s or source = %(source)s
                   when destination = %(destination)s then not %(several)s
                   else destination = any (%(beside)s) end
        limit 1
        """,
        {
            "pipeline": stream.pipeline,
            "destination": stream.destination,
            "source": stream.source,
            "target": str(delivery.target),
            "unwritten": UNWRITTEN,
            "several": endpoint.source_column is not None,
            "beside": list(endpoint.beside),
        },
    ).fetchone()
    if row is None:
        return
    name, pipeline, destination, source = row
    where = f"{name} of source {source} arrives at the same table, by destination {destination}"
    if pipeline == stream.pipeline:
        raise TargetShared(where, target=delivery.target)
    raise TargetShared(
        f"{where} of pipeline {pipeline}",
        target=delivery.target,
        remedy="Give one of them another `target` under `tables` of its destination, or exclude it; if that "
        "pipeline is no more, `delete from penstock.tables where pipeline = …` at the destination. It is "
        "tried again by itself",
    )


def _lock(name: TableName) -> sql.Composable:
    return sql.SQL("lock table {} in row exclusive mode; ").format(sql.Identifier(name.schema, name.name))


def _is_foreign(connection: Connection, name: TableName) -> bool:
    """Whether it is a foreign table, which cannot be locked."""
    row = connection.execute(
        "select from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname = %s and c.relname = %s and c.relkind = 'f'",
        (name.schema, name.name),
    ).fetchone()
    return row is not None


def _is_superuser(connection: Connection) -> bool:
    return connection.info.parameter_status("is_superuser") == "on"


def _somebodys(what: str, owner: str, name: TableName, connection: Connection) -> TargetUnfit:
    superuser = _is_superuser(connection)
    return TargetUnfit(
        f"the {what} at the destination belongs to {owner}, who could have anything run with the rights of "
        f"the role that Penstock connects as{', a superuser' if superuser else ''}",
        target=name,
        remedy=f"Give the {what} to that role, or, if {owner} may have its rights, list it under "
        "`trusted_owners` of the destination; then start again and `penstock retry CONFIG TABLE`",
    )


_ANEW = "`penstock reload CONFIG TABLE` copies it anew"

# The table, who owns it or what rows go on to (partitions, and tables that inherit), and who its schema: if
# it is one whom we do not trust.
_OWNERS = sql.SQL(
    """
    with recursive t as (
        select c.oid, n.oid as schema from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = {schema} and c.relname = {name} and c.relkind in ('r', 'p', 'v', 'm', 'f')
    ), parts as (
        select oid from t union select i.inhrelid from pg_inherits i join parts p on p.oid = i.inhparent
    )
    select t.oid::bigint,
           (select pg_get_userbyid(l.relowner) from pg_class l join parts p on p.oid = l.oid
            where not {trusted} limit 1),
           (select pg_get_userbyid(n.nspowner) from pg_namespace n where n.oid = t.schema and not {steady}),
           coalesce(watched.by_any, false), coalesce(watched.by_acting, false)
    from t
    left join lateral (
        select true as by_any, bool_or(f.confdeltype in ('c', 'n', 'd')) as by_acting
        from pg_trigger g join pg_constraint f on f.oid = g.tgconstraint
        where g.tgrelid = t.oid and f.contype = 'f' and f.confrelid = t.oid
        having count(*) > 0
    ) watched on current_setting('session_replication_role') <> 'replica'
    """
)

# Whether the name means another table by now, or one of that name is locked that is not to be trusted.
_ANOTHER = sql.SQL(
    """
    select where not exists (
        select from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = {schema} and c.relname = {name} and c.oid = {oid})
    or exists (
        select from pg_locks l join pg_class c on c.oid = l.relation
        where l.locktype = 'relation' and l.pid = pg_backend_pid() and l.granted
          and l.mode <> 'AccessShareLock' and c.relname = {name} and c.oid <> {oid} and not {trusted})
    """
)
