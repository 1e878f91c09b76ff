"""`penstock run`, decided about over HTTP and on the command line, and killed before it has done so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bed import Database
from tests.monitoring.asking import Answer, Asking
from tests.monitoring.running import run
from tests.pipeline.running import configuration, contents, to_postgres

COMMAND = [sys.executable, "-c", "from penstock.cli import main; main()"]


def put(ask: Asking, table: str, document: object) -> Answer:
    body = json.dumps(document).encode()
    return ask.send(f"/tables/{table}/mapping", "PUT", body, {"Content_Type": "application/json"})


def state(answer: Answer, table: str) -> str:
    tables = answer.document["tables"] if answer.code == 200 else []
    return next((str(each["state"]) for each in tables if each["table"] == table), "")


def command(*words: str) -> str:
    environ = os.environ | {"COLUMNS": "200"}
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_decisions_are_followed_and_survive_a_kill(database: Database, tmp_path: Path) -> None:
    database.execute(*(f"create table {name} (id int primary key, note text)" for name in "abc"))
    database.execute(*(f"insert into {name} values (1, '{name}')" for name in "abc"))
    file = configuration(
        tmp_path,
        database,
        to_postgres(database, schema="there"),
        sources=[{"name": "source", "dsn": database.dsn, "tables": {"include": ["public.[ab]"]}}],
        mapping="database",
        monitoring={"port": 0},
    )
    with run(file) as pipeline:
        ask = pipeline.asking()
        ask.until("/ready", lambda answer: answer.code == 200, 120)
        ask.until("/tables", lambda answer: state(answer, "public.b") == "captured", 120)
        assert contents(database, "there.c") == []
        answer = put(ask, "public.c", {"captured": True})
        assert (answer.code, answer.document["state"]) == (200, "coming")
        assert "within seconds" in answer.document["takes_effect"]
        pipeline.until(lambda: contents(database, "there.c") == ["(1,c)"], 120)
        database.execute("insert into c values (2, 'c')")
        pipeline.until(lambda: len(contents(database, "there.c")) == 2)
        ask.until("/tables", lambda answer: state(answer, "public.c") == "captured")

        said = command("map", str(file), "public.a", "--target", "app.a", "--kind", "append")
        assert "public.a: captured; copy: app.a as append\nThe pipeline runs" in said
        assert put(ask, "public.b", {"captured": False}).code == 200
        pipeline.process.kill()
        pipeline.process.wait()
    database.execute("insert into a values (2, 'dead')")
    assert "public.b" in command("tables", str(file), "--not-captured")
    with run(file) as pipeline:
        ask = pipeline.asking()
        pipeline.until(lambda: contents(database, "app.a") == ["(1,a)", "(2,dead)"], 120)
        ask.until("/tables", lambda answer: state(answer, "public.b") == "not captured", 60)
        database.execute("insert into b values (2, 'unseen')")
        database.execute("delete from a where id = 1", "insert into a values (3, 'a')")
        pipeline.until(lambda: len(contents(database, "app.a")) == 3)
        assert contents(database, "there.b") == ["(1,b)"]
        assert contents(database, "there.c") == ["(1,c)", "(2,c)"]
        assert command("map", str(file), "b", "--reset").startswith("public.b: captured")
        pipeline.until(lambda: contents(database, "there.b") == ["(1,b)", "(2,unseen)"], 120)
        assert "3 captured; `penstock map` and the dashboard decide" in command("tables", str(file))
