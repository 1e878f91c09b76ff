"""What is decided of single tables comes before the file, and nothing else does."""

from __future__ import annotations

import pickle
import re

import pytest

from penstock.config.mapping import TARGET, Decision, Placing
from penstock.config.models import Config
from penstock.model import TableName

USERS, ORDERS, NOTES = (TableName("public", name) for name in ("users", "orders", "notes"))


def config() -> Config:
    rules = {"public.users": {"target": "app.users", "drop": ["password"]}, "public.*": {"kind": "append"}}
    document = {
        "pipeline": "shop",
        "sources": [
            {"name": "eu", "dsn": "postgresql://eu/shop", "tables": {"exclude": ["public.notes"]}},
            {"name": "us", "dsn": "postgresql://us/shop"},
        ],
        "destinations": [
            {"name": "copy", "type": "postgres", "dsn": "postgresql://there/shop", "tables": rules}
        ],
        "mapping": "database",
    }
    return Config.model_validate(document, context={"environ": {}, "secret": set()})


def test_a_decision_comes_before_the_file_and_for_its_table_alone() -> None:
    shop = config()
    (eu, us), (copy,) = shop.sources, shop.destinations
    shop.decide(
        {
            ("eu", NOTES): Decision(True),
            ("eu", ORDERS): Decision(False),
            ("us", USERS): Decision(None, {"copy": Placing(None, "history")}),
            ("us", ORDERS): Decision(None, {"copy": Placing('"My Schema"."my.table"')}),
        }
    )
    assert [eu.tables.matches(table) for table in (USERS, ORDERS, NOTES)] == [True, False, True]
    assert [us.tables.matches(table) for table in (USERS, ORDERS, NOTES)] == [True, True, True]
    assert copy.target_of(ORDERS, "us") == TableName("My Schema", "my.table")
    assert copy.target_of(ORDERS, "eu") == ORDERS
    rules = copy.rules_of(USERS, "us")
    assert (rules.kind, rules.target, rules.drop) == ("history", "app.users", ("password",))
    assert copy.rules_of(USERS, "eu").kind == "clone"
    assert copy.withdrawn == {ORDERS}


def test_what_is_taken_back_leaves_nothing() -> None:
    shop = config()
    shop.decide({("eu", NOTES): Decision(True)})
    shop.decide({})
    assert not shop.sources[0].tables.matches(NOTES)


def test_our_own_tables_cannot_be_decided_about() -> None:
    shop = config()
    ours = TableName("penstock", "ddl_history")
    shop.decide({("eu", ours): Decision(True)})
    assert not shop.sources[0].tables.matches(ours)


def test_configurations_do_not_share_decisions() -> None:
    one, other = config(), config()
    under = one.under({("us", USERS): Decision(False), ("eu", NOTES): Decision(True)})
    for unchanged in (one, other, config()):
        assert unchanged.sources[1].tables.matches(USERS)
        assert not unchanged.sources[0].tables.matches(NOTES)
    assert not under.sources[1].tables.matches(USERS)
    assert not pickle.loads(pickle.dumps(under)).sources[1].tables.matches(USERS)


@pytest.mark.parametrize("target", ["users", "app.users", '"My.Schema"."*"', '"a""b"', "ü.<b>", "a b.c'd"])
def test_targets(target: str) -> None:
    assert re.fullmatch(TARGET, target)


@pytest.mark.parametrize("target", ["", ".", "a.", ".b", "a.b.c", "a*", "[a]", 'a"b', '"a', '""', "a\0b"])
def test_no_targets(target: str) -> None:
    assert not re.fullmatch(TARGET, target)
