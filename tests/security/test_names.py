"""Names made to break out of whatever they are put into: statements, comments, files, scripts, terminals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from psycopg import sql
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from penstock.cli import app
from penstock.destinations.files.snowflake import Export, ExportedFile, script
from penstock.embedded.postgres import PostgresServer
from penstock.model import TableName
from penstock.model.phases import Phase
from tests.bed import Database, fresh_database
from tests.files.consumer import Consumer
from tests.files.test_files import to_files, until_rebuilt
from tests.pipeline.running import configuration, running, to_postgres

HOSTILE = (
    '"; drop table public.precious; --',
    "'; drop table public.precious; --",
    "c$$;drop table public.precious;--",
    "$function$; drop table precious; --",
    "\\'; drop table public.precious; --",
    "a\nb\r\n; drop table public.precious; --",
    "\x1b[2J\x1b]0;owned\x07 {schema} {0} %s %(x)s",
    "ß𝔘\u202e\u2028ñ" * 4,
    "x" * 63,
    "../../etc/passwd",
    "`a` ${b} #{c} <d>",
)
"""Each is used for a schema, a table, a column, a type and a comment."""
PRECIOUS = TableName("public", "precious")


def quoted(*names: str) -> str:
    return sql.Identifier(*names).as_string(None)


def literal(text: str) -> str:
    return sql.Literal(text).as_string(None)


@pytest.fixture
def rebuilt(server: PostgresServer) -> Iterator[Database]:
    yield from fresh_database(server)


def make(source: Database) -> list[TableName]:
    source.execute("create table public.precious (id int primary key)", "insert into precious values (1)")
    tables = [TableName(schema, name) for schema, name in zip(HOSTILE, reversed(HOSTILE), strict=True)]
    for table, column in zip(tables, HOSTILE, strict=True):
        name, type = quoted(table.schema, table.name), quoted(table.schema, f"t{table.name[:50]}")
        source.execute(
            f"create schema {quoted(table.schema)}",
            f"create type {type} as enum ({literal(column[:30])})",
            f"create table {name} (id int primary key, {quoted(column)} text default {literal(column)},"
            f" of_type {type} default {literal(column[:30])})",
            f"comment on table {name} is {literal(column)}",
            f"insert into {name} values (1), (2)",
        )
    return tables


def test_no_name_breaks_out_of_where_it_is_put(
    spark: SparkSession, source: Database, destination: Database, rebuilt: Database, tmp_path: Path
) -> None:
    tables = make(source)
    names = [*tables, PRECIOUS]
    config = configuration(tmp_path, source, to_files(tmp_path), to_postgres(destination))
    consumer, commands = Consumer(source, rebuilt), CliRunner()
    with running(config, spark) as pipeline:
        pipeline.until_phase(Phase.READY, *map(str, names))
        for table, column in zip(tables, reversed(HOSTILE), strict=True):
            name, extra = quoted(table.schema, table.name), quoted(f"{column[:20]}2")
            source.execute(
                f"alter table {name} add column {extra} text default {literal(column)}",
                f"update {name} set {extra} = 'x' where id = 1; delete from {name} where id = 2",
            )
        pipeline.until_equal(source, destination, lambda: names)
        until_rebuilt(pipeline, consumer, source, rebuilt, lambda: names)
        for command, *more in (["status"], ["status", "--json"], ["check"]):
            told = commands.invoke(app, [command, str(config), *more])
            assert not any(one in told.output for one in ("\x1b", "\u202e", "\x07")), command
        for table in tables:
            name = quoted(table.schema) + "." + quoted(table.name)
            assert commands.invoke(app, ["reload", str(config), name]).exit_code == 0
        pipeline.until(
            lambda: (
                source.query("select count(*) from cdc_registry.reload_operations where status = 'completed'")
                == [(len(tables),)]
            )
        )
        pipeline.until_phase(Phase.READY, *map(str, names))
    for table in tables:
        printed = commands.invoke(
            app, ["snowflake", str(config), f"{quoted(table.schema)}.{quoted(table.name)}"]
        )
        assert printed.exit_code == 0, printed.output
        assert statements(printed.output)
    for place in (source, destination, rebuilt):
        assert place.query("select * from public.precious") == [(1,)]
    descriptions = [yaml.safe_load(path.read_text()) for path in tmp_path.rglob("schema.yml")]
    assert {one["table"]["name"] for one in descriptions} == {table.name for table in names}
    inside = (tmp_path / "files").resolve()
    assert all(path.resolve().is_relative_to(inside) for path in inside.rglob("*"))


def statements(text: str) -> list[str]:
    """What the script consists of, told apart as Snowflake does: by its own quotes and comments."""
    found, at, begun = list[str](), 0, 0
    while at < len(text):
        if text.startswith("--", at):
            at = text.find("\n", at) % (len(text) + 1)
            begun = at if not text[begun:at].partition("--")[0].strip() else begun
        elif text.startswith("$$", at):
            at = text.index("$$", at + 2) + 2
        elif text[at] == '"':
            at = text.index('"', at + 1) + 1
        elif text[at] == "'":
            at += 1
            while text[at] != "'":
                at += 2 if text[at] == "\\" else 1
            at += 1
        else:
            if text[at] == ";":
                found.append(text[begun:at].strip())
                begun = at + 1
            at += 1
    begins = (
        "create",
        "put",
        "copy",
        "insert",
        "drop table",
        "execute",
        "begin",
        "delete",
        "merge",
        "commit",
    )
    assert all(one.startswith(begins) for one in found), found
    assert not any(one.startswith("drop table") and "__copy" not in one for one in found), found
    return found


@pytest.mark.parametrize("name", HOSTILE)
def test_a_column_does_not_end_the_block_of_snowflakes_script(name: str) -> None:
    described = {
        "table": {"schema": name, "name": name, "row_count": 1},
        "columns": [{"name": "id", "type": "integer"}, {"name": name, "type": "text"}],
        "metadata": {"snapshot_lsn": "0/10", "key": ["id"]},
    }
    files = (
        ExportedFile("full_reload", "a/f.csv.gz", "0/10"),
        ExportedFile("streaming", "b/s.csv.gz", "0/20"),
    )
    for base in ("/data", "s3://bucket/x"):
        found = statements(script(Export(described, name, base, "cdc_registry", files)))
        (block,) = [one for one in found if one.startswith("execute immediate")]
        assert block.endswith(("$$", "'"))
        assert "raise lost" in block
