"""The keys of a destination of type `postgres`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from penstock.config.connection import ServerConfig
from penstock.config.destination_options import Identifier, Options


class PostgresOptions(Options, ServerConfig):
    schema_name: Identifier | None = Field(
        default=None, alias="schema", description="Schema of the tables. Default: the source's"
    )
    create_tables: bool = Field(
        default=True, description="Create tables that are missing; if false, a missing table is an error"
    )
    trusted_owners: tuple[Identifier, ...] = Field(
        default=(),
        description="Roles whose tables, schemas and types are used as if they were ours: what they put on a "
        "table runs with the rights of the role that writes to it",
    )
    source_column: Identifier = Field(
        default="sid",
        description="Where several sources meet: the column that holds the source's name, part of the key",
    )
    consistency: Literal["batch", "table"] = Field(
        default="batch",
        description="`batch`: one transaction per batch, readers see only whole transactions of the source; "
        "`table`: tables in parallel, each in a transaction of its own",
    )

    @property
    def database(self) -> str:
        return self.conninfo()
