"""Masks: a rule that hides nothing is refused, and what a rule hides does not get out by another name."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from pyspark.sql import SparkSession

from penstock.cli.retry import retry
from penstock.config import load
from penstock.embedded.postgres import PostgresServer
from penstock.model.errors import ConfigError
from penstock.model.phases import Phase
from penstock.pipeline.pipeline import Pipeline
from penstock.state.store import Store, TableState
from tests.bed import Database, fresh_database
from tests.files.consumer import unpacked
from tests.pipeline.running import Running, configuration, contents, running, to_postgres

CANARY = "canary-4711"
CHECK = [sys.executable, "-c", "from penstock.cli import main; main()", "check", "--json"]


@pytest.fixture
def destination(server: PostgresServer) -> Iterator[Database]:
    yield from fresh_database(server)


@pytest.fixture
def source(database: Database) -> Database:
    database.execute(
        "create table users (id int primary key, email text, password_hash text)",
        "create table orders (id int primary key, note text)",
        f"insert into users values (1, '{CANARY}', '{CANARY}')",
    )
    return database


def rules_for(file: Path) -> dict[str, list[tuple[str, str]]]:
    """What `penstock check` says of the rules, by destination."""
    done = subprocess.run([*CHECK, str(file)], capture_output=True, text=True, check=False, timeout=120)
    assert done.stderr == ""
    found: dict[str, list[tuple[str, str]]] = {}
    for one in map(json.loads, done.stdout.splitlines()):
        if one["name"] == "rules":
            found.setdefault(one["destination"], []).append((one["outcome"], one["detail"]))
    failed = any(outcome == "failure" for told in found.values() for outcome, _ in told)
    assert done.returncode == int(failed)
    return found


# What stands under `tables`, what is said of it, and whether that is a failure.
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no_table": ({"public.user": {"drop": ["password_hash"]}}, "public.user: matches no table that is"),
    "near_table": ({"public.user": {"kind": "append"}}, "did you mean public.users?"),
    "hidden": ({"*.*": {}, "public.users": {"drop": ["email"]}}, "public.users: has no effect"),
    "no_column": ({"users": {"drop": ["password"]}}, "`drop` names password, which it does not have"),
    "case_of_drop": ({"users": {"drop": ["Email"]}}, "its column is called email"),
    "case_of_set": ({"*.*": {"set": {"EMAIL": "'x'"}}}, "its column is called email"),
    "key": ({"users": {"drop": ["id"]}}, "`drop` names id, part of its key"),
    "no_column_of_many": ({"public.*": {"drop": ["passwrd_hash"]}}, "did you mean password_hash?"),
    "new_column_of_many": ({"public.*": {"set": {"fresh": "1"}}}, "none of its tables has; only a rule by"),
    "unknown_in_where": ({"users": {"where": "country = 'XX'"}}, "`where`: Spark SQL refuses it: "),
    "where_of_many": ({"public.*": {"where": "email <> ''"}}, "(table public.orders)"),
    "unknown_in_set": ({"users": {"set": {"email": "sha2(mail, 256)"}}}, "`set.email`: Spark SQL refuses it"),
    "no_sql": ({"users": {"set": {"email": "sha2(email"}}}, "`set.email`: Spark SQL refuses it"),
    "not_a_condition": ({"users": {"where": "id + 1"}}, "`where`: Spark SQL refuses it"),
}
RIGHT: dict[str, dict[str, Any]] = {
    "drop_of_many": {"public.*": {"drop": ["password_hash"]}},
    "set_of_many": {"public.*": {"set": {"email": "sha2(email, 256)", "note": "'***'"}}},
    "by_name": {"users": {"set": {"email": "sha2(email, 256)", "fresh": "1"}, "where": "id > 0"}},
    "first_wins": {"public.users": {"drop": ["email"]}, "public.*": {"drop": ["note"]}},
}


def test_check_finds_every_rule_that_hides_nothing_and_says_which_one_holds(
    source: Database, tmp_path: Path
) -> None:
    documents = {name: tables for name, (tables, _) in WRONG.items()} | RIGHT
    documents["doubtful"] = {"users": {"set": {"emial": "'***'"}}}
    destinations = [to_postgres(source, tables=tables) | {"name": n} for n, tables in documents.items()]
    lenient = [given | {"name": f"lenient_{given['name']}", "strict": False} for given in destinations]
    found = rules_for(configuration(tmp_path, source, *destinations, *lenient))
    for name, (_, said) in WRONG.items():
        assert [outcome for outcome, detail in found[name] if said in detail] == ["failure"], found[name]
        assert "failure" not in dict(found[f"lenient_{name}"])
        assert any(said in detail for outcome, detail in found[f"lenient_{name}"] if outcome == "warning")
    for name in RIGHT:
        assert [outcome for outcome, _ in found[name]] == ["ok"], found[name]
    ((_, holds),) = found["first_wins"]
    assert holds == ("public.users → public.users; public.* → public.orders (the first that matches wins)")
    assert found["doubtful"][1][0] == "warning"
    assert "new column emial of public.users; did you mean email?" in found["doubtful"][1][1]


@pytest.mark.parametrize(
    "tables",
    [
        {"public.user": {"drop": ["password_hash"]}},
        {"public.users": {"drop": ["passwordhash"]}},
        {"public.users": {"set": {"email": "sha2(mail, 256)"}}},
    ],
)
def test_a_rule_that_hides_nothing_keeps_the_pipeline_from_starting(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path, tables: dict[str, Any]
) -> None:
    file = configuration(tmp_path, source, to_postgres(destination, tables=tables))
    with pytest.raises(ConfigError) as refused:
        Pipeline(load(file), threading.Event(), spark).run()
    ((rule, _),) = tables.items()
    assert f"destination copy: {rule}: " in str(refused.value)
    assert "strict: false" in str(refused.value)
    assert destination.query("select relname from pg_class where relkind = 'r' and oid > 16384") == []
    assert source.query("select from pg_replication_slots where database = current_database()") == []
    assert source.query("select from pg_publication") == []


def test_with_strict_false_it_is_told_and_a_table_that_comes_later_is_masked(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    tables = {"public.later": {"drop": ["secret"]}, "public.users": {"drop": ["gone"]}}
    file = configuration(tmp_path, source, to_postgres(destination, tables=tables, strict=False))
    with structlog.testing.capture_logs() as logs, running(file, spark) as pipeline:
        pipeline.until_phase(Phase.ERRORED, "public.users")  # what a rule cannot be carried out at stays shut
        source.execute(
            "create table later (id int primary key, secret text)",
            f"insert into later values (1, '{CANARY}')",
        )
        pipeline.until(lambda: contents(destination, "later") == ["(1)"])
    told = [log["reason"] for log in logs if log["event"] == "rule may be wrong"]
    assert [why.split(":")[0] for why in told] == ["public.later", "public.users"]
    assert CANARY not in everything(destination, tmp_path / "files")


# Attacks

RULES: dict[str, Any] = {
    "public.users": {"drop": ["password_hash"], "set": {"email": "'***'"}},
    "public.people": {"set": {"ssn": "'***'"}},
    "public.clients": {"drop": ["pw"]},
    "public.many_*": {"drop": ["secret"], "set": {"email": "'***'"}},
}
TABLES = {
    "people": "ssn text, note text",
    "clients": "pw text, note text",
    "many_dropped": "secret text, note text",
    "many_set": "email text, note text",
    "many_swapped": "email text, note text",
    "many_retyped": "secret varchar(20), note text",
    "many_left": "secret text, note text",
    "many_fine": "secret text, email text, note text",
}
ATTACKS = {
    "users": "alter table users rename password_hash to pw",
    "people": "alter table people rename ssn to number",
    "clients": "alter table clients rename to clients_old",
    "many_dropped": "alter table many_dropped rename secret to open",
    "many_set": "alter table many_set rename email to mail",
    "many_swapped": "alter table many_swapped rename email to x;"
    " alter table many_swapped rename note to email; alter table many_swapped rename x to note",
    "many_retyped": "alter table many_retyped rename secret to open;"
    " alter table many_retyped alter open type char(30)",
    "many_left": "alter table many_left rename to left_behind",
}


def states(pipeline: Running) -> list[TableState]:
    url = pipeline.config.state.url.get_secret_value()
    with Store.open(url, "test", exclusive=False) as store:
        return store.tables()


def requests(pipeline: Running) -> list[Any]:
    with Store.open(pipeline.config.state.url.get_secret_value(), "test", exclusive=False) as store:
        return list(store.requests())


def everything(destination: Database, files: Path) -> str:
    """All that has arrived, as text; what begins with a dot is still being written."""
    names = destination.query(
        "select format('%I.%I', schemaname, tablename) from pg_tables"
        " where schemaname not in ('pg_catalog', 'information_schema')"
    )
    rows = [row for (name,) in names for row in contents(destination, name)]
    kept = [unpacked(str(path)).decode() for path in files.glob("[!.]*/**/[!.]*.*") if path.is_file()]
    return "\n".join([*rows, *kept])


MENDED: dict[str, Any] = {
    "public.users": {"drop": ["pw"], "set": {"email": "'***'"}},
    "public.people": {"set": {"number": "'***'"}},
    "public.clients_old": {"drop": ["pw"]},
    "public.many_swapped": {"drop": ["email", "note"]},
    "public.left_behind": {"drop": ["secret"]},
    "public.many_*": {"drop": ["secret", "open"], "set": {"email": "'***'", "mail": "'***'"}},
}


def until_stopped(pipeline: Running, attacked: set[str]) -> None:
    """Until those tables are errored at both destinations, each with what became of it as the reason."""

    def errors() -> list[str]:
        return [
            str(state.error)
            for state in states(pipeline)
            if state.name.name in attacked and state.phase is Phase.ERRORED and state.retry_at is None
        ]

    pipeline.until(lambda: len(errors()) == 2 * len(attacked))
    assert [said for said in errors() if " now" not in said] == []


@pytest.fixture
def attacked(source: Database) -> Database:
    for name, columns in TABLES.items():
        values = ", ".join("'ok'" if c.startswith("note") else f"'{CANARY}'" for c in columns.split(", "))
        source.execute(
            f"create table {name} (id int primary key, {columns})", f"insert into {name} values (1, {values})"
        )
    source.execute(
        f"alter table many_fine alter secret set default '{CANARY}', alter email set default '{CANARY}'",
        f"alter table many_fine add check (secret = '{CANARY}' or id > 0)",
        f"create index on many_fine (note) where email <> '{CANARY}'",
    )
    return source


def attack(source: Database, attacks: dict[str, str]) -> None:
    """Each table gets its other names, and then a change of the row that holds what is hidden."""
    for name, statement in attacks.items():
        now = statement.split()[-1] if "rename to" in statement else name
        source.execute(f"{statement}; update {now} set id = 2")
    source.execute(
        f"create index hiding on many_fine (note) where secret <> '{CANARY}'",
        f"alter table many_fine add column more text check (email = '{CANARY}' or id > 0)",
        "create index told on orders (note)",
    )
    source.execute("update many_fine set note = 'went on'")


def until_ready(pipeline: Running) -> None:
    pipeline.until(lambda: len(states(pipeline)) == 2 * len([*TABLES, "users", "orders"]))
    pipeline.until(lambda: all(state.phase is Phase.READY for state in states(pipeline)), seconds=120)


@pytest.mark.slow
def test_no_column_and_no_table_gets_out_of_its_rule_by_another_name(
    spark: SparkSession, attacked: Database, destination: Database, tmp_path: Path
) -> None:
    files = tmp_path / "files"

    def written(tables: dict[str, Any]) -> Path:
        to_files = {"name": "files", "type": "files", "base_path": str(files), "tables": tables}
        return configuration(tmp_path, attacked, to_postgres(destination, tables=tables), to_files)

    file = written(RULES)
    with running(file, spark) as pipeline:
        until_ready(pipeline)
        attack(attacked, ATTACKS)
        until_stopped(pipeline, {*ATTACKS})
        pipeline.until(lambda: everything(destination, files).count("went on") == 2)
        told = everything(destination, files)
        assert "--   create index told on orders (note)" in told, "of a table without a rule all is told"
        assert "] CREATE INDEX\n\n" in told
        assert 'alter table "public"."many_fine" add column "more" text;' in told
        retry(file, ["*.*"])
        pipeline.until(lambda: not requests(pipeline))
        until_stopped(pipeline, {*ATTACKS})
        assert CANARY not in everything(destination, files)
    file = written(MENDED)
    retry(file, ["*.*"])
    with running(file, spark) as pipeline:
        until_ready(pipeline)
        assert CANARY not in everything(destination, files)


@pytest.mark.slow
def test_what_was_renamed_while_the_pipeline_was_stopped_does_not_get_out_either(
    spark: SparkSession, attacked: Database, destination: Database, tmp_path: Path
) -> None:
    files = tmp_path / "files"
    to_files = {"name": "files", "type": "files", "base_path": str(files), "tables": RULES}
    file = configuration(tmp_path, attacked, to_postgres(destination, tables=RULES), to_files)
    with running(file, spark) as pipeline:
        until_ready(pipeline)
    # The others would be refused at the start: no table, or no column, has that name any more.
    attacks = {name: said for name, said in ATTACKS.items() if name not in ("users", "clients")}
    attack(attacked, attacks)
    with running(file, spark) as pipeline:
        pipeline.until(lambda: everything(destination, files).count("went on") == 2)
        until_stopped(pipeline, {*attacks})
        assert CANARY not in everything(destination, files)
