"""`penstock demo`, as it is run: the whole way, and a verdict that can be no."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from penstock.cli.demo import _folder, _report
from penstock.demo.proof import Checksum
from penstock.demo.run import Verdict
from penstock.embedded.postgres import PostgresServer
from penstock.model import TableName
from tests.cli.terminal import in_terminal
from tests.monitoring.asking import Asking

DEMO = [sys.executable, "-c", "from penstock.cli import main; main()", "demo"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the server's user can enter: pytest's own are closed to others."""
    made = Path(tempfile.mkdtemp(prefix="penstock-test-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.mark.slow
@pytest.mark.usefixtures("silent_java")
def test_the_demo_proves_source_and_stream_equal(folder: Path) -> None:
    done = subprocess.run(
        [*DEMO, "--to", "spark", "--seconds", "3", "--rows", "500", "--keep", folder],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Source and stream are equal." in done.stdout
    assert (folder / "shop.yaml").exists()


def test_a_difference_is_said_and_is_a_failure() -> None:
    printed = io.StringIO()
    table = TableName("public", "orders")
    same, other = (Verdict(table, Checksum(2, 7), Checksum(2, total)) for total in (7, 8))
    assert _report(Console(file=printed), [same], [])
    assert not _report(Console(file=printed), [same, other], [])
    assert not _report(Console(file=printed), [same], ["there is no such row"])
    assert "NOT equal" in printed.getvalue()


@pytest.mark.usefixtures("silent_java")
@pytest.mark.parametrize(
    "to", ["files", *(pytest.param(to, marks=pytest.mark.slow) for to in ("nats", "postgres"))]
)
def test_the_demo_of_a_pipeline_proves_source_and_destination_equal(folder: Path, to: str) -> None:
    done = subprocess.run(
        [*DEMO, "--to", to, "--seconds", "2", "--rows", "300", "--keep", folder],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Source and destination are equal." in done.stdout
    assert ("The files: " in done.stdout) is (to == "files")
    assert "Press Enter" not in done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("silent_java")
@pytest.mark.parametrize("key", ["\n", "\x03"], ids=["Enter", "Ctrl-C"])
def test_on_a_terminal_the_dashboard_stays_until_a_key_is_pressed(folder: Path, key: str) -> None:
    program = folder / "penstock"
    program.write_text(f"#!{sys.executable}\nfrom penstock.cli import main\nmain()\n")
    program.chmod(0o755)
    command = (str(program), "demo", "--seconds", "2", "--rows", "300")
    with in_terminal(folder, *command, PENSTOCK_MONITORING__ENABLED="true") as terminal:
        shown = terminal.until("Press Enter to end.", 200)
        assert "Source and destination are equal." in shown
        assert re.search(
            r"In another terminal: \./penstock status /tmp/penstock-demo-\S+/shop\.yaml\n", shown
        )
        files = re.search(r"The files: (\S+)\n", shown)
        assert files
        assert list(Path(files[1]).rglob("*.csv*"))
        address = re.search(r"still there: http://([^/]+)/ ", shown)
        assert address
        Asking(address[1]).until("/ready", lambda answer: answer.code == 200)
        terminal.type(key)
        assert terminal.ended() == 0
        assert "The files are removed now." in terminal.shown
        assert not Path(files[1]).exists()


def servers() -> set[str]:
    """The command lines of servers that run in a demo's folder."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.add(file.read_text().replace("\0", " "))
    return {command for command in found if "/tmp/penstock-demo-" in command and "bin/postgres " in command}


@pytest.mark.slow
def test_a_signal_ends_the_demo_and_nothing_is_left() -> None:
    for number, moment in ((signal.SIGTERM, "Starting PostgreSQL"), (signal.SIGHUP, "Starting the pipeline")):
        folders, before = set(Path("/tmp").glob("penstock-demo-*")), servers()
        demo = subprocess.Popen(
            [*DEMO, "--seconds", "60", "--rows", "10"],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        try:
            assert demo.stdout is not None
            assert any(moment in line for line in demo.stdout)
            made = {*Path("/tmp").glob("penstock-demo-*")} - folders
            made |= {
                Path(place)
                for command in servers() - before
                for place in re.findall("/tmp/penstock-[a-z]+-[a-z0-9_]+", command)
            }
            demo.send_signal(number)
            assert demo.wait(60) == 128 + number
            assert made
            assert [place for place in made if place.exists()] == []
            assert servers() - before == set()
        finally:
            demo.kill()
            demo.communicate()


@pytest.mark.parametrize("there", [True, False])
def test_the_server_comes_through_the_folder_that_is_kept(folder: Path, there: bool) -> None:
    keep = folder / "closed" if there else folder / "some" / "where" / "new"
    if there:
        keep.mkdir(0o700)
    umask = os.umask(0o077)
    try:
        with _folder(keep) as made:
            server = PostgresServer(made / "postgres")
            assert server.folder.parent == keep
    finally:
        os.umask(umask)
    assert keep.exists()
    assert os.geteuid() or keep.stat().st_mode & 0o777 == 0o711
