"""Destinations of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.config import load
from penstock.destinations.memory import Memory
from penstock.destinations.plugin import type_of
from penstock.model import TableName
from penstock.model.errors import ConfigError
from penstock.model.events import Begin, Commit, Delete, Insert, Message, Relation, Truncate, Update
from penstock.model.phases import Phase
from tests.bed import Database
from tests.pipeline.running import configuration, running

EXAMPLES = Path(__file__, "../../../examples").resolve()


def test_a_destination_is_given_copies_and_events_in_order(
    spark: SparkSession, source: Database, tmp_path: Path
) -> None:
    source.execute("create table t (id integer primary key, v numeric)", "insert into t values (1, 1.50)")
    key = tmp_path.name
    given = {"name": "m", "type": "python", "class": "penstock.destinations.memory.Memory"}
    file = configuration(tmp_path, source, given | {"options": {"key": key}})
    with running(file, spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.t")
        memory = Memory.of(key)
        assert memory.copies[TableName("public", "t")].to_pylist() == [{"id": 1, "v": "1.50"}]
        source.execute(
            "begin; insert into t values (2, null); update t set id = 3 where id = 2;"
            "select pg_logical_emit_message(true, 'note', 'hello'); delete from t where id = 1; commit",
            "truncate t",
        )
        pipeline.until(lambda: any(isinstance(event, Truncate) for event in memory.events))
    kinds = [type(event) for event in memory.events]
    changes = [kind for kind in kinds if kind is not Relation]
    assert changes == [Begin, Insert, Update, Message, Delete, Commit, Begin, Truncate, Commit]
    _, told, _, update, *_ = memory.events
    assert isinstance(told, Relation)
    assert isinstance(update, Update)
    assert (told.table_schema.id, told.table_schema.name) == (update.table_id, TableName("public", "t"))
    assert (update.table_row, update.old_table_row) == (("3", None), (True, ("2", None)))


def test_transformed_rows_of_a_copy_have_the_types_of_their_columns(
    spark: SparkSession, source: Database, tmp_path: Path
) -> None:
    source.execute(
        'create table t ("the.id" integer primary key, n bigint, data bytea, tags int[], at timestamptz)',
        r"insert into t values (1, 41, '\x00ff', '{1,NULL}', '2026-01-02 03:04:05+00')",
    )
    key = tmp_path.name
    rules = {"public.t": {"set": {"n": "n + 1", "odd": "n % 2 = 1"}, "drop": ["at"]}}
    given = {"name": "m", "type": "python", "class": "penstock.destinations.memory.Memory", "tables": rules}
    with running(configuration(tmp_path, source, given | {"options": {"key": key}}), spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.t")
    copied = {"the.id": 1, "n": 42, "data": b"\x00\xff", "tags": [1, None], "odd": True}
    assert Memory.of(key).copies[TableName("public", "t")].to_pylist() == [copied]


def test_the_example_of_ten_lines_works(
    spark: SparkSession,
    source: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source.execute("create table t (id integer primary key)", "insert into t values (1), (2)")
    given = {"name": "print", "type": "python", "class": "print_changes.PrintChanges"}
    monkeypatch.chdir(EXAMPLES)
    with running(configuration(tmp_path, source, given), spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.t")
        source.execute("insert into t values (3)")
        printed = ""

        def is_printed() -> bool:
            nonlocal printed
            printed += capsys.readouterr().out
            return "Commit(" in printed

        pipeline.until(is_printed)
    assert "public.t: a full copy follows\npublic.t: 2 rows\n" in printed
    assert "table_row=('3',)" in printed


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("no_such_module.Thing", "cannot be imported"),
        ("penstock.model.Lsn", "has no method|does not take"),
        ("penstock.destinations.memory.Nothing", "cannot be imported"),
    ],
)
def test_a_class_that_is_none_is_an_error_of_the_configuration(tmp_path: Path, path: str, said: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "pipeline: p\nsources: [{name: s, dsn: 'postgresql://localhost/x'}]\n"
        f"destinations: [{{name: d, type: python, class: {path}}}]\n"
    )
    config = load(file)
    with pytest.raises(ConfigError, match=said):
        type_of(config.destinations[0]).make(config, config.destinations[0])
