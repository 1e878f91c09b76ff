"""The streaming source, over spools made by hand."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row

from penstock.model import Lsn
from penstock.spool.segment import BeforeKind
from tests.changes.made import ORDERS, START, USERS, MadeSpool, table
from tests.spark.conftest import Collect

Stream = Callable[..., DataFrame]


def test_all_tables_come_as_maps(spool: MadeSpool, stream: Stream, drained: Collect) -> None:
    spool.insert(USERS, ("1", "Ann", "1.50"), ("2", None, "2.00"))
    spool.update(USERS, ("1", None, "9.99"), unchanged=[1])
    spool.update(USERS, ("3", "Bob", "1"), before=["2", None, None], before_kind=BeforeKind.KEY)
    spool.delete(USERS, ("3", "Bob", "1"), BeforeKind.FULL)
    spool.truncate(USERS, "cascade", "restart identity")
    spool.message("app", b"\x00hello")
    spool.insert(ORDERS, ("7", "new"))
    spool.commit()
    rows = drained(stream(spool))
    shown = [(r.table, r.op, r.before, r.after, r.unchanged, r.before_kind) for r in rows]
    users = "public.users"
    assert shown == [
        (users, "insert", None, {"id": "1", "name": "Ann", "score": "1.50"}, [], "none"),
        (users, "insert", None, {"id": "2", "name": None, "score": "2.00"}, [], "none"),
        (users, "update", None, {"id": "1", "score": "9.99"}, ["name"], "none"),
        (users, "update", {"id": "2"}, {"id": "3", "name": "Bob", "score": "1"}, [], "key"),
        (users, "delete", {"id": "3", "name": "Bob", "score": "1"}, None, [], "full"),
        (users, "truncate", None, {"options": "cascade, restart identity"}, [], "none"),
        (
            None,
            "message",
            None,
            {"prefix": "app", "transactional": "true", "content": "\\x0068656c6c6f"},
            [],
            "none",
        ),
        ("public.orders", "insert", None, {"id": "7", "note": "new"}, [], "none"),
    ]
    assert (rows[0].commit_lsn, rows[0].lsn, rows[0].xid) == (0x1010, 0x1008, 0x1010)
    assert (rows[0].table_id, rows[0].schema_version) == (1, 1)
    assert str(rows[0].committed_at) == "2026-01-02 03:04:05.678901"


def test_one_table_comes_in_its_own_types(spool: MadeSpool, stream: Stream, drained: Collect) -> None:
    spool.insert(USERS, ("1", "Ann", "1.50")).insert(ORDERS, ("7", "new"))
    spool.update(USERS, ("1", None, "9.99"), unchanged=[1])
    spool.delete(USERS, ("1", None, None)).truncate(USERS)
    spool.commit()
    typed = stream(spool, table="public.users")
    assert typed.schema.simpleString() == (
        "struct<_op:string,_commit_lsn:bigint,_lsn:bigint,_seq:bigint,_xid:bigint,_committed_at:timestamp,"
        "_unchanged:array<string>,id:int,name:string,score:decimal(10,2)>"
    )
    assert [(r._op, r._unchanged, r.id, r.name, r.score) for r in drained(typed)] == [
        ("insert", [], 1, "Ann", Decimal("1.50")),
        ("update", ["name"], 1, None, Decimal("9.99")),
        ("delete", [], 1, None, None),
        ("truncate", [], None, None, None),
    ]


def test_the_old_row_comes_as_a_struct(spool: MadeSpool, stream: Stream, drained: Collect) -> None:
    spool.insert(USERS, ("1", "Ann", "1.50"))
    spool.update(USERS, ("2", "Ann", "1.50"), before=["1", "Ann", "1.50"], before_kind=BeforeKind.FULL)
    spool.commit()
    rows = drained(stream(spool, table="users", before="true"))
    assert [row._before for row in rows] == [None, Row(id=1, name="Ann", score=Decimal("1.50"))]


def test_a_value_that_does_not_fit_is_refused_by_name(
    spool: MadeSpool, stream: Stream, drained: Collect
) -> None:
    spool.insert(USERS, ("1", "Ann", "1.50"), ("2", "Bob", "NaN"))
    spool.commit()
    with pytest.raises(StreamingQueryException) as refused:
        drained(stream(spool, table="public.users"))
    said = str(refused.value)
    assert "ValueRefused: a value does not fit decimal128(10, 2)" in said
    assert "(table public.users, column score, value 'NaN', lsn 0/1008)" in said
    assert "textColumns" in said
    rows = drained(stream(spool, table="public.users", textColumns="score"), "another")
    assert [row.score for row in rows] == ["1.50", "NaN"]


def test_admission_control_never_cuts_a_transaction(
    spool: MadeSpool, stream: Stream, drained: Collect
) -> None:
    for size in (2, 5, 1, 1, 1):
        spool.insert(ORDERS, *((str(n), None) for n in range(size))).commit()
    batches: list[int] = []
    rows = drained(stream(spool, maxRowsPerBatch="3"), batches=batches)
    assert batches == [2, 5, 3]
    assert [row.commit_lsn for row in rows] == sorted(row.commit_lsn for row in rows)


def test_available_now_stops_at_what_was_there(spool: MadeSpool, stream: Stream, tmp_path: Path) -> None:
    for number in range(3):
        spool.insert(ORDERS, (str(number), None)).commit()
    seen: list[str] = []

    def keep(batch: DataFrame, number: int) -> None:
        seen.extend(row.after["id"] for row in batch.collect())
        if number < 5:
            spool.insert(ORDERS, (f"late {number}", None)).commit()

    query = (
        stream(spool, maxRowsPerBatch="1")
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert seen == ["0", "1", "2"]


def test_a_query_goes_on_from_its_checkpoint(spool: MadeSpool, stream: Stream, drained: Collect) -> None:
    spool.insert(ORDERS, ("1", None)).commit()
    assert [row.after["id"] for row in drained(stream(spool))] == ["1"]
    spool.insert(ORDERS, ("2", None)).commit()
    spool.insert(ORDERS, ("3", None)).commit()
    assert [row.after["id"] for row in drained(stream(spool))] == ["2", "3"]
    assert drained(stream(spool)) == []


def test_a_batch_that_failed_is_read_again_the_same(
    spool: MadeSpool, stream: Stream, drained: Collect, tmp_path: Path
) -> None:
    spool.insert(ORDERS, ("1", None), ("2", None)).commit()

    def fail(batch: DataFrame, number: int) -> None:
        raise RuntimeError(f"batch {number} of {batch.count()} rows fails")

    query = (
        stream(spool)
        .writeStream.foreachBatch(fail)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    with pytest.raises(StreamingQueryException, match="batch 0 of 2 rows fails"):
        query.awaitTermination()
    spool.insert(ORDERS, ("3", None)).commit()
    batches: list[int] = []
    assert [row.after["id"] for row in drained(stream(spool), batches=batches)] == ["1", "2", "3"]
    assert batches == [2, 1]


def test_what_was_read_is_acknowledged(spool: MadeSpool, stream: Stream, drained: Collect) -> None:
    end = spool.insert(ORDERS, ("1", None)).commit()
    drained(stream(spool, consumer="mine"))
    assert spool.consumers() == {"mine": end}


def test_an_idle_stream_moves_on_with_capture(spool: MadeSpool, stream: Stream, tmp_path: Path) -> None:
    spool.insert(ORDERS, ("1", None)).commit()
    query = (
        stream(spool)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        idle = spool.pass_time()
        _wait_until(lambda: spool.consumers() == {"spark": idle})
        spool.insert(ORDERS, ("2", None)).commit()
        query.processAllAvailable()
        last = query.lastProgress
        assert last is not None
        assert last.numInputRows == 1 or query.recentProgress[-2].numInputRows == 1
    finally:
        query.stop()


def test_a_checkpoint_older_than_the_spool_is_refused(
    spool: MadeSpool, stream: Stream, drained: Collect
) -> None:
    spool.insert(ORDERS, ("1", None)).commit()
    drained(stream(spool))
    spool.insert(ORDERS, ("2", None)).commit()
    gone = spool.insert(ORDERS, ("3", None)).commit()
    spool.retire(gone)
    with pytest.raises(StreamingQueryException) as refused:
        drained(stream(spool))
    assert "PositionGone: changes are asked for from 0/1100 on, and the spool begins at 0/1300" in str(
        refused.value
    )
    assert "Start with a new checkpoint and a new copy of the tables" in str(refused.value)


@pytest.mark.parametrize(
    ("position", "expected"), [("earliest", ["1", "2", "3"]), ("0/1110", ["2", "3"]), ("latest", [])]
)
def test_a_new_query_begins_where_it_is_told(
    spool: MadeSpool, stream: Stream, drained: Collect, position: str, expected: list[str]
) -> None:
    for number in (1, 2, 3):
        spool.insert(ORDERS, (str(number), None)).commit()
    rows = drained(stream(spool, startingPosition=position))
    assert [row.after["id"] for row in rows] == expected


def test_a_starting_position_outside_the_spool_is_refused(
    spool: MadeSpool, stream: Stream, drained: Collect
) -> None:
    spool.insert(ORDERS, ("1", None)).commit()
    with pytest.raises(StreamingQueryException, match="PositionGone"):
        drained(stream(spool, startingPosition="0/10"))


def test_a_new_query_holds_what_it_has_still_to_read(
    spool: MadeSpool, stream: Stream, drained: Collect
) -> None:
    end = spool.insert(ORDERS, ("1", None)).commit()
    drained(stream(spool), "first")
    assert spool.consumers() == {"spark": end}
    batches: list[Lsn] = []
    query = stream(spool).writeStream.foreachBatch(
        lambda _batch, _n: batches.append(spool.consumers()["spark"])
    )
    query.option("checkpointLocation", str(spool.path / "second")).trigger(
        availableNow=True
    ).start().awaitTermination()
    assert batches == [START]


def test_older_versions_are_fitted_by_name(spool: MadeSpool, stream: Stream, drained: Collect) -> None:
    spool.insert(USERS, ("1", "Ann", "1.50")).commit()
    newer = table(
        1, "public.users", {"score": USERS.columns[2].type, "id": "int8", "city": "text"}, version=2
    )
    spool.learn(newer)
    spool.insert(newer, ("2.50", "2", "Oslo")).commit()
    rows = drained(stream(spool, table="public.users"))
    assert [(row.id, row.score, row.city) for row in rows] == [
        (1, Decimal("1.50"), None),
        (2, Decimal("2.50"), "Oslo"),
    ]


def test_a_column_added_while_it_runs_stops_the_query_and_comes_after_a_restart(
    spool: MadeSpool, stream: Stream, drained: Collect
) -> None:
    spool.insert(USERS, ("1", "Ann", "1.50")).commit()
    old = stream(spool, table="public.users")
    assert len(drained(old)) == 1
    newer = table(1, "public.users", {c.name: c.type for c in USERS.columns} | {"city": "text"}, version=2)
    spool.learn(newer)
    spool.insert(newer, ("2", "Bob", "2.50", "Oslo")).commit()
    with pytest.raises(StreamingQueryException) as stopped:
        drained(old)
    assert "SchemaChanged: the table's columns changed while the query ran: added city" in str(stopped.value)
    rows = drained(stream(spool, table="public.users"))
    assert [(row.id, row.city) for row in rows] == [(2, "Oslo")]


def test_a_version_with_the_same_columns_goes_on(spool: MadeSpool, stream: Stream, drained: Collect) -> None:
    spool.insert(USERS, ("1", "Ann", "1.50")).commit()
    loaded = stream(spool, table="public.users")
    same = table(1, "public.users", {c.name: c.type for c in USERS.columns}, version=2, key=("name",))
    spool.learn(same)
    spool.insert(same, ("2", "Bob", "2.50")).commit()
    assert [row.id for row in drained(loaded)] == [1, 2]


def test_a_type_that_changed_its_meaning_is_refused(
    spool: MadeSpool, stream: Stream, drained: Collect
) -> None:
    spool.insert(USERS, ("1", "12:30", "1.50")).commit()
    spool.learn(table(1, "public.users", {"id": "int4", "name": "int4"}, version=2))
    spool.commit()
    with pytest.raises(
        StreamingQueryException, match="was text when these rows were written and is int4 now"
    ):
        drained(stream(spool, table="public.users"))
    rows = drained(stream(spool, table="public.users", textColumns="name"), "as_text")
    assert [row.name for row in rows] == ["12:30"]


def test_a_table_made_anew_is_the_same_stream(spool: MadeSpool, stream: Stream, drained: Collect) -> None:
    anew = table(0xFFFF, "public.users", {column.name: column.type for column in USERS.columns})
    spool.learn(anew)
    spool.insert(anew, ("1", "Ann", "1")).insert(USERS, ("2", "Bob", "2")).insert(anew, ("3", "Eve", "3"))
    spool.commit()
    assert [row.id for row in drained(stream(spool, table="public.users"))] == [1, 2, 3]


def test_a_table_renamed_while_it_is_followed_stops_the_query(
    spool: MadeSpool, stream: Stream, drained: Collect
) -> None:
    loaded = stream(spool.insert(USERS, ("1", "Ann", "1")) and _committed(spool), table="public.users")
    renamed = table(1, "public.people", {c.name: c.type for c in USERS.columns}, version=2)
    spool.learn(renamed)
    spool.insert(renamed, ("2", "Bob", "2")).commit()
    with pytest.raises(StreamingQueryException, match=r"the table is called public\.people now"):
        drained(loaded)


def test_an_unknown_table_is_refused_when_the_stream_is_loaded(spool: MadeSpool, stream: Stream) -> None:
    spool.insert(USERS, ("1", "Ann", "1")).commit()
    with pytest.raises(PySparkException, match="UnknownTable: no change of this table has been captured yet"):
        stream(spool, table="public.nobody")


@pytest.mark.slow
def test_a_large_batch_is_shared_out_in_order(spool: MadeSpool, stream: Stream) -> None:
    spool.insert(ORDERS, *((str(n), None) for n in range(250_000))).commit()
    counts: list[tuple[int, int, bool]] = []

    def look(batch: DataFrame, _number: int) -> None:
        for number, ids in (
            batch.rdd.glom()
            .map(lambda rows: [row.id for row in rows])
            .zipWithIndex()
            .map(lambda pair: (pair[1], pair[0]))
            .collect()
        ):
            counts.append((number, len(ids), ids == sorted(ids)))

    query = stream(spool, table="public.orders").select("id").writeStream.foreachBatch(look)
    query.option("checkpointLocation", str(spool.path / "c")).trigger(
        availableNow=True
    ).start().awaitTermination()
    assert [number for number, _, _ in sorted(counts)] == [0, 1]
    assert sum(count for _, count, _ in counts) == 250_000
    assert all(in_order for _, _, in_order in counts)


def _committed(spool: MadeSpool) -> MadeSpool:
    spool.commit()
    return spool


def _wait_until(true: Callable[[], bool], seconds: float = 15) -> None:
    import time

    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)
