"""Decisions about tables in the store: versioned, one after the other, and nothing made by looking."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest

from penstock.config.mapping import Decision, Decisions, Placing
from penstock.model import TableName
from penstock.model.errors import MappingChanged, MappingRefused, StateOlder
from penstock.state import Store
from penstock.state import tables as t
from penstock.state.database import Database
from penstock.state.mapping_records import MappingRecords

USERS = "eu", TableName("public", "users")
ODD = "eu", TableName('a."b', "<i>'; --ü")
PLACED = Decision(None, {"warehouse": Placing("app.users", "history")})


def test_a_decision_is_kept_until_it_is_taken_back(url: str) -> None:
    with Store.open(url, "shop", exclusive=False) as one, Store.open(url, "shop", exclusive=True) as other:
        assert one.mapping.read().decisions == {}
        first = one.mapping.decide(USERS, PLACED)
        second = one.mapping.decide(ODD, Decision(False))
        assert (first.revision, second.revision, other.mapping.revision()) == (1, 2, 2)
        assert other.mapping.read().decisions == {USERS: PLACED, ODD: Decision(False)}
        assert (second.revision_of(USERS), second.revision_of(ODD)) == (1, 2)
        third = other.mapping.decide(USERS, Decision())
        assert (third.revision, third.decisions, third.revision_of(USERS)) == (3, {ODD: Decision(False)}, 0)
    with Store.open(url, "another", exclusive=False) as store:
        assert store.mapping.read().decisions == {}


def test_who_has_not_seen_the_last_decision_changes_nothing(url: str) -> None:
    with Store.open(url, "shop", exclusive=False) as store:
        store.mapping.decide(USERS, Decision(True), seen=0)
        with pytest.raises(MappingChanged, match="somebody else has decided about the table meanwhile"):
            store.mapping.decide(USERS, Decision(False), seen=0)
        store.mapping.decide(ODD, Decision(False), seen=0)
        assert store.mapping.read().decisions[USERS] == Decision(True)
        store.mapping.decide(USERS, Decision(False), seen=1)
        assert store.mapping.read().decisions[USERS] == Decision(False)


def test_what_is_refused_leaves_nothing(url: str) -> None:
    def refuse(decisions: Decisions) -> None:
        assert decisions == {USERS: PLACED}
        raise MappingRefused("no")

    with Store.open(url, "shop", exclusive=False) as store:
        with pytest.raises(MappingRefused):
            store.mapping.decide(USERS, PLACED, check=refuse)
        assert (store.mapping.revision(), store.mapping.read().decisions) == (0, {})


def test_of_many_who_decide_at_once_one_is_first(url: str) -> None:
    Store.open(url, "shop", exclusive=False).close()
    outcomes: list[str] = []

    def decide(number: int) -> None:
        with Store.open(url, "shop", exclusive=False) as store:
            try:
                store.mapping.decide(USERS, Decision(None, {"d": Placing(f"t{number}")}), seen=0)
                outcomes.append("decided")
            except MappingChanged:
                outcomes.append("too late")

    with Store.open(url, "shop", exclusive=False) as store:
        store.mapping.decide(ODD, Decision(True))  # the row of the revision is there
    threads = [threading.Thread(target=decide, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["decided"] + 7 * ["too late"]


def test_of_a_store_of_an_earlier_version_nothing_is_decided_until_it_is_brought_up_to_date(url: str) -> None:
    Store.open(url, "shop", exclusive=False).close()
    with closing(Database.open(url)) as database, database.writing() as connection:
        t.metadata.drop_all(connection, tables=[t.mapping, t.mapping_revisions])
        connection.execute(t.formats.update().values(format=1))
        schema = "" if database.file else f"{t.SCHEMA}."
        connection.exec_driver_sql(f"alter table {schema}state_format drop column written_by")
    with closing(Database.open(url)) as database:
        assert MappingRecords(database, "shop").read().decisions == {}
    with pytest.raises(StateOlder):
        Store.find(url, "shop")
    with Store.open(url, "shop", exclusive=True) as store:
        assert store.mapping.decide(USERS, PLACED).decisions == {USERS: PLACED}


def test_decisions_go_with_the_state(url: str) -> None:
    with Store.open(url, "shop", exclusive=True) as store:
        store.mapping.decide(USERS, PLACED)
        store.erase()
        assert (store.mapping.revision(), store.mapping.read().decisions) == (0, {})


def test_looking_for_a_store_makes_none(url: str, tmp_path: Path) -> None:
    assert Store.find(url, "shop") is None
    assert Database.find(url) is None
    assert not (tmp_path / "made").exists()
    Store.open(url, "shop", exclusive=False).close()
    found = Store.find(url, "shop")
    assert found is not None
    found.close()
