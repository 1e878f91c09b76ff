"""Markers of reloads are comments, and whoever owns a table may write any comment."""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from penstock.model import Lsn, TableId, TableName
from penstock.model.ddl import LONGEST_MARKER, DdlEvent, Marker, RefusedMarker
from penstock.model.phases import Phase
from penstock.model.visibility import Visibility
from tests.bed import Database
from tests.files.test_files import to_files
from tests.pipeline.running import configuration, running, to_postgres
from tests.security.attacker import Attacker

PREFIX = "CDC_RELOAD:"
ID = "6f0c5a3e-0f5f-4d5e-9d0e-1f2a3b4c5d6e"
START: dict[str, Any] = {"action": "EXPORT_START", "export_id": ID}
END: dict[str, Any] = {"action": "EXPORT_END", "export_id": ID}

BAD: dict[str, str] = {
    "not JSON": "EXPORT_START",
    "nothing": "",
    "not JSON but nearly": json.dumps(START)[:-1],
    "a list": json.dumps([START]),
    "a number": "1",
    "deep": "[" * 30_000 + "]" * 30_000,
    "deep inside": json.dumps({**START, "x": {}})[:-2] + '{"a":' * 5_000 + "1" + "}" * 5_001 + "}",
    "long": json.dumps({**START, "x": "y" * LONGEST_MARKER}),
    "an endless number": '{"action": "EXPORT_START", "export_id": ' + "9" * 50_000 + "}",
    "an unknown action": json.dumps({**START, "action": "DROP"}),
    "an action that is a list": json.dumps({**START, "action": ["EXPORT_START"]}),
    "no id": json.dumps({"action": "EXPORT_START"}),
    "an id that is a number": json.dumps({**START, "export_id": 7}),
    "a long id": json.dumps({**START, "export_id": "x" * 1_000}),
    "external as text": json.dumps({**START, "external": "yes"}),
    "a snapshot of nonsense": json.dumps({**END, "snapshot": "now"}),
    "a snapshot of letters": json.dumps({**END, "snapshot": "a:b:c"}),
    "a snapshot that is a number": json.dumps({**END, "snapshot": 5}),
    "a snapshot too large": json.dumps({**END, "snapshot": f"{2**70}:{2**71}:"}),
    "a snapshot back to front": json.dumps({**END, "snapshot": "9:5:"}),
    "a snapshot of others": json.dumps({**END, "snapshot": "5:9:17"}),
    "a key twice": '{"action": "EXPORT_START", "action": "EXPORT_END", "export_id": "x"}',
    "no number": '{"action": "EXPORT_START", "export_id": "x", "y": NaN}',
}


def read(text: str) -> Marker | RefusedMarker | None:
    event = DdlEvent(Lsn(7), datetime.now(UTC), "COMMENT", TableId(5), "", PREFIX + text)
    return Marker.of(event, PREFIX)


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_a_bad_marker_is_refused_with_its_reason(text: str) -> None:
    refused = read(text)
    assert isinstance(refused, RefusedMarker)
    assert 5 < len(refused.reason) < 150
    assert refused == read(text), "the same whenever it is read"


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(START),
        json.dumps({**START, "table_name": "public.users", "timestamp": "2026", "rows_exported": 3}),
        json.dumps({**START, "external": True, "export_id": "nightly"}),
        json.dumps({**END, "snapshot": "5:9:6,7"}),
        json.dumps({**END, "snapshot": None}),
    ],
)
def test_a_good_one_is_read(text: str) -> None:
    assert isinstance(read(text), Marker)


@given(
    st.text() | st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists).map(json.dumps)
)
def test_whatever_the_comment_is_it_is_read_or_refused(text: str) -> None:
    assert read(text) is not None


@given(st.text("0123456789:,- "))
def test_a_snapshot_is_read_as_the_server_writes_it_or_not_at_all(text: str) -> None:
    with suppress(ValueError):
        read = Visibility.parse(text)
        assert Visibility.parse(str(read)) == read


def test_an_id_of_ones_own_is_another_for_another_table() -> None:
    given = DdlEvent(
        Lsn(7), datetime.now(UTC), "COMMENT", TableId(5), "", PREFIX + json.dumps({**START, "export_id": "x"})
    )
    other = DdlEvent(Lsn(7), given.at, "COMMENT", TableId(6), "", given.comment)
    one, two = Marker.of(given, PREFIX), Marker.of(other, PREFIX)
    assert isinstance(one, Marker)
    assert isinstance(two, Marker)
    assert one.export_id != two.export_id


@pytest.mark.slow
def test_bad_markers_are_recorded_once_and_nothing_else_happens(
    spark: SparkSession, source: Database, destination: Database, attacker: Attacker, tmp_path: Path
) -> None:
    """They are there from before the first start, come while it runs, and are there when it starts again."""
    source.execute("create table public.users (id int primary key)", "insert into users values (1)")
    attacker.execute("create table mine.t (id int primary key)", "insert into mine.t values (1)")
    tables = [TableName("public", "users"), TableName("mine", "t")]
    sources = [{"name": "source", "dsn": source.dsn, "tables": {"exclude": ["mine.caught"]}}]
    trusted = to_postgres(destination, trusted_owners=[attacker.role])  # of the schema: this is about markers
    config = configuration(tmp_path, source, to_files(tmp_path), trusted, sources=sources)
    comments = [f"{PREFIX}{text}" for text in BAD.values()]

    def refused() -> int:
        (row,) = source.query(
            "select count(*) from cdc_registry.reload_operations"
            " where status = 'refused' and table_name = 'mine.t' and reason is not null"
        )
        return int(row[0])

    with attacker.connect(source) as connection:
        connection.execute("select set_config('x.y', %s, false)", (comments[0],))
        with running(config, spark) as pipeline:
            pipeline.until_phase(Phase.READY, *map(str, tables))
            victim = uuid.uuid4()
            source.execute(
                f"comment on table users is '{PREFIX}"
                + json.dumps({**START, "export_id": str(victim), "external": True})
                + "'"
            )
            state = "select status, end_marker_lsn from cdc_registry.reload_operations where export_id = %s"
            pipeline.until(lambda: source.query(state, victim) == [("active", None)])
            for comment in comments:
                connection.execute(f"comment on table mine.t is {_literal(comment)}".encode())
            # An END for somebody else's reload, whose id everybody can read, and a START with that id.
            for said in ({**END, "snapshot": "3:4:"}, {**START}):
                text = f"{PREFIX}{json.dumps({**said, 'export_id': str(victim)})}"
                connection.execute(f"comment on table mine.t is {_literal(text)}".encode())
            pipeline.until(lambda: refused() == len(BAD) + 1)
            assert source.query(state, victim) == [("active", None)], "it is not the attacker's to end"
            source.execute(
                "comment on table users is '" + PREFIX + json.dumps({**END, "export_id": str(victim)}) + "'"
            )
            pipeline.until(lambda: source.query(state, victim)[0][0] == "completed")
            connection.execute(f"comment on table mine.t is {_literal(comments[5])}".encode())
            source.execute("insert into users values (2)", "insert into mine.t values (2)")
            pipeline.until_equal(source, destination, lambda: tables)
        with running(config, spark) as pipeline:
            source.execute("insert into users values (3)", "insert into mine.t values (3)")
            pipeline.until_equal(source, destination, lambda: tables)
            pipeline.until_phase(Phase.READY, *map(str, tables))
    assert refused() == len(BAD) + 2
    assert not attacker.caught()


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
