"""A mirror equals its source, whatever happens to the tables."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.changes.encoded import Encoding
from penstock.embedded.nats import NatsServer
from penstock.model import Column, TableName
from tests.changes.made import column_type
from tests.consumer.comparing import differences
from tests.consumer.producing import Values, model_table
from tests.consumer.staging import ITEMS, Stage, items, row, staged


@pytest.mark.parametrize("encoding", list(Encoding))
def test_values_of_every_kind_arrive_by_snapshot_and_by_change(
    nats: NatsServer, tmp_path: Path, encoding: Encoding
) -> None:
    columns = {
        **{"id": "int8", "n": "numeric", "t": "timestamptz", "b": "bool", "f": "float8", "raw": "bytea"},
        **{"doc": "jsonb", "note": "text"},
    }
    rows: list[Values] = [
        dict(zip(columns, values, strict=True))
        for values in (
            ["0", "1.50", "2026-01-01 00:00:00+00", "t", "NaN", "\\x00ff", '"text"', ""],
            ["-9223372036854775808", "NaN", "infinity", "f", "-Infinity", "\\x", "5", "a\nb"],
            ["9223372036854775807", "1e400", None, None, "1e-300", None, "[1,null,{}]", None],
            ["-7", "0.10", "-infinity", "f", "-0", "\\x61", "true", "'\"é😀"],
        )
    ]

    async def scenario(stage: Stage) -> None:
        producer = stage.producer
        table = model_table(1, TableName("public", "all kinds"), columns)
        await producer.add(table)
        table.rows = rows[:2]
        await stage.check()
        at = producer.begin()
        for values in rows[2:]:
            producer.insert(at, table, values)
        producer.update(at, table, rows[0], rows[0] | {"f": "5", "doc": '{"b": 1, "a": 2}'})
        producer.commit(at)
        await stage.check()

    staged(nats, tmp_path, scenario, encoding)


NESTED = "[" * 3000 + "]" * 3000
NAMED = '{"b":[],"a":' * 2000 + '"é"' + "}" * 2000
ODD_DOCUMENTS = {
    NESTED: NESTED,
    NAMED: '{"a":' * 2000 + '"é"' + ',"b":[]}' * 2000,
    "7" * 5000: f'"{"7" * 5000}"',
    "12345678901234567890123": '"12345678901234567890123"',
    f"[18446744073709551615, 1{'0' * 30}]": "[18446744073709551615,1e+30]",
}
"""And what a mirror has of them."""


@pytest.mark.parametrize("encoding", list(Encoding))
def test_odd_documents_arrive(nats: NatsServer, tmp_path: Path, encoding: Encoding) -> None:
    async def scenario(stage: Stage) -> None:
        producer = stage.producer
        table = model_table(1, TableName("public", "odd"), {"id": "int4", "doc": "json"})
        await producer.add(table)
        await stage.check()
        at = producer.begin()
        for number, document in enumerate(ODD_DOCUMENTS):
            producer.insert(at, table, {"id": str(number), "doc": document})
        producer.insert(at, table, {"id": "99", "doc": r'"half \ud800 é"'})
        producer.commit(at)
        await producer.publish()
        await stage.catch_up()
        with closing(sqlite3.connect(stage.path)) as connection:
            documents = connection.execute("select doc from odd order by id").fetchall()
        assert [document for (document,) in documents][:-1] == [*ODD_DOCUMENTS.values()]
        assert "ud800 é" in documents[-1][0]
        assert producer.snapshots == 1

    staged(nats, tmp_path, scenario, encoding)


@pytest.mark.parametrize("encoding", list(Encoding))
def test_what_cannot_be_read_or_kept_loads_its_table_anew_and_no_other(
    nats: NatsServer, tmp_path: Path, encoding: Encoding
) -> None:
    async def scenario(stage: Stage) -> None:
        producer, table, other = stage.producer, items(), items(5, "other")
        await producer.add(table, other)
        await stage.check()
        table.rows = [row(1)]
        producer.outbox.append(("cdc.items.insert", b"[" * 5000))
        await stage.check()
        at = producer.begin()
        producer.insert(at, other, row(7))
        producer.insert(at, table, row(2, "strange"))
        producer.commit(at)
        subject, message = producer.outbox[-1]
        producer.outbox[-1] = subject, message.replace(b"strange", b"\xff" * 7)
        await stage.check()
        assert producer.snapshots == 4

    staged(nats, tmp_path, scenario, encoding)


def test_keys_of_every_kind_and_rows_without_one(nats: NatsServer, tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        producer = stage.producer
        numbers = items()
        pairs = model_table(2, TableName("s", "pairs"), {"a": "text", "b": "int4", "v": "text"}, ("a", "b"))
        loose = model_table(3, TableName("public", "loose"), {"v": "text", "w": "int4", "rowid": "text"}, ())
        await producer.add(numbers, pairs, loose)
        numbers.rows = [row(0), row(-1), row(5)]
        pairs.rows = [{"a": "", "b": "0", "v": "1"}, {"a": "a'b", "b": "-1", "v": None}]
        same: Values = {"v": None, "w": "1", "rowid": None}
        loose.rows = [dict(same), dict(same), dict(same), {"v": "x", "w": None, "rowid": "1"}]
        await stage.check()
        at = producer.begin()
        producer.update(at, numbers, row(0), row(-8, "moved"))
        producer.update(at, numbers, row(5), row(0, "takes its place"))
        producer.delete(at, numbers, row(-1))
        producer.update(at, pairs, pairs.rows[0], {"a": "new", "b": "0", "v": "2"})
        producer.delete(at, pairs, pairs.rows[1])
        producer.delete(at, loose, same)
        producer.update(at, loose, same, same | {"v": "changed"})
        producer.insert(at, loose, dict(same))
        producer.commit(at)
        await stage.check()
        at = producer.begin()
        producer.truncate(at, pairs)
        producer.insert(at, pairs, {"a": "after", "b": "1", "v": None})
        producer.commit(at)
        await stage.check()
        assert producer.snapshots == 3

    staged(nats, tmp_path, scenario)


def test_columns_that_were_not_sent_keep_their_values(nats: NatsServer, tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        producer, table = stage.producer, items()
        await producer.add(table)
        table.rows = [row(1, "long", '{"kept": 1}')]
        await stage.check()
        at = producer.begin()
        producer.update(at, table, table.rows[0], table.rows[0] | {"ratio": "2.5"}, "name", "info")
        producer.update(at, table, table.rows[0], table.rows[0] | {"id": "2", "ratio": "3.5"}, "name", "info")
        producer.commit(at)
        await stage.check()
        assert producer.snapshots == 1

    staged(nats, tmp_path, scenario)


def test_names_of_every_kind(nats: NatsServer, tmp_path: Path) -> None:
    odd = {"id": "int4", 'say "x"': "text", "A": "text", "a": "text", "dot.ted": "text", "é 😀": "text"}
    names = [
        *(TableName("public", name) for name in ('ta"ble', "with.dot", "a b", "😀", "Users", "users")),
        *(TableName("public", name) for name in ("sqlite_x", "__penstock_tables", "select")),
        TableName("sch.ema", 'x"y'),
    ]

    async def scenario(stage: Stage) -> None:
        producer = stage.producer
        for number, name in enumerate(names):
            table = model_table(number + 1, name, odd)
            table.rows = [dict.fromkeys(odd, str(number))]
            await producer.add(table)
        await stage.check()
        at = producer.begin()
        for table in producer.tables.values():
            values: Values = {"id": "77"}
            producer.insert(at, table, values | dict.fromkeys([*odd][1:], 'it\'s "so"'))
            producer.update(at, table, table.rows[0], table.rows[0] | {"A": "B", "a": "b"})
        producer.commit(at)
        await stage.check()
        assert producer.snapshots == len(names)

    staged(nats, tmp_path, scenario)


def test_changes_that_come_twice_are_applied_once(nats: NatsServer, tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        producer = stage.producer
        table, loose = items(), model_table(3, TableName("public", "loose"), {"v": "text"}, ())
        await producer.add(table, loose)
        table.rows = [row(1)]
        await stage.check()
        for number in range(3):
            at = producer.begin()
            producer.insert(at, loose, {"v": "same"})
            producer.update(at, table, table.rows[0], row(number + 10))
            producer.commit(at)
        await producer.publish(twice=True)
        await stage.check()
        assert producer.snapshots == 2

    staged(nats, tmp_path, scenario)


def test_a_snapshot_is_cut_by_transactions_and_not_by_positions(nats: NatsServer, tmp_path: Path) -> None:
    """One is open while the snapshot is taken and commits later; one is in it and published later."""

    async def scenario(stage: Stage) -> None:
        producer = stage.producer
        table = model_table(3, TableName("public", "loose"), {"v": "text"}, ())
        await producer.add(table)
        open_one, committed = producer.begin(), producer.begin()
        producer.insert(open_one, table, {"v": "open"})
        producer.insert(committed, table, {"v": "committed"})
        producer.commit(committed)
        await stage.catch_up()
        producer.commit(open_one)
        await stage.check()
        assert producer.snapshots == 1

    staged(nats, tmp_path, scenario)


def test_a_reset_takes_another_snapshot(nats: NatsServer, tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        producer, table, other = stage.producer, items(), items(5, "other")
        await producer.add(table, other)
        table.rows = [row(1)]
        await stage.check()
        table.rows = [row(2), row(3)]
        producer.reset(table)
        await stage.check()
        assert producer.snapshots == 3
        assert any("it came back" in note for note in stage.notes)
        await stage.check()
        assert producer.snapshots == 3

    staged(nats, tmp_path, scenario)


def test_views_of_a_users_own_outlive_their_tables(nats: NatsServer, tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        producer, table = stage.producer, items()
        await producer.add(table)
        table.rows = [row(1)]
        await stage.check()
        with closing(sqlite3.connect(stage.path)) as connection:
            connection.execute("create view seen as select id from items")
            connection.execute("create view dangling as select gone from nowhere join seen")
            connection.execute("create index by_name on items (name)")
            connection.execute("create trigger cascade after delete on items begin select 1 from seen; end")
            table.rows = [row(2), row(3)]
            producer.reset(table)
            await stage.check()
            assert connection.execute("select id from seen order by id").fetchall() == [(2,), (3,)]
            await producer.redescribe(table, replace(table.schema, name=TableName("public", "things")))
            await producer.add(items(5))
            await stage.check()
            assert connection.execute("select id from seen").fetchall() == []

    staged(nats, tmp_path, scenario)


def test_other_columns_take_another_snapshot(nats: NatsServer, tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        producer, table = stage.producer, items()
        await producer.add(table)
        table.rows = [row(1), row(2)]
        await stage.check()
        extra = Column("extra", column_type("int4"))
        table.rows = [values | {"extra": "5"} for values in table.rows]
        await producer.redescribe(table, replace(table.schema, columns=(*table.schema.columns, extra)))
        at = producer.begin()
        producer.insert(at, table, row(3) | {"extra": None})
        producer.commit(at)
        await stage.check()
        for values in table.rows:
            del values["name"]
        fewer = tuple(column for column in table.schema.columns if column.name != "name")
        await producer.redescribe(table, replace(table.schema, columns=fewer))
        await stage.check()

    staged(nats, tmp_path, scenario)


def test_a_renamed_table_keeps_its_rows(nats: NatsServer, tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        producer, table = stage.producer, items()
        await producer.add(table)
        table.rows = [row(1)]
        await producer.publish()
        await stage.catch_up("items")
        await producer.redescribe(table, replace(table.schema, name=TableName("public", "things")))
        at = producer.begin()
        producer.insert(at, table, row(2))
        producer.commit(at)
        await producer.publish()
        await stage.catch_up("items")
        assert differences(stage.path, producer) == {}
        assert producer.snapshots == 1
        with closing(sqlite3.connect(stage.path)) as connection:
            assert connection.execute("select count(*) from things").fetchone() == (2,)

    staged(nats, tmp_path, scenario)


def test_a_change_that_does_not_fit_takes_another_snapshot(nats: NatsServer, tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        producer, table = stage.producer, items()
        await producer.add(table)
        table.rows = [row(1)]
        await stage.check()
        table.rows.append(row(2))  # a change that nobody tells
        at = producer.begin()
        producer.update(at, table, row(2), row(2, "changed"))
        producer.commit(at)
        await stage.check()
        assert producer.snapshots == 2

    staged(nats, tmp_path, scenario)


def test_chunks_are_opened_with_the_dictionary_that_they_name(nats: NatsServer, tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        producer, table = stage.producer, model_table(4, TableName("a.b", "x é"), ITEMS)
        producer.compressed = True
        await producer.add(table)
        table.rows = [row(number) for number in range(20)]
        await stage.check()

    staged(nats, tmp_path, scenario)


@pytest.mark.parametrize("how", ["dropped", "made anew"])
def test_lost_messages_load_everything_anew_and_that_is_told(
    nats: NatsServer, tmp_path: Path, how: str
) -> None:
    async def scenario(stage: Stage) -> None:
        producer, table, other = stage.producer, items(), items(5, "other")
        await producer.add(table, other)
        await stage.check()
        at = producer.begin()
        for number in range(5):
            producer.insert(at, table, row(number))
        producer.commit(at)
        await producer.publish()
        manager = producer.client.jetstream()
        if how == "dropped":
            await manager.purge_stream("CDC", keep=2)
        else:
            await manager.delete_stream("CDC")
            await manager.add_stream(name="CDC", subjects=["cdc.>"])
        await stage.check()
        assert producer.snapshots == 4
        assert any("loaded anew" in note for note in stage.notes)
        await stage.check()
        assert producer.snapshots == 4

    staged(nats, tmp_path, scenario)


@pytest.mark.parametrize("lost", [False, True])
def test_positions_of_the_pipeline_are_no_lost_messages_and_hide_none(
    nats: NatsServer, tmp_path: Path, lost: bool
) -> None:
    """Of these only the newest of each is kept, and longer than any change."""

    async def scenario(stage: Stage) -> None:
        producer, table = stage.producer, items()
        await producer.add(table)
        jetstream = producer.client.jetstream()
        await jetstream.publish("cdc._position.idle", b'{"source": "idle"}')
        await stage.check()
        for number in range(6):
            at = producer.begin()
            producer.insert(at, table, row(number))
            producer.commit(at)
            await producer.publish()
            await jetstream.purge_stream("CDC", subject="cdc._position.shop")
            await jetstream.publish("cdc._position.shop", b'{"source": "shop"}')
            if number == 1:
                await stage.check()
        if lost:
            await jetstream.purge_stream("CDC", subject="cdc.items.>", keep=2)
        await stage.check()
        assert producer.snapshots == (2 if lost else 1)

    staged(nats, tmp_path, scenario)
