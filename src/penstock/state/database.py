"""The database under the store: SQLite or PostgreSQL, opened, made ready, and its errors explained.

A transaction is for reading or for writing. On SQLite the difference matters: a writer takes the write lock
when it begins, because one that took it half-way would be refused whenever another wrote in between.

PostgreSQL is reached by libpq's own reading of the URL, not SQLAlchemy's: services, several hosts and Unix
sockets work as they do for sources.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import SecretStr
from sqlalchemy import URL, Connection, Engine, event, select, text
from sqlalchemy.exc import ArgumentError, DBAPIError

from penstock import __version__
from penstock.config.connection import check_dsn
from penstock.model import private
from penstock.model.errors import ConfigError, PenstockError, StateDenied, StateUnreachable, WrongState
from penstock.model.formats import refusal
from penstock.model.secrets import without_secrets
from penstock.model.sqlite import WAIT, make_durable
from penstock.postgres import ownership
from penstock.postgres.connection import settle, with_session
from penstock.postgres.refusal import with_state
from penstock.state import tables

_WRITES = "penstock_writes"

_POSTGRES = re.compile(r"(postgresql|postgres)(\+psycopg)?://")
_DENIED = re.compile(r"28...|3D000|42501")
_DAMAGED = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)


class Database:
    """A store's database. Threads may share it."""

    def __init__(self, engine: Engine, place: str, conninfo: str = "") -> None:
        self._engine = engine
        self._conninfo = conninfo
        self.place = place
        """Where it is, for messages: nothing secret."""
        self.is_older = False
        """Whether an earlier version wrote it: `migrations` brings it up to date."""

    @classmethod
    def open(cls, url: str) -> Database:
        """Open the database behind this URL; make our tables where they are missing."""
        database = _postgres(url) if _POSTGRES.match(url) else _sqlite(url)
        try:
            database._make_ready()
        except BaseException:
            database.close()
            raise
        return database

    @classmethod
    def find(cls, url: str) -> Database | None:
        """Open the database behind this URL if our tables are there; None if not: nothing is made."""
        if not _POSTGRES.match(url) and not _file(url).exists():
            return None
        database = _postgres(url) if _POSTGRES.match(url) else _sqlite(url)
        try:
            with database.reading() as connection:
                if database._known_format(connection):
                    return database
        except BaseException:
            database.close()
            raise
        database.close()
        return None

    @property
    def file(self) -> Path | None:
        """Return the file of an SQLite database; None for a server."""
        return Path(self._engine.url.database or "") if self._engine.name == "sqlite" else None

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with explained(self.place), self._engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        with explained(self.place), self._engine.connect() as connection:
            connection = connection.execution_options(**{_WRITES: True})
            with connection.begin():
                yield connection

    def session(self) -> psycopg.Connection[Any]:
        """A connection to PostgreSQL apart from the pool, for a lock that lasts as long as it does."""
        with explained(self.place):
            return _connect(self._conninfo, autocommit=True)

    def _make_ready(self) -> None:
        """Make the tables, unless they are there in the right format: a reader needs no right to write."""
        with self.reading() as connection:
            if self._known_format(connection):
                return
        try:
            self._make_tables()
        except StateUnreachable:  # of several who do it at once all but one fail
            with self.reading() as connection:
                if not self._known_format(connection):
                    raise

    def _make_tables(self) -> None:
        with self.writing() as connection:
            if self._known_format(connection):
                return
            if self.file is None and not sqlalchemy.inspect(connection).has_schema(tables.SCHEMA):
                connection.execute(sqlalchemy.schema.CreateSchema(tables.SCHEMA))
            self._refuse_others(connection)
            tables.metadata.create_all(connection)
            connection.execute(tables.formats.insert().values(format=tables.FORMAT, written_by=__version__))

    def _refuse_others(self, connection: Connection) -> None:
        if self.file is None:
            session = connection.connection.driver_connection
            assert isinstance(session, psycopg.Connection)
            ownership.check(session, tables.SCHEMA, (table.name for table in tables.metadata.sorted_tables))

    def _known_format(self, connection: Connection) -> bool:
        schema = None if self.file else tables.SCHEMA
        if not sqlalchemy.inspect(connection).has_table(tables.formats.name, schema=schema):
            return False
        self._refuse_others(connection)
        self.is_older = self.stored_format(connection) < tables.FORMAT
        return True

    def stored_format(self, connection: Connection) -> int:
        """Return the format of the tables; raise `WrongState` if this version does not know it."""
        every_column = select(text("*")).select_from(tables.formats)  # an earlier version has fewer
        row = connection.execute(every_column).mappings().first()
        stored = row["format"] if row else 0
        if not 0 < stored <= tables.FORMAT:
            why = refusal("the state store", stored, tables.FORMAT, row.get("written_by") if row else None)
            why["remedy"] += ", or another `state.url` and a new copy"
            raise WrongState(**why, store=self.place)
        return int(stored)


def _file(url: str) -> Path:
    """Return the file that a URL of SQLite's names."""
    try:
        parsed = sqlalchemy.make_url(url)
    except (ArgumentError, ValueError):
        parsed = URL.create("unknown")
    name = parsed.database or ""
    if parsed.drivername != "sqlite" or parsed.host or parsed.query or name in ("", ":memory:"):
        raise ConfigError(
            "`state.url` is not one that Penstock knows; expected sqlite:///path/to/file or postgresql://…"
        )
    return Path(name)


def _sqlite(url: str) -> Database:
    file = _file(url)
    try:
        private.with_above(file.parent)
        private.file(file)
        for beside in (Path(f"{file}{end}") for end in ("-wal", "-shm")):
            if beside.exists():  # left by an earlier version; SQLite gives a new one the file's mode
                private.file(beside)
    except OSError as error:
        raise StateUnreachable(f"the file cannot be made: {error.strerror}", store=str(file)) from None
    engine = sqlalchemy.create_engine(
        URL.create("sqlite", database=str(file)), connect_args={"timeout": WAIT}
    )
    event.listen(engine, "connect", _settle_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return Database(engine, str(file))


def _settle_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # transactions begin where we say, not where the driver guesses
    make_durable(connection)  # phases decide what is skipped: they must not go back


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES)
    connection.exec_driver_sql("begin immediate" if writes else "begin")


def _postgres(url: str) -> Database:
    dsn = _POSTGRES.sub("postgresql://", url, count=1)
    try:
        check_dsn(SecretStr(dsn))
    except ValueError as error:
        raise ConfigError(f"`state.url`: {error}") from None
    keywords = conninfo_to_dict(dsn)
    conninfo = with_session(make_conninfo(dsn, **{"fallback_application_name": "penstock", **keywords}))
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://",
        # No prepared statements: a connection pooler between may hand the next one to another session.
        creator=lambda: _connect(conninfo, prepare_threshold=None),
        pool_pre_ping=True,
    )
    at = keywords.get("host") or keywords.get("service") or "localhost"
    place = f"{at}/{keywords.get('dbname') or keywords.get('user') or ''}"
    options = {"schema_translate_map": {None: tables.SCHEMA}}
    return Database(engine.execution_options(**options), place, conninfo)


def _connect(conninfo: str, **options: Any) -> psycopg.Connection[Any]:
    try:
        connection = psycopg.connect(conninfo, **options)
    except psycopg.OperationalError as error:
        raise with_state(error, conninfo) from None
    settle(connection.pgconn)
    return connection


@contextmanager
def explained(place: str) -> Iterator[None]:
    """Raise the database's errors as sentences for the operator: its own words, neither SQL nor secrets."""
    try:
        yield
    except DBAPIError as error:
        raise _explain(error.orig, place) from None
    except psycopg.Error as error:
        raise _explain(error, place) from None


def _explain(error: BaseException | None, place: str) -> PenstockError:
    lines = (line.strip() for line in str(error).splitlines())
    message = without_secrets("; ".join(dict.fromkeys(line for line in lines if line))).rstrip(".")
    state = (error.sqlstate or "") if isinstance(error, psycopg.Error) else ""
    if state == "3D000":
        remedy = "Check the name of the database in `state.url`, or create it. It is not about the password"
        return StateDenied(f"the state store is not there: {message}", store=place, remedy=remedy)
    needs_password = isinstance(error, psycopg.Error) and error.pgconn and error.pgconn.needs_password
    if _DENIED.fullmatch(state) or needs_password:
        return StateDenied(f"the state store refuses us: {message}", store=place)
    if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
        return WrongState(f"the state store does not read: {message}", store=place)
    return StateUnreachable(f"the state store cannot be used: {message}", store=place)
