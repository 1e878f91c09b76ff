"""What a destination takes besides the keys that all have: a model for each type.

They are checked while the configuration is read, so that a mistake is told with its line. A type without a
model here does not exist.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationInfo,
    model_validator,
)

from penstock.config.connection import ConnectionConfig, check_dsn, conninfo, secret_from, wrong
from penstock.config.quantities import Number, Whole
from penstock.model.credentials import StoreKeys

_CLASS = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_LAST_GROUP = 2**32 - 2


def _identifier(given: str) -> str:
    if not given or len(given.encode()) > 63 or "\0" in given:
        raise ValueError("expected a name of at most 63 bytes")
    return given


def _class(given: str) -> str:
    if not _CLASS.fullmatch(given):
        raise ValueError("expected a class with its module, such as my_module.MyDestination")
    return given


def _plain(given: str) -> str:
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", given):
        raise ValueError("expected a name of small letters, digits and underscores")
    return given


def _pattern(given: str) -> str:
    found = re.findall(r"{([^{}]*)}", given)
    if not {"schema", "table"} <= set(found) <= {"source", "schema", "table", "timestamp"}:
        raise ValueError("expected {schema}, {table}, {timestamp} and, of several sources, {source}")
    if re.search(r"}[^./{]*{", given):
        raise ValueError("expected a dot or a slash between names, so that no two tables share a folder")
    if not given.endswith("/{timestamp}") or found.count("timestamp") != 1 or ".." in given.split("/"):
        raise ValueError("expected a pattern that ends in /{timestamp}: a batch has a folder of its own")
    return given.lstrip("/")


def _timestamp_format(given: str) -> str:
    tokens = re.findall("YYYY|MM|DD|HH|mm|ss", given)
    if tokens != ["YYYY", "MM", "DD", "HH", "mm", "ss"] or "/" in given:
        raise ValueError("expected YYYY, MM, DD, HH, mm and ss in this order, so that folders sort by time")
    return given


def _mode(given: object) -> str:
    """YAML reads 0640 as the number 416, and "0640" as text: both are the same here."""
    said = f"{given:o}" if isinstance(given, int) and not isinstance(given, bool) and given >= 0 else given
    if not isinstance(said, str) or not re.fullmatch(r"(0o)?[0-7]{1,4}", said):
        raise ValueError("expected permissions in octal digits, such as 0640")
    mode = int(said, 8)
    if mode & ~0o664 or mode & 0o600 != 0o600:
        raise ValueError(
            "expected 0600, and to read or write for the group, or to read for others, added to it"
        )
    return f"{mode:04o}"


def _group(given: object) -> object:
    """The last number of 32 bits is -1 to the system, which takes it for none."""
    text = str(given) if isinstance(given, str | int) and not isinstance(given, bool) else ""
    is_number = re.fullmatch(r"[+-]?\d+", text.strip())
    fits = re.fullmatch(r"[0-9]{1,10}", text) and int(text) <= _LAST_GROUP
    if given is not None and (not text.strip() or "\0" in text or (is_number and not fits)):
        raise ValueError(f"expected the name of a group, or its number from 0 to {_LAST_GROUP}")
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
        """For libpq, with the password in it: not for any output."""
        return conninfo(self.dsn, self.connection)


class PythonOptions(Options):
    class_name: Annotated[str, AfterValidator(_class)] = Field(
        alias="class", description="The class, with its module: `my_module.MyDestination`"
    )
    options: dict[str, Any] = Field(default={}, description="What the class is made with", repr=False)


class CompressionOptions(Options):
    algorithm: Literal["gzip", "zstd", "none"] = Field(default="gzip", description="How files are compressed")
    level: Whole = Field(default=6, description="Of changes: 1 to 9, for zstd to 19")
    full_level: Whole | None = Field(
        default=None, ge=1, description="Of full copies. Default: 9 with gzip, otherwise `level`"
    )

    @property
    def full(self) -> int:
        return self.full_level or (9 if self.algorithm == "gzip" else self.level)

    @model_validator(mode="after")
    def _in_range(self) -> CompressionOptions:
        most = 19 if self.algorithm == "zstd" else 9
        if not 1 <= min(self.level, self.full) <= max(self.level, self.full) <= most:
            raise ValueError(f"expected a level from 1 to {most}")
        return self


class RegistryOptions(Options):
    schema_name: Annotated[str, AfterValidator(_plain)] = Field(
        default="cdc_registry", alias="schema", description="Schema of the registry, in the source's database"
    )
    enabled: bool = Field(default=True, description="If false, files are written and not registered")
    cleanup_after_days: Number = Field(
        default=7,
        ge=0,
        le=36_500,
        description="Days after which files and their entries go, once every consumer is past them; 0: never",
    )


class ReloadOptions(Options):
    marker_prefix: str = Field(default="CDC_RELOAD:", min_length=1, description="How a marker begins")
    delta_strategy: Literal["apply", "discard", "validate"] = Field(
        default="apply",
        description="What becomes of changes that come while a table is reloaded. `apply`: those that the "
        "copy has not are written; `discard`: the same, without a look at the others; `validate`: all are "
        "counted, and the counts reported",
    )
    max_concurrent: Whole = Field(
        default=2, gt=0, le=1000, description="Tables reloaded at once; others wait"
    )


class CredentialsOptions(Options):
    access_key_env: str = Field(description="Environment variable that holds the access key")
    secret_key_env: str = Field(description="Environment variable that holds the secret key")
    session_token_env: str | None = Field(
        default=None, description="Environment variable that holds the token of temporary keys"
    )

    _keys: StoreKeys = PrivateAttr()

    @model_validator(mode="after")
    def _resolve(self, info: ValidationInfo) -> CredentialsOptions:
        names = ("access_key_env", "secret_key_env", "session_token_env")
        given = ((key, getattr(self, key)) for key in names)
        self._keys = StoreKeys(*(secret_from(info, name, key) for key, name in given if name))
        return self


class FilesOptions(Options):
    base_path: SecretStr = Field(
        description="Where the files go: a folder, or what pyarrow opens by its URI (`s3://bucket/folder`)"
    )
    credentials: CredentialsOptions | None = Field(
        default=None, description="Keys for `s3://…`; without them those that pyarrow finds"
    )
    folder_pattern: Annotated[str, AfterValidator(_pattern)] | None = Field(
        default=None,
        description="Folder of a batch. Default: `{schema}.{table}/{timestamp}`, of several sources "
        "`{source}/{schema}.{table}/{timestamp}`",
    )
    timestamp_format: Annotated[str, AfterValidator(_timestamp_format)] = Field(
        default="YYYY-MM-DDTHH-mm-ss", description="How a batch's folder tells its time (UTC)"
    )
    format: Literal["csv"] = Field(default="csv", description="Of the files")
    compression: CompressionOptions = Field(default=CompressionOptions(), description="Of the files")
    mode: Annotated[str, BeforeValidator(_mode)] = Field(
        default="0640",
        description="Permissions of the files on a disk, in octal; folders have them too, to be entered by "
        "who may read",
    )
    group: Annotated[str | int | None, BeforeValidator(_group)] = Field(
        default=None,
        description="Group of the files on a disk, by name or number. Default: as the system gives it",
    )
    file_registry: RegistryOptions = Field(
        default=RegistryOptions(), description="Where consumers learn of files"
    )
    reload_coordination: ReloadOptions = Field(default=ReloadOptions(), description="Reloads of one table")

    @model_validator(mode="after")
    def _on_a_disk(self) -> FilesOptions:
        for key in sorted({"mode", "group"} & self.model_fields_set):
            if not self.base.startswith(("/", "file://")):
                raise wrong(
                    f"expected no `{key}`: an object store has rules of its own for who may read", key
                )
        return self

    @model_validator(mode="after")
    def _one_place_for_keys(self) -> FilesOptions:
        base = self.base_path.get_secret_value()
        if self.credentials is not None and not re.match(r"s3://[^/@]+(/|\?|$)", base):
            raise wrong("expected s3://bucket/… without keys in it as the base_path", "credentials")
        return self

    @property
    def keys(self) -> StoreKeys | None:
        return self.credentials._keys if self.credentials else None

    @property
    def base(self) -> str:
        """A URI as it is, a folder by its absolute path. May hold a secret: not for any output."""
        given = self.base_path.get_secret_value()
        return given if "://" in given else str(Path(given).absolute())

    def pattern(self, sources: int) -> str:
        several = "{source}/" if sources > 1 else ""
        return self.folder_pattern or several + "{schema}.{table}/{timestamp}"


OPTIONS: dict[str, type[Options]] = {
    "files": FilesOptions,
    "postgres": PostgresOptions,
    "python": PythonOptions,
}
