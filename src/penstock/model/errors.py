"""What can go wrong, and what to do about it: one table for all of it.

An error is a sentence for the operator (the reason), the place where it happened (source, table, LSN,
file, …) and, from `POLICY`, a remedy. The policy also says whether the error concerns one table or the
whole source, and whether trying again by itself can help. Whoever adds an error adds its line.

Errors cross from Spark's executors to the driver, so they pickle. They never carry a password: the text
of a connection error goes through `without_secrets`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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
    endless: bool = False
    """Of a table's error: whether it is tried again for as long as it lasts, since it passes by itself."""


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


class ServerSilent(ConnectionFailed):
    """The replication connection is open, and nothing comes from it, not even when it is asked."""


class NotPromoted(ConnectionFailed):
    """A standby was reached where the primary is to be: its slot cannot be read before it is promoted."""


class AccessDenied(PenstockError):
    """The server refuses this role: wrong password, no such role or database, missing attribute."""


class DatabaseMissing(AccessDenied):
    """The server has no database of this name."""


class NotReady(PenstockError):
    """A preflight check failed: the source cannot be captured as it is."""


class SlotLost(PenstockError):
    """The slot is gone, was invalidated, or was moved on by somebody else: changes are missing."""


class DecodingFailed(SlotLost):
    """The server fails to decode its WAL at one position, again and again."""


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


class SpoolUnreachable(PenstockError):
    """The manifest of the spool cannot be read or written at the moment."""


class PositionGone(PenstockError):
    """A reader asks for changes that the spool no longer has."""


class ValueRefused(PenstockError):
    """A value that the typed view cannot hold."""


class SchemaChanged(PenstockError):
    """The table has other columns or types than the running query was started with."""


class UnknownTable(PenstockError):
    """No such table among those captured."""


class UnknownConsumer(PenstockError):
    """No such reader of the spool, or none that may be forgotten."""


class ReadDenied(AccessDenied):
    """The role may not read a table, or not all of its rows."""


class TableBusy(PenstockError):
    """Somebody holds a lock on the table, or waits for one, that keeps readers out."""


class SnapshotLost(PenstockError):
    """The snapshot that a copy reads under is gone, or the table in it."""


class NotPrivate(PenstockError):
    """A file or folder that has to be ours alone is not, or cannot be made so."""


class StateInUse(PenstockError):
    """Another process works on the state of this pipeline."""


class StateUnreachable(ConnectionFailed):
    """The state store cannot be read or written."""


class StateDenied(AccessDenied):
    """The state store's server refuses this role."""


class WrongState(PenstockError):
    """What is in the state store is not ours to read: another format, or no store at all."""


class RowRefused(PenstockError):
    """The destination does not take a row: a constraint, a value that its column cannot hold."""


class TargetTaken(PenstockError):
    """A table was renamed at the source, and the destination has a table of the new name."""


class TargetUnfit(PenstockError):
    """The table at the destination is not what the source's table needs, and cannot be made so."""


class TargetShared(PenstockError):
    """Another table arrives at the same table of the destination."""


class WriteDenied(AccessDenied):
    """The role may not do at the destination's table what has to be done."""


class DestinationBusy(PenstockError):
    """The destination could not do it now for one table: a deadlock, a lock."""


class DestinationUnready(PenstockError):
    """The destination takes nothing at all now: it is read-only, or full."""


class DestinationWentBack(PenstockError):
    """The destination lacks what it had: it was restored from a backup, or failed over to a server that had
    not received all of it."""


class StorageFailed(PenstockError):
    """Where files are to be written they cannot be: no room, no permission, no such place."""


class CopyNeeded(PenstockError):
    """The table does not follow the stream any more: it is copied anew, for this reason."""


class TransformRefused(PenstockError):
    """A transform (`where`, `set`, `drop`) cannot be carried out."""


class DestinationFailed(PenstockError):
    """The code of a destination raised an error."""


class ServerMissing(PenstockError):
    """The embedded PostgreSQL is not there or does not start."""


class CaptureKilled(PenstockError):
    """A signal ended the capture's process."""


class TaskFailed(PenstockError):
    """A Spark task failed, or the executor it ran on is gone."""


class EngineLost(PenstockError):
    """Spark's JVM has ended, or does not start."""


class JavaMissing(PenstockError):
    """No Java runtime for Spark."""


POLICY: dict[type[PenstockError], Policy] = {
    PenstockError: Policy(Scope.SOURCE, False, ""),
    ConfigError: Policy(Scope.RUN, False, ""),
    ConnectionFailed: Policy(
        Scope.SOURCE, True, "Check that the server runs and that host, port and sslmode are right"
    ),
    ServerSilent: Policy(
        Scope.SOURCE,
        True,
        "It is connected anew by itself. Look for a proxy, firewall or address translation that lets go of "
        "connections without a word",
    ),
    NotPromoted: Policy(
        Scope.SOURCE,
        True,
        "It is tried again by itself. Promote the standby, or lead the connection to the primary "
        "(several hosts: target_session_attrs=primary); on a standby that is itself the source, make the "
        "slot anew",
    ),
    AccessDenied: Policy(
        Scope.SOURCE, False, "Check username, password and pg_hba.conf; the role needs LOGIN and REPLICATION"
    ),
    DatabaseMissing: Policy(
        Scope.SOURCE,
        False,
        "Check `database` (the end of a `dsn`), host and port, or create it. It is not about the password",
    ),
    NotReady: Policy(Scope.SOURCE, False, "Run `penstock check` and follow its remedies"),
    SlotLost: Policy(
        Scope.SOURCE,
        False,
        "Changes since the last position cannot be read any more. Set `on_slot_lost: resync` to copy the "
        "tables anew, or restore the slot; raise max_slot_wal_keep_size so that it does not happen again",
    ),
    DecodingFailed: Policy(
        Scope.SOURCE,
        False,
        "It is the server that cannot pass this position: a bug of PostgreSQL's (after a crash beside schema "
        "changes), a byte that is no text, WAL that is gone. Nothing was skipped. Set `on_slot_lost: resync` "
        "to copy the tables anew, and look for a newer minor version of the server",
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
    SpoolUnreachable: Policy(
        Scope.SOURCE, True, "Check the disk and the folder's permissions; it goes on by itself"
    ),
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
    UnknownConsumer: Policy(Scope.RUN, False, "`penstock consumers CONFIG` lists them"),
    ReadDenied: Policy(
        Scope.TABLE,
        False,
        "Grant the role SELECT on the table and on each of its partitions; under row-level security it needs "
        "the attribute BYPASSRLS",
    ),
    TableBusy: Policy(
        Scope.TABLE,
        True,
        "It is tried again by itself; let the other session end, or cancel its statement",
        endless=True,
    ),
    SnapshotLost: Policy(Scope.TABLE, True, "Nothing is wrong at the destination: copy the table anew"),
    NotPrivate: Policy(
        Scope.RUN,
        False,
        "It holds rows of the source: give it to the user that Penstock runs as, or name another place",
    ),
    StateInUse: Policy(
        Scope.RUN, False, "Stop the other one first, or give this pipeline another name or `state.url`"
    ),
    StateUnreachable: Policy(
        Scope.RUN, True, "Check `state.url`, and that its server runs or its folder can be written"
    ),
    StateDenied: Policy(
        Scope.RUN,
        False,
        "Check username and password in `state.url`, and pg_hba.conf; the role needs CREATE in the database",
    ),
    WrongState: Policy(
        Scope.RUN, False, "Use the version of Penstock that wrote it, or another `state.url` and a new copy"
    ),
    RowRefused: Policy(
        Scope.TABLE,
        False,
        "Mend the cause at the destination (a constraint, a column's type), "
        "then `penstock retry CONFIG TABLE`",
    ),
    TargetTaken: Policy(
        Scope.TABLE,
        retry=True,
        remedy="It goes on when the other one has made room, or is copied anew into its place",
    ),
    TargetUnfit: Policy(
        Scope.TABLE, False, "Change the table at the destination, then `penstock retry CONFIG TABLE`"
    ),
    TargetShared: Policy(
        Scope.TABLE,
        True,
        "Give one of them another `target` under `tables` of its destination, or exclude it; it is tried "
        "again by itself",
        endless=True,
    ),
    WriteDenied: Policy(
        Scope.TABLE,
        False,
        "Grant the destination's role what it needs on the table and its schema, "
        "then `penstock retry CONFIG TABLE`",
    ),
    DestinationBusy: Policy(Scope.TABLE, True, "It is tried again by itself", endless=True),
    DestinationUnready: Policy(
        Scope.SOURCE, True, "Make room, or let it be written to; it goes on by itself and nothing is lost"
    ),
    DestinationWentBack: Policy(
        Scope.SOURCE,
        True,
        "It goes on from there by itself where the spool still has the changes; where not, tables are copied "
        "anew",
    ),
    StorageFailed: Policy(
        Scope.SOURCE, True, "Make room, or let the place be written; it goes on by itself and nothing is lost"
    ),
    CopyNeeded: Policy(Scope.TABLE, True, "It is copied anew by itself"),
    TransformRefused: Policy(
        Scope.TABLE, False, "Mend the table's `where`, `set` or `drop`, start again and run `penstock retry`"
    ),
    DestinationFailed: Policy(
        Scope.SOURCE, True, "Nothing is lost: it is tried again. Mend the destination's code, or its input"
    ),
    ServerMissing: Policy(Scope.RUN, False, "Install it: `pip install 'penstock[embedded]'`"),
    CaptureKilled: Policy(Scope.SOURCE, True, "Look for who did it: a lack of memory, an administrator"),
    TaskFailed: Policy(Scope.SOURCE, True, "It is tried again by itself; `spark.log` in the spool has more"),
    EngineLost: Policy(
        Scope.RUN,
        True,
        "Start again: it goes on where it was. If the JVM was killed, give it memory: spark.driver.memory in "
        "`spark.conf`",
    ),
    JavaMissing: Policy(Scope.RUN, False, "Install Java 17 or 21, or `pip install 'penstock[embedded]'`"),
}

_SECRETS = re.compile(
    r"(?i)(password|passwd|pwd|secret|token)(\s*[=:]\s*)('[^']*'|\"[^\"]*\"|[^\s&]+)|(://[^:/@\s]*:)([^@\s]+)(@)"
)


def without_secrets(text: str) -> str:
    """Text from elsewhere (libpq, a DSN) with passwords taken out."""
    return _SECRETS.sub(lambda m: f"{m[1]}{m[2]}***" if m[1] else f"{m[4]}***{m[6]}", text)


def to_dict(error: PenstockError) -> dict[str, Any]:
    """The error for JSON: for other processes, and to be remembered."""
    return {
        "kind": type(error).__name__,
        "reason": error.reason,
        "remedy": error.remedy,
        "where": {key: str(value) for key, value in error.where.items()},
    }


def from_dict(given: Mapping[str, Any]) -> PenstockError:
    """The error again, of its kind if that is known here, with its place in words."""
    kinds = {kind.__name__: kind for kind in POLICY}
    kind = kinds.get(given["kind"], PenstockError)
    return kind(given["reason"], remedy=given["remedy"], **given["where"])
