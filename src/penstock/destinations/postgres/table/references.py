"""Foreign keys at the destination that act: they delete or change rows of other tables with those of a table.

A role that may set session_replication_role writes without them. For another they are at work as for any
writer; what the source deletes, they may follow. But rows that the source still has must not go because a
table is emptied or copied anew.
"""

from __future__ import annotations

from psycopg import sql

from penstock.destinations.postgres.table.target_table import TargetTable, both
from penstock.model import TableName
from penstock.model.errors import DestinationBusy
from penstock.postgres.connection import Connection

_ACTING = """
    select n.nspname, c.relname, array(
        select a.attname::text from pg_attribute a where a.attrelid = c.oid and a.attnum = any (f.conkey)),
           has_table_privilege(c.oid, 'select')
    from pg_constraint f
    join pg_class c on c.oid = f.conrelid
    join pg_namespace n on n.oid = c.relnamespace
    join pg_class t on t.oid = f.confrelid
    join pg_namespace s on s.oid = t.relnamespace
    where f.contype = 'f' and f.confdeltype in ('c', 'n', 'd') and f.conrelid <> f.confrelid
      and s.nspname = %s and t.relname = %s
"""


def refuse_if_children(connection: Connection, target: TargetTable) -> None:
    """Raise if rows of other tables reference the table's rows, or we may not see whether they do. Where the
    source emptied those as well, they are empty the next time."""
    for schema, name, columns, readable in connection.execute(
        _ACTING, (target.name.schema, target.name.name)
    ).fetchall():
        referencing = both(sql.SQL("{} is not null").format(sql.Identifier(column)) for column in columns)
        child = sql.SQL("select from {} where {} limit 1").format(sql.Identifier(schema, name), referencing)
        if not readable or connection.execute(child).fetchone() is not None:
            raise DestinationBusy(
                f"it was emptied at the source, and a foreign key of {TableName(schema, name)} at the "
                "destination would delete or change the rows there that reference it",
                target=target.name,
                remedy="It is tried again by itself, when no row references it. Drop the foreign key, or run "
                "as a superuser: grant set on parameter session_replication_role to …",
            )
