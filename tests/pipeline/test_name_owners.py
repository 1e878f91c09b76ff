"""Who has whose place at a destination, while names pass from one table to the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.config.destinations import DestinationConfig
from penstock.model import Lsn, ReplicaIdentity, TableId, TableName, TableSchema
from penstock.model.errors import TargetShared
from penstock.model.phases import Phase
from penstock.pipeline.catalog_look import PublishedTables
from penstock.pipeline.name_owners import Places
from penstock.pipeline.source_feed import SourceFeed
from penstock.pipeline.table_facts import Facts
from penstock.pipeline.table_states import TIMELINE, Tables
from penstock.spool.identity import Identity
from penstock.spool.manifest import Manifest
from penstock.state.store import Store, TableKey, TableState


def name(text: str) -> TableName:
    return TableName("public", text)


class Stage:
    """Tables as they are delivered, and what they are called now."""

    def __init__(self, store: Store, manifest: Manifest) -> None:
        config = DestinationConfig.model_validate({"name": "copy", "type": "postgres", "dsn": "dbname=x"})
        self.feed = SimpleNamespace(published=PublishedTables({}, Lsn(1)))
        self.tables = Tables(store, manifest, "source", config)
        self.places = Places(cast(SourceFeed, self.feed), self.tables)

    def table(self, id: int, delivered: str, now: str | None, phase: Phase = Phase.READY) -> TableState:
        key = TableKey("source", "copy", TableId(id))
        state = TableState(key, name(delivered), name(delivered), phase, datetime.now(UTC))
        self.tables.put(state)
        if now is not None:
            schema = TableSchema(key.table, 1, name(now), ReplicaIdentity.DEFAULT, ())
            self.feed.published.tables[key.table] = Facts(
                schema, (), {}, 0, {}, {}, {}, None, 0, Lsn(1), Lsn(1)
            )
        return state


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with (
        Store.open(f"sqlite:///{tmp_path}/state.db", "test", exclusive=True) as store,
        closing(Manifest.create(tmp_path, Identity("1", "d", "s"), Lsn(1))) as manifest,
    ):
        yield Stage(store, manifest)


def test_one_that_moves_on_is_waited_for(stage: Stage) -> None:
    green = stage.table(1, "orders_new", "orders")
    blue = stage.table(2, "orders", "orders_old")
    assert stage.places.owner(name("orders"), green.key.table) == stage.tables.get(blue.key.table)
    assert stage.places.is_awaited(green)
    assert not stage.places.is_awaited(blue), "nobody is in its way"


def test_a_chain_is_waited_for_and_a_circle_is_not(stage: Stage) -> None:
    first = stage.table(1, "a", "b")
    stage.table(2, "b", "c")
    last = stage.table(3, "c", "d")
    assert stage.places.is_awaited(first)
    stage.table(3, "c", "a")
    assert not stage.places.is_awaited(first)
    assert not stage.places.is_awaited(last)


def test_one_that_is_gone_is_waited_for_until_it_is_let_go(stage: Stage) -> None:
    green = stage.table(1, "orders_new", "orders")
    blue = stage.table(2, "orders", None)
    assert stage.places.is_awaited(green)
    stage.tables.remove(blue)
    assert not stage.places.is_awaited(green)


def test_one_that_does_not_go_is_not_waited_for(stage: Stage) -> None:
    """It stopped, or both are to have one target."""
    green = stage.table(1, "orders_new", "orders")
    stage.table(2, "orders", "orders_old", Phase.ERRORED)
    assert not stage.places.is_awaited(green)
    stage.table(2, "orders", "orders")
    assert not stage.places.is_awaited(green)


def test_two_copies_that_wait_are_not_in_each_others_way(stage: Stage) -> None:
    """Each was called so when it was copied."""
    one = stage.table(1, "orders", "orders_old", Phase.FINISHED_COPY)
    two = stage.table(2, "orders", "orders", Phase.FINISHED_COPY)
    assert stage.places.owner(name("orders"), one.key.table) is None
    assert stage.places.owner(name("orders"), two.key.table) is None
    assert not stage.places.is_lost(one)
    stage.tables.put(replace(two, phase=Phase.READY))
    assert stage.places.is_lost(one), "the other one stays where it is"
    one = replace(one, detail={"lsn": "0/2"})
    assert not stage.places.is_lost(one), "the last look was before the copy"


@pytest.mark.parametrize("detail", [{}, {TIMELINE: 1}], ids=["handed over", "set aside"])
def test_one_that_stopped_has_its_place_once_its_copy_is_handed_over(stage: Stage, detail: Any) -> None:
    stopped = stage.table(1, "orders", "orders", Phase.ERRORED)
    stopped = replace(stopped, position=Lsn(1), detail=detail)
    stage.tables.put(stopped)
    assert stage.places.owner(name("orders"), TableId(2)) == (None if detail else stopped)


def test_one_that_leaves_is_waited_for_by_a_copy(stage: Stage) -> None:
    copied = stage.table(1, "orders", "bills", Phase.FINISHED_COPY)
    stage.table(2, "orders", "orders_old")
    assert not stage.places.is_lost(copied)


def test_no_two_tables_are_copied_to_one_place(stage: Stage) -> None:
    stage.table(1, "orders", "orders", Phase.DATA_SYNC)
    with pytest.raises(TargetShared):
        stage.places.refuse_if_shared(name("orders"), TableId(2))
    stage.table(1, "orders", "orders_old", Phase.DATA_SYNC)
    stage.places.refuse_if_shared(name("orders"), TableId(2))


def test_one_that_is_to_be_copied_anew_has_no_place(stage: Stage) -> None:
    green = stage.table(1, "orders_new", "orders")
    blue = stage.table(2, "orders", "orders_old")
    stage.tables.put(replace(blue, phase=Phase.INIT))
    assert stage.places.owner(name("orders"), green.key.table) is None
