"""The keys of a destination of type `files`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import unquote, urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from penstock.config.connection import secret_from, wrong
from penstock.config.destination_options import MARKER_PREFIX, Misfit, Options
from penstock.config.destinations import DestinationTable
from penstock.config.quantities import Number, Whole
from penstock.config.section import Section
from penstock.model.credentials import StoreKeys

_LAST_GROUP = 2**32 - 2


def _plain(name: str) -> str:
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", name):
        raise ValueError("expected a name of small letters, digits and underscores")
    return name


def _pattern(pattern: str) -> str:
    names = re.findall(r"{([^{}]*)}", pattern)
    if not {"schema", "table"} <= set(names) <= {"source", "schema", "table", "timestamp"}:
        raise ValueError("expected {schema}, {table}, {timestamp} and, of several sources, {source}")
    if re.search(r"}[^./{]*{", pattern):
        raise ValueError("expected a dot or a slash between names, so that no two tables share a folder")
    if not pattern.endswith("/{timestamp}") or names.count("timestamp") != 1 or ".." in pattern.split("/"):
        raise ValueError("expected a pattern that ends in /{timestamp}: a batch has a folder of its own")
    return pattern.lstrip("/")


def _timestamp_format(text: str) -> str:
    tokens = re.findall("YYYY|MM|DD|HH|mm|ss", text)
    if tokens != ["YYYY", "MM", "DD", "HH", "mm", "ss"] or "/" in text:
        raise ValueError("expected YYYY, MM, DD, HH, mm and ss in this order, so that folders sort by time")
    return text


def _mode(value: object) -> str:
    """YAML reads 0640 as the number 416, and "0640" as text: both are the same here."""
    digits = f"{value:o}" if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else value
    if not isinstance(digits, str) or not re.fullmatch(r"(0o)?[0-7]{1,4}", digits):
        raise ValueError("expected permissions in octal digits, such as 0640")
    mode = int(digits, 8)
    if mode & ~0o664 or mode & 0o600 != 0o600:
        raise ValueError(
            "expected 0600, and to read or write for the group, or to read for others, added to it"
        )
    return f"{mode:04o}"


def _group(value: object) -> object:
    """The last number of 32 bits is -1 to the system, which takes it for none."""
    text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    is_number = re.fullmatch(r"[+-]?\d+", text.strip())
    fits = re.fullmatch(r"[0-9]{1,10}", text) and int(text) <= _LAST_GROUP
    if value is not None and (not text.strip() or "\0" in text or (is_number and not fits)):
        raise ValueError(f"expected the name of a group, or its number from 0 to {_LAST_GROUP}")
    return value


_MODE = {"anyOf": [{"type": "string", "pattern": "^(0o)?[0-7]{1,4}$"}, {"type": "integer", "minimum": 0}]}


class CompressionOptions(Section):
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


class RegistryOptions(Section):
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


class ReloadOptions(Section):
    marker_prefix: str = Field(default=MARKER_PREFIX, min_length=1, description="How a marker begins")
    delta_strategy: Literal["apply", "discard", "validate"] = Field(
        default="apply",
        description="What becomes of changes that come while a table is reloaded. `apply`: those that the "
        "copy has not are written; `discard`: the same, without a look at the others; `validate`: all are "
        "counted, and the counts reported",
    )
    max_concurrent: Whole = Field(
        default=2, gt=0, le=1000, description="Tables reloaded at once; others wait"
    )


class CredentialsOptions(Section):
    access_key_env: str = Field(description="Environment variable that holds the access key")
    secret_key_env: str = Field(description="Environment variable that holds the secret key")
    session_token_env: str | None = Field(
        default=None, description="Environment variable that holds the token of temporary keys"
    )

    _keys: StoreKeys = PrivateAttr()

    @model_validator(mode="after")
    def _resolve(self, info: ValidationInfo) -> CredentialsOptions:
        names = ("access_key_env", "secret_key_env", "session_token_env")
        variables = ((key, getattr(self, key)) for key in names)
        self._keys = StoreKeys(*(secret_from(info, name, key) for key, name in variables if name))
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
    mode: Annotated[str, BeforeValidator(_mode), WithJsonSchema(_MODE)] = Field(
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
        path = self.base_path.get_secret_value()
        return path if "://" in path else str(Path(path).absolute())

    @property
    def folder(self) -> Path | None:
        """The base path, if it is on a disk."""
        if "://" not in self.base:
            return Path(self.base)
        return Path(unquote(urlsplit(self.base).path)) if self.base.startswith("file://") else None

    def pattern(self, sources: int) -> str:
        several = "{source}/" if sources > 1 else ""
        return self.folder_pattern or several + "{schema}.{table}/{timestamp}"

    def misfits(
        self, tables: Mapping[str, DestinationTable], sources: int, taken: Collection[str]
    ) -> Iterator[Misfit]:
        schema = self.file_registry.schema_name
        if schema in taken:
            yield f"expected a registry of its own, {schema} is taken", ("file_registry", "schema")
        if sources > 1 and "{source}" not in self.pattern(sources):
            yield "expected {source} in the pattern, as there are several sources", ("folder_pattern",)
        for glob, rules in tables.items():
            if rules.kind != "clone" or rules.target is not None:
                message = "expected no `kind` and no `target`: files tell every change of the table"
                yield message, ("tables", glob)

    @property
    def schema_at_sources(self) -> str:
        return self.file_registry.schema_name

    @property
    def marker_prefix(self) -> str:
        return self.reload_coordination.marker_prefix
