"""The destination of a new configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock.cli.init import DeliverTo
from penstock.cli.setup import connection
from penstock.cli.setup.connection import GivenConnection, NewConnection
from penstock.cli.setup.questions import Question, Questions
from penstock.config.new_file import NewDestination


@dataclass(frozen=True, slots=True)
class GivenDestination:
    """What options say of it."""

    to: DeliverTo | None = None
    path: str | None = None
    dsn: str | None = None
    servers: str | None = None
    user: str | None = None
    password_env: str | None = None


@dataclass(frozen=True, slots=True)
class AskedDestination:
    new: NewDestination | None
    access: NewConnection = field(default_factory=lambda: NewConnection({}))
    """What names its password's variable, and knows the password for now."""


def ask(questions: Questions, given: GivenDestination, pipeline: str) -> AskedDestination:
    words = f"Deliver to ({', '.join(DeliverTo)})"
    to = questions.answer(Question(words, "--to", DeliverTo.NONE.value), given.to, _type)
    return _ASK[to](questions, given, pipeline)


def _files(questions: Questions, given: GivenDestination, _pipeline: str) -> AskedDestination:
    path = questions.answer(
        Question("Folder, or s3://bucket/folder", "--to-path", "files"), given.path, _given
    )
    return AskedDestination(NewDestination("files", {"base_path": path}))


def _postgres(questions: Questions, given: GivenDestination, _pipeline: str) -> AskedDestination:
    given_connection = GivenConnection(given.dsn, password_env=given.password_env, option="--to-")
    access = connection.ask(questions, given_connection)
    return AskedDestination(NewDestination("postgres", {}, access.keywords), access)


def _nats(questions: Questions, given: GivenDestination, pipeline: str) -> AskedDestination:
    servers = questions.answer(
        Question("Servers (with commas)", "--to-servers", "nats://127.0.0.1:4222"), given.servers, _servers
    )
    user = questions.answer(Question("User (- if none is needed)", "--to-user", "-"), given.user, _given)
    if user == "-":
        return AskedDestination(NewDestination("nats", {"servers": servers}))
    given_connection = GivenConnection(password_env=given.password_env, option="--to-")
    login = connection.with_password(
        questions, given_connection, {"user": user}, f"{connection.as_variable(pipeline)}_NATS_PASSWORD"
    )
    access = {"user": user, **{key: value for key, value in login.keywords.items() if key == "password_env"}}
    return AskedDestination(NewDestination("nats", {"servers": servers, **access}), login)


def _none(_questions: Questions, _given: GivenDestination, _pipeline: str) -> AskedDestination:
    return AskedDestination(None)


_ASK: Mapping[DeliverTo, Callable[[Questions, GivenDestination, str], AskedDestination]] = {
    DeliverTo.FILES: _files,
    DeliverTo.POSTGRES: _postgres,
    DeliverTo.NATS: _nats,
    DeliverTo.NONE: _none,
}


def _type(text: str) -> DeliverTo:
    try:
        return DeliverTo(text)
    except ValueError:
        raise ValueError(f"expected one of {', '.join(DeliverTo)}") from None


def _given(text: str) -> str:
    if not text:
        raise ValueError("expected something here")
    return text


def _servers(text: str) -> str:
    from penstock.destinations.nats.options import server

    for part in text.split(","):
        server(part.strip())
    return text
