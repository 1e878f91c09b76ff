"""What a destination takes besides the keys that all have: a model for each type.

They are checked while the configuration is read, so that a mistake is told with its line. A type without a
model here checks its keys itself.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator

from penstock.config.connection import ConnectionConfig, check_dsn, conninfo

_CLASS = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


def _identifier(given: str) -> str:
    if not given or len(given.encode()) > 63 or "\0" in given:
        raise ValueError("expected a name of at most 63 bytes")
    return given


def _class(given: str) -> str:
    if not _CLASS.fullmatch(given):
        raise ValueError("expected a class with its module, such as my_module.MyDestination")
    return given


Identifier = Annotated[str, AfterValidator(_identifier)]


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


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
        """For libpq, with the password in it: not for any output."""
        return conninfo(self.dsn, self.connection)


class PythonOptions(Options):
    class_name: Annotated[str, AfterValidator(_class)] = Field(
        alias="class", description="The class, with its module: `my_module.MyDestination`"
    )
    options: dict[str, Any] = Field(default={}, description="What the class is made with", repr=False)


OPTIONS: dict[str, type[Options]] = {"postgres": PostgresOptions, "python": PythonOptions}
