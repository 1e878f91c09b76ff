"""`penstock demo`, as it is run: the whole way, and a verdict that can be no."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from penstock.cli.demo import _report
from penstock.demo.proof import Checksum
from penstock.demo.run import Verdict
from penstock.model import TableName

DEMO = [sys.executable, "-c", "from penstock.cli import main; main()", "demo"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the server's user can enter: pytest's own are closed to others."""
    made = Path(tempfile.mkdtemp(prefix="penstock-test-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.mark.slow
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


@pytest.mark.parametrize("to", ["files", pytest.param("postgres", marks=pytest.mark.slow)])
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
