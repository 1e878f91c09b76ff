"""The command line. One module for each command; this one puts them together and reports their errors.

Importing this is cheap, so that `--help` is quick: what a command needs it imports itself.
"""

from __future__ import annotations

import gc
import logging
import sys
from typing import Annotated

import typer

from penstock import __version__
from penstock.cli.check import check
from penstock.cli.consumers import consumers
from penstock.cli.demo import demo
from penstock.cli.grant import grant
from penstock.cli.init import init
from penstock.cli.map_table import map_table
from penstock.cli.mirror import mirror
from penstock.cli.pause import pause, resume
from penstock.cli.reload import reload
from penstock.cli.retry import retry
from penstock.cli.run import run
from penstock.cli.schema import schema
from penstock.cli.serve import serve
from penstock.cli.snapshot import snapshot
from penstock.cli.snowflake import snowflake
from penstock.cli.status import StatusCommand, status
from penstock.cli.tables import tables
from penstock.cli.tail import tail
from penstock.cli.teardown import teardown
from penstock.model.errors import ConfigError, PenstockError
from penstock.model.text import plain_traceback, printable, printable_lines

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)

# Every command of the program:
app.command()(demo)
app.command()(init)
app.command()(check)
app.command()(grant)
app.command()(run)
app.command(cls=StatusCommand)(status)
app.command()(tables)
app.command("map")(map_table)
app.command()(reload)
app.command()(retry)
app.command()(pause)
app.command()(resume)
app.command()(consumers)
app.command()(snapshot)
app.command()(mirror)
app.command()(snowflake)
app.command()(tail)
app.command()(serve)
app.command()(schema)
app.command()(teardown)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def penstock(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Every change of a PostgreSQL database, delivered to Apache Spark and beyond."""


def main() -> None:
    """Run the command; exit with 0: done; 1: failed; 2: wrong usage or configuration; 130: interrupted."""
    # What it could not undo when a signal came in the midst of a statement: the server does, by itself.
    logging.getLogger("psycopg").setLevel(logging.ERROR)
    try:
        app()
    except PenstockError as error:
        if isinstance(error, ConfigError):  # one line for each mistake
            print("\n".join(map(printable, f"error: {error}".split("\n"))), file=sys.stderr)
            sys.exit(2)
        print(printable_lines(f"error: {error}"), file=sys.stderr)
        sys.exit(1)
    except PermissionError as error:  # the spool is for its owner alone
        message = f"error: {error.filename}: {error.strerror}. Run it as the user that the pipeline runs as"
        print(printable(message), file=sys.stderr)
        sys.exit(1)
    except Exception as error:
        print(f"error: {plain_traceback(error)}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        gc.freeze()  # or the end looks through all modules for garbage: a fifth of what a command takes
