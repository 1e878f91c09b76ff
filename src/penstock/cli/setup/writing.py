"""The new file: written whole or not at all, for its owner alone, then checked as `penstock check` does.

It holds no secret, but people add things.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import typer

from penstock.cli.check import checks_of, show
from penstock.cli.setup.connection import NewConnection
from penstock.config import load
from penstock.config.new_file import NewConfig, written
from penstock.postgres.preflight.check import Outcome


def refuse(file: Path, *, force: bool) -> None:
    """Refuse a file that cannot be written, before anybody answers questions."""
    if file.is_dir():
        raise typer.BadParameter(f"{file} is a folder", param_hint="FILE")
    if file.exists() and not force:
        raise typer.BadParameter(f"{file} is there already; --force overwrites it", param_hint="FILE")
    if not os.access(file.parent, os.W_OK | os.X_OK):
        there = "cannot be written to" if file.parent.is_dir() else "does not exist"
        raise typer.BadParameter(f"the folder {file.parent} {there}", param_hint="FILE")


def write(file: Path, new: NewConfig, *, force: bool) -> None:
    """Write it: beside its place first (a crash leaves a file of another name there), then in one step."""
    handle, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)  # for its owner alone
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(written(new, str(file)))
        if force:
            temporary.replace(file)
        else:
            try:
                os.link(temporary, file)
            except FileExistsError:  # since we looked
                refuse(file, force=False)
    finally:
        temporary.unlink(missing_ok=True)


def check(file: Path, *servers: NewConnection) -> None:
    """Say what `penstock check` finds, now that it is written, and what comes next."""
    environ = dict(os.environ)
    for server in servers:
        environ = server.environ | environ
    typer.echo(f"{file} is written. penstock check {file} says:")
    failed = False
    for about, results in checks_of(load(file, environ)):
        unwell = [result for result in results if result.outcome is not Outcome.OK]
        failed = failed or any(result.outcome is Outcome.FAILURE for result in unwell)
        if unwell:
            show(about, unwell)
    if not failed:
        typer.echo("  nothing keeps it from working")
    for variable in filter(None, (server.unset for server in servers)):
        typer.echo(f"Before you use it, set the variable: export {variable}=…")
