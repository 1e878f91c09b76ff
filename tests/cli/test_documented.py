"""The command line as a whole: documented, with examples, and quick to start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer

from penstock.cli import app

PAGE = Path(__file__, "../../../docs/commands.md").resolve().read_text()
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def section(name: str) -> str:
    """The part of the page about one command."""
    return PAGE.partition(f"\n## penstock {name}")[2].partition("\n## ")[0]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_documented(name: str) -> None:
    assert section(name), f"docs/commands.md has no section on penstock {name}"
    for parameter in COMMANDS[name].params:
        if parameter.param_type_name == "option" and parameter.name != "help":
            assert any(f"`{option}" in section(name) for option in parameter.opts), parameter.opts
        if parameter.param_type_name == "argument":
            assert str(parameter.name).upper() in section(name).splitlines()[0]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str) -> None:
    command = COMMANDS[name]
    assert f"Example: penstock {name}" in command.help
    undescribed = [parameter.name for parameter in command.params if not getattr(parameter, "help", None)]
    assert undescribed == []


def test_what_psycopg_ignores_is_not_told() -> None:
    """A signal in the midst of a statement makes it warn that it could not roll back."""
    program = """if True:
        import atexit, logging, sys
        from penstock import cli
        atexit.register(lambda: logging.getLogger("psycopg").warning("error ignored in rollback"))
        sys.argv = ["penstock", "--version"]
        cli.main()"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout.startswith("penstock "), done.stderr) == (True, "")


def test_help_needs_nothing_heavy() -> None:
    heavy = "{'pyspark', 'pyarrow', 'numba', 'numpy', 'psycopg', 'pydantic', 'yaml', 'pandas'}"
    program = f"import penstock.cli, sys; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
