"""A change that cannot be a message stops its table exactly there; what it missed comes later, once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.config import load
from penstock.destinations.nats.documents import position_text
from penstock.destinations.nats.messages import Messages
from penstock.destinations.nats.publishing import _Atomically
from penstock.destinations.nats.target import NatsTarget
from penstock.destinations.plugin import type_of
from penstock.destinations.protocol import Run, TableChanges
from penstock.destinations.schema_change import SchemaChange
from penstock.embedded.nats import NatsServer
from penstock.model import Lsn
from penstock.model.errors import DestinationBusy, MessageTooLarge, TablePaused, ValueRefused
from tests.bed import Database
from tests.capture.running import eventually
from tests.changes.made import table
from tests.destinations.given import Given
from tests.nats.reading import read_all
from tests.nats.test_pipeline import to_nats
from tests.pipeline.running import configuration

USERS = table(1, "public.users", {"id": "int4", "name": "text"})
OTHERS = table(2, "public.others", {"id": "int4", "name": "text"})
LARGE = "x" * 2_000_000


def opened(
    spark: SparkSession,
    source: Database,
    server: NatsServer,
    folder: Path,
    sources: tuple[str, ...] = ("eu",),
    **other: Any,
) -> NatsTarget:
    listed = [{"name": name, "dsn": source.dsn} for name in sources]
    file = configuration(folder, source, to_nats(server, **other), sources=listed)
    config = load(file)
    (destination,) = config.destinations
    target = type_of(destination).make(config, destination)
    assert isinstance(target, NatsTarget)
    target.open(spark)
    return target


def delivered(server: NatsServer, token: str) -> list[int]:
    return [message.body["data"]["id"] for message in read_all(server, subject=f"cdc.{token}.insert")]


@pytest.mark.parametrize("delivery", ["ids", "atomic"])
@pytest.mark.parametrize(
    ("bad", "kind"), [(LARGE, MessageTooLarge), ("\0", ValueRefused)], ids=["large", "no text"]
)
def test_what_came_before_is_there_and_what_follows_comes_once(
    spark: SparkSession,
    given: Given,
    database: Database,
    own_nats: NatsServer,
    tmp_path: Path,
    delivery: str,
    bad: str,
    kind: type[Exception],
) -> None:
    """In the middle of a transaction, of a batch that has published others before; the batch comes again, cut
    differently. In the end the table goes on from the batch's start: the spool has another value then."""
    given.deliver(USERS, OTHERS)
    spool = given.spool
    spool.insert(USERS, ("1", "one")).insert(OTHERS, ("1", "one"))
    middle = spool.commit()
    spool.insert(USERS, ("2", "two")).insert(USERS, ("3", bad)).insert(USERS, ("4", "four"))
    spool.insert(OTHERS, ("2", "two"))
    end = spool.commit()
    target = opened(spark, database, own_nats, tmp_path / "first", delivery=delivery)
    target.begin("eu", given.start)
    ((stopped, error),) = target.write(given.batch(end))
    assert (stopped, type(error)) == (USERS.id, kind)
    assert error.where["table"] == USERS.name
    if kind is MessageTooLarge:
        assert error.where["key"] == "id=3"
        assert "2000" in error.reason
    assert delivered(own_nats, "users") == [1, 2]
    assert delivered(own_nats, "others") == [1, 2]
    target.close()

    again = opened(spark, database, own_nats, tmp_path / "again", delivery=delivery)
    assert again.write(given.batch(middle)) == []
    assert [table for table, _ in again.write(given.batch(end, middle))] == [USERS.id]
    if kind is MessageTooLarge:
        again.close()
        own_nats.stop()
        own_nats.settings |= {"max_payload": 8_000_000}
        own_nats.start()
        again = opened(spark, database, own_nats, tmp_path / "larger", delivery=delivery)
        again.catch_up(given.changes(USERS.id, given.start, end), end)
        assert delivered(own_nats, "users") == [1, 2, 3, 4]
    assert delivered(own_nats, "others") == [1, 2]
    last = spool.insert(OTHERS, ("5", "five")).insert(USERS, ("5", "five")).commit()
    assert again.write(given.batch(last, end)) == []
    assert delivered(own_nats, "users")[-1] == 5
    again.close()


@pytest.mark.parametrize("delivery", ["ids", "atomic"])
@pytest.mark.parametrize("arrives", [True, False], ids=["handed over", "caught up"])
def test_what_stops_while_it_catches_up_loses_nothing_of_that_transaction(
    spark: SparkSession,
    given: Given,
    database: Database,
    own_nats: NatsServer,
    tmp_path: Path,
    delivery: str,
    arrives: bool,
) -> None:
    """Several large rows in one transaction, each larger than the one before; the server takes larger
    messages with every attempt."""
    given.deliver(USERS)
    spool = given.spool
    spool.insert(USERS, ("1", "x" * 2_000_000)).commit()
    spool.insert(USERS, ("2", "two"), ("3", "x" * 4_000_000), ("4", "four")).commit()
    end = spool.insert(USERS, ("5", "five")).commit()
    missed = given.changes(USERS.id, given.start, end)
    for megabytes, expected in ((1, []), (3, [1, 2]), (6, [1, 2, 3, 4, 5])):
        own_nats.stop()
        own_nats.settings |= {"max_payload": megabytes << 20}
        own_nats.start()
        target = opened(spark, database, own_nats, tmp_path / str(megabytes), delivery=delivery)
        if not arrives and megabytes == 1:
            target.begin("eu", given.start)
            assert [stopped.table for stopped in target.write(given.batch(end))] == [USERS.id]
        else:
            with pytest.raises(MessageTooLarge) if megabytes < 6 else nullcontext():
                target.hand_over("copy", missed, end) if arrives else target.catch_up(missed, end)
        assert delivered(own_nats, "users") == expected
        target.close()
    assert len(read_all(own_nats, subject="cdc.users.reset")) == arrives


@pytest.mark.parametrize("killed", ["behind a batch", "within one", "where it stopped"])
def test_a_table_that_is_held_after_a_crash_gets_nothing_twice(
    spark: SparkSession,
    given: Given,
    database: Database,
    own_nats: NatsServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    killed: str,
) -> None:
    """The process dies when some of a batch, or all, is published, and then somebody wants the table to pause
    where the batch begins."""
    given.deliver(USERS, OTHERS)
    spool, name = given.spool, LARGE if killed == "where it stopped" else "x"
    for number in range(1, 7):
        spool.insert(OTHERS, (str(number), "x"))
        end = spool.insert(USERS, (str(number), name if number == 4 else "x")).commit()
    target = opened(spark, database, own_nats, tmp_path / "first", delivery="atomic", atomic_messages=3)
    target.begin("eu", given.start)
    with monkeypatch.context() as dying:
        dying.setattr(NatsTarget, "_stop" if killed == "where it stopped" else "_reach", _dies)
        if killed == "within one":
            dying.setattr(_Atomically, "_send", _dies_after(3))
        with pytest.raises(InterruptedError):
            target.write(given.batch(end))
    published = [1, 2, 3, 4, 5, 6] if killed == "behind a batch" else [1, 2, 3]
    eventually(lambda: delivered(own_nats, "users") == published)
    target.close()

    own_nats.stop()
    own_nats.settings |= {"max_payload": 8_000_000}
    own_nats.start()
    again = opened(spark, database, own_nats, tmp_path / "again", delivery="atomic", atomic_messages=3)
    for _ in range(2):
        again.hold("eu", USERS.id, given.start, TablePaused("it was asked to pause"))
    if killed == "within one":
        again.catch_up(given.changes(USERS.id, given.start, given.start), given.start)
        assert again.write(given.batch(end)) == []
    else:
        others = replace(given.batch(end), tables=(given.changes(OTHERS.id, given.start, end),))
        assert again.write(others) == []
        again.catch_up(given.changes(USERS.id, given.start, end), end)
    assert delivered(own_nats, "users") == [*range(1, 7)]
    assert delivered(own_nats, "others") == [*range(1, 7)]
    again.close()


@pytest.mark.parametrize("same", [False, True], ids=["later", "at one place"])
@pytest.mark.parametrize("arrives", [False, True], ids=["streams", "has arrived"])
def test_each_new_schema_of_an_idle_table_comes_once(
    spark: SparkSession,
    given: Given,
    database: Database,
    own_nats: NatsServer,
    tmp_path: Path,
    same: bool,
    arrives: bool,
) -> None:
    """The stream stands still meanwhile. After a crash the last one is followed again, further on."""
    given.deliver(USERS)
    target = opened(spark, database, own_nats, tmp_path / "first", delivery="atomic")
    target.begin("eu", given.start)
    if arrives:
        nothing = given.changes(USERS.id, given.start, given.start)
        target.hand_over("copy", nothing, Lsn(given.start.value + 8))
    columns = {"id": "int4", "name": "text"}
    for number in range(1, 4):
        columns[f"extra{number}"] = "int4"
        wider = table(1, "public.users", columns, version=-number)
        change = SchemaChange(added=((wider.columns[-1], None),))
        given.evolve(wider, change)
        followed = TableChanges((Run(given.deliveries[USERS.id], (), change),), given.start)
        reached = Lsn(given.start.value + (8 if same else 8 * number))
        target.catch_up(followed, reached)
        target.catch_up(followed, reached)
    target.close()

    again = opened(spark, database, own_nats, tmp_path / "again", delivery="atomic")
    again.catch_up(followed, Lsn(reached.value + 8))
    schemas = read_all(own_nats, subject="cdc.users.schema")
    assert [len(message.body["columns"]) for message in schemas] == [3, 4, 5]
    assert schemas[-1].body["lsn"] == position_text(reached)  # behind a snapshot that was taken before it
    end = given.spool.insert(wider, ("1", "one", "1", "1", "1")).commit()
    assert again.write(given.batch(end)) == []
    assert delivered(own_nats, "users") == [1]
    again.close()


def test_a_change_behind_a_new_schema_that_stops_its_table_comes_once_and_the_schema_too(
    spark: SparkSession, given: Given, database: Database, own_nats: NatsServer, tmp_path: Path
) -> None:
    given.deliver(USERS)
    wider = table(1, "public.users", {"id": "int4", "name": "text", "age": "int4"}, version=2)
    given.spool.insert(USERS, ("1", "one")).commit()
    given.evolve(wider, SchemaChange())
    end = given.spool.insert(wider, ("2", LARGE, "2"), ("3", "three", "3")).commit()
    target = opened(spark, database, own_nats, tmp_path / "small", delivery="atomic")
    target.begin("eu", given.start)
    assert [stopped.table for stopped in target.write(given.batch(end))] == [USERS.id]
    target.close()
    own_nats.stop()
    own_nats.settings |= {"max_payload": 8_000_000}
    own_nats.start()
    again = opened(spark, database, own_nats, tmp_path / "larger", delivery="atomic")
    again.catch_up(given.changes(USERS.id, given.start, end), end)
    operations = [message.subject.rpartition(".")[2] for message in read_all(own_nats, subject="cdc.users.*")]
    assert operations == ["insert", "schema", "insert", "insert"]
    again.close()


@pytest.mark.parametrize("recorded", [False, True], ids=["published alone", "its position too"])
def test_a_table_that_stopped_before_a_crash_stops_again_where_it_could_go_on(
    spark: SparkSession,
    given: Given,
    database: Database,
    own_nats: NatsServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    recorded: bool,
) -> None:
    """Others are published beyond the stop, the process dies before the pipeline knows of it, and the server
    takes larger messages when the batch comes again, cut differently."""
    given.deliver(USERS, OTHERS)
    spool = given.spool
    middle = spool.insert(USERS, ("1", "one"), ("2", LARGE), ("3", "three")).commit()
    for number in range(4, 10):
        end = spool.insert(OTHERS, (str(number), "x")).insert(USERS, (str(number), "x")).commit()
    target = opened(spark, database, own_nats, tmp_path / "small", delivery="atomic", atomic_messages=3)
    target.begin("eu", given.start)
    if recorded:
        assert [stopped.table for stopped in target.write(given.batch(end))] == [USERS.id]
    else:
        with monkeypatch.context() as killed:
            killed.setattr(NatsTarget, "_stop", _dies)
            with pytest.raises(InterruptedError):
                target.write(given.batch(end))
    target.close()
    own_nats.stop()
    own_nats.settings |= {"max_payload": 8_000_000}
    own_nats.start()

    again = opened(spark, database, own_nats, tmp_path / "larger", delivery="atomic", atomic_messages=3)
    ((stopped, error),) = again.write(given.batch(middle))
    assert (stopped, type(error), error.where["key"]) == (USERS.id, MessageTooLarge, "id=2")
    rest = given.batch(end, middle)
    others = tuple(changes for changes in rest.tables if changes.delivery.id == OTHERS.id)
    assert again.write(replace(rest, tables=others)) == []
    again.catch_up(given.changes(USERS.id, given.start, end), end)
    assert delivered(own_nats, "users") == [1, 2, 3, *range(4, 10)]
    last = spool.insert(USERS, ("10", "x")).insert(OTHERS, ("10", "x")).commit()
    assert again.write(given.batch(last, end)) == []
    assert delivered(own_nats, "users")[-1] == 10
    assert delivered(own_nats, "others") == [*range(4, 11)]
    again.close()


@pytest.mark.parametrize("arrives", [True, False], ids=["handed over", "caught up"])
def test_a_table_that_joins_within_a_batch_that_a_crash_cut_off_loses_nothing(
    spark: SparkSession,
    given: Given,
    database: Database,
    own_nats: NatsServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arrives: bool,
) -> None:
    """It had no part in what was published of the batch, and joins once all of it is."""
    given.deliver(USERS, OTHERS)
    spool = given.spool
    middle = spool.insert(USERS, ("1", "x")).commit()
    end = spool.insert(OTHERS, ("1", "x")).insert(USERS, ("2", "x")).commit()
    target = opened(spark, database, own_nats, tmp_path / "first", delivery="atomic")
    target.begin("eu", middle)
    others = replace(given.batch(end, middle), tables=(given.changes(OTHERS.id, middle, end),))
    with monkeypatch.context() as dying:
        dying.setattr(NatsTarget, "_reach", _dies)
        with pytest.raises(InterruptedError):
            target.write(others)
    target.close()

    again = opened(spark, database, own_nats, tmp_path / "again", delivery="atomic")

    def join(position: Lsn) -> None:
        missed = given.changes(USERS.id, given.start, position)
        again.hand_over("copy", missed, position) if arrives else again.catch_up(missed, position)

    with pytest.raises(DestinationBusy, match="cut off comes first"):
        join(middle)
    assert again.write(others) == []
    join(end)
    last = spool.insert(USERS, ("3", "x")).commit()
    assert again.write(given.batch(last, end)) == []
    assert delivered(own_nats, "users") == [1, 2, 3]
    assert delivered(own_nats, "others") == [1]
    again.close()


def _dies(*_: object) -> None:
    raise InterruptedError


def _dies_after(groups: int) -> Callable[..., None]:
    left, send = [groups], _Atomically._send

    def sending(self: _Atomically, group: Messages, **how: bool) -> None:
        if not left[0]:
            raise InterruptedError
        left[0] -= 1
        send(self, group, **how)

    return sending
