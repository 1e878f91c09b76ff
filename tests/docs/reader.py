"""Whoever gives the documentation's commands: in a terminal, in a folder with `shop.yaml`, beside servers."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from penstock.embedded.nats import USER, NatsServer
from penstock.embedded.postgres import free_port
from tests.cli.terminal import Terminal, in_terminal
from tests.docs.blocks import ROOT, on_page
from tests.docs.shop import SECRETS, Shop
from tests.monitoring.running import PENSTOCK, Run

_SHELL = "import os, sys; os.execvp('bash', ['bash', '-e', '-o', 'pipefail', '-c', sys.argv[1]])"
_INTERRUPTED = 130, -2
_STARTING = 240
_WRITING_SECONDS = 0.2


class Reader:
    """`address` is where the pages have `http://127.0.0.1:8080`."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.folder = shop.folder
        self._http, self._other = free_port(), free_port()
        programs = self.folder / "bin"
        programs.mkdir()
        (programs / "penstock").write_text(f'#!/bin/sh\nexec {shlex.join(PENSTOCK)} "$@"\n')
        (programs / "penstock").chmod(0o755)
        (programs / ".curlrc").write_text("fail\n")  # an answer that says no is a failure
        (self.folder / "examples").symlink_to(ROOT / "examples")
        path = [str(programs), str(Path(sys.executable).parent), str(shop.server.bin), os.environ["PATH"]]
        self._environ = SECRETS | {
            "PATH": ":".join(path),
            "CURL_HOME": str(programs),
            "PENSTOCK_MONITORING__ENABLED": "true",
            "PGPORT": str(shop.server.port),
            "PGHOST": "127.0.0.1",
            "PGUSER": "postgres",
            "PGPASSWORD": shop.server.password,
        }

    def configure(self, document: dict[str, Any]) -> None:
        """Write `shop.yaml`, for the test's own servers."""
        for end in (*document["sources"], *document["destinations"]):
            if "connection" in end:
                end["connection"] |= {"host": "127.0.0.1", "port": self.shop.server.port}
        own = {
            "monitoring": {"port": self._http},
            "batch_control": {"interval": "50ms"},
            "spark": {"master": "local[2]"},
        }
        (self.folder / "shop.yaml").write_text(yaml.safe_dump(document | own, sort_keys=False))

    def give(self, line: str, act: Callable[[Terminal], None] | None = None) -> str:
        """Run a line of shell to its end, which is a good one, and return what was shown; `act` does
        meanwhile what a person would."""
        arguments = ("-c", _SHELL, self._here(line))
        with in_terminal(self.folder, *arguments, **self._environ) as terminal:
            if act is not None:
                act(terminal)
            code = terminal.ended(_STARTING)
            assert code == 0 or ("^C" in terminal.shown and code in _INTERRUPTED), terminal.shown
            return terminal.shown

    def _here(self, line: str) -> str:
        host = f"127.0.0.1:{self.shop.server.port}"
        line = re.sub(r"@db(\.example\.com)?/", f"@{host}/", line).replace("db.example.com", "127.0.0.1")
        line = line.replace("127.0.0.1:8080", f"127.0.0.1:{self._http}").replace("8081", str(self._other))
        return re.sub(r"(?<=[ '])/data\b", f"{self.folder}/data", line)

    def started(self) -> Run:
        return Run(self.folder / "shop.yaml", **self._environ)


class Following(Reader):
    """Beside a pipeline to a database, to files and to NATS, and people who change rows all the time."""

    def __init__(self, shop: Shop, nats: NatsServer) -> None:
        super().__init__(shop)
        (configuration,) = on_page("quickstart.md", "yaml")
        document = yaml.safe_load(configuration.text)
        events = {
            "name": "events", "type": "nats", "servers": [nats.url], "user": USER, "password": nats.password,
        }  # fmt: skip
        document["sources"][0]["tables"]["include"].append("sales.*")
        shop.source.execute("create schema sales", "create table sales.invoices (id bigint primary key)")
        document["destinations"] += [{"name": "lake", "type": "files", "base_path": "lake"}, events]
        self.configure(document | {"mapping": "database"})
        self._run: Run | None = None

    def start(self) -> None:
        """Have the pipeline run, with every table `ready`, also those that a command has paused or
        a mistake has stopped."""
        if self._run is None or self._run.process.poll() is not None:
            self._run = self.started()
        for phase, command in ("paused", "resume"), ("errored", "retry"):
            for name in {name for (_, name), table in self.tables().items() if table["phase"] == phase}:
                self.give(f"penstock {command} shop.yaml {name}")
        self.until(lambda: {state["phase"] for state in self.tables().values()} == {"ready"})

    def stop(self) -> None:
        if self._run is not None:
            self._run.process.terminate()
            self._run.process.wait()

    def tables(self) -> dict[tuple[str, str], Any]:
        """By destination and name, as `penstock status` has them."""
        status = json.loads(self.shop.run(["penstock", "status", "shop.yaml", "--json"], self._environ))
        return {
            (each["name"], table["table"]): table
            for each in status["destinations"]
            for table in each["tables"]
        }

    def until(self, check: Callable[[], object]) -> None:
        assert self._run is not None
        self._run.until(check, _STARTING)

    @contextmanager
    def changes(self) -> Iterator[None]:
        ended = threading.Event()

        def write() -> None:
            with self.shop.source.connect() as connection:
                while not ended.wait(_WRITING_SECONDS):
                    connection.execute(b"update users set name = 'user ' || clock_timestamp() where id = 1")
                    connection.execute(b"update orders set total = total + 1 where id = 1")

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def answer(lines: Mapping[str, str]) -> Callable[[Terminal], None]:
    """Type an answer to each question that is asked, by its words, and Enter to all others."""

    def typed(terminal: Terminal) -> None:
        while terminal.process.poll() is None:
            if terminal.shown.endswith(": "):
                asked = next((line for words, line in lines.items() if words in terminal.shown), "")
                terminal.forget()
                terminal.type(f"{asked}\n")
            time.sleep(0.05)

    return typed


def interrupt_after(pattern: str) -> Callable[[Terminal], None]:
    """Press Ctrl-C once this is shown."""

    def pressed(terminal: Terminal) -> None:
        terminal.until_match(pattern, _STARTING)
        terminal.type("\x03")

    return pressed
