"""Which tables a destination that keeps descriptions is told of, and when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from penstock.model import Lsn, TableId
from penstock.model.phases import Phase
from penstock.pipeline.descriptions import Descriptions
from penstock.pipeline.stream import Stream


class Stage:
    """A stream of tables, known by their ids, and what its destination was told."""

    def __init__(self, **phases: Phase) -> None:
        self.phases = phases
        self.told: list[list[Any]] = []
        stream = SimpleNamespace(
            feed=SimpleNamespace(name="source"),
            position=Lsn(1),
            target=SimpleNamespace(
                traits=SimpleNamespace(wants_descriptions=True),
                describe=lambda _source, deliveries: self.told.append(deliveries),
            ),
            tables=self,
            changes=SimpleNamespace(followed=lambda state: state),
            transformed=lambda _state, changes, _after: changes,
        )
        self.descriptions = Descriptions(cast(Stream, stream))

    def __iter__(self) -> Any:
        for number, phase in enumerate(self.phases.values()):
            yield SimpleNamespace(key=SimpleNamespace(table=TableId(number)), phase=phase, detail={})

    def delivery(self, _schema: object, state: Any, _detail: object) -> Any:
        return list(self.phases)[state.key.table]


def test_a_table_that_has_stopped_is_told_once_it_streams_again() -> None:
    stage = Stage(t=Phase.ERRORED, u=Phase.READY)
    for table in (0, 1):
        stage.descriptions.refresh(TableId(table))
    stage.descriptions.tell()
    stage.phases["t"] = Phase.READY
    for _ in range(2):
        stage.descriptions.tell()
    assert stage.told == [["u"], ["t"]]
