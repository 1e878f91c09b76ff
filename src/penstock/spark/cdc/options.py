"""The options of `postgres_cdc`: read from Spark's strings, checked, with errors that name the option."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.model import Lsn, TableName
from penstock.model.errors import ConfigError

EARLIEST, LATEST = "earliest", "latest"
DEFAULT_MAX_ROWS = 1_000_000

KNOWN = {
    "spool": "the folder of a spool that some process captures into",
    "config": "a configuration file, in place of `spool`: names the spool, and starts capture if need be",
    "source": "which source of the configuration; not needed if it has one",
    "table": "one table (schema.table), in its own columns and types; without it all tables, as maps",
    "textColumns": "columns of `table`, separated by commas, to be left as PostgreSQL's text",
    "before": "true: with `table`, a struct `_before` of the old row",
    "startingPosition": "where a query without a checkpoint begins: earliest (default), latest, or an LSN",
    "maxRowsPerBatch": "about how many rows a batch has at most; a transaction is never cut",
    "consumer": "the name by which the spool keeps what this query has still to read; one for each query",
    "capture": "auto (default): with `config`, start capture if nobody captures; off: only read",
}


@dataclass(frozen=True, slots=True)
class CdcOptions:
    spool: Path | None = None
    config: Path | None = None
    source: str | None = None
    table: TableName | None = None
    text_columns: frozenset[str] = frozenset()
    before: bool = False
    starting_position: str = EARLIEST
    max_rows: int = DEFAULT_MAX_ROWS
    consumer: str = "spark"
    capture: bool = True

    @classmethod
    def read(cls, options: Mapping[str, str]) -> CdcOptions:
        """Read Spark's options, whose names it may have put in lower case."""
        values = {key.lower(): value for key, value in options.items()}
        by_name = {name: values.pop(name.lower(), None) for name in KNOWN}
        if values:
            raise ConfigError(
                f"postgres_cdc has no option {', '.join(sorted(values))}", remedy=f"It has {', '.join(KNOWN)}"
            )
        spool, config = by_name["spool"], by_name["config"]
        if (spool is None) == (config is None):
            raise ConfigError("postgres_cdc needs one of the options `spool` and `config`")
        table = by_name["table"]
        if table is None and (by_name["textColumns"] or by_name["before"]):
            raise ConfigError("the options `textColumns` and `before` belong to `table`")
        return cls(
            spool=None if spool is None else Path(spool).absolute(),
            config=None if config is None else Path(config).absolute(),
            source=by_name["source"],
            table=None if table is None else TableName.parse(table),
            text_columns=frozenset(_names(by_name["textColumns"] or "")),
            before=_choice("before", by_name["before"] or "false", ("true", "false")) == "true",
            starting_position=_position(by_name["startingPosition"] or EARLIEST),
            max_rows=_count("maxRowsPerBatch", by_name["maxRowsPerBatch"] or str(DEFAULT_MAX_ROWS)),
            consumer=by_name["consumer"] or "spark",
            capture=_choice("capture", by_name["capture"] or "auto", ("auto", "off")) == "auto",
        )


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _choice(option: str, value: str, choices: tuple[str, ...]) -> str:
    if value.lower() not in choices:
        raise ConfigError(f"the option `{option}` is {value!r}, not one of {', '.join(choices)}")
    return value.lower()


def _count(option: str, value: str) -> int:
    if not value.isdecimal() or int(value) == 0:
        raise ConfigError(f"the option `{option}` is {value!r}, not a number of rows")
    return int(value)


def _position(value: str) -> str:
    if value.lower() in (EARLIEST, LATEST):
        return value.lower()
    try:
        return str(Lsn.parse(value))
    except ValueError:
        raise ConfigError(
            f"the option `startingPosition` is {value!r}, not {EARLIEST}, {LATEST} or an LSN"
        ) from None
