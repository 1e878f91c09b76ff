"""`penstock init`: a first configuration, from a look at the server and a few questions."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class DeliverTo(StrEnum):
    FILES = "files"
    POSTGRES = "postgres"
    NATS = "nats"
    NONE = "none"


def init(
    file: Annotated[Path, typer.Argument(help="The file to write.")] = Path("penstock.yaml"),
    dsn: Annotated[
        str | None, typer.Option(help="The server, as a connection string; its password is not written.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="The server's host, instead of --dsn.")] = None,
    port: Annotated[int | None, typer.Option(help="Its port.", min=1, max=65535)] = None,
    database: Annotated[str | None, typer.Option(help="The database.")] = None,
    user: Annotated[str | None, typer.Option(help="The role to connect as.")] = None,
    password_env: Annotated[
        str | None, typer.Option(help="The environment variable that holds the password; -: none is needed.")
    ] = None,
    password_file: Annotated[
        str | None, typer.Option(help="The file whose first line is the password, instead.")
    ] = None,
    pipeline: Annotated[
        str | None, typer.Option(help="The pipeline's name. Default: the database's.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="The source's name. Default: main.")] = None,
    include: Annotated[
        list[str] | None, typer.Option(help="Tables to take (a glob such as public.*); may be repeated.")
    ] = None,
    to: Annotated[DeliverTo | None, typer.Option(help="Where to deliver; none: not yet.")] = None,
    to_path: Annotated[str | None, typer.Option(help="Folder or s3://… of --to files.")] = None,
    to_dsn: Annotated[str | None, typer.Option(help="Connection string of --to postgres.")] = None,
    to_servers: Annotated[str | None, typer.Option(help="Servers of --to nats, with commas.")] = None,
    to_user: Annotated[str | None, typer.Option(help="User of --to nats; -: none is needed.")] = None,
    to_password_env: Annotated[
        str | None, typer.Option(help="Variable that holds the destination's password; -: none is needed.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing: options and defaults answer.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Look at a server and write a configuration, with a question for what no option says.

    Passwords are never written: the file names the variable or the file that holds one.

    Example: penstock init shop.yaml --dsn postgresql://cdc@db.example.com/shop --password-env SHOP_PASSWORD
    """
    from penstock.cli.setup import destination as destinations
    from penstock.cli.setup import table_choice as choices
    from penstock.cli.setup import writing
    from penstock.cli.setup.connection import GivenConnection, surveyed
    from penstock.cli.setup.destination import GivenDestination
    from penstock.cli.setup.questions import Question, Questions
    from penstock.config.new_file import SCHEMA_FILE, NewConfig
    from penstock.config.section import check_name

    writing.refuse(file, force=force)
    if dsn is not None and host is not None:
        raise typer.BadParameter("expected either --dsn or --host", param_hint="--host")
    questions = Questions(ask=not yes)
    given = GivenConnection(dsn, host, port, database, user, password_env, password_file)
    connection, tables = surveyed(questions, given)
    typer.echo(choices.described(tables))
    chosen = choices.choose(questions, tables, include)
    proposed = re.sub(r"[^\w.-]", "_", connection.keywords.get("database", "")) or "penstock"
    name = questions.answer(Question("Name of the pipeline", "--pipeline", proposed), pipeline, check_name)
    source_name = questions.answer(Question("Name of the source", "--source", "main"), source, check_name)
    deliver = GivenDestination(to, to_path, to_dsn, to_servers, to_user, to_password_env)
    destination = destinations.ask(questions, deliver, name)
    new = NewConfig(
        pipeline=name,
        source=source_name,
        connection=connection.keywords,
        include=chosen.include,
        chosen=chosen.words,
        exclude=chosen.exclude,
        destination=destination.new,
        described=(file.parent / SCHEMA_FILE).exists(),
    )
    writing.write(file, new, force=force)
    writing.check(file, connection, destination.access)
