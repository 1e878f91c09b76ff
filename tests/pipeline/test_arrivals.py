"""Tables whose changes come before they were seen."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.model import Lsn, TableId
from penstock.model.errors import ConnectionFailed
from penstock.pipeline.arrivals import Arrivals
from penstock.pipeline.catalog_look import PublishedTables
from penstock.pipeline.stream import Stream
from tests.pipeline.evolving import Source

TABLE = Source().schema().id


class Stage:
    """A stream without tables; what it asks of others may fail once."""

    def __init__(self, failing: str = "") -> None:
        self.asked: list[str] = []
        self.added: set[TableId] = set()
        self._failing = failing
        tables = {TABLE: Source().facts(1)}
        stream = SimpleNamespace(
            feed=SimpleNamespace(
                name="source",
                fresh={},
                discover=self._done("discover", lambda: PublishedTables(tables, Lsn(1))),
            ),
            target=SimpleNamespace(expect=self._done("expect")),
            tables=SimpleNamespace(
                get=lambda table: table if table in self.added else None,
                add=self._done("add", lambda facts, _fresh: self.added.add(facts.id)),
            ),
        )
        self.arrivals = Arrivals(cast(Stream, stream))

    def _done(self, name: str, work: Callable[..., Any] = lambda *_: None) -> Callable[..., Any]:
        def done(*arguments: Any) -> Any:
            self.asked.append(name)
            if name == self._failing:
                self._failing = ""
                raise ConnectionFailed("not now")
            return work(*arguments)

        return done


@pytest.mark.parametrize("failing", ["discover", "expect", "add"])
def test_a_table_is_asked_for_again_where_that_failed(failing: str) -> None:
    """Its changes are in a batch that is tried again, and must not go by without it."""
    stage = Stage(failing)
    with pytest.raises(ConnectionFailed):
        stage.arrivals.take_in([TABLE])
    stage.arrivals.take_in([TABLE])
    assert stage.added == {TABLE}


def test_a_table_that_is_not_published_is_asked_for_once() -> None:
    stage = Stage()
    for _ in range(2):
        stage.arrivals.take_in([TableId(99)])
    assert stage.asked == ["discover"]
