"""The options of `postgres_snapshot`: read from Spark's strings, checked; errors name the option."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.model import TableName
from penstock.model.errors import ConfigError

EVERY_COLUMN = "*"
DEFAULT_PARTITION_MB = 256

KNOWN = {
    "dsn": "the connection, as libpq takes it: a URL or `host=… dbname=…`",
    "config": "a configuration file, in place of `dsn`",
    "source": "which source of the configuration; not needed if it has one",
    "table": "the table (schema.table)",
    "columns": "which columns, separated by commas; all without it",
    "where": "an SQL condition, evaluated by PostgreSQL: only rows for which it is true",
    "partitionMb": f"about how many megabytes one task reads (default {DEFAULT_PARTITION_MB})",
    "textColumns": "columns, separated by commas, to be left as PostgreSQL's text; * for all",
    "snapshot": "the name of a snapshot that you export and hold open yourself",
}


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    conninfo: str = field(repr=False)
    table: TableName
    columns: tuple[str, ...] | None = None
    where: str | None = None
    partition_bytes: int = DEFAULT_PARTITION_MB << 20
    text_columns: frozenset[str] = frozenset()
    snapshot: str | None = None
    withheld: frozenset[str] = frozenset()
    """Variables of the environment that hold secrets of the configuration."""

    @classmethod
    def read(cls, options: Mapping[str, str]) -> SnapshotOptions:
        """Read Spark's options, whose names it may have put in lower case."""
        values = {key.lower(): value for key, value in options.items()}
        by_name = {name: values.pop(name.lower(), None) for name in KNOWN}
        if values:
            raise ConfigError(
                f"postgres_snapshot has no option {', '.join(sorted(values))}",
                remedy=f"It has {', '.join(KNOWN)}",
            )
        if by_name["table"] is None:
            raise ConfigError("postgres_snapshot needs the option `table`")
        columns = by_name["columns"]
        conninfo, withheld = _conninfo(by_name)
        return cls(
            conninfo=conninfo,
            table=TableName.parse(by_name["table"]),
            columns=None if columns is None else tuple(_names(columns)),
            where=by_name["where"],
            partition_bytes=_megabytes(by_name["partitionMb"] or str(DEFAULT_PARTITION_MB)),
            text_columns=frozenset(_names(by_name["textColumns"] or "")),
            snapshot=by_name["snapshot"],
            withheld=withheld,
        )


def _conninfo(options: Mapping[str, str | None]) -> tuple[str, frozenset[str]]:
    dsn, config = options["dsn"], options["config"]
    if (dsn is None) == (config is None):
        raise ConfigError("postgres_snapshot needs one of the options `dsn` and `config`")
    if dsn is not None:
        return _checked(dsn), frozenset()
    from penstock.config import load

    assert config is not None
    loaded = load(Path(config).absolute())
    return loaded.source(options["source"]).conninfo(), loaded.withheld


def _checked(dsn: str) -> str:
    """Return the DSN, or raise if it does not parse, not in libpq's words: they may quote the password."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        conninfo_to_dict(dsn)
    except psycopg.Error:
        raise ConfigError(
            "the option `dsn` does not read as a connection",
            remedy="It looks like postgresql://user@host/database or host=… user=… dbname=…",
        ) from None
    return dsn


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _megabytes(value: str) -> int:
    if not value.isdecimal() or int(value) == 0:
        raise ConfigError(f"the option `partitionMb` is {value!r}, not a number of megabytes")
    return int(value) << 20
