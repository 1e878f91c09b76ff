"""`penstock tables` and `penstock map`, as they are run, and what other commands make of what was decided."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.config import load
from penstock.config.mapping import Decision, Placing
from penstock.config.models import Config
from penstock.model import TableName
from penstock.pipeline import shared_targets
from penstock.pipeline.transform.rules import findings
from penstock.state.store import Store
from tests.bed import Database
from tests.cli.test_check import penstock
from tests.monitoring.mapped import MARKUP, TABLES, of

USERS = TableName("public", "users")


@pytest.fixture
def file(database: Database, tmp_path: Path) -> Path:
    database.execute(*TABLES)
    return of(database, tmp_path)


def listed(file: Path, *options: str) -> dict[str, Any]:
    done = penstock("tables", file, "--json", *options)
    assert done.returncode == 0, done.stderr
    return {each["table"]: each for each in json.loads(done.stdout)["tables"]}


def test_tables_are_listed_and_nothing_is_made(file: Path) -> None:
    done = penstock("tables", file, COLUMNS="150")
    assert done.returncode == 0
    lines = {line.split("  ")[0]: line for line in done.stdout.splitlines()}
    assert "coming" in lines["public.users"]
    assert "copy: there.users as clone" in lines["public.users"]
    assert "left out" in lines["public.notes"]
    assert MARKUP in done.stdout
    assert "8 of 8 tables, 6 captured" in done.stdout
    assert not (file.parent / "state.db").exists()
    assert list(listed(file, "--search", "USER")) == ["public.users"]
    assert list(listed(file, "--not-captured")) == ["public.cache"]
    assert penstock("tables", file, "--source", "nobody").returncode == 2


def test_a_table_is_mapped_step_by_step_and_reset(file: Path) -> None:
    done = penstock("map", file, "users", "--target", "app.users")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "public.users: captured; copy: app.users as clone\n"
        "The pipeline does not run: it takes this up when it is started.\n"
    )
    assert "app.users as append" in penstock("map", file, "users", "--kind", "append").stdout
    assert penstock("map", file, "users", "--no-capture").stdout.startswith("public.users: not captured\n")
    table = listed(file)["public.users"]
    assert table["decision"] == {
        "captured": False,
        "destinations": {"copy": {"target": "app.users", "kind": "append"}},
    }
    assert (table["revision"], table["decided_by"]) == (3, "mapping")
    assert "there.users as clone" in penstock("map", file, "users", "--reset").stdout
    assert listed(file)["public.users"]["decided_by"] == "file"


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (("public.users",), 2, "give one of --capture"),
        (("public.nobody", "--capture"), 1, "the source source has no table public.nobody"),
        (("public.notes", "--capture"), 1, "cannot be followed: it has no primary key"),
        (("public.users", "--kind", "mirror"), 1, "a kind is one of clone, append, history"),
        (("public.users", "--target", "there.orders"), 1, "these arrive at one table, there.orders"),
        (("public.users", "--target", "x", "--to", "lake"), 1, "no destination is called lake"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(
    file: Path, words: tuple[str, ...], code: int, reason: str
) -> None:
    done = penstock("map", file, *words)
    assert done.returncode == code
    assert reason in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


def test_other_commands_know_what_was_decided(file: Path) -> None:
    config = load(file, {})
    with Store.open(config.state.url.get_secret_value(), config.pipeline, exclusive=False) as store:
        for name in ("users", "orders", "parts", MARKUP, 'a.b "c" <i>'):
            store.mapping.decide(("source", TableName("public", name)), Decision(False))
    checked = penstock("check", file).stdout
    assert "1 to capture" in checked, "a partition goes with what it is a part of"
    assert "rules: public.users: matches no table that is captured" in checked
    assert "failure  rules" not in checked, "it is no mistake: somebody decided so"
    granted = penstock("grant", file, "--only", "source").stdout
    assert "public.notes" in granted
    assert "public.users" not in granted
    unreachable = penstock(
        "grant", file, "--only", "source", PENSTOCK_SOURCES__0__DSN="host=/nowhere dbname=x"
    )
    assert "(n.nspname, c.relname) = ('public', 'users')" in unreachable.stdout


def test_no_table_at_all_is_no_failure_where_people_decide_later(database: Database, tmp_path: Path) -> None:
    file = of(database, tmp_path)
    assert "warning  tables: no table matches" in penstock("check", file).stdout


def two_sources(file: Path) -> Config:
    text = file.read_text()
    eu = load(file, {}).model_dump()["sources"][0]
    assert eu["name"] == "source"
    line = next(line for line in text.splitlines() if "dsn:" in line and "name" not in line).strip()
    second = f"- name: us\n  {line}\n  replication: {{slot_name: another}}\ndestinations:"
    file.write_text(text.replace("destinations:", second))
    return load(file, {})


def test_a_history_and_a_clone_do_not_meet_in_one_table(file: Path) -> None:
    config = two_sources(file)
    names = {source.name: [USERS] for source in config.sources}
    for kind, told in (("append", False), ("history", True)):
        decided = config.under({("us", USERS): Decision(None, {"copy": Placing(None, kind)})})
        sentences = shared_targets.meeting(decided, names, ("us", USERS))
        assert bool(sentences) == told
    assert "not all of them as a history" in sentences[0]


def test_a_rule_for_a_table_that_somebody_withdrew_is_no_mistake(file: Path) -> None:
    config = load(file, {})
    assert [finding.certain for finding in findings(config.destinations[0], [])] == [True]
    withdrawn = config.under({("source", USERS): Decision(False)})
    assert [finding.certain for finding in findings(withdrawn.destinations[0], [])] == [False]
