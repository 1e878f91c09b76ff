"""Schema changes as rows: an event trigger writes every DDL command into `public.ddl_history`.

The stream itself has no DDL; that table is published, so its rows come in the stream at the commands' own
places. Comments on tables are among them, and with them the markers of reloads; what a comment was before a
marker took its place is kept in `penstock.comments`.

The functions run with the rights of whoever installed them, whoever alters a table. What goes wrong in them
is a warning: nobody's command fails for us.
"""

from __future__ import annotations

import psycopg
from psycopg import sql

from penstock.model import TableId
from penstock.model.errors import NotReady
from penstock.postgres.connection import Connection, explain

_TABLES = """
create schema if not exists penstock;

create table if not exists public.ddl_history (
    id              bigint      generated always as identity primary key,
    event_time      timestamptz not null default clock_timestamp(),
    ddl_tag         text,
    object_type     text,
    schema_name     text,
    object_name     text,
    object_identity text,
    command_tag     text,
    ddl_command     text,
    table_id        bigint,
    comment         text
);

create table if not exists penstock.comments (
    table_id oid  primary key,
    comment  text not null
);

insert into penstock.comments
select c.oid, d.description
from pg_class c
join pg_description d on d.objoid = c.oid and d.classoid = 'pg_class'::regclass and d.objsubid = 0
where c.relkind in ('r', 'p') and not starts_with(d.description, {prefix})
on conflict do nothing;
"""

# Of a subscription, a user mapping or a role, the command may hold a password.
_COMMAND = r"case when current_query() !~* '\mpassword\s*(=|e?'')' then current_query() end"

# A partition's changes are published as those of the table that it is a part of.
_FUNCTIONS = """
create or replace function penstock.capture_ddl_commands() returns event_trigger
language plpgsql security definer set search_path = pg_catalog as $function$
declare
    command record;
    of_table oid;
    said text;
begin
    for command in select * from pg_event_trigger_ddl_commands() loop
        continue when command.in_extension or command.schema_name in ('penstock', 'cdc_registry', 'pg_temp');
        of_table := case command.classid
            when 'pg_class'::regclass then
                (select case when c.relkind in ('r', 'p') then c.oid
                             when c.relkind in ('i', 'I') then i.indrelid end
                 from pg_class c left join pg_index i on i.indexrelid = c.oid
                 where c.oid = command.objid)
            when 'pg_trigger'::regclass then (select tgrelid from pg_trigger where oid = command.objid)
            when 'pg_constraint'::regclass then (select conrelid from pg_constraint where oid = command.objid)
            when 'pg_policy'::regclass then (select polrelid from pg_policy where oid = command.objid)
            when 'pg_rewrite'::regclass then (select ev_class from pg_rewrite where oid = command.objid)
        end;
        said := null;
        if tg_tag = 'COMMENT' and command.objid = of_table and command.objsubid = 0 then
            said := coalesce(obj_description(of_table, 'pg_class'), '');
            if not starts_with(said, {prefix}) then
                delete from penstock.comments where table_id = of_table;
                insert into penstock.comments select of_table, said where said <> '';
            end if;
        end if;
        insert into public.ddl_history (ddl_tag, object_type, schema_name, object_name, object_identity,
                                        command_tag, ddl_command, table_id, comment)
        values (tg_tag, command.object_type, command.schema_name,
                (select relname from pg_class where oid = command.objid), command.object_identity,
                command.command_tag, {command}, coalesce(pg_partition_root(of_table), of_table), said);
    end loop;
exception when others then
    raise warning 'penstock did not record the command: %', sqlerrm;
end $function$;

create or replace function penstock.capture_ddl_drops() returns event_trigger
language plpgsql security definer set search_path = pg_catalog as $function$
declare
    gone record;
begin
    for gone in select * from pg_event_trigger_dropped_objects() loop
        continue when not gone.original or gone.is_temporary or tg_tag not like 'DROP %'
            or gone.schema_name in ('penstock', 'cdc_registry');
        insert into public.ddl_history (ddl_tag, object_type, schema_name, object_name, object_identity,
                                        command_tag, ddl_command, table_id)
        values (tg_tag, gone.object_type, gone.schema_name, gone.object_name, gone.object_identity,
                tg_tag, {command},
                case when gone.object_type in ('table', 'table column') then gone.objid end);
    end loop;
exception when others then
    raise warning 'penstock did not record the command: %', sqlerrm;
end $function$;
"""

_TRIGGERS = """
create event trigger capture_ddl_trigger on ddl_command_end
    execute function penstock.capture_ddl_commands();
create event trigger capture_ddl_drop_trigger on sql_drop execute function penstock.capture_ddl_drops();
"""


def install(connection: Connection, prefix: str) -> bool:
    """Make what is missing; False if the role may not. Markers of reloads begin with the prefix."""
    marker = sql.Literal(prefix).as_string(connection)
    try:
        with connection.transaction():
            connection.execute("select pg_advisory_xact_lock(hashtext('penstock.ddl_history'))")
            connection.execute(_TABLES.replace("{prefix}", marker).encode())
            functions = _FUNCTIONS.replace("{prefix}", marker).replace("{command}", _COMMAND)
            connection.execute(functions.encode())
            if not is_installed(connection):
                connection.execute(_TRIGGERS.encode())
    except psycopg.errors.InsufficientPrivilege:
        return False
    except psycopg.Error as error:
        raise explain(error) from None
    return True


def is_installed(connection: Connection) -> bool:
    found = connection.execute(
        "select count(*) from pg_event_trigger"
        " where evtname in ('capture_ddl_trigger', 'capture_ddl_drop_trigger') and evtenabled <> 'D'"
    ).fetchone()
    return found == (2,)


def denied() -> NotReady:
    return NotReady(
        "the role may not create event triggers",
        remedy="Use a superuser, or ddl_capture: auto, which does without where it has to",
    )


def remove(connection: Connection) -> bool:
    """Take the triggers away, if there are any and nobody publishes the history any more; it stays."""
    used = connection.execute(
        "select from pg_publication_tables where (schemaname, tablename) = ('public', 'ddl_history')"
    ).fetchone()
    if used is not None or not is_installed(connection):
        return False
    with connection.transaction():
        for trigger in ("capture_ddl_trigger", "capture_ddl_drop_trigger"):
            connection.execute(sql.SQL("drop event trigger if exists {}").format(sql.Identifier(trigger)))
        connection.execute("drop function if exists penstock.capture_ddl_commands()")
        connection.execute("drop function if exists penstock.capture_ddl_drops()")
        connection.execute("drop table if exists penstock.comments")
    return True


def marked(connection: Connection, prefix: str) -> list[tuple[TableId, str | None]]:
    """The tables whose comment is a marker now, and the comment that they had before."""
    rows = connection.execute(
        """
        select c.oid::bigint, s.comment
        from pg_description d
        join pg_class c on c.oid = d.objoid and c.relkind in ('r', 'p')
        left join penstock.comments s on s.table_id = c.oid
        where d.classoid = 'pg_class'::regclass and d.objsubid = 0 and starts_with(d.description, %s)
        """,
        (prefix,),
    ).fetchall()
    return [(TableId(id), comment) for id, comment in rows]


def set_comment(connection: Connection, table: TableId, text: str | None) -> bool:
    """Put a comment on a table; False if it is not the role's to do, or if there is no such table."""
    try:
        while name := _name(connection, table):
            with connection.transaction():
                if _comment(connection, name, text) and _name(connection, table) == name:
                    return True
                raise psycopg.Rollback
    except psycopg.errors.InsufficientPrivilege:
        return False
    except psycopg.Error as error:
        raise explain(error).at(table=table) from None
    return False


def _name(connection: Connection, table: TableId) -> tuple[str, str] | None:
    return connection.execute(
        "select n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where c.oid = %s",
        (table,),
    ).fetchone()


def _comment(connection: Connection, name: tuple[str, str], text: str | None) -> bool:
    """False if the table has another name by now. If it was given to another one, the caller sees that: the
    lock that this takes keeps it from being renamed once more."""
    statement = sql.SQL("comment on table {} is {}").format(sql.Identifier(*name), sql.Literal(text))
    try:
        connection.execute(statement)
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return False
    return True
