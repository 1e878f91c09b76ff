"""The keys of a destination of type `postgres`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, model_validator

from penstock.config.connection import ConnectionConfig, check_dsn, conninfo
from penstock.config.destination_options import Identifier, Options


class PostgresOptions(Options):
    dsn: Annotated[SecretStr, AfterValidator(check_dsn)] | None = Field(
        default=None, description="The server, as a connection string: `postgresql://…`"
    )
    connection: ConnectionConfig | None = Field(
        default=None, description="The server, by libpq's keywords; completes `dsn`"
    )
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

    @model_validator(mode="after")
    def _reachable(self) -> PostgresOptions:
        if self.dsn is None and self.connection is None:
            raise ValueError("expected `connection` or `dsn`")
        return self

    def conninfo(self) -> str:
        """Return the connection string for libpq, with the password in it: not for any output."""
        return conninfo(self.dsn, self.connection)

    @property
    def database(self) -> str:
        return self.conninfo()
