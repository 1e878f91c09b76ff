"""Whether what goes to another machine is encrypted, and goes to the machine that it should.

libpq's default, `sslmode=prefer`, makes sure of neither: it encrypts if the server offers it, and asks nobody
who the server is. Whoever stands between reads every row then, and whoever answers instead gets the login.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from penstock.postgres.connection import Connection
from penstock.postgres.preflight.check import Check, ok, warning

REMEDY = "Set sslmode=verify-full, with sslrootcert the certificate of the server's authority (or `system`)"


@dataclass(frozen=True, slots=True)
class Link:
    """A connection, as libpq and the server have it."""

    host: str
    """As it was given: a name, an address, or the folder of a Unix socket."""
    address: str
    """That it led to; empty for a Unix socket."""
    encrypted: bool
    """By TLS."""
    sslmode: str
    kerberos: bool = False
    """Encrypted by GSSAPI, which knows the server, too."""

    @property
    def stays_here(self) -> bool:
        if self.host.startswith(("/", "@")) or not (self.address or self.host):
            return True
        try:
            address = ipaddress.ip_address(self.address or self.host)
        except ValueError:
            return False
        inner = getattr(address, "ipv4_mapped", None) or address
        return bool(inner.is_loopback)


def link(connection: Connection) -> Link:
    pgconn = connection.pgconn
    settings = {option.keyword: option.val or b"" for option in pgconn.info}
    return Link(
        pgconn.host.decode(),
        pgconn.hostaddr.decode(),
        pgconn.ssl_in_use,
        settings[b"sslmode"].decode(),
        _by_kerberos(connection),
    )


def _by_kerberos(connection: Connection) -> bool:
    row = connection.execute(
        "select encrypted from pg_catalog.pg_stat_gssapi where pid = pg_catalog.pg_backend_pid()"
    ).fetchone()
    return bool(row and row[0])


def judged(link: Link) -> Check | None:
    """None where nothing leaves this machine."""
    if link.stays_here:
        return None
    if link.kerberos:
        return ok("tls", f"{link.host}: encrypted by GSSAPI")
    if not link.encrypted:
        return warning(
            "tls",
            f"the connection to {link.host} is not encrypted: rows and logins can be read on the way",
            REMEDY,
        )
    if link.sslmode == "verify-full":
        return ok("tls", f"{link.host}: encrypted, and verified")
    unknown = (
        "its name is not compared with its certificate"
        if link.sslmode == "verify-ca"
        else "nobody verifies it"
    )
    return warning(
        "tls",
        f"the connection to {link.host} is encrypted, but {unknown} (sslmode={link.sslmode}): another server "
        "could answer, and be told what ours is",
        REMEDY,
    )


def tls(connection: Connection) -> Check | None:
    return judged(link(connection))
