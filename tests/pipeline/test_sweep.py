"""Every call that the pipeline makes fails once, before and after its effect, and once it dies there.

The workload is a script: copies, hand-overs, schema changes, reloads, a refused row and its retry, tables
that come and go, and that people decide about. In the end source and destination are equal, for whoever
followed all the while and for whoever begins then, no table is left in a phase without a way out, and after
another start nothing is left.

A run strikes at a part of all points, each once. `make slow` strikes at every point by itself, one run after
the other, and prints its number; PENSTOCK_SWEEP="3088341157,240412" repeats those of these numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from zlib import crc32

import pytest

from penstock.config.mapping import Decision, Placing
from penstock.model import TableName
from penstock.model.errors import StateUnreachable
from penstock.model.phases import Phase
from penstock.pipeline.mapping import TableMapping
from penstock.pipeline.source_tables import SourceTables
from penstock.pipeline.table_actions import RELOAD
from penstock.spool.manifest import Manifest
from penstock.state.store import Store, TableState
from tests.pipeline.delivered import KINDS
from tests.pipeline.faults import Died, Point, Way
from tests.pipeline.stepping import Bed, Process

PARTS = {"postgres": 4, "files": 8}
"""Into how many parts the points are divided."""
QUICK = {"postgres": (Way.FAILS_BEFORE, Way.DIES_AFTER), "files": (Way.FAILS_AFTER, Way.DIES_BEFORE)}
"""The ways in which the first part is always run; everything else is run with what is slow."""
ROUNDS = 200
"""Enough for everything that a step takes, faults included."""


@dataclass(frozen=True)
class Step:
    name: str
    """Without one nothing fails in it."""
    source: tuple[str, ...] = ()
    refuse: bool | None = None
    """Whether the destination takes no row of `t` with the note 'bad' from now on; None: as before."""
    while_copied: tuple[str, ...] = ()
    """At the source, when the snapshot of the step's first copy has been taken."""
    request: tuple[str, str] | None = None
    """What, and of which table."""
    decision: tuple[str, Decision] | None = None
    """Of which table, and what."""
    left_out: frozenset[str] = frozenset()
    """Tables that nobody captures in this step."""
    elsewhere: frozenset[str] = frozenset()
    """Tables that are not to arrive where they are looked for."""
    errored: frozenset[str] = frozenset()
    """Tables that stop for good in this step."""
    restart: bool = False
    only: str | None = None
    """The kind of destination that has such a step; None: all."""


CHANGES = (
    "insert into t (id, a) select n, n from generate_series(100, 110) n",
    "begin; update t set note = 'changed' where id = 2; delete from t where id = 3;"
    " insert into u values (1, 'x'); commit",
    "update u set word = 'y' where n = 1",
)
START = '{"action": "EXPORT_START", "export_id": "00000000-0000-0000-0000-000000000001"}'
STEPS = (
    Step(
        "begin",
        (
            "create table t (id integer primary key, a integer, note text)",
            "insert into t select n, n, 'row ' || n from generate_series(1, 20) n",
            "create table u (n integer, word text); alter table u replica identity full",
            "insert into u values (1, 'a'), (1, 'a'), (2, null)",
        ),
        while_copied=("insert into t values (21, 21, 'meanwhile')", "delete from t where id = 20"),
    ),
    Step("change", CHANGES),
    Step(
        "add a column",
        (
            "alter table t add b text default 'old'",
            "insert into t (id, b) values (200, 'new')",
            "update t set a = 5 where id = 5",
        ),
    ),
    Step("rename a column", ("alter table t rename a to amount",)),
    Step("restart", ("insert into t (id) values (201)",), restart=True),
    Step(
        "reload",
        request=("reload", "t"),
        while_copied=("update t set amount = amount + 1 where id < 10", "delete from t where id = 11"),
    ),
    Step(
        "reload by a marker",
        (f"comment on table t is 'CDC_RELOAD: {START}'", "insert into t (id) values (202)"),
        while_copied=("update t set amount = 0 where id = 4", "delete from t where id = 12"),
        only="files",
    ),
    Step(
        "refuse",
        ("insert into t (id, note) values (300, 'bad')", "insert into u values (3, 'goes on')"),
        refuse=True,
        errored=frozenset({"t"}),
    ),
    Step(
        "restart while errored",
        ("insert into t (id, note) values (301, 'waits')", "insert into u values (4, 'goes on')"),
        errored=frozenset({"t"}),
        restart=True,
    ),
    Step("retry", ("delete from t where id = 1",), refuse=False, request=("retry", "t")),
    Step(
        "leave out",
        ("insert into u values (5, 'unseen')", "insert into t (id) values (302)"),
        decision=("u", Decision(captured=False)),
        left_out=frozenset({"u"}),
    ),
    Step(
        "send elsewhere",
        ("delete from u where n = 4",),
        decision=("u", Decision(None, {"copy": Placing("public.elsewhere")})),
        elsewhere=frozenset({"u"}),
        only="postgres",
    ),
    Step(
        "take back",
        ("update u set word = 'back' where n = 5",),
        decision=("u", Decision()),
        while_copied=("insert into u values (6, 'meanwhile')",),
    ),
    Step(
        "change a type",
        ("alter table t alter amount type text using amount || '!'", "insert into t (id) values (400)"),
        while_copied=("insert into t (id, amount) values (401, 'meanwhile')",),
    ),
    Step(
        "come and go",
        ("drop table u", "create table v (id integer primary key)", "insert into v values (1)", "truncate t"),
        while_copied=("insert into v values (2)",),
    ),
    Step("end", ("insert into t (id) values (1)", "insert into v values (3)")),
    Step("", ("insert into t (id) values (2)",), restart=True),
)


class Sweep:
    """One run of the workload."""

    def __init__(self, bed: Bed, way: Way, chosen: Callable[[Point], bool]) -> None:
        self.bed = bed
        self.faults = bed.faults
        self.faults.begin(way, chosen)
        self.config = bed.clear().model_copy(update={"mapping": "database"})
        self.deaths = 0
        self.process: Process | None = None

    def run(self) -> None:
        try:
            for step in STEPS:
                if step.only in (None, self.bed.kind):
                    self._take(step)
            self.faults.step = ""
            difference = self.bed.delivered.difference_from_scratch(self._published())
            assert not difference, difference
            left_over = self.bed.delivered.left_over()
            assert not left_over, left_over
        except BaseException as error:
            struck = "\n".join(map(str, self.faults.struck))
            error.add_note(f"{self.faults.way}, in step {self.faults.step}, struck at:\n{struck}")
            raise
        finally:
            self.faults.step, self.faults.dead = "", False
            if self.process is not None:
                self.process.abandon()

    def _take(self, step: Step) -> None:
        bed = self.bed
        self.faults.step = ""
        if step.restart and self.process is not None:
            self.process.stop()
            self.process = None
        if step.refuse is not None:
            bed.delivered.refuse(step.refuse)
        bed.source.execute(*step.source)
        bed.during[:] = step.while_copied
        if step.request is not None:
            with self._state() as store:
                store.request(step.request[0], {"tables": [f"public.{step.request[1]}"]})
        if step.decision is not None:
            table, decision = step.decision
            with self._state() as store:
                TableMapping(SourceTables(self.config), store).decide(f"public.{table}", None, decision)
        bed.until_captured()
        for _ in range(ROUNDS):
            self.faults.step = step.name if step.restart or self._has_begun() else "start"
            self._go_round()
            bed.until_captured()
            if self._is_quiet(step):
                return
        with self._state() as store:
            states = [_told(state) for state in store.tables()]
        differs = bed.delivered.difference(self._published(step.left_out | step.elsewhere))
        pytest.fail(f"not done after {ROUNDS} rounds: {states}\n{differs}")

    def _has_begun(self) -> bool:
        return self.process is not None and bool(self.process.pipeline._streams)

    def _go_round(self) -> None:
        try:
            if self.process is None:
                self.process = Process(self.config, self.bed.spark)
                self.process.start()
            self.process.round()
        except StateUnreachable:
            assert not self._has_begun()  # a start ends with that, and is made again
            self._let_go()
        except Died:
            assert self.faults.dead
        if self.faults.dead:
            self.faults.dead = False
            self.deaths += 1
            self._let_go()

    def _let_go(self) -> None:
        assert self.process is not None
        self.process.abandon()
        self.process = None

    def _is_quiet(self, step: Step) -> bool:
        """Whether all that was asked for is done, and every table is where it should be."""
        process = self.process
        if process is None or process.store is None or process.pipeline._waiting or self.bed.during:
            return False
        states = {state.name.name: state for state in process.store.tables()}
        if set(states) != {name.name for name in self._published(step.left_out)}:
            return False
        if not all(_rests(state, name in step.errored) for name, state in states.items()):
            return False
        with self._state() as store:
            if store.requests():
                return False
        with closing(Manifest.open(self.bed.spool)) as manifest:
            held = manifest.consumers()
            captured = manifest.position
        errored = {f"copy/{states[name].key.table}" for name in step.errored}
        if set(held) != {"copy", *errored}:
            return False
        if step.errored:
            return captured is not None
        return not self.bed.delivered.difference(self._published(step.left_out | step.elsewhere))

    def _published(self, but: frozenset[str] = frozenset()) -> list[TableName]:
        rows = self.bed.source.query("select relname from pg_class where relname in ('t', 'u', 'v')")
        return [TableName("public", name) for (name,) in rows if name not in but]

    def _state(self) -> Store:
        return Store.open(self.config.state.url.get_secret_value(), "test", exclusive=False)


def _rests(state: TableState, errored: bool) -> bool:
    if errored:
        return state.phase is Phase.ERRORED and state.retry_at is None
    return state.phase is Phase.READY and not state.detail.get(RELOAD)


def _told(state: TableState) -> str:
    return (
        f"{state.name} {state.phase.value} from {state.position}, error {state.error}, retry {state.retry_at}"
    )


def number(point: Point) -> int:
    """The same for the same point in every run."""
    return crc32(str(point).encode())


@pytest.mark.parametrize(
    ("bed", "way", "part"),
    [
        pytest.param(
            kind,
            way,
            part,
            id=f"{kind}-{way.replace(' ', '_')}-{part}",
            marks=[pytest.mark.slow] if part or way not in QUICK[kind] else [],
        )
        for kind in KINDS
        for way in Way
        for part in range(PARTS[kind])
    ],
    indirect=["bed"],
)
def test_whatever_fails_once_all_ends_well(bed: Bed, way: Way, part: int) -> None:
    sweep = Sweep(bed, way, lambda point: number(point) % PARTS[bed.kind] == part)
    sweep.run()
    assert bed.faults.struck
    assert bool(sweep.deaths) == way.dies


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("way", Way, ids=lambda way: way.replace(" ", "_"))
@pytest.mark.parametrize("bed", KINDS, indirect=True)
def test_every_call_by_itself(bed: Bed, way: Way) -> None:
    """In the order of a run in which nothing fails. What fails is told at the end, all of it."""
    wanted = [int(one) for one in os.environ.get("PENSTOCK_SWEEP", "").split(",") if one]
    if not wanted:
        Sweep(bed, way, lambda _: False).run()
        wanted = [number(point) for point in bed.faults.points]
    failed = []
    for one in wanted:
        outcome = "ok"
        try:
            Sweep(bed, way, lambda point, one=one: number(point) == one).run()  # type: ignore[misc]
        except Exception as error:
            outcome = f"FAILED: {error!r}"[:1000]
            failed.append(one)
        print(one, outcome, *bed.faults.struck, flush=True)
    assert not failed
