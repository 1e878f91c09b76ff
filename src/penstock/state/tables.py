"""The tables of the state store.

On PostgreSQL they live in the schema `penstock`, on SQLite as they stand here. A destination may keep its own
tables in that schema of the same database: ours begin with `state_`. Several pipelines may share a store;
`pipeline` comes first in every key.

Positions are plain integers, as in the spool's manifest; times are in UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Identity,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    TypeDecorator,
)

from penstock.model import Lsn

FORMAT = 2
"""Grows with every change to these tables; `migrations` has what it takes."""

SCHEMA = "penstock"


class Position(TypeDecorator[Lsn]):
    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: Lsn | None, dialect: Dialect) -> int | None:  # noqa: ARG002
        return None if value is None else value.value

    def process_result_value(self, value: int | None, dialect: Dialect) -> Lsn | None:  # noqa: ARG002
        return None if value is None else Lsn(value)


class Instant(TypeDecorator[datetime]):
    """A time with its zone: SQLite forgets the zone, PostgreSQL answers in the session's."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        if value is None:
            return None
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


Document = JSON(none_as_null=True)
Number = BigInteger().with_variant(Integer, "sqlite")  # an INTEGER key is what SQLite counts up by itself

metadata = MetaData()

formats = Table(
    "state_format",
    metadata,
    Column("format", Integer, primary_key=True),
    Column("written_by", Text),  # the version of Penstock that made it, or brought it up to date
)

leases = Table(
    "state_leases",
    metadata,
    Column("pipeline", Text, primary_key=True),
    Column("token", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("since", Instant, nullable=False),
)

tables = Table(
    "state_tables",
    metadata,
    Column("pipeline", Text, primary_key=True),
    Column("source", Text, primary_key=True),
    Column("destination", Text, primary_key=True),
    Column("table_id", BigInteger, primary_key=True),
    Column("schema_name", Text, nullable=False),
    Column("table_name", Text, nullable=False),
    Column("target_schema", Text, nullable=False),
    Column("target_name", Text, nullable=False),
    Column("phase", Text, nullable=False),
    Column("since", Instant, nullable=False),
    Column("copy", Text),
    Column("snapshot", Text),
    Column("snapshot_lsn", Position),
    Column("version", Integer, nullable=False),
    Column("position", Position),
    Column("rows", BigInteger, nullable=False),
    Column("copied_bytes", BigInteger, nullable=False),
    Column("total_bytes", BigInteger, nullable=False),
    Column("error", Document),
    Column("attempts", Integer, nullable=False),
    Column("retry_at", Instant),
    Column("detail", Document, nullable=False),
)

history = Table(
    "state_history",
    metadata,
    Column("id", Number, Identity(), primary_key=True),
    Column("pipeline", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("destination", Text, nullable=False),
    Column("table_id", BigInteger, nullable=False),
    Column("phase", Text),  # null: removed
    Column("at", Instant, nullable=False),
    Column("why", Text, nullable=False),
    Index("state_history_by_table", "pipeline", "source", "destination", "table_id", "id"),
)

schemas = Table(
    "state_schemas",
    metadata,
    Column("pipeline", Text, primary_key=True),
    Column("source", Text, primary_key=True),
    Column("table_id", BigInteger, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("from_lsn", Position, nullable=False),
    Column("document", Document, nullable=False),
)

progress = Table(
    "state_progress",
    metadata,
    Column("pipeline", Text, primary_key=True),
    Column("source", Text, primary_key=True),
    Column("destination", Text, primary_key=True),
    Column("position", Position, nullable=False),
    Column("complete_through", Instant),
    Column("rows", BigInteger, nullable=False),
    Column("batches", BigInteger, nullable=False),
    Column("updated_at", Instant, nullable=False),
)

requests = Table(
    "state_requests",
    metadata,
    Column("id", Number, Identity(), primary_key=True),
    Column("pipeline", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("what", Document, nullable=False),
    Column("at", Instant, nullable=False),
)

waits = Table(
    "state_waits",
    metadata,
    Column("pipeline", Text, primary_key=True),
    Column("source", Text, primary_key=True),
    Column("destination", Text, primary_key=True),
    Column("since", Instant, nullable=False),
    Column("error", Document, nullable=False),
)

mapping = Table(
    "state_mapping",
    metadata,
    Column("pipeline", Text, primary_key=True),
    Column("source", Text, primary_key=True),
    Column("schema_name", Text, primary_key=True),
    Column("table_name", Text, primary_key=True),
    Column("revision", BigInteger, nullable=False),  # of the mapping, when this was decided last
    Column("at", Instant, nullable=False),
    Column("captured", Boolean),  # null: as the file says
    Column("placings", Document, nullable=False),
)

mapping_revisions = Table(
    "state_mapping_revisions",
    metadata,
    Column("pipeline", Text, primary_key=True),
    Column("revision", BigInteger, nullable=False),
)

OF_A_PIPELINE = (tables, history, schemas, progress, waits, requests, mapping, mapping_revisions)
