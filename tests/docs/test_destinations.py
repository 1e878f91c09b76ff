"""The classes of docs/destination-python.md and docs/writing-a-destination.md, in a pipeline."""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from penstock.config import load
from penstock.destinations.plugin import type_of
from penstock.destinations.python.target import CustomTarget
from penstock.model.phases import Phase
from tests.config.installed import install
from tests.docs.blocks import on_page
from tests.docs.shop import Shop
from tests.pipeline.running import running

LONG = "md5(random()::text) || repeat(md5(random()::text), 400)"
"""A value that is kept apart from its row, and not sent where an update leaves it alone."""


def test_the_classes_of_the_pages_are_given_everything(
    shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.allow()
    shop.source.execute(
        "alter table users alter column email set storage external",
        f"update users set email = {LONG} where id < 6",
    )
    (printing,) = on_page("destination-python.md", "python")
    (printing_yaml,) = on_page("destination-python.md", "yaml")
    writing, _ = on_page("writing-a-destination.md", "python")
    (writing_yaml,) = on_page("writing-a-destination.md", "yaml")
    shop.save(printing, "print_changes.py")
    shop.save(writing, "sqlite_tables.py")
    document = yaml.safe_load(writing_yaml.text)
    document["destinations"] += yaml.safe_load(printing_yaml.text)["destinations"]
    file = shop.folder / "shop.yaml"
    file.write_text(yaml.safe_dump(document))
    monkeypatch.chdir(shop.folder)
    for name, value in shop.leads.items():
        monkeypatch.setenv(name, value)
    for module in ("print_changes", "sqlite_tables"):  # other tests may have one of that name
        monkeypatch.setitem(sys.modules, module, None)
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.syspath_prepend(shop.folder)
    _given_twice(monkeypatch)

    with running(file, spark) as pipeline:
        pipeline.until(lambda: [state.phase for state in pipeline.states()] == [Phase.READY] * 4)
        shop.source.execute(
            "insert into users (id, name) values (100, 'new')",
            "update users set id = 101, name = 'moved' where id = 1",
            "update users set name = 'changed' where id = 2",
            "delete from users where id = 3",
            "truncate orders",
            "insert into orders (id, total) values (1000, 1.25)",
        )
        pipeline.until(lambda: _kept(shop) == _there(shop))
        printed = [""]

        def is_printed() -> bool:
            printed.append(capsys.readouterr().out)
            return "Truncate(" in "".join(printed)

        pipeline.until(is_printed)
    assert {"public.users is copied", "20 rows"} <= set("".join(printed).splitlines())


def _given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch comes again, as after a crash."""
    import sqlite_tables  # type: ignore[import-not-found]

    once = sqlite_tables.SqliteTables.write_events

    def twice(self: Any, batch: Any) -> None:
        once(self, batch)
        once(self, batch)

    monkeypatch.setattr(sqlite_tables.SqliteTables, "write_events", twice)


def _kept(shop: Shop) -> set[tuple[Any, ...]]:
    with sqlite3.connect(shop.folder / "shop.db") as database:
        rows = database.execute("select name, row from rows").fetchall()
    kept = ((name, json.loads(row)) for name, row in rows)
    return {(name, row["id"], row.get("name"), row.get("email"), row.get("total")) for name, row in kept}


def _there(shop: Shop) -> set[tuple[Any, ...]]:
    users = shop.source.query("select 'public.users', id, name, email, null from users")
    orders = shop.source.query("select 'public.orders', id, null, null, total::text from orders")
    return {*users, *orders}


def test_a_type_of_a_package_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, package = on_page("writing-a-destination.md", "python")
    install(tmp_path / "installed", monkeypatch, package.text, "queue = their_module:TYPE")
    file = tmp_path / "queue.yaml"
    file.write_text(
        "pipeline: p\nsources: [{name: s, dsn: 'postgresql://localhost/x'}]\n"
        "destinations: [{name: q, type: queue, url: 'queue://there'}]\n"
    )
    config = load(file)
    made = type_of(config.destinations[0]).make(config, config.destinations[0])
    assert isinstance(made, CustomTarget)
    assert type_of(config.destinations[0]).check(config, config.destinations[0], []) == []
