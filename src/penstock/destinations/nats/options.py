"""The keys of a destination of type `nats`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

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
from penstock.config.destination_options import Misfit, Options
from penstock.config.destinations import DestinationTable
from penstock.config.quantities import Seconds, Whole
from penstock.config.section import Section
from penstock.model.nats_access import Access, Tls

_SCHEMES = ("nats", "tls")
_STREAM = "[A-Za-z0-9_-]{1,255}"
_SERVERS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}


def server(url: str) -> str:
    """A user and password in it would be shown wherever the server is named."""
    text = url if "://" in url else f"nats://{url}"
    try:
        parts = urlsplit(text)
        fits = parts.scheme in _SCHEMES and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        fits = False
    if not fits:
        raise ValueError("expected a server such as nats://host:4222")
    if "@" in parts.netloc:
        raise ValueError("expected a server without user and password: they have keys of their own")
    return text


def _listed(value: object) -> object:
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


def _stream(name: str) -> str:
    if not re.fullmatch(_STREAM, name):
        raise ValueError("expected a name of letters, digits, _ and -")
    return name


Server = Annotated[str, AfterValidator(server)]
StreamName = Annotated[
    str, AfterValidator(_stream), WithJsonSchema({"type": "string", "pattern": f"^{_STREAM}$"})
]


class TlsOptions(Section):
    ca_file: Path | None = Field(
        default=None, description="File of the authorities that are trusted. Default: those of the system"
    )
    cert_file: Path | None = Field(default=None, description="File of the certificate that is shown")
    key_file: Path | None = Field(default=None, description="File of that certificate's key")

    @model_validator(mode="after")
    def _are_there(self) -> TlsOptions:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("expected `cert_file` and `key_file` together")
        for key in ("ca_file", "cert_file", "key_file"):
            path = getattr(self, key)
            if path is not None and not path.is_file():
                raise wrong(f"expected a file, {path}", key)
        return self


class NatsOptions(Options):
    servers: Annotated[tuple[Server, ...], BeforeValidator(_listed), WithJsonSchema(_SERVERS)] = Field(
        min_length=1, description="One server, or several of a cluster: `nats://host:4222`"
    )
    user: str | None = Field(default=None, description="User")
    password: SecretStr | None = Field(default=None, description="Password; better the next one")
    password_env: str | None = Field(default=None, description="Environment variable that holds the password")
    token_env: str | None = Field(default=None, description="Environment variable that holds a token")
    creds_file: Path | None = Field(default=None, description="File of credentials: a JWT and its seed")
    nkey_file: Path | None = Field(default=None, description="File of an NKey's seed")
    tls: TlsOptions | None = Field(default=None, description="For `tls://` and where the server asks for it")
    encoding: Literal["msgpack", "json"] = Field(default="msgpack", description="Of the messages")
    delivery: Literal["ids", "atomic"] = Field(
        default="ids",
        description="`ids`: every message has an id, by which the server knows repetitions within its "
        "deduplication window; `atomic`: whole transactions at once, and never a repetition",
    )
    atomic_messages: Whole = Field(
        default=1000,
        ge=2,
        le=100_000,
        description="Messages that the server takes at once; a transaction of more comes in parts",
    )
    sync: Literal["server", "always"] = Field(
        default="server",
        description="`always`: refuse a server that acknowledges what it has not yet flushed to its disk",
    )
    monitoring_url: str | None = Field(
        default=None,
        description="Where the server tells its settings, for `sync: always`: `http://host:8222`",
    )
    stream: StreamName = Field(default="CDC", description="Stream of the changes")
    init_stream: StreamName = Field(default="INIT", description="Stream of the snapshots")
    schema_bucket: StreamName = Field(default="schemas", description="Bucket of the tables' schemas")
    create_streams: bool = Field(
        default=True, description="Create streams and the bucket where they are missing"
    )
    replicas: Whole = Field(default=1, ge=1, le=5, description="Of streams and bucket that are created")
    retention: Seconds = Field(
        default=7 * 86400.0, description="How long a created stream keeps messages; 0: for ever"
    )
    snapshot_chunk_rows: Whole = Field(
        default=10_000, gt=0, le=1_000_000, description="Rows of a snapshot in one message, at most"
    )
    snapshots_at_once: Whole = Field(
        default=2, gt=0, le=100, description="Snapshots made at the same time; others wait"
    )
    compression: Literal["none", "zstd"] = Field(default="none", description="Of snapshots")

    _password: str | None = PrivateAttr(None)
    _token: str | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _one_way_in(self, info: ValidationInfo) -> NatsOptions:
        if self.password and self.password_env:
            raise wrong("expected only one of password, password_env", "password_env")
        if (self.password or self.password_env) and self.user is None:
            raise wrong("expected the user that has the password", "user")
        given = [key for key in ("user", "token_env", "creds_file", "nkey_file") if getattr(self, key)]
        if len(given) > 1:
            raise wrong(f"expected only one of {', '.join(given)}", given[1])
        for key in ("creds_file", "nkey_file"):
            path = getattr(self, key)
            if path is not None and not path.is_file():
                raise wrong(f"expected a file, {path}", key)
        self._password = self.password.get_secret_value() if self.password else None
        if self.password_env:
            self._password = secret_from(info, self.password_env, "password_env")
        if self.token_env:
            self._token = secret_from(info, self.token_env, "token_env")
        return self

    @model_validator(mode="after")
    def _fits(self) -> NatsOptions:
        if self.sync == "always" and self.monitoring_url is None:
            raise wrong("expected `monitoring_url`: only there the server says when it flushes", "sync")
        if len({self.stream, self.init_stream, f"KV_{self.schema_bucket}"}) < 3:
            raise wrong("expected three streams: changes, snapshots and schemas apart", "init_stream")
        return self

    def access(self) -> Access:
        """How to get in. With secrets in it: not for any output."""
        tls = self.tls
        return Access(
            servers=self.servers,
            user=self.user,
            password=self._password,
            token=self._token,
            creds_file=str(self.creds_file) if self.creds_file else None,
            nkey_file=str(self.nkey_file) if self.nkey_file else None,
            tls=Tls(*(str(p) if p else None for p in (tls.ca_file, tls.cert_file, tls.key_file)))
            if tls
            else None,
        )

    def misfits(
        self,
        tables: Mapping[str, DestinationTable],
        sources: int,  # noqa: ARG002
        taken: Collection[str],  # noqa: ARG002
    ) -> Iterator[Misfit]:
        for glob, rules in tables.items():
            if rules.kind != "clone" or rules.target is not None:
                message = "expected no `kind` and no `target`: messages tell every change of the table"
                yield message, ("tables", glob)
