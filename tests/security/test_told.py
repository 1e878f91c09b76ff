"""What people are told: no value of a row but its key, no variable, nothing that a terminal would obey."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import psycopg
import pytest
from rich.console import Console

from penstock.cli.status_report import for_people as shown
from penstock.cli.status_report import show_destination
from penstock.cli.tail import _for_people as change_shown
from penstock.model.errors import PenstockError
from penstock.model.text import as_json, error_summary, plain_traceback, printable
from penstock.postgres.connection import explain
from tests.bed import Database

FORGED = "x\n2026-01-01 00:00:00 [info     ] all is well\x1b[2J\x9b2J\u202e[/red]"
OBEYED = ("\x1b", "\x9b", "\u202e")
CANARY = "c4nary-v4lue"

TABLES = """
    create domain short as text check (length(value) < 3);
    create table t (id int primary key, secret text unique check (secret <> 'bad'), n int, at date, d short);
    create view v as select * from t where n > 0 with check option;
    insert into t values (1, 'c4nary-v4lue');
    create function refuse() returns trigger language plpgsql as $$ begin
        raise exception 'not today' using detail = new.secret, hint = new.secret, errcode = tg_argv[0];
    end $$;
    create table own (id int, secret text);
    create trigger own before insert on own for each row execute function refuse('P0001');
    create table strange (id int, secret text);
    create trigger strange before insert on strange for each row execute function refuse('ABCDE');
"""


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("insert into t values (2, '{}')", 'duplicate key value violates unique constraint "t_secret_key"'),
        ("insert into t values (null, '{}')", 'null value in column "id" of relation "t" violates not-null'),
        ("insert into v values (2, '{}!', -1)", 'new row violates check option for view "v"'),
        ("insert into t (n) select '{}'", None),
        ("select '{}'::int", "a value is refused: invalid text representation"),
        ("select '99999999999{}'::date", "a value is refused: invalid parameter value"),
        ("select (repeat('9', 20) || left('{}', 0))::int", "a value is refused: numeric value out of range"),
        ("select '{{{}'::int[]", "a value is refused: invalid text representation"),
        ("insert into t (id, d) values (2, '{}')", 'value for domain short violates check constraint'),
        ("insert into own values (1, '{}')", "not today"),
        ("insert into strange values (1, '{}')", "not today"),
    ],
)  # fmt: skip
def test_an_error_tells_no_value_of_a_row(database: Database, statement: str, reason: str | None) -> None:
    database.execute(TABLES)
    with database.connect() as connection, pytest.raises(psycopg.Error) as caught:
        connection.execute(statement.format(CANARY).encode())
    error = explain(caught.value)
    assert CANARY not in f"{error} {error!r}"
    assert "99999" not in str(error)
    if reason is not None:
        assert error.reason.startswith(reason)
    assert CANARY not in error_summary(caught.value)


def test_a_message_in_any_language_is_left_out_where_it_may_quote_a_value() -> None:
    error = psycopg.errors.InvalidTextRepresentation(f"ungültige Eingabesyntax für Typ integer: »{CANARY}«")
    assert explain(error).reason == "a value is refused: invalid text representation"


LOGGING = f"""
import structlog, sys, threading
from penstock import logs
logs.to_stderr()
log = structlog.get_logger()
def work(password):
    row = "{CANARY}"
    raise KeyError(row)
try:
    work("hush")
except KeyError:
    log.exception("a batch failed", table={FORGED!r})
log.info({FORGED!r}, n=1, error=ValueError({FORGED!r}))
thread = threading.Thread(target=work, args=("hush",)); thread.start(); thread.join()
work("hush")
"""


def test_a_log_has_neither_variables_nor_lines_of_others() -> None:
    done = subprocess.run([sys.executable, "-c", LOGGING], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    written = done.stderr
    assert "hush" not in written
    assert CANARY not in written
    assert written.count("builtins.KeyError") == 3
    assert written.count(", in work") == 3
    assert not any(one in written for one in OBEYED)
    assert written.count("\n20") == 1, "two lines of ours, those of others are escaped"
    assert r"\n2026-01-01" in written


def test_a_traceback_keeps_the_words_of_errors_that_quote_nothing() -> None:
    try:
        try:
            raise FileNotFoundError(2, "No such file or directory", FORGED)
        except FileNotFoundError as error:
            raise PenstockError("there is no spool", table=FORGED) from error
    except PenstockError as error:
        written = plain_traceback(error)
    assert "No such file or directory" in written
    assert "there is no spool" in written
    assert not any(one in written for one in OBEYED)
    assert all(line.startswith("  ") for line in written.split("\n"))


def test_json_is_the_same_and_no_terminal_obeys_it() -> None:
    written = as_json({"table": FORGED, "über": "Größe"})
    assert json.loads(written) == {"table": FORGED, "über": "Größe"}
    assert "Größe" in written
    assert not any(one in written for one in (*OBEYED, "\n"))


def test_people_are_shown_names_as_text() -> None:
    printed = io.StringIO()
    console = Console(file=printed, soft_wrap=True, force_terminal=False)
    error = {"reason": FORGED, "where": {"key": FORGED}, "remedy": "", "kind": "RowRefused"}
    table = {
        "source": "s",
        "table": FORGED,
        "target": FORGED,
        "phase": "errored",
        "since": "2026-01-01T00:00:00",
    }
    stopped = table | {"rows": 0, "copy": None, "error": error, "retry_at": None}
    show_destination(console, shown({"name": "d", "streams": [], "tables": [stopped]}))
    change_shown(console)(
        {"committed_at": "2026-01-01T00:00:00.000000", "commit_lsn": "0/1", "op": "delete", "table": FORGED}
        | {"before": {"id": FORGED}}
    )
    written = printed.getvalue()
    assert not any(one in written for one in OBEYED)
    assert "\n2026-01-01 00" not in written
    assert "[/red]" in written
    assert printable("tab\tand \u2028") == r"tab\tand \u2028"
