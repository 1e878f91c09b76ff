"""How to reach a server: libpq's keywords, with secrets taken from the environment or a file.

Everything that libpq knows passes through, checked against libpq's own list. Secrets are resolved while the
configuration is read, so that a missing one is an error of the configuration, with its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from itertools import combinations
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Self

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from penstock.config.section import Section

KEYWORDS = {option.keyword.decode(): option for option in pq.Conninfo.get_defaults()}
SECRETS = frozenset(name for name, option in KEYWORDS.items() if option.dispchar == b"*")
COUNTS = ("connect_timeout", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout")
PASSWORDS = ("password", "password_env", "password_file")
_INT = 2**31 - 1
_DIGITS = {"type": "string", "pattern": r"^\s*[0-9]{1,10}\s*$"}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)
OURS = {"replication", "client_encoding"}


def wrong(message: str, *at: str | int) -> PydanticCustomError:
    """Return an error at a key further down than the model that raises it."""
    return PydanticCustomError("wrong", "{said}", {"said": message, "at": at})


def secret_from(info: ValidationInfo, variable: str, key: str) -> str:
    """Return the variable's value, or raise if it is not set. That it holds a secret is remembered."""
    context = info.context or {}
    environ: Mapping[str, str] = context.get("environ", {})
    if variable not in environ:
        named = _VARIABLE.fullmatch(variable)  # otherwise it may be the secret itself
        what = f"environment variable {variable}" if named else f"variable that `{key}` names"
        raise wrong(f"expected the {what} to be set", key)
    context.get("secret", set()).add(variable)
    return environ[variable]


def _is_count(value: object) -> bool:
    """Whether libpq takes it for a count; it would complain only when it connects."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return False
    return bool(re.fullmatch(r"\d{1,10}", str(value).strip())) and int(value) <= _INT


def _ports(ports: str) -> str:
    if not all(part.isdecimal() and 0 < int(part) < 65536 for part in ports.split(",")):
        raise ValueError("expected a port number")
    return ports


def _for_editors(schema: dict[str, Any]) -> None:
    """Complete the JSON schema by what the model checks itself: keywords, and which exclude each other."""
    named, scalar = schema["properties"], {"type": ["string", "number", "boolean", "null"]}
    count = {"anyOf": [{"type": "integer", "minimum": 0, "maximum": _INT}, _DIGITS]}
    ports = {"type": "string", "pattern": "^[0-9]+(,[0-9]+)*$"}
    others = {"dbname": scalar, "user": scalar} | {
        keyword: count if keyword in COUNTS else scalar for keyword in sorted(KEYWORDS.keys() - OURS)
    }
    for key in ("host", "database", "username", "password"):
        named[key] = {"description": named[key]["description"], **scalar}
    named["port"] |= {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 65535}, ports, {"type": "null"}]}
    schema["properties"] = named | {key: rule for key, rule in others.items() if key not in named}
    schema["additionalProperties"] = False
    exclusive = (*combinations(PASSWORDS, 2), ("user", "username"), ("dbname", "database"))
    schema["allOf"] = [
        {"not": {"required": list(pair), "properties": {key: {"not": {"type": "null"}} for key in pair}}}
        for pair in exclusive
    ]


class ConnectionConfig(BaseModel):
    model_config = ConfigDict(
        extra="allow", frozen=True, populate_by_name=True, json_schema_extra=_for_editors
    )

    host: str | None = Field(default=None, description="Host name, address, or folder of the Unix socket")
    port: Annotated[str, AfterValidator(_ports)] | None = Field(default=None, description="Port")
    dbname: str | None = Field(default=None, alias="database", description="Database; also `dbname`")
    user: str | None = Field(default=None, alias="username", description="Role; also `user`")
    password: SecretStr | None = Field(default=None, description="Password; better one of the next two")
    password_env: str | None = Field(default=None, description="Environment variable that holds the password")
    password_file: Path | None = Field(default=None, description="File whose first line is the password")

    _password: str | None = PrivateAttr(None)

    @model_validator(mode="before")
    @classmethod
    def _check_keywords(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for key, value in data.items():
            if key in OURS:
                raise wrong("is set by Penstock and cannot be given", key)
            if key not in KEYWORDS.keys() | cls.model_fields.keys() | {"database", "username"}:
                near = get_close_matches(str(key), [*KEYWORDS, *cls.model_fields, "database", "username"], 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise wrong(f"expected a keyword of libpq, or password_env, password_file{hint}", str(key))
            if isinstance(value, dict | list) or (isinstance(value, float) and not isfinite(value)):
                raise wrong("expected one value", key)
            if key == "port" and isinstance(value, bool):
                raise wrong("expected a port number", key)
            if key in COUNTS and not _is_count(value):
                raise wrong(f"expected a whole number from 0 to {_INT}", key)
        for field, alias in (("user", "username"), ("dbname", "database")):
            if field in data and alias in data:
                raise wrong(f"expected either {alias} or {field}: they are the same", field)
        return {key: _as_libpq_writes(value) for key, value in data.items()}

    @model_validator(mode="after")
    def _resolve_password(self, info: ValidationInfo) -> ConnectionConfig:
        present = [name for name in PASSWORDS if getattr(self, name)]
        if len(present) > 1:
            raise wrong(f"expected only one of {', '.join(present)}", present[1])
        if self.password:
            self._password = self.password.get_secret_value()
        elif self.password_env:
            self._password = secret_from(info, self.password_env, "password_env")
        elif self.password_file:
            try:
                self._password = self.password_file.read_text(encoding="utf-8").split("\n")[0].rstrip("\r")
            except (OSError, UnicodeDecodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
                raise wrong(
                    f"expected a readable file, {self.password_file}: {why}", "password_file"
                ) from None
        return self

    def keywords(self) -> dict[str, str]:
        """Return the keywords as libpq wants them, secrets resolved."""
        named = {"host": self.host, "port": self.port, "dbname": self.dbname, "user": self.user}
        values = named | {"password": self._password} | (self.__pydantic_extra__ or {})
        return {key: str(value) for key, value in values.items() if value is not None}

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        for key, value in super().__repr_args__():
            yield key, "***" if key in SECRETS and value is not None else value


def check_dsn(dsn: SecretStr) -> SecretStr:
    """Return the DSN; raise if a password in it could be taken for a host, port or database, which errors
    quote. libpq's own words are not repeated: they quote as well."""
    text = dsn.get_secret_value()
    before_query = text.partition("?")[0]
    authority, _, path = before_query.partition("://")[2].partition("/")
    try:
        keywords = conninfo_to_dict(text)
        _ports(str(keywords.get("port", "1")))
        if "@" in path or authority.count("@") > 1:
            raise ValueError
    except (psycopg.Error, ValueError):
        raise ValueError(
            "expected a connection string such as postgresql://user@host:5432/database; "
            "special characters in a password are percent-encoded"
        ) from None
    for keyword in OURS & keywords.keys():
        raise ValueError(f"`{keyword}` is set by Penstock and cannot be given")
    return dsn


def _as_libpq_writes(value: object) -> object:
    if isinstance(value, bool):
        return str(int(value))
    return str(value) if isinstance(value, int | float) else value


class ServerConfig(Section):
    """A section that says how to reach a server."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["dsn"]}, {"required": ["connection"]}]}
    )

    dsn: Annotated[SecretStr, AfterValidator(check_dsn)] | None = Field(
        default=None, description="The server, as a connection string: `postgresql://…`"
    )
    connection: ConnectionConfig | None = Field(
        default=None,
        description="The server, by libpq's keywords (any: `sslmode`, `service`, …); completes `dsn`",
    )

    @model_validator(mode="after")
    def _is_given(self) -> Self:
        if self.dsn is None and self.connection is None:
            raise ValueError("expected `connection` or `dsn`")
        return self

    def conninfo(self) -> str:
        """Return the connection string for libpq: the DSN completed by the keywords. The application is
        `penstock` unless they name another. It has the password in it: not for any output."""
        return make_conninfo(
            self.dsn.get_secret_value() if self.dsn else "",
            **{"fallback_application_name": "penstock"}
            | (self.connection.keywords() if self.connection else {}),
        )
