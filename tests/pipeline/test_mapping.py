"""Tables that are decided about while a pipeline runs, or dies: captured, no longer, elsewhere, as something
else. Whatever happens in between, source and destination are equal in the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from penstock.config import Config
from penstock.config.mapping import Decision, Placing
from penstock.model.errors import PenstockError
from penstock.model.phases import Phase
from penstock.pipeline.mapping import TableMapping
from penstock.pipeline.source_tables import SourceTables
from penstock.state.store import Store
from tests.pipeline.running import contents
from tests.pipeline.stepping import Bed, Process

ROUNDS = 400


def placed(target: str | None = None, kind: str | None = None) -> Decision:
    return Decision(None, {"copy": Placing(target, kind)})


@dataclass
class Driven:
    """A pipeline that is driven by hand, dies and is started again."""

    bed: Bed
    config: Config
    process: Process | None = None

    def start(self) -> None:
        self.process = Process(self.config.under({}), self.bed.spark)
        self.process.start()

    def die(self) -> None:
        assert self.process is not None
        self.process.abandon()
        self.process = None

    def rounds(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.process is not None
            self.process.round()

    def decide(self, table: str, decision: Decision) -> None:
        url = self.config.state.url.get_secret_value()
        with Store.open(url, self.config.pipeline, exclusive=False) as store:
            TableMapping(SourceTables(self.config), store).decide(f"public.{table}", None, decision)

    def phases(self) -> dict[str, Phase]:
        assert self.process is not None
        assert self.process.store is not None
        return {state.name.name: state.phase for state in self.process.store.tables()}

    def until_ready(self, *tables: str) -> None:
        """Until these are delivered, and no others."""
        for _ in range(ROUNDS):
            self.rounds()
            self.bed.until_captured()
            if self.phases() == dict.fromkeys(tables, Phase.READY) and self._is_settled():
                return
        raise AssertionError(self.phases())

    def _is_settled(self) -> bool:
        """Whether all is delivered, and the rules have nothing to say any more."""
        assert self.process is not None
        streams = self.process.pipeline._streams
        return bool(streams) and all(
            stream._manifest.next_position(stream.position) == stream.position
            and not any(stream.tables.why_anew(state) for state in stream.tables)
            for stream in streams
        )

    def rows(self, table: str) -> list[str]:
        return contents(self.bed.destination, table)


@contextmanager
def driven(bed: Bed) -> Iterator[Driven]:
    config = bed.clear().model_copy(update={"mapping": "database"})
    made = Driven(bed, config)
    try:
        yield made
    finally:
        if made.process is not None:
            made.process.abandon()


@pytest.fixture
def shop(bed: Bed) -> Iterator[Driven]:
    """Two tables that are followed."""
    with driven(bed) as made:
        for table in ("t", "u"):
            bed.source.execute(f"create table {table} (id int primary key, note text)")
            bed.source.execute(f"insert into {table} values (1, '{table}'), (2, '{table}')")
        made.start()
        made.until_ready("t", "u")
        yield made
        bed.destination.execute("drop schema if exists app cascade")


def test_a_table_leaves_and_comes_back(shop: Driven, bed: Bed) -> None:
    shop.decide("t", Decision(captured=False))
    shop.until_ready("u")
    published = "select tablename from pg_publication_tables"
    assert bed.source.query(published) == [("u",)]
    bed.source.execute("insert into t values (3, 'unseen')", "insert into u values (3, 'seen')")
    shop.until_ready("u")
    assert (shop.rows("t"), len(shop.rows("u"))) == (["(1,t)", "(2,t)"], 3)
    shop.decide("t", Decision())
    shop.until_ready("t", "u")
    bed.source.execute("delete from t where id = 1")
    shop.until_ready("t", "u")
    assert shop.rows("t") == contents(bed.source, "t") == ["(2,t)", "(3,unseen)"]


def test_a_table_that_the_file_leaves_out_is_captured(bed: Bed) -> None:
    with driven(bed) as shop:
        source = shop.config.sources[0]
        tables = source.tables.model_copy(update={"include": ("public.t",)})
        sources = (source.model_copy(update={"tables": tables}),)
        shop.config = shop.config.model_copy(update={"sources": sources})
        bed.source.execute("create table t (id int primary key)", "create table u (id int primary key)")
        bed.source.execute("insert into u values (1)")
        shop.start()
        shop.until_ready("t")
        shop.decide("u", Decision(captured=True))
        shop.until_ready("t", "u")
        bed.source.execute("insert into u values (2)")
        shop.until_ready("t", "u")
        assert shop.rows("u") == ["(1)", "(2)"]


def test_another_target_and_another_kind_mean_a_new_copy_there(shop: Driven, bed: Bed) -> None:
    shop.decide("t", placed("app.t", "append"))
    shop.until_ready("t", "u")
    bed.source.execute("delete from t where id = 1", "insert into t values (3, 't')")
    shop.until_ready("t", "u")
    assert shop.rows("app.t") == ["(1,t)", "(2,t)", "(3,t)"], "what is appended stays"
    assert shop.rows("t") == ["(1,t)", "(2,t)"], "what was there before stays as it was"
    shop.decide("t", placed("app.t"))
    shop.until_ready("t", "u")
    assert shop.rows("app.t") == contents(bed.source, "t") == ["(2,t)", "(3,t)"], "a clone has no others"
    shop.decide("t", placed("app.versions", "history"))
    shop.until_ready("t", "u")
    bed.source.execute("update t set note = 'new' where id = 3")
    shop.until_ready("t", "u")
    assert len(shop.rows("app.versions")) == 3


def test_two_tables_take_each_others_place(shop: Driven, bed: Bed) -> None:
    with pytest.raises(PenstockError, match="these arrive at one table"):
        shop.decide("t", placed("u"))
    shop.decide("t", placed("app.aside"))
    shop.decide("u", placed("t"))
    shop.decide("t", placed("u"))
    bed.source.execute("insert into t values (3, 't')", "insert into u values (3, 'u')")
    shop.until_ready("t", "u")
    assert (shop.rows("t"), shop.rows("u")) == (contents(bed.source, "u"), contents(bed.source, "t"))


@pytest.mark.parametrize("lived", [0, 2, 5])
def test_a_pipeline_that_dies_after_a_decision_carries_it_out(shop: Driven, bed: Bed, lived: int) -> None:
    """So many rounds after it was made; and the next one too, so many after that."""
    bed.source.execute("create table v (id int primary key, note text)", "insert into v values (1, 'v')")
    shop.until_ready("t", "u", "v")
    shop.decide("t", placed("app.t", "append"))
    shop.decide("u", Decision(captured=False))
    shop.decide("v", placed("app.v"))
    for _ in range(2):
        bed.source.execute(
            "insert into t select max(id) + 1, 'more' from t", "update v set note = note || '!'"
        )
        shop.rounds(lived)
        shop.die()
        bed.source.execute("insert into t select max(id) + 1, 'dead' from t")
        shop.start()
    shop.decide("v", placed("app.v", "append"))
    shop.rounds(lived)
    shop.decide("v", placed("app.v"))
    shop.until_ready("t", "v")
    bed.source.execute("delete from v")
    bed.source.execute("insert into v values (2, 'last')")
    shop.until_ready("t", "v")
    assert shop.rows("app.t") == contents(bed.source, "t")
    assert shop.rows("app.v") == ["(2,last)"]
    assert shop.rows("u") == ["(1,u)", "(2,u)"]
    assert bed.delivered.left_over() == []


def test_another_kind_in_the_file_means_a_new_copy_at_the_next_start(shop: Driven, bed: Bed) -> None:
    """Rows that were deleted while the table was only appended to are gone once it is a clone."""

    def under(kind: str) -> Config:
        destination = shop.config.destinations[0]
        rules = type(destination).model_validate(
            {**destination.model_dump(), **destination.options, "tables": {"public.t": {"kind": kind}}},
            context={"environ": {}, "secret": set()},
        )
        return shop.config.model_copy(update={"destinations": (rules,)})

    for kind, rows in (("append", ["(1,t)", "(2,t)"]), ("clone", ["(2,t)"])):
        shop.die()
        shop.config = under(kind)
        shop.start()
        shop.until_ready("t", "u")
        bed.source.execute("delete from t where id = 1")
        shop.until_ready("t", "u")
        assert shop.rows("t") == rows


def test_versions_are_not_given_up_for_another_kind(shop: Driven, bed: Bed) -> None:
    shop.decide("t", placed("app.t", "history"))
    shop.until_ready("t", "u")
    with pytest.raises(PenstockError, match="its versions would be lost"):
        shop.decide("t", placed("app.t", "clone"))
    url = shop.config.state.url.get_secret_value()
    with Store.open(url, shop.config.pipeline, exclusive=False) as store:
        table = next(table for table in store.mapping.read().decisions)
        store.mapping.decide(table, placed("app.t", "clone"))  # by another way, such as the file
    for _ in range(ROUNDS):
        shop.rounds()
        if shop.phases()["t"] is Phase.ERRORED:
            break
    assert shop.process is not None
    assert shop.process.store is not None
    error = next(s.error for s in shop.process.store.tables() if s.name.name == "t")
    assert "versions of rows, which would be lost" in str(error)
    assert len(shop.rows("app.t")) == 2
    shop.decide("t", placed("app.t_now", "clone"))
    shop.until_ready("t", "u")
    assert shop.rows("app.t_now") == contents(bed.source, "t")
