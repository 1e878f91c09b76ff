"""Every type's values reach the spool as the text that PostgreSQL writes, whatever the source's settings."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from penstock.postgres.connection import connect
from tests.bed import Database
from tests.capture.running import captured, running, spec_for
from tests.checker import text_rows
from tests.spark import test_types as samples

ODD_SETTINGS = {
    "datestyle": "SQL, DMY",
    "intervalstyle": "postgres_verbose",
    "bytea_output": "escape",
    "timezone": "Asia/Tokyo",
    "extra_float_digits": "-10",
    "xmloption": "document",
}


@pytest.fixture
def source(database: Database) -> Database:
    """A database of odd settings, with a column for each type that this server has."""
    for statement in samples.SET_UP.split(";")[:-1]:
        try:
            database.execute(statement)
        except (psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedFile):
            continue  # an extension that this server does not have
    for setting, value in ODD_SETTINGS.items():
        database.execute(f"alter database {database.name} set {setting} = '{value}'")
    return database


def exists(source: Database, declared: str) -> bool:
    """Whether this server has the type, with these modifiers."""
    try:
        return source.query("select to_regtype(%s)", declared) != [(None,)]
    except psycopg.errors.InvalidParameterValue:
        return False


def test_values_arrive_as_the_server_writes_them(source: Database, tmp_path: Path) -> None:
    values: dict[str, list[str]] = {}
    for listed in (samples.HELD, samples.KEPT_AS_TEXT, samples.REFUSED):
        for declared, texts in listed.items():
            if exists(source, declared):
                values.setdefault(declared, []).extend(texts)
    assert len(values) > 75
    columns = ", ".join(f"c{number} {declared}" for number, declared in enumerate(values))
    source.execute(
        f"create table every (id int primary key, {columns}); create publication p for table every"
    )
    with running(spec_for(source, tmp_path)) as capture, source.connect() as writer:
        for row in range(max(map(len, values.values()))):
            shown = [texts[row] if row < len(texts) else None for texts in values.values()]
            places = ", ".join(f"%s::text::{declared}" for declared in values)
            writer.execute("set datestyle = 'ISO, MDY'")
            writer.execute(f"insert into every values (%s, {places})".encode(), [row, *shown])
        capture.until_past(source)
    with connect(source.dsn) as connection:
        _, expected = text_rows(connection, captured(tmp_path)[0].table.name)  # type: ignore[union-attr]
    assert [change.after for change in captured(tmp_path)] == expected
    written = {value for row in expected for value in row}
    for telling in ("0044-03-15 BC", "\\x00", "1.7976931348623157e+308", "-1 years +2 days -03:04:05.678901"):
        assert telling in written
