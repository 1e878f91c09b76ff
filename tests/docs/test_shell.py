"""Every command of the documentation can be given: the command line itself parses `penstock …`, `make …`
is a target, `curl …` asks for an address that is served."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlparse

import pytest
import typer

from bench.__main__ import names as benchmarks
from penstock.cli import app
from penstock.config import load
from penstock.monitoring import openapi
from tests.docs.blocks import PROGRAMS, ROOT, Block, commands, of_language
from tests.docs.test_blocks import BASE

PROGRAM = typer.main.get_command(app)
ASSIGNMENT = re.compile(r"[A-Z_][A-Z0-9_]*=")

BLOCKS = of_language("console", "sh")


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_commands_can_be_given(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = commands(block)
    assert found, f"{block} has no command"
    for words in found:
        while words and ASSIGNMENT.match(words[0]):
            name, _, value = words.pop(0).partition("=")
            if name.startswith("PENSTOCK_") and not name.startswith("PENSTOCK_TEST"):
                monkeypatch.setenv(name, value)
                _configured(tmp_path)
        if words:
            _checked(block, words)


def test_every_benchmark_is_listed_and_no_other() -> None:
    table = (ROOT / "docs" / "performance.md").read_text().partition("| benchmark |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"(?m)^\| `(\w+)` \|", table)) == benchmarks()


def _configured(folder: Path) -> None:
    """A variable that overrides no key is an error."""
    file = folder / "shop.yaml"
    source = {"name": "eu", "connection": {"host": "localhost"}}
    file.write_text(str(BASE | {"sources": [source]}))
    load(file)


def _checked(block: Block, words: list[str]) -> None:
    program, arguments = words[0], words[1:]
    if ">" in arguments:
        arguments = arguments[: arguments.index(">")]
    name = program.rpartition("/")[2]
    assert name in PROGRAMS, f"{block}: {program} is not known here"
    if name in CHECKS:
        CHECKS[name](arguments)
    ours = [word for word in arguments if word.startswith(("deploy/", "examples/"))]
    assert [word for word in ours if not (ROOT / word).exists()] == [], block


def penstock(arguments: list[str]) -> None:
    """Raises what the command line would say against it."""
    group = PROGRAM
    if arguments in (["--help"], ["--version"]):
        return
    name, command, rest = group.resolve_command(typer.Context(group), list(arguments))  # type: ignore[attr-defined]
    assert name is not None
    command.make_context(name, rest)


def make(arguments: list[str]) -> None:
    targets = set(re.findall(r"(?m)^([a-z]+):", (ROOT / "Makefile").read_text()))
    for argument in arguments:
        if argument.startswith("ARGS=") and arguments[0] == "demo":
            penstock(["demo", *argument.removeprefix("ARGS=").split()])
        else:
            assert "=" in argument or argument in targets, argument


def python(arguments: list[str]) -> None:
    if arguments[:2] == ["-m", "bench"]:
        assert arguments[2] in benchmarks()
    elif arguments[0] == "-m":
        assert find_spec(arguments[1]), arguments
    else:
        assert (ROOT / arguments[0]).exists(), arguments


def curl(arguments: list[str]) -> None:
    method = arguments[arguments.index("-X") + 1].lower() if "-X" in arguments else "get"
    path = urlparse(next(word for word in arguments if word.startswith("http"))).path
    described = {
        re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path)): methods
        for path, methods in openapi.DOCUMENT["paths"].items()
    }
    assert any(re.fullmatch(known, path) and method in methods for known, methods in described.items()), path


def pip(arguments: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra in re.findall(r"penstock\[(\w+)\]", " ".join(arguments)):
        assert extra in project["optional-dependencies"]


CHECKS: dict[str, Callable[[list[str]], None]] = {
    "penstock": penstock,
    "make": make,
    "python": python,
    "python3": python,
    "curl": curl,
    "pip": pip,
}
