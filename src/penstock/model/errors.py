"""What can go wrong, and what to do about it: one table for all of it.

An error is a sentence for the operator (the reason), the place where it happened (source, table, LSN,
file, …) and, from `POLICY`, a remedy. The policy also says whether the error concerns one table or the
whole source, and whether trying again by itself can help. Whoever adds an error adds its line.

Errors cross from Spark's executors to the driver, so they pickle. They never carry a password: the text
of a connection error goes through `without_secrets`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Scope(StrEnum):
    TABLE = "table"
    SOURCE = "source"
    RUN = "run"
    """The invocation: a wrong configuration, a missing program."""


@dataclass(frozen=True, slots=True)
class Policy:
    scope: Scope
    retry: bool
    remedy: str


class PenstockError(Exception):
    """The root of all errors that an operator is meant to read."""

    def __init__(self, reason: str, *, remedy: str | None = None, **where: Any) -> None:
        super().__init__(reason)
        self.reason = reason
        self.where = {key: value for key, value in where.items() if value is not None}
        self._remedy = remedy

    @property
    def policy(self) -> Policy:
        return next(POLICY[kind] for kind in type(self).__mro__ if kind in POLICY)

    @property
    def remedy(self) -> str:
        return self._remedy or self.policy.remedy

    @property
    def retry(self) -> bool:
        return self.policy.retry

    def at(self, **where: Any) -> PenstockError:
        """The same error, knowing more of its place; what it knew already stays."""
        self.where = {key: value for key, value in where.items() if value is not None} | self.where
        return self

    def __str__(self) -> str:
        place = ", ".join(f"{key} {value}" for key, value in self.where.items())
        sentence = f"{self.reason} ({place})" if place else self.reason
        return f"{sentence}{'' if sentence.endswith(('.', '?')) else '.'} {self.remedy}".strip()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.reason, self._remedy, self.where)


def _rebuild(
    kind: type[PenstockError], reason: str, remedy: str | None, where: dict[str, Any]
) -> PenstockError:
    return kind(reason, remedy=remedy, **where)


class ConfigError(PenstockError):
    """The configuration file is not what it should be."""


class ConnectionFailed(PenstockError):
    """The server cannot be reached, or the connection was lost."""


class AccessDenied(PenstockError):
    """The server refuses this role: wrong password, no such role or database, missing attribute."""


class NotReady(PenstockError):
    """A preflight check failed: the source cannot be captured as it is."""


class SlotLost(PenstockError):
    """The slot is gone, was invalidated, or was moved on by somebody else: changes are missing."""


class SlotInUse(PenstockError):
    """Another connection holds the slot."""


class PublicationMissing(PenstockError):
    """The publication does not exist, or no longer does."""


class MalformedMessage(PenstockError):
    """A message of the replication stream does not parse."""


class WrongSpool(PenstockError):
    """The spool belongs to another source, slot or server."""


class SpoolInUse(PenstockError):
    """Another process captures into this spool."""


class SpoolDamaged(PenstockError):
    """A file of the spool is missing or does not read."""


class SpoolFull(PenstockError):
    """There is no room for the spool."""


class PositionGone(PenstockError):
    """A reader asks for changes that the spool no longer has."""


class ValueRefused(PenstockError):
    """A value that the typed view cannot hold."""


class SchemaChanged(PenstockError):
    """The table has other columns or types than the running query was started with."""


class UnknownTable(PenstockError):
    """No such table among those captured."""


class ServerMissing(PenstockError):
    """The embedded PostgreSQL is not there or does not start."""


class JavaMissing(PenstockError):
    """No Java runtime for Spark."""


POLICY: dict[type[PenstockError], Policy] = {
    PenstockError: Policy(Scope.SOURCE, False, ""),
    ConfigError: Policy(Scope.RUN, False, ""),
    ConnectionFailed: Policy(
        Scope.SOURCE, True, "Check that the server runs and that host, port and sslmode are right"
    ),
    AccessDenied: Policy(
        Scope.SOURCE, False, "Check username, password and pg_hba.conf; the role needs LOGIN and REPLICATION"
    ),
    NotReady: Policy(Scope.SOURCE, False, "Run `penstock check` and follow its remedies"),
    SlotLost: Policy(
        Scope.SOURCE,
        False,
        "Changes since the last position cannot be read any more. Set `on_slot_lost: resync` to copy the "
        "tables anew, or restore the slot; raise max_slot_wal_keep_size so that it does not happen again",
    ),
    SlotInUse: Policy(Scope.SOURCE, True, "Stop the other pipeline, or give this one a slot_name of its own"),
    PublicationMissing: Policy(
        Scope.SOURCE, False, "Create it, or set create_publication: true and let Penstock do it"
    ),
    MalformedMessage: Policy(
        Scope.SOURCE, False, "Nothing was skipped. Check for a proxy between; report it with the position"
    ),
    WrongSpool: Policy(
        Scope.SOURCE, False, "Give this source a spool path of its own, or remove the old spool for good"
    ),
    SpoolInUse: Policy(Scope.SOURCE, True, "One process captures into a spool; stop the other one first"),
    SpoolDamaged: Policy(
        Scope.SOURCE, False, "Restore the file from a backup, or remove the spool and copy the tables anew"
    ),
    SpoolFull: Policy(Scope.SOURCE, True, "Make room; capture goes on by itself and nothing is lost"),
    PositionGone: Policy(
        Scope.SOURCE,
        False,
        "Start with a new checkpoint and a new copy of the tables; the spool keeps only "
        "what some consumer has still to read",
    ),
    ValueRefused: Policy(Scope.TABLE, False, "Read the column as text: add it to the option `textColumns`"),
    SchemaChanged: Policy(
        Scope.TABLE, True, "Load the stream and start the query again: it goes on from its checkpoint"
    ),
    UnknownTable: Policy(Scope.TABLE, False, "Check the name (schema.table) and the publication"),
    ServerMissing: Policy(Scope.RUN, False, "Install it: `pip install 'penstock[embedded]'`"),
    JavaMissing: Policy(Scope.RUN, False, "Install Java 17 or 21, or `pip install 'penstock[embedded]'`"),
}

_SECRETS = re.compile(
    r"(?i)(password|passwd|pwd|secret|token)(\s*[=:]\s*)('[^']*'|\"[^\"]*\"|[^\s&]+)|(://[^:/@\s]*:)([^@\s]+)(@)"
)


def without_secrets(text: str) -> str:
    """Text from elsewhere (libpq, a DSN) with passwords taken out."""
    return _SECRETS.sub(lambda m: f"{m[1]}{m[2]}***" if m[1] else f"{m[4]}***{m[6]}", text)
