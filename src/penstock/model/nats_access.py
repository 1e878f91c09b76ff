"""How to get into a NATS server: what a connection is made with, by the pipeline and by consumers."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from penstock.model.errors import AccessDenied

_CREDENTIALS = re.compile(rb"BEGIN NATS USER JWT.*\n.+\n[^\0]*BEGIN USER NKEY SEED.*\n(.+)\n")


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
        """Return what nats-py connects with. With secrets in it: not for any output. Raises AccessDenied."""
        _check_seed("creds_file", self.creds_file)
        _check_seed("nkey_file", self.nkey_file)
        given = {
            "user": self.user,
            "password": self.password,
            "token": self.token,
            "user_credentials": self.creds_file,
            "nkeys_seed": self.nkey_file,
            "tls": self.tls.context() if self.tls is not None else None,
        }
        return {"servers": list(self.servers)} | {key: value for key, value in given.items() if value}


def _check_seed(key: str, file: str | None) -> None:
    """Refuse a file that is none of its kind: nats-py has no error for it, and may look for the end of it for
    ever."""
    if file is None:
        return
    import nkeys

    try:
        content = Path(file).read_bytes()
        credentials = _CREDENTIALS.search(content)
        seed = content.strip() if key == "nkey_file" else credentials[1] if credentials else b""
        nkeys.from_seed(bytearray(seed)).wipe()
    except OSError as error:
        reason = f"it cannot be read, {error.strerror}"
    except (nkeys.NkeysError, ValueError, TypeError, IndexError):
        reason = "it holds no seed" if key == "nkey_file" else "it does not hold a JWT and its seed"
    else:
        return
    raise AccessDenied(
        f"`{key}` does not let us into NATS: {reason}", file=file, remedy="Name the file as it was issued"
    ) from None
