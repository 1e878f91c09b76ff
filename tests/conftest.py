"""The test bed: real PostgreSQL servers, a fresh database for each test.

The server is the one that `penstock[embedded]` brings. Tests of `postgres`, `capture`, `spool` and
`destinations`, and those marked `every_server`, also run against each bin directory listed in
PENSTOCK_TEST_PG_BINS (separated by colons). PENSTOCK_TEST_PG_PAIR lists two in the place of the embedded one:
of the source's server, and of the destination's.

`--draw NUMBER` runs five of the selected tests, each with one of its parameters: other numbers, other tests.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog
from hypothesis import HealthCheck, settings

from penstock.embedded.nats import NatsServer
from penstock.embedded.postgres import PostgresServer, bundled_bin
from tests.bed import Database, empty_nats, fresh_database, started_nats, started_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _listed(variable: str) -> list[Path]:
    return [Path(part) for part in os.environ.get(variable, "").split(":") if part]


FURTHER_BINS = _listed("PENSTOCK_TEST_PG_BINS")
PAIR = _listed("PENSTOCK_TEST_PG_PAIR")
ON_EVERY_SERVER = ("postgres", "capture", "spool", "destinations")

_servers: dict[Path, PostgresServer] = {}

# How long one example takes is the machine's matter: other tests run beside it.
settings.register_profile("beside others", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("beside others")


def pytest_configure() -> None:
    """What a shell starts in the background ignores SIGINT, under nohup SIGHUP, and so would every program
    that a test starts."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    # What a test asks of Spark is done before the compiler that takes its time has paid: a sixth less CPU.
    os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    # A program of ours is quick to end: its threads for matrices would cost a tenth of a second each time.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Many pipelines at once, and one port.
    os.environ.setdefault("PENSTOCK_MONITORING__ENABLED", "false")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server" in metafunc.fixturenames:
        further = FURTHER_BINS if _on_every_server(metafunc.definition) else []
        # A destination by itself has no source.
        place = metafunc.definition.path.parent.name == "destinations"
        bins = [PAIR[place]] if PAIR else [bundled_bin(), *further]
        names = ["embedded" if path == bundled_bin() else path.parent.name for path in bins]
        metafunc.parametrize("server", bins, indirect=True, ids=names)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--draw", type=int, metavar="NUMBER", help="five of the tests, drawn by this number")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """All of them are marked before `-m every_server` selects, and drawn from what it selected."""
    for item in items:
        if _on_every_server(item):
            item.add_marker("every_server")
    yield
    if (number := config.getoption("draw")) is not None:
        items[:] = _drawn(items, random.Random(number))


def _drawn(items: list[pytest.Item], chance: random.Random) -> list[pytest.Item]:
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        timeout = item.get_closest_marker("timeout")
        if timeout is not None and timeout.args[0] > 1800:
            continue  # hours: every call of the sweep by itself
        functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    names = chance.sample(sorted(functions), min(5, len(functions)))
    return [chance.choice(functions[name]) for name in names]


def _on_every_server(item: pytest.Item) -> bool:
    return item.path.parent.name in ON_EVERY_SERVER or item.get_closest_marker("every_server") is not None


def pytest_collection_finish() -> None:
    """What is there by now stays: the garbage collector need not look through it again and again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _own_log() -> Iterator[None]:
    """What a test does to the log of this process ends with it."""
    hooks = sys.excepthook, threading.excepthook
    yield
    structlog.reset_defaults()
    sys.excepthook, threading.excepthook = hooks


@pytest.fixture(scope="session", autouse=True)
def _stop_servers() -> Iterator[None]:
    yield
    for server in _servers.values():
        server.remove()


@pytest.fixture
def server(request: pytest.FixtureRequest) -> PostgresServer:
    """A running server, shared by all tests: leave it as it was."""
    return _shared(request.param)


@pytest.fixture
def destination_server(server: PostgresServer) -> PostgresServer:
    """The one that destinations are on, shared by all tests, too."""
    return _shared(PAIR[1]) if PAIR else server


def _shared(bin_dir: Path) -> PostgresServer:
    if bin_dir not in _servers:
        _servers[bin_dir] = started_server(bin_dir)
    return _servers[bin_dir]


@pytest.fixture
def own_server(server: PostgresServer) -> Iterator[PostgresServer]:
    """A server of the same version for this test alone: to stop, kill or reconfigure."""
    own = started_server(server.bin)
    yield own
    own.remove()


@pytest.fixture
def database(server: PostgresServer) -> Iterator[Database]:
    """An empty database on the shared server; its slots go with it."""
    yield from fresh_database(server)


@pytest.fixture
def own_database(own_server: PostgresServer) -> Iterator[Database]:
    """An empty database on a server that this test may break."""
    yield from fresh_database(own_server)


@pytest.fixture(scope="session")
def shared_nats() -> Iterator[NatsServer]:
    """A NATS server, shared by all tests."""
    made = started_nats()
    yield made
    made.remove()


@pytest.fixture
def nats(shared_nats: NatsServer) -> Iterator[NatsServer]:
    """The shared NATS server; what streams a test leaves there are removed."""
    yield shared_nats
    empty_nats(shared_nats)


@pytest.fixture
def own_nats() -> Iterator[NatsServer]:
    """A NATS server for this test alone: to stop, kill or reconfigure."""
    made = started_nats()
    yield made
    made.remove()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with little room: a tmpfs, where we may mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", folder], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"a small disk needs the right to mount one: {made.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def silent_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Java tells on stderr of the options that the tests give it: programs are started without them."""
    monkeypatch.delenv("JAVA_TOOL_OPTIONS")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all tests that need one; the others do not wait for the import."""
    from penstock.spark.session import session

    made = session("local[2]", {"spark.driver.memory": "768m"}, "penstock tests")
    yield made
    made.stop()
