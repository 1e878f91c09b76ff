"""How to get into a NATS server: what a connection is made with, by the pipeline and by consumers."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Tls(NamedTuple):
    """Files."""

    ca: str | None
    certificate: str | None
    key: str | None

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key)
        return context


@dataclass(frozen=True, slots=True)
class Access:
    servers: tuple[str, ...]
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    creds_file: str | None = None
    nkey_file: str | None = None
    tls: Tls | None = None

    @property
    def shown(self) -> str:
        """Return the servers, for people."""
        return ", ".join(self.servers)

    def arguments(self) -> dict[str, Any]:
        """Return what nats-py connects with. With secrets in it: not for any output."""
        given = {
            "user": self.user,
            "password": self.password,
            "token": self.token,
            "user_credentials": self.creds_file,
            "nkeys_seed": self.nkey_file,
            "tls": self.tls.context() if self.tls is not None else None,
        }
        return {"servers": list(self.servers)} | {key: value for key, value in given.items() if value}
