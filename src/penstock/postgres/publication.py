"""The publication: made for the configured tables and kept in step with them.

Penstock alters only what it made. It remembers that in the publication itself, as its comment, which
survives dumps, upgrades and the loss of our state. A publication without that comment belongs to somebody
else, and is used as it is; so is one for all tables. One of an ordinary role's is refused where we would have
made it ourselves: its owner would choose what we publish.

Tables come and go, and are locked, while we look: one that cannot be added does not keep the others out.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import psycopg
from psycopg import sql

from penstock.model import TableId, TableName
from penstock.model.errors import AccessDenied, ConnectionFailed, NotReady, PublicationMissing
from penstock.postgres.connection import Connection, explain
from penstock.postgres.ownership import is_trusted
from penstock.postgres.refusals import Refusals

MARK = "managed by penstock"

REMEDY = (
    "A publication needs CREATE on the database and ownership of its tables: grant them, "
    "or let their owner make the publication and set create_publication: false; "
    "`penstock grant` prints the SQL for both"
)

ACTIONS = ("insert", "update", "delete", "truncate")
SET_ALL = f"Run `alter publication … set (publish = '{', '.join(ACTIONS)}')`"

_LOCKED = "somebody holds a lock on it. It is tried again"
_PATIENCE = 2
"""So many locks are waited for in one look."""


@dataclass(frozen=True, slots=True)
class Publication:
    id: int
    name: str
    all_tables: bool
    via_partition_root: bool
    ours: bool
    """Whether Penstock made it and may alter it."""
    generated_columns: bool
    """Whether it publishes stored generated columns (18 and later)."""
    actions: frozenset[str]
    """Of insert, update, delete, truncate: those that it publishes."""
    owner: str
    trusted: bool
    """Whether its owner is the pipeline's role, or one above it."""
    written: str
    """The transaction that made it or last changed what it publishes, if not of which tables."""

    @property
    def unpublished(self) -> tuple[str, ...]:
        """The actions that it leaves out."""
        return tuple(action for action in ACTIONS if action not in self.actions)

    @property
    def is_ours_to_alter(self) -> bool:
        return self.ours and not self.all_tables

    def is_whole(self, version: int) -> bool:
        """Whether it publishes all that one of ours does on a server of this version."""
        return not self.unpublished and (self.generated_columns or version < 180000)

    def refuse_if_a_strangers(self) -> None:
        if not self.trusted:
            raise NotReady(
                f"the publication {self.name} belongs to {self.owner}, who would choose what is published",
                remedy="If nobody needs it, drop it; or give it to the role that runs the pipeline: alter "
                "publication … owner to …; or set create_publication: false to use it as it is",
            )


@dataclass(frozen=True, slots=True)
class PublishedTable:
    table: TableName
    columns: tuple[str, ...]
    row_filter: str | None


def describe(connection: Connection, name: str) -> Publication | None:
    row = connection.execute(
        sql.SQL(
            """
        select oid::int8, pubname, puballtables, pubviaroot,
               coalesce(obj_description(oid, 'pg_publication') = %s, false),
               coalesce(to_jsonb(p) ->> 'pubgencols' = 's', false),
               array_remove(array[
                   case when pubinsert then 'insert' end, case when pubupdate then 'update' end,
                   case when pubdelete then 'delete' end, case when pubtruncate then 'truncate' end], null),
               pg_get_userbyid(pubowner), coalesce({}, false), xmin::text
        from pg_publication p
        where pubname = %s
        """
        ).format(is_trusted(sql.SQL("pubowner"))),
        (MARK, name),
    ).fetchone()
    if row is None:
        return None
    id, _, for_all, via_root, marked, generated, actions, owner, trusted, written = row
    ours = marked and trusted
    return Publication(
        id, name, for_all, via_root, ours, generated, frozenset(actions), owner, trusted, written
    )


def tables(
    connection: Connection, name: str, only: Collection[TableId] | None = None, *, filters: bool = False
) -> list[PublishedTable]:
    """Return what is published, in effect: schemas, partitions and column lists settled; all of it, or
    those tables that are asked for. To tell their row filters waits for tables that are locked."""
    rows = connection.execute(
        (_TABLES_15 if connection.info.server_version >= 150000 else _TABLES_14).encode(),
        {"name": name, "only": None if only is None else list(only), "filters": filters},
    )
    return [PublishedTable(TableName(row[0], row[1]), tuple(row[2] or ()), row[3]) for row in rows]


# What `pg_publication_tables` says: that view opens the tables, so that it waits for one that is locked and
# fails for one that is dropped meanwhile. So does whoever asks for a row filter.
_TABLES = """
    with recursive p as (
        select oid, puballtables, pubviaroot, to_jsonb(q) ->> 'pubgencols' = 's' as generated
        from pg_publication q where pubname = %(name)s
    ), own (oid, numbers, condition) as ({own}
    ), schemas (oid) as ({schemas}
    ), listed (oid) as (
        select oid from own
        union
        select c.oid from p cross join pg_class c
        where (p.puballtables or c.relnamespace in (select oid from schemas))
          and c.relkind in ('r', 'p') and c.relpersistence = 'p' and c.oid >= 16384
    ), tree (oid) as (
        select oid from listed
        union
        select i.inhrelid
        from p cross join tree
        join pg_class above on above.oid = tree.oid and above.relkind = 'p'
        join pg_inherits i on i.inhparent = above.oid and not i.inhdetachpending
        where not p.pubviaroot
    )
    select n.nspname, c.relname,
           (select array_agg(a.attname::text order by a.attnum) from pg_attribute a
            where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
              and case when own.numbers is null or c.relnamespace in (select oid from schemas)
                       then a.attgenerated = '' or (a.attgenerated = 's' and p.generated)
                       else a.attnum = any (own.numbers) end),
           case when %(filters)s and c.relnamespace not in (select oid from schemas)
                then pg_get_expr(own.condition, c.oid) end
    from p cross join tree
    join pg_class c on c.oid = tree.oid
    join pg_namespace n on n.oid = c.relnamespace
    left join own on own.oid = c.oid
    where (%(only)s::oid[] is null or c.oid = any (%(only)s))
      and case when p.pubviaroot
               then not c.relispartition or not exists (
                        select from pg_partition_ancestors(c.oid) a (oid)
                        where a.oid <> c.oid and a.oid in (select oid from listed))
               else c.relkind <> 'p' end
    order by 1, 2
"""

_TABLES_15 = _TABLES.format(
    own="""
        select r.prrelid, r.prattrs::int2[], r.prqual
        from p join pg_publication_rel r on r.prpubid = p.oid""",
    schemas="""
        select s.pnnspid from p join pg_publication_namespace s on s.pnpubid = p.oid""",
)
_TABLES_14 = _TABLES.format(
    own="""
        select r.prrelid, null::int2[], null::pg_node_tree
        from p join pg_publication_rel r on r.prpubid = p.oid""",
    schemas="""
        select null::oid where false""",
)


def ensure(
    connection: Connection,
    name: str,
    tables: Iterable[TableName],
    *,
    create: bool,
    via_partition_root: bool = True,
    refusals: Refusals | None = None,
) -> list[str]:
    """Make the publication, or bring its tables and options in step; return what was done, in sentences."""
    wanted, refusals = set(tables), refusals or Refusals()
    existing = describe(connection, name)
    if existing is None and not create:
        raise PublicationMissing("the publication does not exist", publication=name)
    if not create:
        return []
    if existing is not None:
        existing.refuse_if_a_strangers()
    if existing is not None and not existing.ours:
        return [f"publication {name} is used as it is: Penstock did not make it"]
    if existing is not None and existing.all_tables:
        return [f"publication {name} is used as it is: it is for all tables"]
    try:
        if existing is not None:
            completed = complete(connection, existing, refusals)
            return [*completed, *_adjust(connection, name, wanted, refusals)]
        with connection.transaction():
            _create(connection, name, via_partition_root)
        added, left = _alter(connection, name, "add", wanted, refusals)
        return [f"created publication {name} (tables: {len(added)})", *left]
    except psycopg.Error as error:
        explained = explain(error)
        if isinstance(explained, AccessDenied):
            explained = AccessDenied(explained.reason, remedy=REMEDY)
        raise explained.at(publication=name) from None


def complete(connection: Connection, existing: Publication, refusals: Refusals) -> list[str]:
    """Have one of ours publish again what somebody, or an upgrade of the server, had it leave out."""
    if not existing.is_ours_to_alter or existing.is_whole(connection.info.server_version):
        return []
    if existing.name in refusals.standing():
        return [refusals.standing()[existing.name]]
    publication = sql.Identifier(existing.name)
    statement = sql.SQL("alter publication {} set ({})").format(publication, _options(connection))
    why = _refusal(connection, statement)
    if why is None:
        return [f"publication {existing.name} publishes everything again: its options were other ones"]
    sentence = f"publication {existing.name} does not publish everything: {why}"
    refusals.note(existing.name, sentence)
    return [sentence]


def drop(connection: Connection, name: str) -> bool:
    """Remove the publication if it is ours; False if it is not, or not there."""
    existing = describe(connection, name)
    if existing is None or not existing.ours:
        return False
    connection.execute(sql.SQL("drop publication {}").format(sql.Identifier(name)))
    return True


def _create(connection: Connection, name: str, via_partition_root: bool) -> None:
    publication = sql.Identifier(name)
    connection.execute(
        sql.SQL("create publication {} with ({}, publish_via_partition_root = {})").format(
            publication, _options(connection), sql.Literal(via_partition_root)
        )
    )
    connection.execute(sql.SQL("comment on publication {} is {}").format(publication, sql.Literal(MARK)))


def _options(connection: Connection) -> sql.Composed:
    options = sql.SQL("publish = {}").format(sql.Literal(", ".join(ACTIONS)))
    if connection.info.server_version < 180000:
        return options
    return options + sql.SQL(", publish_generated_columns = stored")


def _adjust(connection: Connection, name: str, wanted: set[TableName], refusals: Refusals) -> list[str]:
    rows = connection.execute(
        """
        select n.nspname, c.relname
        from pg_publication_rel r
        join pg_publication p on p.oid = r.prpubid
        join pg_class c on c.oid = r.prrelid
        join pg_namespace n on n.oid = c.relnamespace
        where p.pubname = %s
        """,
        (name,),
    )
    present = {TableName(*row) for row in rows}
    added, left = _alter(connection, name, "add", wanted - present, refusals)
    removed, kept = _alter(connection, name, "drop", present - wanted, refusals)
    changes = ((added, "added to"), (removed, "removed from"))
    done = [
        f"{', '.join(map(str, sorted(names)))} {how} publication {name}" for names, how in changes if names
    ]
    return [*done, *left, *kept]


def _alter(
    connection: Connection, name: str, verb: str, tables: set[TableName], refusals: Refusals
) -> tuple[set[TableName], list[str]]:
    """Return which tables were added (or dropped), and why others were not, in sentences. All at once, or
    each where one of them is refused or has to be waited for. What is locked is tried again at the next look,
    what was refused for another reason later."""
    standing = {table: why for table, why in refusals.standing().items() if table in tables}
    left, alone = _busy(connection, tables - standing.keys()) if tables - standing.keys() else ({}, set())
    free = tables - standing.keys() - left.keys()
    if free - alone and _change_together(connection, name, verb, free - alone) is not None:
        alone = free
    waited = 0
    for table in sorted(alone, key=lambda _: random.random()):  # in any order: none is always the last
        why = _change(connection, name, verb, {table}) if waited < _PATIENCE else _LOCKED
        if why is not None:
            left[table] = why
            waited += why == _LOCKED
    outcome = "is left out" if verb == "add" else f"stays in publication {name}"
    sentences = {table: f"{table} {outcome}: {why}" for table, why in left.items()}
    for table, why in left.items():
        if why != _LOCKED:
            refusals.note(table, sentences[table])
    told = sorted({**sentences, **{table: standing[table] for table in tables & standing.keys()}}.items())
    return tables - left.keys() - standing.keys(), [sentence for _, sentence in told]


def _change(connection: Connection, name: str, verb: str, tables: set[TableName]) -> str | None:
    """Change which tables are published; return the reason if it was refused."""
    statement = sql.SQL("alter publication {} {} table {}")
    return _refusal(connection, statement.format(sql.Identifier(name), sql.SQL(verb), _listed(tables)))


def _change_together(connection: Connection, name: str, verb: str, tables: set[TableName]) -> str | None:
    """Do the same, hardly waiting: a session that waits for a table which we have, while we wait for one that
    it has, would be ended by its own look for a deadlock."""
    with connection.transaction():
        connection.execute("set local lock_timeout = '10ms'")
        return _change(connection, name, verb, tables)


def _refusal(connection: Connection, statement: sql.Composed) -> str | None:
    """Execute the statement; return the reason if it was refused."""
    try:
        with connection.transaction():
            connection.execute(statement)
    except psycopg.Error as error:
        failure = explain(error)
        if connection.closed or isinstance(failure, ConnectionFailed):
            raise
        if isinstance(error, psycopg.errors.LockNotAvailable):
            return _LOCKED
        if isinstance(error, psycopg.errors.InvalidParameterValue):  # it names a table, and quotes no row
            return ". ".join(filter(None, (error.diag.message_primary, error.diag.message_detail)))
        return f"{failure.reason}. {REMEDY}" if isinstance(failure, AccessDenied) else failure.reason
    return None


def _busy(connection: Connection, tables: set[TableName]) -> tuple[dict[TableName, str], set[TableName]]:
    """Return the tables with a lock, held or waited for, that ours would have to wait for. Of those that
    are being vacuumed one, the second answer, is tried all the same: autovacuum gives way, but only to who
    waits."""
    rows = connection.execute(
        """
        select n.nspname, c.relname, bool_or(l.mode <> 'ShareUpdateExclusiveLock')
        from pg_locks l
        join pg_class c on c.oid = l.relation
        join pg_namespace n on n.oid = c.relnamespace
        where l.locktype = 'relation' and l.pid is distinct from pg_backend_pid()
          and l.database = (select d.oid from pg_database d where d.datname = current_database())
          and l.mode in ('ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
                         'AccessExclusiveLock')
        group by 1, 2
        """
    ).fetchall()
    busy = {table: for_long for *name, for_long in rows if (table := TableName(*name)) in tables}
    vacuumed = [table for table, for_long in busy.items() if not for_long]
    tried = {random.choice(vacuumed)} if vacuumed else set()
    return {table: _LOCKED for table in busy if table not in tried}, tried


def _listed(names: Iterable[TableName]) -> sql.Composed:
    """`only` keeps inheritance children out: they are tables of their own, chosen by their own names."""
    return sql.SQL(", ").join(
        sql.SQL("only {}").format(sql.Identifier(table.schema, table.name)) for table in sorted(names)
    )
