"""Connections to the source, and what their errors mean to an operator.

Every connection speaks with the same session settings, because the spool keeps values as the text that
PostgreSQL sends: two sessions that print a timestamp differently would store it differently. The settings
travel in libpq's `options`, so that a replication connection has them from its first message on.

A server that vanished without a word is noticed within minutes, by what TCP itself can tell: `ATTENTION`.

The search path is PostgreSQL's own schema and nothing else: whatever a user calls his functions, operators
and tables, none of them runs or is read in the place of what we mean. What is elsewhere is qualified.

The server says why it refuses a statement with an SQLSTATE, and so it does for a connection (`refusal` has it
told). What has none is libpq's own, a lost connection, and is tried again.
"""

from __future__ import annotations

import re
from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.model.errors import (
    AccessDenied,
    ConnectionFailed,
    DatabaseMissing,
    NotReady,
    PenstockError,
    ServerBusy,
    SlotInUse,
    TableBusy,
)
from penstock.model.secrets import without_secrets
from penstock.postgres.refusal import with_state

Connection = psycopg.Connection[tuple[Any, ...]]

SESSION_OPTIONS = {
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "timezone": "UTC",
    "lc_monetary": "C",
    "client_encoding": "UTF8",
    "search_path": "pg_catalog,pg_temp",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}
"""`pg_temp` stands last: unnamed it would be searched first. What a role's limit ends once it ends always."""

CONNECT_TIMEOUT = "10"

ATTENTION = {
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
"""Keywords of libpq that the user's own go before. The last also ends a connection whose server takes nothing
more for as long: who sends rows gives it longer."""

_SETTLE = (
    (b"DateStyle", b"ISO", b"set datestyle to 'ISO'"),
    (b"IntervalStyle", b"postgres", b"set intervalstyle to 'postgres'"),
    (b"TimeZone", b"UTC", b"set timezone to 'UTC'"),
    (b"search_path", b"pg_catalog,", b"set search_path to pg_catalog, pg_temp"),
)
"""What the server reports, what it should be, and what makes it so. Before 18 it does not report the path."""

_COMMIT_DURABLY = (
    b"select set_config('synchronous_commit', 'local', false)"
    b" where current_setting('synchronous_commit') = 'off'"
)
"""A commit of ours is what others are acknowledged by: it must not go back when the server crashes. Whoever
waits for standbys, or has chosen not to, goes on as before."""

_TRANSACT_WITHOUT_LIMIT = (
    b"select set_config('transaction_timeout', '0', false)"
    b" where current_setting('transaction_timeout', true) <> '0'"
)
"""Only servers from 17 on have the setting. It would end a walsender over a long transaction, each time."""

_QUOTE_VALUES = frozenset({"22", "23", "27", "2F", "38", "39", "44", "P0", "HV"})
"""Classes of SQLSTATE whose details, and in part whose messages, quote rows: data, constraints, triggers."""
_QUOTE_NOTHING = frozenset({"22001", "22012"})
"""Of class 22: too long for its type, division by zero."""

_LOST = re.compile(r"08...|57P0[1-5]|53300")
_DENIED = re.compile(r"28...|3D000|42501")
_PASSING = re.compile(r"25P0[34]|40001|40P01|53...|57014|58...")
"""A time limit, somebody else's transaction, room and memory, cancelled, the server's own files."""


def connect(conninfo: str, *, autocommit: bool = True) -> Connection:
    """Connect with our session settings; what goes wrong is `ConnectionFailed` or `AccessDenied`."""
    return _connected(with_session(conninfo), autocommit=autocommit)


def connect_replication(conninfo: str) -> Connection:
    """Connect as `connect` does, speaking the replication protocol."""
    return _connected(replication_conninfo(conninfo), autocommit=True)


def _connected(conninfo: str, *, autocommit: bool) -> Connection:
    try:
        connection = psycopg.connect(conninfo, autocommit=autocommit)
    except psycopg.OperationalError as error:
        explained = explain(with_state(error, conninfo))
        if type(explained) is PenstockError:  # refused for another reason, such as the database
            explained = AccessDenied(explained.reason)
        raise explained from None
    except psycopg.Error as error:
        raise explain(error) from None
    try:
        settle(connection.pgconn)
    except psycopg.Error as error:
        raise explain(error) from None
    return connection


def wait_briefly(connection: Connection, milliseconds: int = 2000) -> None:
    """Fail fast on locks, so that neither others nor a stop waits for us: the work is tried again."""
    connection.execute("select set_config('lock_timeout', %s, false)", (str(milliseconds),))


def with_session(conninfo: str) -> str:
    """Return the conninfo with our settings in `options`, after the user's own, so that ours win."""
    keywords = {**ATTENTION, **conninfo_to_dict(conninfo)}
    ours = " ".join(f"-c {name}={value}" for name, value in SESSION_OPTIONS.items())
    theirs = keywords.get("options") or _default("options")
    keywords["options"] = f"{theirs} {ours}" if theirs else ours
    keywords["client_encoding"] = SESSION_OPTIONS["client_encoding"]
    if not (keywords.get("connect_timeout") or _default("connect_timeout")):
        keywords["connect_timeout"] = CONNECT_TIMEOUT
    return make_conninfo("", **keywords)


def replication_conninfo(conninfo: str) -> str:
    """Return the conninfo of a connection that speaks the replication protocol, and SQL, in its database."""
    return make_conninfo(with_session(conninfo), replication="database")


def settle(pgconn: pq.abc.PGconn) -> None:
    """Set what the environment overrode (libpq sends PGDATESTYLE and PGTZ past our `options`), or what a
    pooler did not pass on. From then on commits are durable, and transactions may last."""
    for reported, wanted, statement in _SETTLE:
        if not (pgconn.parameter_status(reported) or b"").startswith(wanted):
            pgconn.exec_(statement)
    pgconn.exec_(_COMMIT_DURABLY)
    pgconn.exec_(_TRANSACT_WITHOUT_LIMIT)


def explain(error: psycopg.Error) -> PenstockError:
    """Return the error as a sentence for the operator, without secrets, of the kind whose policy fits."""
    state = error.sqlstate or ""
    reason = _sentence(error)
    if _LOST.fullmatch(state):
        return ConnectionFailed(reason)
    if state == "3D000":
        return DatabaseMissing(reason)
    if _DENIED.fullmatch(state):
        return AccessDenied(reason)
    if state == "55006":
        return SlotInUse(reason)
    if state == "53400":
        return NotReady(reason)
    if state == "55P03":
        return TableBusy(reason)
    if _PASSING.fullmatch(state):
        return ServerBusy(reason)
    from_libpq = isinstance(error, psycopg.OperationalError) or type(error) is psycopg.DatabaseError
    if state or not from_libpq:
        return PenstockError(reason)
    needs_password = error.pgconn is not None and error.pgconn.needs_password
    return (AccessDenied if needs_password else ConnectionFailed)(reason)


def without_values(error: psycopg.Error) -> str:
    """Return what the server says against a row, without the row's values, whatever the messages' language.

    Its details quote the row. So does the message itself where a value is refused (class 22): the condition
    is told then in its place. Constraint, table, column and type are told by name.
    """
    message, state = error.diag.message_primary, error.sqlstate or ""
    if message is None or (state.startswith("22") and state not in _QUOTE_NOTHING):
        message = f"a value is refused: {_condition(state)}"
    diag = error.diag
    named = {
        "constraint": diag.constraint_name,
        "table": diag.table_name,
        "column": diag.column_name,
        "type": diag.datatype_name,
    }
    more = ", ".join(f"{what} {name}" for what, name in named.items() if name and name not in message)
    return f"{message.rstrip('.')}{f' ({more})' if more else ''}"


def _condition(state: str) -> str:
    """The name that PostgreSQL's documentation gives to the state, in words."""
    try:
        name = psycopg.errors.lookup(state).__name__
    except KeyError:
        return f"SQLSTATE {state}"
    return re.sub(r"\B([A-Z])", r" \1", name).lower()


def _is_of_values(state: str) -> bool:
    """Whether what is said with this state may quote a row; also with one that PostgreSQL does not have: then
    somebody's trigger raised it."""
    if not state or state[:2] in _QUOTE_VALUES:
        return bool(state)
    try:
        psycopg.errors.lookup(state)
    except KeyError:
        return True
    return False


def _sentence(error: psycopg.Error) -> str:
    """What the server said, in one line; where a name has several addresses, once for each that differs."""
    if _is_of_values(error.sqlstate or ""):
        text = without_values(error)
    elif error.diag.message_primary:
        parts = (error.diag.message_primary, error.diag.message_detail, error.diag.message_hint)
        text = ". ".join(part.rstrip(".") for part in parts if part)
    else:
        lines = (re.sub(r"^- |^multiple connection .*", "", line.strip()) for line in str(error).splitlines())
        text = "; ".join(dict.fromkeys(line for line in lines if line))
    return without_secrets(text).rstrip(".")


def _default(keyword: str) -> str:
    """What libpq would take from the environment."""
    values = {option.keyword.decode(): option.val for option in pq.Conninfo.get_defaults()}
    return (values[keyword] or b"").decode()
