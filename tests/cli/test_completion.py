"""What a press of the tab key completes, in real shells where they are to be had."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest
import yaml

from penstock.model import TableId, TableName
from penstock.model.phases import Phase
from penstock.state.store import Store, TableKey, TableState

BIN = Path(sys.executable).parent
NAMES = ("orders", "order_items", "users")

BASH = """
eval "$SCRIPT"
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_penstock_completion penstock
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the configuration of a pipeline that has tables, and other files."""
    for name in ("other.yml", "notes.txt", ".hidden.yaml"):
        (tmp_path / name).touch()
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "deep.yaml").touch()
    source = {"name": "eu", "dsn": "host=192.0.2.1"}  # where nobody answers
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump({"pipeline": "shop", "sources": [source]}))
    with Store.open(f"sqlite:///{tmp_path}/.penstock/state.db", "shop", exclusive=True) as store:
        for number, name in enumerate(NAMES, 1):
            key, table = TableKey("eu", "d", TableId(number)), TableName("public", name)
            store.put(TableState(key, table, table, Phase.READY, datetime.now(UTC)))
    return tmp_path


@cache
def script() -> str:
    return answered(Path(), {"_PENSTOCK_COMPLETE": "source_bash"}).stdout


def completed(folder: Path, words: str) -> list[str]:
    """What bash offers for the last of these words."""
    done = subprocess.run(
        ["bash", "-c", BASH.format(words=words)],
        cwd=folder,
        env=os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "SCRIPT": script()},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


def answered(folder: Path, asking: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What the program says to a shell's script."""
    environ = os.environ | asking
    return subprocess.run(
        [BIN / "penstock"], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )


def test_bash_completes_commands_files_and_tables(folder: Path) -> None:
    assert completed(folder, "penstock sna") == ["snapshot"]
    assert completed(folder, "penstock reload ''") == ["more/", "other.yml", "shop.yaml"]
    assert completed(folder, "penstock check more/") == ["more/deep.yaml"]
    assert completed(folder, "penstock reload shop.yaml public.o") == ["public.order_items", "public.orders"]
    assert completed(folder, "penstock tail shop.yaml --table public.u") == ["public.users"]


@pytest.mark.parametrize("state", ["postgresql://nobody@192.0.2.1/state", "sqlite:///notes.txt"])
def test_no_server_is_asked_and_nothing_is_told_of_what_is_wrong(folder: Path, state: object) -> None:
    document = yaml.safe_load((folder / "shop.yaml").read_text()) | {"state": {"url": state}}
    (folder / "shop.yaml").write_text(yaml.safe_dump(document))
    before = sorted(folder.rglob("*"))
    assert completed(folder, "penstock reload shop.yaml public.o") == [""]
    assert sorted(folder.rglob("*")) == before


def test_a_store_that_is_written_to_is_not_waited_for(folder: Path) -> None:
    with Store.open(f"sqlite:///{folder}/.penstock/state.db", "shop", exclusive=True):
        assert completed(folder, "penstock retry shop.yaml public.use") == ["public.users"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_answered(folder: Path, shell: str) -> None:
    """As their scripts ask."""
    words = "penstock reload shop.yaml public.u"
    asking = {"_PENSTOCK_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": words}
    done = answered(folder, asking | {"_TYPER_COMPLETE_FISH_ACTION": "get-args"})
    assert "public.users" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(("shell", "check"), [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")])
def test_the_scripts_are_what_the_shells_read(tmp_path: Path, shell: str, check: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    printed = answered(tmp_path, {"_PENSTOCK_COMPLETE": f"source_{shell}"}).stdout
    assert "penstock" in printed
    (tmp_path / "script").write_text(printed)
    subprocess.run([program, check, tmp_path / "script"], check=True)
