"""The connection of a new configuration: asked for, tried, and written down without its password."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

import psycopg
import typer
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr, ValidationError

from penstock.cli.setup.questions import Question, Questions
from penstock.config.connection import SECRETS, ServerConfig, check_dsn
from penstock.model.errors import ConfigError, PenstockError
from penstock.model.text import printable
from penstock.postgres.connection import connect, explain
from penstock.postgres.preflight.check import where
from penstock.postgres.survey import SurveyedTable, survey

PASSWORD = "password"
NOTHING: Mapping[str, str] = {}
_ORDER = {"host": "host", "port": "port", "dbname": "database", "user": "username"}
"""libpq's keywords as they are written here, and first."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class GivenConnection:
    """What options say of it."""

    dsn: str | None = None
    host: str | None = None
    port: int | None = None
    database: str | None = None
    user: str | None = None
    password_env: str | None = None
    password_file: str | None = None
    option: str = "--"
    """How its options begin."""


@dataclass(frozen=True, slots=True)
class NewConnection:
    keywords: Mapping[str, str]
    """As they will stand in the file."""
    password: str | None = None
    """Known for now: it will not."""

    @property
    def environ(self) -> dict[str, str]:
        """The environment, completed by what was typed in its stead."""
        variable = self.keywords.get("password_env")
        typed = {variable: self.password} if variable and self.password is not None else {}
        return typed | dict(os.environ)

    @property
    def unset(self) -> str | None:
        """The variable that is not set yet."""
        variable = self.keywords.get("password_env")
        return variable if variable and variable not in os.environ else None

    def server(self) -> ServerConfig:
        """Return the section of the configuration that it will be."""
        try:
            return ServerConfig.model_validate(
                {"connection": dict(self.keywords)}, context={"environ": self.environ}
            )
        except ValidationError as error:
            raise ConfigError(str(error.errors(include_input=False)[0]["msg"])) from None


def surveyed(questions: Questions, given: GivenConnection) -> tuple[NewConnection, list[SurveyedTable]]:
    """Return the source's connection, which works, and the tables there."""
    before: Mapping[str, str] = {}
    while True:
        connection = ask(questions, given, before)
        try:
            with connect(connection.server().conninfo(), autocommit=False) as opened:
                opened.read_only = True
                tables = survey(opened)
                typer.echo(printable(f"{opened.info.dbname} on {where(opened.info)}:"))
                return connection, tables
        except psycopg.Error as error:
            raise explain(error) from None
        except PenstockError as error:
            if not questions.asked:
                raise
            typer.echo(f"  {printable(str(error))}")
            given, before = GivenConnection(), connection.keywords


def ask(questions: Questions, given: GivenConnection, before: Mapping[str, str] = NOTHING) -> NewConnection:
    """Return a connection as it was given or asked for; `before` is what was answered the last time."""
    host = before.get("host") or os.environ.get("PGHOST", "localhost")
    first = Question("Host, or connection string (postgresql://…)", f"{given.option}dsn", host)
    asked = given.dsn if given.dsn is not None else given.host
    if asked is None and not questions.asked:
        raise typer.BadParameter("expected a server: there is no terminal to ask at", param_hint=first.option)
    keywords = questions.answer(first, asked, _server)
    if keywords.keys() == {"host"}:
        keywords |= _rest(questions, given, before)
    whose = "TO_" if given.option == "--to-" else ""
    variable = f"{whose}{as_variable(keywords.get('dbname', ''))}_PASSWORD"
    return with_password(questions, given, keywords, before.get("password_env", variable))


def _server(text: str) -> dict[str, str]:
    if "://" not in text and "=" not in text:
        if not text or re.search(r"[\s@]", text):
            raise ValueError("expected the name of a host, or postgresql://user@host:5432/database")
        return {"host": text}
    parameters = conninfo_to_dict(check_dsn(SecretStr(text)).get_secret_value())
    keywords = {key: str(value) for key, value in parameters.items()}
    for keyword in sorted((SECRETS - {PASSWORD}) & keywords.keys()):
        raise ValueError(f"`{keyword}` is a secret, and would stand in the file; add it there yourself")
    return keywords


def _rest(questions: Questions, given: GivenConnection, before: Mapping[str, str]) -> dict[str, str]:
    def answer(words: str, option: str, answered: str | None, default: str | None) -> str:
        question = Question(words, f"{given.option}{option}", default)
        return questions.answer(question, answered, _port if option == "port" else _some)

    env, port = os.environ.get, str(given.port) if given.port else None
    return {
        "port": answer("Port", "port", port, before.get("port") or env("PGPORT", "5432")),
        "dbname": answer("Database", "database", given.database, before.get("database") or env("PGDATABASE")),
        "user": answer("Role", "user", given.user, before.get("username") or env("PGUSER", env("USER"))),
    }


def with_password(
    questions: Questions, given: GivenConnection, keywords: dict[str, str], variable: str
) -> NewConnection:
    password = keywords.pop(PASSWORD, None)
    first = {ours: keywords[key] for key, ours in _ORDER.items() if key in keywords}
    renamed = first | {key: value for key, value in keywords.items() if key not in _ORDER}
    if given.password_file is not None:
        return NewConnection(renamed | {"password_file": given.password_file})
    option = f"{given.option}password-env"
    words = "Environment variable that holds the password (- if none is needed)"
    question = Question(words, option, variable if questions.asked else "-")
    name = questions.answer(question, given.password_env, _variable_name)
    if name is None and password is not None:
        raise typer.BadParameter(
            "expected a variable for the password of the connection string, which is not written to the file",
            param_hint=option,
        )
    if name is None:
        return NewConnection(renamed)
    if password is None and name not in os.environ:
        if not questions.asked:
            raise typer.BadParameter(f"expected the variable {name} to be set", param_hint=option)
        password = questions.secret(f"{name} is not set. The password, for this once: it is not written")
    return NewConnection(renamed | {"password_env": name}, password)


def as_variable(name: str) -> str:
    """Return a name as variables are called."""
    text = re.sub(r"[^A-Z0-9_]", "_", name.upper())
    return text if _VARIABLE.fullmatch(text) else f"_{text}"


def _port(text: str) -> str:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise ValueError("expected a port number")
    return text


def _some(text: str) -> str:
    if not text:
        raise ValueError("expected a name")
    return text


def _variable_name(text: str) -> str | None:
    if text in ("-", ""):
        return None
    if not _VARIABLE.fullmatch(text):
        raise ValueError(
            "expected the name of a variable, such as SHOP_PASSWORD, and not the password itself"
        )
    return text
