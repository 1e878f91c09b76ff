"""The event triggers that record schema changes: nobody gains anything by them."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from penstock.config import load
from penstock.model import TableName
from penstock.model.errors import NotReady
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.source_feed import SourceFeed
from penstock.postgres import ddl, recorder
from penstock.postgres.connection import connect
from tests.bed import Database, fresh_database
from tests.files.test_files import to_files
from tests.pipeline.running import configuration
from tests.security.attacker import Attacker

pytestmark = pytest.mark.every_server

PREFIX = "CDC_RELOAD:"

# Each in the caller's temporary schema, which is searched first unless it is named.
SHADOWS = ("pg_class", "pg_index", "pg_description", "pg_trigger", "pg_constraint", "pg_policy", "pg_rewrite")


@pytest.fixture
def recorded(source: Database) -> Database:
    with connect(source.dsn) as connection:
        assert ddl.install(connection, PREFIX)
    return source


def test_temporary_views_and_functions_of_the_caller_are_not_run(
    recorded: Database, attacker: Attacker
) -> None:
    with attacker.connect(recorded) as connection:
        for name in SHADOWS:
            view = f"create temp view {name} as select c.*, mine.trap('{name}') from pg_catalog.{name} c"
            connection.execute(view.encode())
        connection.execute(
            """
            create function mine.starts_with(text, text) returns boolean language sql
                as $$ select mine.trap('starts_with') is null $$;
            create function mine.equal(oid, oid) returns boolean language sql
                as $$ select mine.trap('equal') is not null $$;
            create operator mine.= (leftarg = oid, rightarg = oid, function = mine.equal);
            set search_path = pg_temp, mine, public, pg_catalog;
            """
        )
        connection.execute("create table mine.t (id int primary key)")
        connection.execute("comment on table mine.t is 'mine'")
        connection.execute("create index on mine.t (id)")
        connection.execute("alter table mine.t add check (id > 0)")
        connection.execute("drop table mine.t")
    assert not attacker.caught(), "code of the attacker's ran with other rights than its own"
    tags = recorded.query("select ddl_tag from public.ddl_history where object_identity = 'mine.t'")
    assert [tag for (tag,) in tags] == ["CREATE TABLE", "COMMENT", "ALTER TABLE", "DROP TABLE"]


@pytest.mark.parametrize(
    "broken",
    [
        "drop table penstock.ddl_history cascade",
        "alter table penstock.ddl_history add check (false) not valid",
        "alter table penstock.ddl_history rename ddl_tag to tag",
        f"revoke all on penstock.ddl_history, penstock.comments from {recorder.ROLE}",
        f"revoke all on schema penstock from {recorder.ROLE}",
        "alter schema penstock rename to elsewhere",
    ],
)
def test_a_command_that_cannot_be_recorded_succeeds_with_a_warning(recorded: Database, broken: str) -> None:
    warnings: list[str | None] = []
    with recorded.connect() as connection:
        connection.execute(broken.encode())
        connection.add_notice_handler(lambda told: warnings.append(told.message_primary))
        for command in (
            "create table t (id int primary key)",
            "comment on table t is 'mine'",
            "create index on t (id)",
            "alter table t add a int",
            "drop table t",
        ):
            warnings.clear()
            connection.execute(command.encode())
            assert [w for w in warnings if w and w.startswith("penstock did not record the command")]


def test_the_functions_have_no_rights_but_to_record(recorded: Database) -> None:
    (role,) = recorded.query(
        "select rolcanlogin, rolsuper, rolcreaterole, rolcreatedb, rolreplication, rolbypassrls"
        " from pg_roles where rolname = %s",
        recorder.ROLE,
    )
    assert not any(role)
    functions = recorded.query(
        """
        select p.proname, pg_get_userbyid(p.proowner), p.proconfig, p.prosecdef,
               has_function_privilege('public', p.oid, 'execute')
        from pg_proc p where p.pronamespace = 'penstock'::regnamespace order by 1
        """
    )
    expected = [recorder.ROLE, ["search_path=pg_catalog, pg_temp"], True, False]
    assert [[*rest] for _, *rest in functions] == [expected, expected]
    granted = recorded.query(
        """
        select c.relname, a.privilege_type from pg_class c cross join aclexplode(c.relacl) a
        where a.grantee = %s::regrole order by 1, 2
        """,
        recorder.ROLE,
    )
    assert granted == [
        ("comments", "DELETE"),
        ("comments", "INSERT"),
        ("comments", "SELECT"),
        ("ddl_history", "INSERT"),
    ]
    for name in ("public.ddl_history", "penstock.ddl_history", "penstock.comments"):
        (public,) = recorded.query(
            "select has_table_privilege('public', %s, 'select, insert, trigger')", name
        )
        assert public == (False,)


@pytest.mark.parametrize(
    "made",
    [
        "create schema penstock",
        "create schema penstock; create table penstock.comments (table_id oid primary key, comment text)",
        "create schema penstock; create function penstock.capture_ddl_commands() returns trigger"
        " language plpgsql as 'begin return null; end'",
    ],
)
def test_what_is_somebody_elses_is_refused(source: Database, attacker: Attacker, made: str) -> None:
    attacker.execute(made)
    with connect(source.dsn) as connection, pytest.raises(NotReady, match=f"belongs to {attacker.role}"):
        ddl.install(connection, PREFIX)
    assert source.query("select count(*) from pg_event_trigger") == [(0,)]
    assert not attacker.caught()


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("alter role {recorder} login", "alter role {recorder} nologin"),
        ("grant {recorder} to {attacker}", "revoke {recorder} from {attacker}"),
        ("grant pg_read_all_data to {recorder}", "revoke pg_read_all_data from {recorder}"),
    ],
)
def test_a_role_of_that_name_that_can_do_more_is_refused(
    source: Database, attacker: Attacker, given: str, taken: str
) -> None:
    with contextmanager(fresh_database)(source.server) as other, connect(other.dsn) as connection:
        ddl.install(connection, PREFIX)  # it is the whole server's role
    names = {"recorder": recorder.ROLE, "attacker": attacker.role}
    source.execute(given.format(**names))
    try:
        with connect(source.dsn) as connection, pytest.raises(NotReady, match="can do more than to record"):
            ddl.install(connection, PREFIX)
    finally:
        source.execute(taken.format(**names))


OLD = """
create schema penstock;
create table public.ddl_history (
    id bigint generated always as identity primary key, event_time timestamptz not null default now(),
    ddl_tag text, object_type text, schema_name text, object_name text, object_identity text,
    command_tag text, ddl_command text, table_id bigint, comment text);
create table penstock.comments (table_id oid primary key, comment text not null);
create function penstock.capture_ddl_commands() returns event_trigger
language plpgsql security definer set search_path = pg_catalog as $$
begin
    insert into public.ddl_history (ddl_tag, ddl_command)
    select tg_tag, current_query() from pg_class limit 1;
end $$;
create function penstock.capture_ddl_drops() returns event_trigger
language plpgsql security definer set search_path = pg_catalog as 'begin end';
create event trigger capture_ddl_trigger on ddl_command_end execute function penstock.capture_ddl_commands();
create event trigger capture_ddl_drop_trigger on sql_drop execute function penstock.capture_ddl_drops();
"""


def test_what_an_earlier_version_installed_is_replaced(source: Database, attacker: Attacker) -> None:
    """It made a superuser of anybody."""
    source.execute(OLD)
    attack = "create temp view pg_class as select mine.trap('pg_class')", "create table mine.t ()"
    attacker.execute(*attack)
    assert attacker.caught(), "the attack works on the earlier version"
    source.execute("delete from mine.caught", "drop table mine.t")
    with connect(source.dsn) as connection:
        assert ddl.install(connection, PREFIX)
    attacker.execute(*attack)
    assert not attacker.caught()
    assert source.query("select relkind::text from pg_class where oid = 'public.ddl_history'::regclass") == [
        ("v",)
    ]
    assert ("CREATE TABLE",) in source.query("select ddl_tag from public.ddl_history")


def test_a_role_that_may_not_replace_it_is_told_that_it_is_there(
    recorded: Database, attacker: Attacker
) -> None:
    """As on a server where an administrator ran what `penstock grant` printed."""
    recorded.execute(f"grant usage on schema penstock to {attacker.role}")
    with connect(make_conninfo(recorded.dsn, user=attacker.role)) as connection:
        assert ddl.install(connection, PREFIX), "it is there as it should be"
        assert not ddl.install(connection, "OTHER:"), "it may not be altered"
        assert ddl.is_installed(connection)


def test_the_script_for_an_administrator_installs_it_for_a_role(source: Database, attacker: Attacker) -> None:
    source.execute(f"create schema penstock authorization {attacker.role}")
    source.execute(recorder.script(PREFIX, attacker.role))
    source.execute(f"grant select on penstock.comments to {attacker.role}")
    with connect(make_conninfo(source.dsn, user=attacker.role)) as connection:
        assert ddl.install(connection, PREFIX)
        assert ddl.marked(connection, PREFIX, []) == []
    source.execute("create table t (id int)")
    assert ("t",) in source.query("select object_name from public.ddl_history")


def test_the_role_goes_with_the_last_installation(source: Database, destination: Database) -> None:
    with connect(source.dsn) as one, connect(destination.dsn) as other:
        assert ddl.install(one, PREFIX)
        assert ddl.install(other, PREFIX)
        assert ddl.remove(one)
        assert ddl.is_installed(other)
        assert ddl.remove(other)
    assert source.query("select count(*) from pg_roles where rolname = %s", recorder.ROLE) == [(0,)]


SECRETS = [
    "create user mapping for current_user server s options (password $$hush$$)",
    "create user mapping for public server s options (user 'u', password U&'\\0068ush')",
    "alter user mapping for public server s options (set password 'hush')",
    "create subscription sub connection 'host=x password=hush' publication p"
    " with (connect = false, slot_name = none)",
    "create table a1 (id int); alter role {role} password $$hush$$",
    "do $$ begin create table a2 (id int); perform 'hush'; end $$",
    "create table a3 as select 'postgresql://u:hush@host/db'::text",
    "select 'hush' as a into a4",
    "create view v as select 'password=hush'::text",
    "create table a5 (t text default 'host=x password=hush')",
    "alter table kept add column c text default 'postgresql://u:hush@h/d'",
    "create function f() returns text language sql as $$ select 'hush' $$",
    "select run('hush')",
    "/* hush */ create table a6 (id int)",
    "create foreign table ft (id int) server s options (password 'hush')",
    "alter table ft options (set \"password\" 'hush')",
    "alter table ft options (add secret_access_key/**/'hush')",
    "alter table ft alter id options (add passfile 'hush')",
]


def test_the_text_of_a_command_is_kept_only_where_no_password_can_be_in_it(
    recorded: Database, attacker: Attacker
) -> None:
    recorded.execute(
        "create foreign data wrapper w",
        "create server s foreign data wrapper w",
        "create table kept (id int)",
        "create function run(text) returns void language plpgsql as"
        " 'begin execute $e$create table a7 (id int)$e$; end'",
    )
    (before,) = recorded.query("select count(*) from public.ddl_history")
    recorded.execute(*(statement.replace("{role}", attacker.role) for statement in SECRETS))
    recorded.execute("drop subscription sub")
    (after,) = recorded.query("select count(*) from public.ddl_history")
    assert after[0] - before[0] >= len(SECRETS)
    everything = str(recorded.query("select * from public.ddl_history"))
    assert "hush" not in everything
    assert "ush'" not in everything
    recorded.execute("alter table kept add column password text default 'none';")
    assert recorded.query("select ddl_command from public.ddl_history order by id desc limit 1") == [
        ("alter table kept add column password text default 'none';",)
    ]


def test_a_partitions_owner_does_not_speak_for_the_whole_table(
    recorded: Database, attacker: Attacker
) -> None:
    recorded.execute(
        "create table parted (id int) partition by range (id)",
        "create table part partition of parted for values from (0) to (10)",
        f"alter table part owner to {attacker.role}",
    )
    attacker.execute("""comment on table public.part is 'CDC_RELOAD: {"action": "EXPORT_START"}'""")
    assert recorded.query("select comment from public.ddl_history where ddl_tag = 'COMMENT'") == [(None,)]
    recorded.execute("comment on table parted is 'the whole'")
    assert ("the whole",) in recorded.query("select comment from public.ddl_history")


def test_a_start_that_fails_leaves_no_trigger_behind(
    spark: SparkSession, source: Database, attacker: Attacker, tmp_path: Path
) -> None:
    """Whatever it is that fails: here the last of all, a registry that is somebody else's."""
    source.execute("create table t (id int primary key)")
    attacker.execute("create schema cdc_registry")
    config = load(configuration(tmp_path, source, to_files(tmp_path)))
    with pytest.raises(NotReady, match=f"belongs to {attacker.role}"):
        Pipeline(config, threading.Event(), spark).run()
    assert source.query("select count(*) from pg_event_trigger") == [(0,)]


def test_triggers_that_must_be_and_cannot_are_no_reason_for_a_slot(
    source: Database, attacker: Attacker, tmp_path: Path
) -> None:
    source.execute("create table t (id int primary key)")
    attacker.execute("create schema penstock")
    sources = [{"name": "source", "dsn": source.dsn, "ddl_capture": "on"}]
    config = load(configuration(tmp_path, source, to_files(tmp_path), sources=sources))
    feed = SourceFeed(config, config.sources[0])
    with pytest.raises(NotReady, match=f"belongs to {attacker.role}"):
        feed.start(threading.Event())
    feed.stop()
    assert source.query("select from pg_replication_slots where database = current_database()") == []
    assert source.query("select from pg_publication") == []


def test_somebody_elses_history_is_not_read(source: Database, attacker: Attacker, tmp_path: Path) -> None:
    """Ours is elsewhere; what is in his table is no schema change."""
    attacker.execute("create table public.ddl_history (id int primary key, table_id int, comment text)")
    source.execute("create table t (id int primary key)", "create publication p for all tables")
    replication = {"publication_name": "p", "create_publication": False}
    sources = [{"name": "source", "dsn": source.dsn, "replication": replication}]
    config = load(configuration(tmp_path, source, to_files(tmp_path), sources=sources))
    feed = SourceFeed(config, config.sources[0])
    try:
        feed.start(threading.Event())
        feed.record_ddl()
        ((ours,),) = source.query("select 'penstock.ddl_history'::regclass::oid")
        assert feed.history == ours
        assert TableName("public", "ddl_history") not in {
            table.schema.name for table in feed.published.tables.values()
        }
    finally:
        feed.stop()
