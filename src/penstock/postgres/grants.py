"""What a role needs at a source, as SQL for a DBA: `penstock grant`.

A role that captures needs surprisingly little: to log in, to replicate, to read the tables that are copied
(of a partitioned one its partitions, which are read one by one), and somewhere to keep its own tables where
files are delivered. To make the publication takes more, the rights of the tables' owners: it is better made
by a DBA.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql

from penstock.config import TablesConfig
from penstock.config.tables import FORMER_HISTORY, HISTORY, SYSTEM_SCHEMAS, expressions
from penstock.model import TableName
from penstock.postgres import recorder
from penstock.postgres.identity import is_told
from penstock.postgres.providers import Ways
from penstock.postgres.script import Script

OWN = "penstock"
"""The schema of ledger, state and recorded comments."""
LEDGER = ("streams", "tables", "copies", "copied")


@dataclass(frozen=True, slots=True)
class SourceNeeds:
    role: str
    ways: Ways
    publication: str
    publishes: bool
    """Whether the role makes the publication itself."""
    marker: str | None
    """How markers of reloads begin, if event triggers record schema changes."""
    schemas: Mapping[str, Sequence[str]]
    """Where the role keeps tables of its own, and which; all that there are where none are named."""


# The tables that are captured, and the partitions of which their rows are copied.
_CHOSEN = sql.SQL("""\
with matched as (
    select c.oid, c.relkind, c.relpersistence
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    where c.relkind in ('r', 'p', 'f') and c.relpersistence <> 't'
    and {condition}
), captured as (
    select m.oid
    from matched m
    where m.relkind <> 'f' and m.relpersistence = 'p' and not exists (
        select from pg_partition_ancestors(m.oid) a
        where a.relid <> m.oid and a.relid in (select oid from matched))
)
select n.nspname as schema, c.relname as name, c.oid in (select oid from captured) as captured,
       c.relrowsecurity as row_security, c.relforcerowsecurity as forced,
       o.rolname as owner, o.rolsuper as of_superuser, s.rolname as schema_owner,
       leaves.told, leaves.told_without_stored
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
join pg_roles o on o.oid = c.relowner
join pg_roles s on s.oid = n.nspowner
cross join lateral (
    select bool_and(l.relkind = 'r' and l.relpersistence = 'p' and {is_told}) as told,
           bool_and(l.relkind = 'r' and l.relpersistence = 'p' and {is_told_without_stored})
               as told_without_stored
    from pg_class l
    where l.relkind <> 'p' and (l.oid = c.oid or l.oid in (select t.relid from pg_partition_tree(c.oid) t))
) leaves
where c.oid in (select oid from captured)
   or c.relkind = 'r' and c.oid in (
          select t.relid from captured p, pg_partition_tree(p.oid) t where t.isleaf)""")

_ROLE = sql.SQL("""\
select format('create role %I login', {role})
where not exists (select from pg_roles where rolname = {role})""")

_ATTRIBUTES = sql.SQL("""\
select format('alter role %I with%s', {role}, attributes)
from concat({replication},
            case when exists (select from chosen where {hides}) then ' bypassrls' end) attributes
where attributes <> ''""")

_USAGE = sql.SQL("""\
select format('grant usage on schema %I to %I', schema, {role})
from chosen where {needed}
group by schema order by schema""")

_SELECT = sql.SQL("""\
select format('grant select on table %I.%I to %I', schema, name, {role})
from chosen order by schema, name""")

_LATER = sql.SQL("""\
select format('alter default privileges for role %I in schema %I grant select on tables to %I;',
              owner, schema, {role})
from chosen group by owner, schema order by owner, schema""")

_IS_SUPERUSER = sql.SQL("""\
select format('%I is a superuser and needs none of this. Give the pipeline a role of its own: --role', {role})
from pg_roles where rolname = {role} and rolsuper""")

_FOREIGN = sql.SQL("""\
select format('Beware: the schema %I belongs to %I, who can replace what is in it', {schema}, r.rolname)
from pg_namespace n join pg_roles r on r.oid = n.nspowner
where n.nspname = {schema} and not r.rolsuper and not r.rolcreaterole
  and r.rolname not in ({role}, 'penstock_recorder')""")

# Tables of ours that another role made before.
_TAKE_OVER = sql.SQL("""\
select format('grant select, insert, update, delete on table %I.%I to %I', n.nspname, c.relname, {role})
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = {schema} and c.relkind = 'r' and pg_get_userbyid(c.relowner) <> {role}
  and {ours}
order by c.relname""")

# Whether the table can be followed in the publication as it is there, or will be made.
_FIT = sql.SQL("""\
coalesce(case when exists (select from pg_publication q
                           where q.pubname = {publication}
                             and coalesce(to_jsonb(q) ->> 'pubgencols', '') <> 's')
         then told_without_stored else told end, true)""")

_PUBLICATION = sql.SQL("""\
select format('create publication %I for table %s%s with '
                  '(publish = %L, publish_via_partition_root = true%s)',
              {publication}, string_agg(format('only %I.%I', schema, name), ', ' order by schema, name),
              {history}, 'insert, update, delete, truncate',
              case when current_setting('server_version_num')::int >= 180000
                   then ', publish_generated_columns = stored' else '' end)
from chosen where captured and {fit}
having count(*) > 0 and not exists (select from pg_publication where pubname = {publication})""")

_PUBLISH_MORE = sql.SQL("""\
select format('alter publication %I add table only %I.%I', {publication}, schema, name)
from chosen c
where captured and {fit} and exists (select from pg_publication where pubname = {publication})
  and not exists (
    select from pg_publication_tables p
    where p.pubname = {publication} and (
        (p.schemaname, p.tablename) = (c.schema, c.name)
        or format('%I.%I', p.schemaname, p.tablename)::regclass in (
            select relid from pg_partition_tree(format('%I.%I', c.schema, c.name)::regclass))))
order by schema, name""")

_UNFIT = sql.SQL("""\
select format('%I.%I is left out: it has no replica identity (a deferrable key is none, nor one with columns '
                  'that are not published), or a partition that is foreign or unlogged. Once it is published '
                  'its updates and deletes would fail, or be missed; `penstock check` says why', schema, name)
from chosen where captured and not {fit} order by schema, name""")

_SILENT = sql.SQL("""\
select format('Beware: %I does not publish everything, and no table can be followed by it. Run: '
                  'alter publication %I set (publish = %L)',
              pubname, pubname, 'insert, update, delete, truncate')
from pg_publication
where pubname = {publication} and not (pubinsert and pubupdate and pubdelete and pubtruncate)""")

_PUBLISHED = sql.SQL("""\
select format('%I is there%s.', pubname, case when puballtables then ', for all tables' else '' end)
from pg_publication where pubname = {publication}""")

_PUBLISH_HISTORY = sql.SQL("""\
select format('alter publication %I add table only penstock.ddl_history', {publication})
where exists (select from pg_publication where pubname = {publication}) and not exists (
    select from pg_publication_tables
    where pubname = {publication} and (schemaname, tablename) = ('penstock', 'ddl_history'))""")

_OWNERS = sql.SQL("""\
select format('grant %I to %I%s', owner, {role},
              case when current_setting('server_version_num')::int >= 160000
                   then ' with inherit true, set false' else '' end)
from chosen where not of_superuser and owner <> {role}
group by owner order by owner""")

_OF_SUPERUSERS = sql.SQL("""\
select format('%I.%I belongs to the superuser %I, whose rights nobody else should have: '
                  'give it another owner, or let a DBA make the publication', schema, name, owner)
from chosen where of_superuser order by schema, name""")


def chosen(condition: sql.Composable) -> sql.Composable:
    """Return a query of the tables that meet a condition over `c`, the class, and `n`, its namespace."""
    stored = "current_setting('server_version_num')::int >= 180000"  # in a publication as it is made here
    return _CHOSEN.format(
        condition=condition,
        is_told=sql.SQL(is_told("l", stored)),
        is_told_without_stored=sql.SQL(is_told("l", "false")),
    )


def matched(selection: TablesConfig) -> sql.Composable:
    """Return the configuration's choice of tables as a condition for `chosen`."""
    ours = [
        *(_like(schema) for schema in (expressions(f"{name}.*")[0] for name in SYSTEM_SCHEMAS)),
        *_in_schemas(sorted(selection.registries)),
        _named(FORMER_HISTORY),
    ]
    added = [_named(table) for table, captured in sorted(selection.decided.items()) if captured]
    removed = [_named(table) for table, captured in sorted(selection.decided.items()) if not captured]
    wanted = [*_like_any(selection.include), *_in_schemas(selection.include_schemas)]
    unwanted = [*_like_any(selection.exclude), *_in_schemas(selection.exclude_schemas)]
    either = sql.SQL("\n        or ")
    listed = either.join(wanted) if wanted else sql.SQL("true")
    if added:  # before what the file leaves out
        kept = sql.SQL("not ({})").format(either.join(unwanted)) if unwanted else sql.SQL("true")
        listed = either.join([sql.SQL("({}) and {}").format(listed, kept), *added])
        unwanted = []
    return sql.SQL("({})\n    and not ({})").format(listed, either.join([*ours, *unwanted, *removed]))


def _named(table: TableName) -> sql.Composable:
    return sql.SQL("(n.nspname, c.relname) = ({}, {})").format(
        sql.Literal(table.schema), sql.Literal(table.name)
    )


def _like_any(patterns: Iterable[str]) -> list[sql.Composable]:
    return [_like(*expressions(pattern)) for pattern in patterns]


def _like(schema: str, table: str = "") -> sql.Composable:
    in_schema = sql.SQL("n.nspname ~ {}").format(sql.Literal(schema))
    return sql.SQL("{} and c.relname ~ {}").format(in_schema, sql.Literal(table)) if table else in_schema


def _in_schemas(schemas: Iterable[str]) -> list[sql.Composable]:
    return [sql.SQL("n.nspname = {}").format(sql.Literal(schema)) for schema in schemas]


def source(script: Script, needs: SourceNeeds) -> None:
    """Write everything that the role needs at a source."""
    make_role(script, needs.role)
    _attributes(script, needs)
    connect(script, needs.role)
    _reading(script, needs)
    if needs.marker is not None:
        script.blank()
        script.note(
            "Event triggers record schema changes, for whoever makes them, with no rights beyond that."
        )
        if needs.ways.triggers:
            script.note(needs.ways.triggers)
        script.text(recorder.script(needs.marker, needs.role))
    own_schemas(script, needs.role, needs.schemas)
    if needs.marker is not None:
        _comments(script, needs)
    script.blank()
    (_published_by_role if needs.publishes else _published_by_dba)(script, needs)


def make_role(script: Script, role: str) -> None:
    script.note("The role. No password stands here: set it with psql's \\password, which sends it hashed.")
    script.run(_ROLE.format(role=sql.Literal(role)))
    script.remark(_IS_SUPERUSER.format(role=sql.Literal(role)))


def connect(script: Script, role: str, also: str = "") -> None:
    statement = sql.Literal(f"grant connect{also} on database %I to %I")
    script.run(sql.SQL("select format({}, current_database(), {})").format(statement, sql.Literal(role)))


def own_schemas(script: Script, role: str, schemas: Mapping[str, Sequence[str]]) -> None:
    """Where Penstock keeps tables of its own, which the role makes."""
    for schema, tables in schemas.items():
        names = {"schema": sql.Literal(schema), "role": sql.Literal(role)}
        ours = sql.SQL("c.relname in ({})").format(sql.SQL(", ").join(map(sql.Literal, tables)))
        script.blank()
        script.note(f"The schema {schema}, for tables of Penstock's own.")
        script.remark(_FOREIGN.format(**names))
        script.run(sql.SQL("select format('create schema if not exists %I', {schema})").format(**names))
        script.run(
            sql.SQL("select format('grant create, usage on schema %I to %I', {schema}, {role})").format(
                **names
            )
        )
        script.run(_TAKE_OVER.format(**names, ours=ours if tables else sql.SQL("true")))


def _attributes(script: Script, needs: SourceNeeds) -> None:
    """Policies do not concern a table's owner, unless they are forced upon him."""
    hides = sql.SQL("forced" if needs.publishes else "row_security")
    role = sql.Literal(needs.role)
    if needs.ways.row_security:
        remark = sql.Literal(needs.ways.row_security)
        script.remark(sql.SQL("select {} where exists (select from chosen where {})").format(remark, hides))
    replication = sql.Literal("" if needs.ways.replication else " replication")
    script.run(_ATTRIBUTES.format(role=role, hides=hides, replication=replication))
    if needs.ways.replication:
        script.run(sql.SQL("select format({}, {})").format(sql.Literal(needs.ways.replication), role))


def _reading(script: Script, needs: SourceNeeds) -> None:
    """To copy. An owner reads his tables anyway, and what is in his schemas."""
    role = sql.Literal(needs.role)
    needed = "schema_owner not in (select owner from chosen)" if needs.publishes else "true"
    script.run(_USAGE.format(role=role, needed=sql.SQL(needed)))
    if not needs.publishes:
        script.run(_SELECT.format(role=role))
        script.note(
            "Not needed for these tables; so that those, and partitions, can be read that come later:"
        )
        script.remark(_LATER.format(role=role))


def _comments(script: Script, needs: SourceNeeds) -> None:
    """What the triggers keep, the role reads."""
    role = sql.Literal(needs.role)
    if OWN not in needs.schemas:
        script.run(sql.SQL("select format('grant usage on schema penstock to %I', {})").format(role))
    script.run(sql.SQL("select format('grant select on table penstock.comments to %I', {})").format(role))


def _published_by_dba(script: Script, needs: SourceNeeds) -> None:
    script.note(
        "The publication. The role cannot alter it: a table that is to be captured later is added by hand."
    )
    publication = sql.Literal(needs.publication)
    history = sql.Literal("" if needs.marker is None else f", only {HISTORY}")
    script.remark(_PUBLISHED.format(publication=publication))
    script.remark(_SILENT.format(publication=publication))
    fit = _FIT.format(publication=publication)
    script.remark(_UNFIT.format(fit=fit))
    script.run(_PUBLICATION.format(publication=publication, history=history, fit=fit))
    script.run(_PUBLISH_MORE.format(publication=publication, fit=fit))
    if needs.marker is not None:
        script.run(_PUBLISH_HISTORY.format(publication=publication))


def _published_by_role(script: Script, needs: SourceNeeds) -> None:
    for line in (
        "The publication is made by the role, and kept in step with the configuration. That takes the",
        "rights of the tables' owners, with which the role could also alter and drop them. With",
        "--publication dba and create_publication: false it reads, and nothing more.",
    ):
        script.note(line)
    role = sql.Literal(needs.role)
    script.run(
        sql.SQL("select format('grant create on database %I to %I', current_database(), {})").format(role)
    )
    script.run(_OWNERS.format(role=role))
    script.remark(_OF_SUPERUSERS)
