"""`penstock init`: a configuration from a look at a real server, with and without somebody to ask."""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from typer.testing import CliRunner, Result

from penstock.cli import app
from penstock.config import Config, load
from penstock.config.json_schema import json_schema
from penstock.config.new_file import SCHEMA_FILE
from penstock.embedded.nats import USER, NatsServer
from penstock.embedded.postgres import PostgresServer
from penstock.model import TableName
from tests.bed import Database, started_server
from tests.cli.terminal import PENSTOCK, in_terminal

TABLES = (
    "create table orders (id int primary key)",
    "create table no_key (a int)",
    "create unlogged table cache (id int primary key)",
    "create table late (id int primary key deferrable)",
    "create table parts (id int primary key) partition by range (id)",
    "create table parts_1 partition of parts for values from (0) to (9)",
    "create schema audit",
    "create table audit.log (id int primary key)",
    'create schema "odd.*"',
    'create table "odd.*"."a [b]" (a int)',
    'create table "odd.*"."t" (id int primary key)',
)


@pytest.fixture
def shop(database: Database) -> Database:
    database.execute(*TABLES)
    return database


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: PostgresServer) -> Path:
    """An empty one, in which the program runs; SHOP_PASSWORD is set."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOP_PASSWORD", server.password)
    return tmp_path


def init(*arguments: str) -> Result:
    """Without a terminal."""
    return CliRunner().invoke(app, ["init", *arguments])


def written(*arguments: str, file: str = "shop.yaml") -> Config:
    """The configuration that it wrote; no word of it, or of what was said, is the password."""
    result = init(file, *arguments)
    assert result.exit_code == 0, result.output
    config = load(Path(file))
    password = re.search("password='?([^' ]+)", config.source().conninfo())
    assert password is not None
    assert password[1] not in Path(file).read_text() + result.output
    return config


def access(database: Database) -> list[str]:
    return ["--dsn", database.server.url(database.name), "--password-env", "SHOP_PASSWORD"]


def test_what_it_writes_passes_the_check_and_the_schema(shop: Database, folder: Path) -> None:
    result = init("shop.yaml", *access(shop), "--to", "files", "--pipeline", "shop")
    assert (result.exit_code, shop.server.password in result.output) == (0, False)
    assert "public.no_key cannot: it has no primary key" in result.output
    assert "public.cache cannot: it is unlogged" in result.output
    assert "public.late cannot: its primary key is deferrable" in result.output
    assert "nothing keeps it from working" in result.output
    file = folder / "shop.yaml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in folder.iterdir()] == ["shop.yaml"]  # and nothing else was made
    text = file.read_text()
    assert shop.server.password not in text
    assert jsonschema_rs.validator_for(json_schema()).is_valid(yaml.safe_load(text))
    checked = CliRunner().invoke(app, ["check", "shop.yaml"])
    assert (checked.exit_code, "failure" in checked.output) == (0, False), checked.output


def test_tables_that_cannot_be_followed_are_left_out_by_name(shop: Database, folder: Path) -> None:
    assert folder.exists()
    chosen = written(*access(shop)).source().tables
    names = ["orders", "parts", "no_key", "cache", "late"]
    assert [name for name in names if chosen.matches(TableName("public", name))] == ["orders", "parts"]
    assert chosen.matches(TableName("audit", "log"))
    assert chosen.matches(TableName("odd.*", "t"))
    assert not chosen.matches(TableName("odd.*", "a [b]"))
    only = written(*access(shop), "--include", "audit.*", "--include", "orders", "--force").source().tables
    assert (only.include, only.exclude) == (("audit.*", "orders"), ())


def test_defaults_in_comments_are_the_defaults(shop: Database, folder: Path) -> None:
    """Without their marks they change nothing."""
    for to in (
        ["files"],
        ["postgres", "--to-dsn", *access(shop)[1:2], "--to-password-env", "SHOP_PASSWORD"],
    ):
        config = written(*access(shop), "--to", *to, "--force")
        text = (folder / "shop.yaml").read_text()
        head, _, rest = text.partition("pipeline:")
        assert head
        keys = re.sub(r"(?m)^( *)# (?=[a-z_ ]+:( |$))", r"\1", rest)
        keys = re.sub(r"(?m)^ +(tables:.*\n.*public.users|sslmode).*\n", "", keys)
        assert keys.count("\n#") < rest.count("\n#")
        (folder / "all.yaml").write_text(f"pipeline:{keys}")
        filled = load(folder / "all.yaml")
        assert filled.model_dump(exclude={"destinations"}) == config.model_dump(exclude={"destinations"})
        assert [one._settings for one in filled.destinations] == [
            one._settings for one in config.destinations
        ]


def test_an_editor_is_pointed_to_a_schema_that_is_there(shop: Database, folder: Path) -> None:
    written(*access(shop), file="one.yaml")
    assert not (folder / "one.yaml").read_text().startswith("# yaml-language-server")
    (folder / SCHEMA_FILE).write_text("{}")
    written(*access(shop), file="two.yaml")
    assert (folder / "two.yaml").read_text().startswith(f"# yaml-language-server: $schema={SCHEMA_FILE}\n")


def test_a_file_that_is_there_is_overwritten_by_force_alone(shop: Database, folder: Path) -> None:
    file = folder / "shop.yaml"
    file.write_text("mine")
    refused = init("shop.yaml", *access(shop))
    assert refused.exit_code == 2
    assert "--force" in refused.output
    assert file.read_text() == "mine"
    written(*access(shop), "--force")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Invalid value for --dsn: expected a server"),
        (["--dsn", "host=x port=y"], "Invalid value for --dsn: expected a connection string"),
        (["--dsn", "host=x", "--host", "y"], "expected either --dsn or --host"),
        (
            ["--host", "127.0.0.1", "--database", "x", "--user", ""],
            "Invalid value for --user: expected a name",
        ),
        (["--dsn", "DSN"], "--password-env: expected a variable for the password"),
        (["--dsn", "DSN", "--password-env", "hush!"], "expected the name of a variable"),
        (["--dsn", "host=x user=y", "--password-env", "NOT_SET"], "expected the variable NOT_SET to be set"),
        (["--dsn", "host=x sslpassword=hush"], "`sslpassword` is a secret"),
        (["FINE", "--include", "nowhere.*"], "no table that can be followed matches"),
        (["FINE", "--include", 'a"b'], "expected a pattern such as"),
        (["FINE", "--include", "no_key"], "no table that can be followed matches"),
        (["FINE", "--pipeline", "a b"], "expected a name of letters"),
        (["FINE", "--to", "pigeons"], "--to"),
        (["FINE", "--to", "postgres"], "Invalid value for --to-dsn: expected a server"),
        (["FINE", "--to", "nats", "--to-servers", "nats://u:p@h"], "without user and password"),
        (["nowhere/shop.yaml"], "the folder nowhere does not exist"),
    ],
)
def test_a_wrong_answer_without_a_terminal_is_wrong_usage(
    shop: Database, folder: Path, arguments: list[str], said: str
) -> None:
    given: list[str] = []
    for argument in arguments:
        fine = access(shop) if argument == "FINE" else [argument]
        given += [shop.server.url(shop.name)] if argument == "DSN" else fine
    result = init(*given)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
    assert shop.server.password not in result.output
    assert "hush" not in result.output
    assert list(folder.iterdir()) == []


def test_what_keeps_it_from_working_is_told(
    server: PostgresServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is written all the same."""
    replica = started_server(server.bin, wal_level="replica")
    try:
        Database(replica, "postgres").execute("create table orders (id int primary key)")
        monkeypatch.setenv("SHOP_PASSWORD", replica.password)
        result = init("--dsn", replica.url(), "--password-env", "SHOP_PASSWORD", "--yes")
    finally:
        replica.remove()
    assert result.exit_code == 0
    assert "failure  wal_level: replica. Set wal_level = logical" in result.output
    assert "nothing keeps it" not in result.output
    assert load(folder / "penstock.yaml").pipeline == "postgres"


def test_it_delivers_to_nats(
    shop: Database, folder: Path, nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert folder.exists()
    monkeypatch.setenv("NATS_PASSWORD", nats.password)
    to = ["--to", "nats", "--to-servers", nats.url, "--to-user", USER, "--to-password-env", "NATS_PASSWORD"]
    result = init("shop.yaml", *access(shop), *to)
    assert result.exit_code == 0
    assert "nothing keeps it from working" in result.output
    (destination,) = load(Path("shop.yaml")).destinations
    assert destination.options == {"servers": nats.url, "user": USER, "password_env": "NATS_PASSWORD"}
    assert nats.password not in Path("shop.yaml").read_text()


def answers(shop: Database) -> list[tuple[str, str]]:
    """With some that are wrong, and asked for again."""
    return [
        ("Host, or connection string", "127.0.0.1"),
        ("Port [", "many"),
        ("expected a port number", str(shop.server.port)),
        ("Database", shop.name),
        ("Role", "postgres"),
        ("holds the password", "hush hush"),
        ("not the password itself", "UNSET_PASSWORD"),
        ("UNSET_PASSWORD is not set", "wrong"),
        ("password authentication failed", ""),
        ("Port [", ""),
        ("Database [", ""),
        ("Role [", ""),
        ("[UNSET_PASSWORD]", ""),
        ("UNSET_PASSWORD is not set", shop.server.password),
        ("Tables (globs", "nowhere.*"),
        ("no table that can be followed", "public.*"),
        ("Name of the pipeline", "a b"),
        ("expected a name", "shop"),
        ("Name of the source", ""),
        ("Deliver to", "pigeons"),
        ("expected one of", "files"),
        ("Folder", ""),
    ]


def test_on_a_terminal_wrong_answers_are_asked_for_again(shop: Database, folder: Path) -> None:
    everything = ""
    with in_terminal(folder, *PENSTOCK, "init", "shop.yaml") as terminal:
        for question, answer in answers(shop):
            terminal.until(question)
            if "not set" in question:
                terminal.until_hidden()
            everything += terminal.shown
            terminal.forget()
            terminal.type(f"{answer}\n")
        assert terminal.ended() == 0
        everything += terminal.shown
    assert "nothing keeps it from working" in everything
    assert "export UNSET_PASSWORD=…" in everything
    assert shop.server.password not in everything
    document: Any = yaml.safe_load((folder / "shop.yaml").read_text())
    assert shop.server.password not in str(document)
    assert document["sources"][0]["connection"]["password_env"] == "UNSET_PASSWORD"
    assert document["destinations"] == [{"name": "files", "type": "files", "base_path": "files"}]


def test_who_leaves_at_a_question_leaves_nothing(shop: Database, folder: Path) -> None:
    with in_terminal(folder, *PENSTOCK, "init", *access(shop)) as terminal:
        terminal.until("Tables (globs")
        assert terminal.interrupt() in (1, 130)
        assert "Traceback" not in terminal.shown
    assert list(folder.iterdir()) == []
