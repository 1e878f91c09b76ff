"""Changes as plain objects: of all tables on the driver, of one wherever it is read."""

from __future__ import annotations

from penstock.destinations.batch import events_of
from penstock.model.events import Begin, Commit, Insert, Relation
from tests.changes.made import ORDERS, USERS
from tests.destinations.given import Given


def test_the_events_of_one_table_are_those_of_all_without_the_others(given: Given) -> None:
    given.deliver(USERS, ORDERS)
    given.spool.insert(USERS, ("1", "a", None)).insert(ORDERS, ("1", "x")).insert(USERS, ("2", "b", None))
    given.spool.commit()
    batch = given.batch(given.spool.insert(ORDERS, ("2", "y")).commit())
    every = list(batch.events())
    assert [type(event) for event in every] == [
        Begin, Relation, Insert, Relation, Insert, Insert, Commit, Begin, Insert, Commit,
    ]  # fmt: skip
    told = [event.table_schema for event in every if isinstance(event, Relation)]
    assert told == [USERS, ORDERS]
    for table, changes in zip((USERS, ORDERS), batch.tables, strict=True):
        rows = [event for event in every if isinstance(event, Insert) and event.table_id == table.id]
        own = list(events_of(changes))
        assert [event for event in own if isinstance(event, Insert)] == rows
        assert [event for event in own if isinstance(event, Relation)] == [
            event for event in every if isinstance(event, Relation) and event.table_schema == table
        ]
