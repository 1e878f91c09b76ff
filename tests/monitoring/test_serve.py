"""`penstock serve`: a pipeline that runs on another machine, and one that never ran."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from penstock.capture import launch
from penstock.capture.launch import CaptureProcess
from penstock.cli.overview import overview
from penstock.cli.status_report import show
from penstock.config import Config, load
from penstock.state.store import Store
from tests.bed import Database
from tests.monitoring.asking import served
from tests.monitoring.conftest import add_tables
from tests.pipeline.running import configuration, to_postgres

PENSTOCK = [sys.executable, "-c", "from penstock.cli import main; main()"]


def configured(database: Database, folder: Path) -> Config:
    state = {"url": database.server.url(database.name)}
    return load(configuration(folder, database, to_postgres(database), state=state, monitoring={"port": 0}))


@pytest.fixture
def elsewhere(database: Database, tmp_path: Path) -> Iterator[None]:
    """A pipeline that captures into a spool that is not seen from here."""
    database.execute("create table users (id int primary key)")
    config = configured(database, tmp_path / "there")
    (source,) = config.sources
    launch.prepare(source)
    with (
        Store.open(config.state.url.get_secret_value(), config.pipeline, exclusive=True) as store,
        closing(CaptureProcess(launch.spec_of(config, source))) as capture,
    ):
        add_tables(store)
        capture.wait_until_captured()
        yield


@pytest.mark.usefixtures("elsewhere")
def test_a_pipeline_on_another_machine_is_ready(database: Database, tmp_path: Path) -> None:
    config = configured(database, tmp_path / "here")
    with served(config, read_only=True) as http:
        ready = http.ask.until("/ready", lambda answer: answer.code == 200)
        assert "capture:source" not in {each["name"] for each in ready.document["conditions"]}
        document = http.ask("/status").document
        (source,) = document["sources"]
        assert (source["slot_state"], set(source["capture"].values())) == ("active", {None})
        assert (source["rates"]["changes"], document["wal_messages_received"]) == (None, None)
        metrics = http.ask("/metrics").body.decode()
        assert 'penstock_slot_active{source="source"} 1.0' in metrics
        for unknown in ("capture_running", "wal_messages_received_total", "spool_bytes", "spool_room_bytes"):
            assert f"penstock_{unknown}{{" not in metrics
    console = Console(width=200)
    with console.capture() as printed:
        show(console, document, started=True)
        console.print(overview(document))
    assert "capture not seen from here" in printed.get()
    assert not (tmp_path / "here" / "spool").exists()


def looked_at(folder: Path, command: str, source: Database, **sections: object) -> tuple[int, str]:
    """Return how the command ends in a folder with nothing but a configuration, and what it says."""
    document = {"pipeline": "shop", "sources": [{"name": "eu", "dsn": source.dsn}], **sections}
    (folder / "shop.yml").write_text(yaml.safe_dump(document))
    done = subprocess.run(
        [*PENSTOCK, command, "shop.yml"], capture_output=True, text=True, check=False, timeout=60, cwd=folder
    )
    return done.returncode, done.stdout + done.stderr


def test_where_nothing_was_started_nothing_is_made(database: Database, tmp_path: Path) -> None:
    code, said = looked_at(tmp_path, "serve", database)
    assert code == 1
    assert said.startswith("error: nothing was started yet: there is no state store (file .penstock/")
    assert said.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["shop.yml"]


@pytest.mark.parametrize(("command", "code"), [("serve", 1), ("status", 0)])
def test_no_schema_is_made_to_be_looked_at(
    database: Database, tmp_path: Path, command: str, code: int
) -> None:
    state = {"url": database.server.url(database.name)}
    ended, said = looked_at(tmp_path, command, database, state=state)
    assert (ended, "nothing was started yet" in said) == (code, True)
    assert database.query("select 1 from pg_namespace where nspname = 'penstock'") == []


def test_a_state_that_goes_away_is_not_made_anew(database: Database, tmp_path: Path) -> None:
    config = configured(database, tmp_path)
    Store.open(config.state.url.get_secret_value(), config.pipeline, exclusive=True).close()
    with served(config, read_only=True) as http:
        http.ask.until("/status", lambda answer: "sources" in answer.document)
        database.execute("drop schema penstock cascade")
        error = http.ask.until("/status", lambda answer: answer.document["error"]).document["error"]
        http.ask.until("/status", lambda answer: answer.document["error"]["kind"] == "StateMissing")
        assert error["kind"] in ("StateUnreachable", "StateMissing")
        assert http.ask("/tables").document["error"]["kind"] == "StateMissing"
    assert database.query("select 1 from pg_namespace where nspname = 'penstock'") == []
