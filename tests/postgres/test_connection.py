"""Connections: session settings, and what a refusal means."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from psycopg import pq
from psycopg.conninfo import make_conninfo

from penstock.embedded.postgres import PostgresServer
from penstock.model.errors import (
    AccessDenied,
    ConnectionFailed,
    DatabaseMissing,
    NotReady,
    PenstockError,
    ServerBusy,
    SlotInUse,
)
from penstock.postgres.connection import (
    Connection,
    connect,
    connect_replication,
    explain,
    replication_conninfo,
    settle,
    with_session,
)
from penstock.postgres.refusal import with_state
from tests.bed import Database


def settings(connection: psycopg.Connection[tuple[object, ...]]) -> list[object]:
    return list(
        connection.execute(
            """
            select current_setting('datestyle'), current_setting('intervalstyle'),
                   current_setting('extra_float_digits'), current_setting('bytea_output'),
                   current_setting('timezone'), current_setting('lc_monetary')
            """
        ).fetchone()
        or ()
    )


OURS = ["ISO, MDY", "postgres", "3", "hex", "UTC", "C"]


def test_every_session_prints_values_alike(database: Database) -> None:
    database.execute(
        f'alter database "{database.name}" set datestyle to german',
        f'alter database "{database.name}" set timezone to "Asia/Tokyo"',
        f'alter database "{database.name}" set intervalstyle to iso_8601',
    )
    with connect(database.dsn) as connection:
        assert settings(connection)[1:] == OURS[1:]
        assert str(settings(connection)[0]).startswith("ISO")


def test_what_is_committed_survives_a_crash_whatever_the_role_has_set(own_server: PostgresServer) -> None:
    own_server.execute("create table t (n integer)")
    own_server.execute("alter role postgres set synchronous_commit to off")
    with connect(own_server.dsn()) as connection:
        connection.execute("insert into public.t values (1)")
        own_server.kill()
    own_server.start()
    with connect(own_server.dsn()) as connection:
        assert connection.execute("select n from public.t").fetchall() == [(1,)]


def test_who_commits_another_way_goes_on_with_it(database: Database) -> None:
    database.execute(f'alter database "{database.name}" set synchronous_commit to remote_write')
    with connect(database.dsn) as connection:
        assert connection.execute("show synchronous_commit").fetchone() == ("remote_write",)


@pytest.mark.parametrize("opened", [connect, connect_replication])
def test_a_time_limit_of_the_database_is_none_for_us(
    database: Database, opened: Callable[[str], Connection]
) -> None:
    limits = database.query(
        "select name from pg_settings where name ~ '^(statement|transaction|idle.*session)_timeout$'"
    )
    assert len(limits) >= 3
    for (limit,) in limits:
        database.execute(f'alter database "{database.name}" set {limit} = 60000')
    with opened(database.dsn) as connection:
        for (limit,) in limits:
            assert connection.execute(f"show {limit}".encode()).fetchone() == ("0",), limit


def test_the_environment_does_not_override_them(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGTZ", "Asia/Tokyo")
    monkeypatch.setenv("PGDATESTYLE", "German")
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    monkeypatch.setenv("PGOPTIONS", "-c work_mem=7MB")
    with connect(database.dsn) as connection:
        assert settings(connection)[1:] == OURS[1:]
        assert str(settings(connection)[0]).startswith("ISO")
        assert connection.info.encoding == "utf-8"
        assert connection.execute("show work_mem").fetchone() == ("7MB",)


def test_the_users_own_options_stay(database: Database) -> None:
    own = make_conninfo(
        database.dsn, options="-c work_mem=5MB -c bytea_output=escape", application_name="x y"
    )
    with connect(own) as connection:
        assert connection.execute("show work_mem").fetchone() == ("5MB",)
        assert connection.execute("show bytea_output").fetchone() == ("hex",)
        assert connection.execute("show application_name").fetchone() == ("x y",)


def test_a_replication_connection_has_the_same_settings(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGTZ", "Asia/Tokyo")
    raw = pq.PGconn.connect(replication_conninfo(database.dsn).encode())
    settle(raw)
    assert raw.exec_(b"IDENTIFY_SYSTEM").get_value(0, 3) == database.name.encode()
    assert raw.exec_(b"show timezone").get_value(0, 0) == b"UTC"
    assert raw.exec_(b"show extra_float_digits").get_value(0, 0) == b"3"
    raw.finish()


def test_a_service_file_is_honoured(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "service.conf"
    file.write_text(f"[shop]\nhost=127.0.0.1\nport={database.server.port}\nuser=postgres\n")
    monkeypatch.setenv("PGPASSWORD", database.server.password)
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    with connect(f"service=shop dbname={database.name}") as connection:
        assert connection.info.dbname == database.name


def test_a_wrong_password_is_denied_without_a_word_of_it(own_server: PostgresServer) -> None:
    own_server.execute("set password_encryption = 'scram-sha-256'; create role cdc login password 'right'")
    hba = own_server.data / "pg_hba.conf"
    hba.write_text("host all cdc 127.0.0.1/32 scram-sha-256\nhost all postgres 127.0.0.1/32 trust\n")
    own_server.execute("select pg_reload_conf()")
    connect(own_server.dsn(user="cdc", password="right")).close()
    for keywords in ({"password": "hush"}, {"password": ""}, {}):
        with pytest.raises(AccessDenied) as caught:
            connect(own_server.dsn(user="cdc", **keywords))
        assert "hush" not in f"{caught.value!r} {caught.value} {caught.value.where}"
        assert caught.value.__cause__ is None
        assert not caught.value.retry
    with pytest.raises(AccessDenied, match=r"no pg_hba\.conf entry"):
        connect(own_server.dsn(user="somebody"))


def test_an_unknown_role_or_database_is_denied(server: PostgresServer) -> None:
    with pytest.raises(AccessDenied, match='role "nobody at all" does not exist'):
        connect(server.dsn(user="nobody at all"))
    with pytest.raises(AccessDenied, match='database "nowhere" does not exist'):
        connect(server.dsn("nowhere"))


def test_a_role_that_may_not_replicate_is_denied(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("create role no_replication login")
    try:
        with pytest.raises(AccessDenied):
            connect_replication(make_conninfo(database.dsn, user="no_replication"))
    finally:
        database.execute("drop role no_replication")


def test_a_refusal_is_known_by_its_state_not_by_its_words(server: PostgresServer) -> None:
    """libpq has but the words: the same ones without the server behind them say nothing."""
    for dsn, state in (
        (server.dsn(password="wrong"), "28P01"),
        (server.dsn("nowhere"), "3D000"),
        (server.dsn(user="nobody at all"), "28000"),
        (server.dsn(options="-c no_such_setting=1"), "42704"),
    ):
        with pytest.raises(psycopg.OperationalError) as caught:
            psycopg.connect(dsn)
        assert caught.value.sqlstate is None
        assert type(explain(psycopg.OperationalError(str(caught.value)))) is ConnectionFailed
        told = with_state(caught.value, dsn)
        assert (told.sqlstate, str(told)) == (state, str(caught.value))
        with pytest.raises(AccessDenied):
            connect(dsn)
    lost = psycopg.OperationalError("authentication failed, in whatever language")
    assert with_state(lost, server.dsn()) is lost, "the second time it lets us in"


def test_a_database_that_takes_no_connections_is_denied(database: Database) -> None:
    closed = f"{database.name}_closed"
    database.execute(f"create database {closed} allow_connections false")
    try:
        with pytest.raises(AccessDenied, match="accepting connections"):
            connect(database.server.dsn(closed))
    finally:
        database.execute(f"drop database {closed}")


def test_a_server_that_is_not_there_can_be_tried_again(own_server: PostgresServer) -> None:
    own_server.stop()
    with pytest.raises(ConnectionFailed, match="refused") as caught:
        connect(own_server.dsn(password="hush"))
    assert caught.value.retry
    with pytest.raises(ConnectionFailed):
        connect("host=does-not-exist.invalid password=hush")


def test_too_many_connections_can_be_tried_again(own_server: PostgresServer) -> None:
    own_server.execute("create role cdc login connection limit 1")
    with connect(own_server.dsn(user="cdc")), pytest.raises(ConnectionFailed, match="too many connections"):
        connect(own_server.dsn(user="cdc"))


def test_a_connection_that_the_server_ends_can_be_tried_again(database: Database) -> None:
    with connect(database.dsn) as connection:
        database.query("select pg_terminate_backend(%s)", connection.info.backend_pid)
        with pytest.raises(psycopg.OperationalError) as caught:
            connection.execute("select 1")
    assert isinstance(explain(caught.value), ConnectionFailed)


def test_a_killed_server_is_a_lost_connection(own_server: PostgresServer) -> None:
    connection = connect(own_server.dsn())
    own_server.kill()
    with pytest.raises(psycopg.OperationalError) as caught:
        connection.execute("select 1")
    assert isinstance(explain(caught.value), ConnectionFailed)


def test_a_server_that_is_killed_while_it_answers_is_a_lost_connection(own_server: PostgresServer) -> None:
    """libpq then gives a result in which there is no state."""
    connection = connect(own_server.dsn())
    killing = threading.Timer(0.2, own_server.kill)
    killing.start()
    result = connection.pgconn.exec_(b"select pg_sleep(20)")
    killing.join()
    assert isinstance(explain(psycopg.errors.error_from_result(result)), ConnectionFailed)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (psycopg.errors.AdminShutdown, ConnectionFailed),
        (psycopg.errors.CrashShutdown, ConnectionFailed),
        (psycopg.errors.CannotConnectNow, ConnectionFailed),
        (psycopg.errors.TooManyConnections, ConnectionFailed),
        (psycopg.errors.InvalidPassword, AccessDenied),
        (psycopg.errors.InvalidCatalogName, DatabaseMissing),
        (psycopg.errors.InsufficientPrivilege, AccessDenied),
        (psycopg.errors.ObjectInUse, SlotInUse),
        (psycopg.errors.ConfigurationLimitExceeded, NotReady),
        (psycopg.errors.QueryCanceled, ServerBusy),
        (psycopg.errors.IdleInTransactionSessionTimeout, ServerBusy),
        (psycopg.errors.DeadlockDetected, ServerBusy),
        (psycopg.errors.OutOfMemory, ServerBusy),
        (psycopg.errors.DiskFull, ServerBusy),
        (psycopg.errors.IoError, ServerBusy),
        (psycopg.errors.SyntaxError, PenstockError),
    ],
)
def test_each_state_has_its_kind(error: type[psycopg.Error], kind: type[PenstockError]) -> None:
    assert type(explain(error("it says so"))) is kind


def test_an_error_that_quotes_a_connection_string_loses_its_password() -> None:
    for text in ("bad: postgresql://u:hush@h/d", "bad: host=h password='hu hush'"):
        assert "hush" not in str(explain(psycopg.OperationalError(text)))


def test_with_session_keeps_a_uri_and_a_given_timeout() -> None:
    merged = with_session("postgresql://u:p%20w@h:1/d?connect_timeout=3&sslmode=disable")
    assert "connect_timeout=3" in merged
    assert "password='p w'" in merged
    assert "sslmode=disable" in merged
