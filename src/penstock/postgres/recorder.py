"""The event triggers that record schema changes, made so that nobody gains anything by them.

They run for every DDL command of every role, so what they run must be nobody's but ours:
- The functions are `security definer` and belong to a role that can do nothing else (`penstock_recorder`: no
  login, no attribute, no membership). It may insert into `penstock.ddl_history` and keep `penstock.comments`.
- Whatever they name is qualified, operators too, and their search path has `pg_temp` last: where it is not
  named it comes first, and with it the caller's temporary tables and views.
- What they write to is in a schema of our own: who owns `public` could put his own table there. For people
  there is a view, `public.ddl_history`.
- A schema, table, function, trigger or role of these names that is somebody else's is refused.
- What goes wrong in them is a warning: nobody's command fails for us.

The text of a command may hold a password. It is kept of a few commands in which there is no place for one,
where nothing else stands beside the command, and of no others.
"""

from __future__ import annotations

from contextlib import suppress

import psycopg
from psycopg import sql

from penstock.postgres.connection import Connection
from penstock.postgres.ownership import is_trusted

ROLE = "penstock_recorder"
REFUSED = "PK001"
"""The SQLSTATE with which the script refuses what is somebody else's."""
FUNCTIONS = {"capture_ddl_trigger": "capture_ddl_commands", "capture_ddl_drop_trigger": "capture_ddl_drops"}
"""By event trigger the function that it runs."""

# In these texts ` == ` is PostgreSQL's own equality, whatever else is called `=`.
_EQUALITY = " operator(pg_catalog.=) "

# One of these commands alone, since who sends several at once sends one text for all of them. A constant of
# an unusual kind, or one that looks like a connection or a password, is not looked into.
_TEXT = r"""
    case when pg_catalog.current_query() operator(pg_catalog.~*)
                  '^\s*(alter\s+(table|index|sequence|type|domain)|create\s+(unlogged\s+)?table|comment\s+on'
                  '|create\s+(unique\s+)?index|create\s+(sequence|type|domain)|drop\s+\w+)\s'
          and tg_tag operator(pg_catalog.!~) '^(CREATE TABLE AS|SELECT INTO)$'
          and pg_catalog.strpos(pg_catalog.rtrim(pg_catalog.current_query(), E' \n\r\t;'), ';') == 0
          and pg_catalog.current_query() operator(pg_catalog.!~*)
                  '\$|u&''|\moptions\M|password\s*(=|e?'')|://|(passwd|pwd|secret|token)\s*='
         then pg_catalog.current_query() end
"""

# A partition's changes are published as those of the table that it is a part of; but who owns a partition
# does not own that table, so a comment on the one is no marker for the other.
_COMMANDS = """
declare
    command record;
    of_table pg_catalog.oid;
    root pg_catalog.oid;
    said pg_catalog.text;
begin
    for command in select * from pg_catalog.pg_event_trigger_ddl_commands() loop
        continue when command.in_extension
            or command.schema_name == any (array['penstock', 'cdc_registry', 'pg_temp']);
        of_table := case
            when command.classid == 'pg_catalog.pg_class'::pg_catalog.regclass then
                (select case when c.relkind == any (array['r', 'p']::pg_catalog."char"[]) then c.oid
                             when c.relkind == any (array['i', 'I']::pg_catalog."char"[]) then i.indrelid end
                 from pg_catalog.pg_class c left join pg_catalog.pg_index i on i.indexrelid == c.oid
                 where c.oid == command.objid)
            when command.classid == 'pg_catalog.pg_trigger'::pg_catalog.regclass then
                (select tgrelid from pg_catalog.pg_trigger where oid == command.objid)
            when command.classid == 'pg_catalog.pg_constraint'::pg_catalog.regclass then
                (select conrelid from pg_catalog.pg_constraint where oid == command.objid)
            when command.classid == 'pg_catalog.pg_policy'::pg_catalog.regclass then
                (select polrelid from pg_catalog.pg_policy where oid == command.objid)
            when command.classid == 'pg_catalog.pg_rewrite'::pg_catalog.regclass then
                (select ev_class from pg_catalog.pg_rewrite where oid == command.objid)
        end;
        root := coalesce(pg_catalog.pg_partition_root(of_table), of_table);
        said := null;
        if tg_tag == 'COMMENT' and command.objid == root and command.objsubid == 0 then
            said := coalesce(pg_catalog.obj_description(of_table, 'pg_class'), '');
            if not pg_catalog.starts_with(said, {prefix}) then
                delete from penstock.comments where table_id == of_table;
                insert into penstock.comments (table_id, comment)
                select of_table, said where pg_catalog.char_length(said) operator(pg_catalog.>) 0;
            end if;
        end if;
        insert into penstock.ddl_history (ddl_tag, object_type, schema_name, object_name, object_identity,
                                        command_tag, ddl_command, table_id, comment)
        values (tg_tag, command.object_type, command.schema_name,
                (select relname from pg_catalog.pg_class where oid == command.objid),
                command.object_identity, command.command_tag, {text}, root, said);
    end loop;
exception when others then
    raise warning 'penstock did not record the command: %', sqlerrm;
end
"""

_DROPS = """
declare
    gone record;
begin
    for gone in select * from pg_catalog.pg_event_trigger_dropped_objects() loop
        continue when not gone.original or gone.is_temporary or not pg_catalog.starts_with(tg_tag, 'DROP ')
            or gone.schema_name == any (array['penstock', 'cdc_registry']);
        insert into penstock.ddl_history (ddl_tag, object_type, schema_name, object_name, object_identity,
                                        command_tag, ddl_command, table_id)
        values (tg_tag, gone.object_type, gone.schema_name, gone.object_name, gone.object_identity, tg_tag,
                {text},
                case when gone.object_type == any (array['table', 'table column']) then gone.objid end);
    end loop;
exception when others then
    raise warning 'penstock did not record the command: %', sqlerrm;
end
"""

# Nothing is used before it was looked at, and it is looked at when it cannot become another's any more: in a
# schema that is ours only we make anything. What comes out of `public` is looked at again.
_SCRIPT = """
create schema if not exists penstock;
{check}
drop event trigger if exists capture_ddl_trigger;
drop event trigger if exists capture_ddl_drop_trigger;

do $move$
begin
    if pg_catalog.to_regclass('penstock.ddl_history') is null
       and exists (select from pg_catalog.pg_class c
                   where c.oid == pg_catalog.to_regclass('public.ddl_history') and c.relkind == 'r'
                     and {trusted_table}) then
        alter table public.ddl_history set schema penstock;  -- where an earlier version had it
    end if;
end $move$;
{check}
create table if not exists penstock.ddl_history (
    id              bigint      generated always as identity primary key,
    event_time      timestamptz not null default pg_catalog.clock_timestamp(),
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

do $role$
begin
    create role {role} nologin;
exception when duplicate_object or unique_violation then
    null;
end $role$;

do $check$
begin
    if {unsafe_role} then
        raise exception 'the role {role} can do more than to record, or somebody is a member of it'
            using errcode = '{refused}', hint = 'Drop it, or take that away: it is made anew';
    end if;
    if not (select rolsuper from pg_catalog.pg_roles where rolname == current_user) then
        execute pg_catalog.format('grant {role} to %I', current_user);
    end if;
    if pg_catalog.to_regclass('public.ddl_history') is null then
        create view public.ddl_history as select * from penstock.ddl_history;  -- for people
    end if;
end $check$;

insert into penstock.comments (table_id, comment)
select c.oid, d.description
from pg_catalog.pg_class c
join pg_catalog.pg_description d
  on d.objoid == c.oid and d.classoid == 'pg_catalog.pg_class'::pg_catalog.regclass and d.objsubid == 0
where c.relkind == any (array['r', 'p']::pg_catalog."char"[])
  and not pg_catalog.starts_with(d.description, {prefix})
on conflict do nothing;

revoke all on penstock.ddl_history, penstock.comments from public;
grant usage on schema penstock to {role};
grant insert on penstock.ddl_history to {role};
grant select, insert, delete on penstock.comments to {role};

grant create on schema penstock to {role};
{functions}
revoke create on schema penstock from {role};

{triggers}
"""

_CHECK = """
do $check$
declare
    other record;
begin
    for other in {others} loop
        raise exception 'the % % belongs to %', other.kind, other.name, other.owner
            using errcode = '{refused}',
                  hint = 'If nobody needs it, drop it; if it is of Penstock, give it to a superuser';
    end loop;
end $check$;
"""

_UNSAFE_ROLE = """
    exists (
        select from pg_catalog.pg_roles r where r.rolname == '{role}'
          and (r.rolcanlogin or r.rolsuper or r.rolcreaterole or r.rolcreatedb or r.rolreplication
               or r.rolbypassrls
               or exists (select from pg_catalog.pg_auth_members m where m.member == r.oid)
               or exists (select from pg_catalog.pg_auth_members m
                          where m.roleid == r.oid and not {trusted_member})))
"""

_FUNCTION = """
create or replace function penstock.{name}() returns event_trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $function${body}$function$;
alter function penstock.{name}() owner to {role};
revoke all on function penstock.{name}() from public;
"""

_TRIGGERS = """
create event trigger capture_ddl_trigger on ddl_command_end
    execute function penstock.capture_ddl_commands();
create event trigger capture_ddl_drop_trigger on sql_drop execute function penstock.capture_ddl_drops();
"""

_OTHERS = """
    select 'schema' as kind, n.nspname::pg_catalog.text as name,
           pg_catalog.pg_get_userbyid(n.nspowner) as owner
    from pg_catalog.pg_namespace n
    where n.nspname == 'penstock' and not {trusted_schema}
      and not pg_catalog.pg_get_userbyid(n.nspowner) == {pipeline}
    union all
    select 'table', pg_catalog.format('%I.%I', n.nspname, c.relname), pg_catalog.pg_get_userbyid(c.relowner)
    from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid == c.relnamespace
    where n.nspname == 'penstock' and c.relname == any (array['ddl_history', 'comments'])
      and not {trusted_table}
    union all
    select 'function', pg_catalog.format('%I.%I', n.nspname, p.proname),
           pg_catalog.pg_get_userbyid(p.proowner)
    from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid == p.pronamespace
    where n.nspname == 'penstock' and p.proname == any (array['capture_ddl_commands', 'capture_ddl_drops'])
      and not pg_catalog.pg_get_userbyid(p.proowner) == '{role}' and not {trusted_function}
    union all
    select 'event trigger', e.evtname::pg_catalog.text, pg_catalog.pg_get_userbyid(e.evtowner)
    from pg_catalog.pg_event_trigger e join pg_catalog.pg_proc p on p.oid == e.evtfoid
    join pg_catalog.pg_namespace n on n.oid == p.pronamespace
    where e.evtname == any (array['capture_ddl_trigger', 'capture_ddl_drop_trigger'])
      and n.nspname operator(pg_catalog.<>) 'penstock'
"""


def script(prefix: str, role: str | None = None) -> str:
    """Return the SQL that installs it, for who may create event triggers. Markers begin with the prefix. The
    schema may be that of `role`, which runs the pipeline."""
    marker = sql.Literal(prefix).as_string(None)
    functions = "".join(
        _FUNCTION.format(name=name, body=body, role=ROLE) for name, body in _bodies(prefix).items()
    )
    others = _OTHERS.format(
        role=ROLE,
        pipeline=sql.Literal(role or "").as_string(None),
        trusted_schema=_trusted("n.nspowner"),
        trusted_table=_trusted("c.relowner"),
        trusted_function=_trusted("p.proowner"),
    )
    return _SCRIPT.replace(" == ", _EQUALITY).format(
        check=_CHECK.format(others=others.replace(" == ", _EQUALITY), refused=REFUSED),
        unsafe_role=_unsafe_role(),
        trusted_table=_trusted("c.relowner"),
        refused=REFUSED,
        role=ROLE,
        prefix=marker,
        functions=functions,
        triggers=_TRIGGERS,
    )


def _unsafe_role() -> str:
    """SQL: whether the role is more than it should be."""
    return _UNSAFE_ROLE.replace(" == ", _EQUALITY).format(role=ROLE, trusted_member=_trusted("m.member"))


def _bodies(prefix: str) -> dict[str, str]:
    marker = sql.Literal(prefix).as_string(None)
    text = _TEXT.strip().replace("\n    ", "\n                    ")
    bodies = {"capture_ddl_commands": _COMMANDS, "capture_ddl_drops": _DROPS}
    return {
        name: body.replace("{text}", text).replace(" == ", _EQUALITY).replace("{prefix}", marker)
        for name, body in bodies.items()
    }


def _trusted(owner: str) -> str:
    return is_trusted(sql.SQL(owner)).as_string(None)


def is_current(connection: Connection, prefix: str) -> bool:
    """Whether all of it is there as this version makes it."""
    bodies = _bodies(prefix)
    rows = connection.execute(
        """
        select p.proname, p.prosrc
        from pg_proc p join pg_namespace n on n.oid = p.pronamespace
        where n.nspname = 'penstock' and p.proname = any (%s) and p.prosecdef
          and pg_get_userbyid(p.proowner) = %s and p.proconfig = array['search_path=pg_catalog, pg_temp']
          and not has_function_privilege('public', p.oid, 'execute')
        """,
        (list(bodies), ROLE),
    ).fetchall()
    unsafe = connection.execute(f"select {_unsafe_role()}".encode()).fetchone()
    return dict(rows) == bodies and unsafe == (False,) and is_installed(connection)


def is_installed(connection: Connection) -> bool:
    """Whether the triggers are there, and what they write to is nobody's who could forge it."""
    triggers = connection.execute(
        """
        select e.evtname::text, p.proname::text
        from pg_event_trigger e
        join pg_proc p on p.oid = e.evtfoid
        join pg_namespace n on n.oid = p.pronamespace and n.nspname = 'penstock'
        where e.evtname = any (%s) and e.evtenabled <> 'D'
        """,
        (list(FUNCTIONS),),
    ).fetchall()
    tables = connection.execute(
        sql.SQL(
            """
            select count(*) from pg_class c join pg_namespace n on n.oid = c.relnamespace
            where n.nspname = 'penstock' and c.relname in ('ddl_history', 'comments')
              and c.relkind = 'r' and {}
            """
        ).format(is_trusted(sql.SQL("c.relowner")))
    ).fetchone()
    return dict(triggers) == FUNCTIONS and tables == (2,)


def remove(connection: Connection) -> None:
    """Remove the triggers; what they wrote stays. The role goes with its last database."""
    with connection.transaction():
        for trigger in FUNCTIONS:
            connection.execute(sql.SQL("drop event trigger if exists {}").format(sql.Identifier(trigger)))
        for function in FUNCTIONS.values():
            connection.execute(
                sql.SQL("drop function if exists {}()").format(sql.Identifier("penstock", function))
            )
        connection.execute("drop table if exists penstock.comments")
        connection.execute(sql.SQL("drop owned by {}").format(sql.Identifier(ROLE)))
    with suppress(psycopg.errors.DependentObjectsStillExist):
        connection.execute(sql.SQL("drop role {}").format(sql.Identifier(ROLE)))
