from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.model import Lsn, TableId, TableName, TableSchema
from penstock.model.errors import PenstockError, ValueRefused
from penstock.model.phases import Phase
from penstock.model.visibility import Visibility
from penstock.state import Store, TableKey, TableState
from penstock.state import store as store_module
from tests.state.made import KEY, THEN, plain, schema, state

_pipelines = (f"pipeline {number}" for number in itertools.count())

keys = st.builds(
    TableKey,
    st.sampled_from(["eu", "us"]),
    st.sampled_from(["lake", "files"]),
    st.sampled_from([1, 2**32 - 1]),
)
lsns = st.integers(0, 2**63 - 1).map(Lsn)
counts = st.integers(0, 2**62)
times = st.datetimes(
    datetime(1970, 1, 1),
    datetime(2100, 1, 1),
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5.5))]),
)
# A NUL and half a character cannot be stored as text; in JSON, where such things come from, they can.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).filter(lambda text: "\0" not in text)
any_texts = st.text(max_size=20)
mistakes = st.builds(
    lambda reason, remedy, at: ValueRefused(reason, remedy=remedy, table="public.t", lsn=at),
    any_texts,
    any_texts,
    lsns,
)
snapshots = st.lists(st.integers(1, 2**62), min_size=2, max_size=5, unique=True).map(
    lambda ids: Visibility(min(ids), max(ids), tuple(id for id in ids if id < max(ids)))
)
states = st.builds(
    TableState,
    key=keys,
    name=st.builds(lambda name: TableName("public", name), texts),
    target=st.builds(lambda name: TableName(name, name), texts),
    phase=st.sampled_from(Phase),
    since=times,
    copy=st.none() | texts,
    snapshot=st.none() | snapshots,
    snapshot_lsn=st.none() | lsns,
    version=st.integers(0, 2**31 - 1),
    position=st.none() | lsns,
    rows=counts,
    copied_bytes=counts,
    total_bytes=counts,
    error=st.none() | mistakes,
    attempts=st.integers(0, 9),
    retry_at=st.none() | times,
    detail=st.dictionaries(
        any_texts, st.none() | st.integers() | any_texts | st.lists(any_texts, max_size=2), max_size=3
    ),
)
tables = st.sampled_from([TableId(1), TableId(2**32 - 1)])
schemas = st.builds(
    lambda table, version, columns: schema(table, version, *columns),
    tables,
    st.integers(1, 3),
    st.lists(texts, max_size=2),
)
steps = st.one_of(
    st.tuples(st.just("put"), states, texts),
    st.tuples(st.just("remove"), keys),
    st.tuples(st.just("learn"), st.sampled_from(["eu", "us"]), schemas, st.integers(0, 5).map(Lsn)),
    st.tuples(st.just("advance"), keys, lsns, st.none() | times, st.integers(0, 10**9)),
    st.tuples(st.just("request"), texts, st.dictionaries(any_texts, any_texts, max_size=2)),
    st.tuples(st.just("done")),
    st.tuples(st.just("erase")),
    st.tuples(st.just("reopen")),
)


@dataclass
class Model:
    """What a store should hold, in plain dicts."""

    tables: dict[TableKey, TableState] = field(default_factory=dict)
    history: dict[TableKey, list[tuple[Phase | None, str]]] = field(default_factory=dict)
    schemas: dict[tuple[str, TableId, int], tuple[Lsn, TableSchema]] = field(default_factory=dict)
    progress: dict[tuple[str, str], tuple[Lsn, datetime | None, int, int]] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def put(self, new: TableState, why: str) -> None:
        if new.key not in self.tables or self.tables[new.key].phase != new.phase:
            self.history.setdefault(new.key, []).append((new.phase, why))
        self.tables[new.key] = new

    def remove(self, key: TableKey) -> None:
        if self.tables.pop(key, None):
            self.history[key].append((None, "no longer delivered"))
        if not any((k.source, k.table) == (key.source, key.table) for k in self.tables):
            self.schemas = {k: v for k, v in self.schemas.items() if k[:2] != (key.source, key.table)}

    def learn(self, source: str, new: TableSchema, start: Lsn) -> None:
        self.schemas[source, new.id, new.version] = start, new

    def advance(self, key: TableKey, position: Lsn, through: datetime | None, rows: int) -> None:
        known = self.progress.get((key.source, key.destination), (Lsn(0), None, 0, 0))
        later = position if position >= known[0] else known[0]
        time = known[1] if position < known[0] or through is None else through
        self.progress[key.source, key.destination] = later, time, known[2] + rows, known[3] + 1

    def request(self, kind: str, what: dict[str, str]) -> None:
        self.requests.append((kind, what))

    def done(self) -> None:
        self.requests = self.requests[1:]

    def erase(self) -> None:
        for everything in (self.tables, self.history, self.schemas, self.progress):
            everything.clear()
        self.requests = []

    def reopen(self) -> None:
        """What it holds is what is stored."""


def follow(store: Store, step: tuple[Any, ...]) -> None:
    name, *given = step
    if name == "advance":
        key, position, through, rows = given
        store.advance(key.source, key.destination, position, complete_through=through, rows=rows)
    elif name == "done":
        for request in store.requests()[:1]:
            store.done(request)
    else:
        getattr(store, name)(*given)


def assert_same(store: Store, model: Model) -> None:
    assert {s.key: plain(s) for s in store.tables()} == {k: plain(s) for k, s in model.tables.items()}
    for key, lines in model.history.items():
        assert [(change.phase, change.why) for change in store.history(key)] == lines
    for source, table in itertools.product(["eu", "us"], [TableId(1), TableId(2**32 - 1)]):
        known = [v for (s, t, _), v in model.schemas.items() if (s, t) == (source, table)]
        known.sort(key=lambda found: (found[0], found[1].version))
        assert store.schemas(source, table) == known
        for at in map(Lsn, range(6)):
            held = [found for start, found in known if start <= at]
            assert store.schema_at(source, table, at) == (held[-1] if held else None)
        for version in (1, 2, 3):
            of_version = model.schemas.get((source, table, version))
            assert store.schema(source, table, version) == (of_version and of_version[1])
    for source, destination in itertools.product(["eu", "us"], ["lake", "files"]):
        found = store.progress(source, destination)
        told = found and (found.position, found.complete_through, found.rows, found.batches)
        assert told == model.progress.get((source, destination))
    assert [(request.kind, request.what) for request in store.requests()] == model.requests


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(done=st.lists(steps, max_size=25))
def test_a_store_holds_what_a_dict_would_hold(url: str, done: list[tuple[Any, ...]]) -> None:
    pipeline, model = next(_pipelines), Model()
    store = Store.open(url, pipeline, exclusive=True)
    try:
        for step in done:
            if step[0] == "reopen":
                store.close()
                store = Store.open(url, pipeline, exclusive=True)
            else:
                follow(store, step)
            getattr(model, step[0])(*step[1:])
            assert_same(store, model)
        with Store.open(url, pipeline, exclusive=False) as reader:
            model.reopen()
            assert_same(reader, model)
    finally:
        store.close()


def test_a_reader_sees_what_the_pipeline_writes(url: str) -> None:
    with Store.open(url, "shop", exclusive=True) as store, Store.open(url, "shop", exclusive=False) as reader:
        assert reader.table(KEY) is None
        copied = state(Phase.FINISHED_COPY, copy="c1", rows=5, position=Lsn(0x10))
        store.put(copied, "copied")
        assert plain(reader.table(KEY)) == plain(copied)

        ready = replace(copied, phase=Phase.READY, position=None)
        store.put(ready, "handed over")
        store.put(replace(ready, rows=6), "no other phase, no line in the history")
        assert [state.phase for state in reader.tables(destination="warehouse")] == [Phase.READY]
        assert reader.tables(source="us") == []
        assert [(c.phase, c.at, c.why) for c in reader.history(KEY)] == [
            (Phase.FINISHED_COPY, THEN, "copied"),
            (Phase.READY, THEN, "handed over"),
        ]


def test_a_request_of_another_process_is_taken_up_by_the_pipeline_and_is_gone_then(url: str) -> None:
    with Store.open(url, "shop", exclusive=False) as asking:
        asking.request("retry", {"table": "public.*"})
    with Store.open(url, "shop", exclusive=True) as store, Store.open(url, "shop", exclusive=False) as asking:
        asking.request("retry", {"table": "public.users", "destination": "warehouse"})
        first, second = store.requests()
        assert (first.kind, first.what) == ("retry", {"table": "public.*"})
        store.done(first)
        assert asking.requests() == [second]


def test_only_the_holder_of_the_lease_writes(url: str) -> None:
    with Store.open(url, "shop", exclusive=False) as reader:
        with pytest.raises(RuntimeError, match="exclusively"):
            reader.put(state())
        assert reader.tables() == []


def test_pipelines_share_a_store_and_erase_only_their_own(url: str) -> None:
    with Store.open(url, "shop", exclusive=True) as shop, Store.open(url, "bank", exclusive=True) as bank:
        for store in (shop, bank):
            store.put(state(), "found")
            store.learn("eu", schema(), Lsn(1))
            store.advance("eu", "warehouse", Lsn(7), complete_through=None, rows=3)
            store.request("retry", {})
        shop.erase()
        assert (shop.tables(), shop.history(KEY), shop.requests()) == ([], [], [])
        assert (shop.schemas("eu", KEY.table), shop.progress("eu", "warehouse")) == ([], None)
        assert [plain(found) for found in bank.tables()] == [plain(state())]
        assert len(bank.history(KEY)) == len(bank.requests()) == len(bank.schemas("eu", KEY.table)) == 1
    with Store.open(url, "bank", exclusive=True) as bank:
        progress = bank.progress("eu", "warehouse")
        assert progress is not None
        assert progress.position == Lsn(7)


def test_a_history_keeps_its_newest_lines(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "HISTORY_LENGTH", 3)
    other = replace(KEY, table=TableId(1))
    with Store.open(url, "shop", exclusive=True) as store:
        store.put(state(Phase.INIT, other), "other")
        for number, phase in enumerate([Phase.INIT, Phase.ERRORED] * 3):
            store.put(state(phase), f"{number}")
        assert [change.why for change in store.history(KEY)] == ["3", "4", "5"]
        assert [change.why for change in store.history(other)] == ["other"]


def test_a_reason_that_no_database_takes_as_text_is_kept_without_what_is_wrong_in_it(url: str) -> None:
    with Store.open(url, "shop", exclusive=True) as store:
        store.put(state(), "nul \0 and half \ud800 a character")
        assert [change.why for change in store.history(KEY)] == ["nul   and half ? a character"]


def test_threads_share_a_store_while_others_ask_of_it(url: str) -> None:
    wrong: list[BaseException] = []

    def ask() -> None:
        try:
            with Store.open(url, "shop", exclusive=False) as asking:
                for number in range(60):
                    asking.request("retry", {"number": number})
        except BaseException as error:
            wrong.append(error)

    def work(store: Store, table: int) -> None:
        try:
            key = replace(KEY, table=TableId(table))
            for number in range(20):
                store.put(state(Phase.DATA_SYNC, key, rows=number))
                store.advance("eu", "warehouse", Lsn(number), complete_through=None, rows=1)
                store.learn("eu", schema(key.table, number), Lsn(number))
                found = store.table(key)
                assert found is not None
                assert found.rows == number
                assert key in [state.key for state in store.tables()]
        except BaseException as error:
            wrong.append(error)

    with Store.open(url, "shop", exclusive=True) as store:
        workers = [threading.Thread(target=work, args=(store, number)) for number in range(6)]
        workers += [threading.Thread(target=ask)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert wrong == []
        assert [request.what["number"] for request in store.requests()] == list(range(60))
        with Store.open(url, "shop", exclusive=False) as reader:
            progress = reader.progress("eu", "warehouse")
            assert progress is not None
            assert (progress.position, progress.rows, progress.batches) == (Lsn(19), 120, 120)
            assert [state.rows for state in reader.tables()] == [19] * 6
            assert len(reader.schemas("eu", TableId(3))) == 20


def test_an_error_comes_back_as_what_it_was(url: str) -> None:
    refused = ValueRefused("1e999 does not fit", table="public.users", lsn=Lsn(0x1F))
    with Store.open(url, "shop", exclusive=True) as store:
        store.put(state(Phase.ERRORED, error=refused, attempts=2))
    with Store.open(url, "shop", exclusive=True) as store:
        found = store.tables()[0].error
        assert isinstance(found, ValueRefused)
        assert isinstance(found, PenstockError)
        assert str(found) == str(refused)
        assert type(found) is type(refused)
