"""Errors of a source: its server, slot, publication, spool, and the tables that are read from it."""

from __future__ import annotations

from penstock.model.errors.base import PenstockError, Scope


class ConnectionFailed(PenstockError):
    """The server cannot be reached, or the connection was lost."""

    retry = True
    remedy = "Check that the server runs and that host, port and sslmode are right"


class ServerBusy(PenstockError):
    """A statement was cancelled or took too long, or the server has no room or memory for it now."""

    retry = True
    remedy = "It is tried again by itself; see who cancels it, or what the server is short of"


class ServerSilent(ConnectionFailed):
    """The replication connection is open, and nothing comes from it, not even when it is asked."""

    remedy = (
        "It is connected anew by itself. Look for a proxy, firewall or address translation that lets go of "
        "connections without a word"
    )


class NotPromoted(ConnectionFailed):
    """A standby was reached where the primary is to be: its slot cannot be read before it is promoted."""

    remedy = (
        "It is tried again by itself. Promote the standby, or lead the connection to the primary "
        "(several hosts: target_session_attrs=primary); on a standby that is itself the source, make the "
        "slot anew"
    )


class AccessDenied(PenstockError):
    """The server refuses this role: wrong password, no such role or database, missing attribute."""

    remedy = "Check username, password and pg_hba.conf; the role needs LOGIN and REPLICATION"


class DatabaseMissing(AccessDenied):
    """The server has no database of this name."""

    remedy = (
        "Check `database` (the end of a `dsn`), host and port, or create it. It is not about the password"
    )


class NotReady(PenstockError):
    """A preflight check failed: the source cannot be captured as it is."""

    remedy = "Run `penstock check` and follow its remedies"


class SlotLost(PenstockError):
    """The slot is gone, was invalidated, or was moved on by somebody else: changes are missing."""

    remedy = (
        "Changes since the last position cannot be read any more. Set `on_slot_lost: resync` to copy the "
        "tables anew, or restore the slot; raise max_slot_wal_keep_size so that it does not happen again"
    )


class DecodingFailed(SlotLost):
    """The server fails to decode its WAL at one position, again and again."""

    remedy = (
        "It is the server that cannot pass this position: a bug of PostgreSQL's (after a crash beside schema "
        "changes), a byte that is no text, WAL that is gone. Nothing was skipped. Set `on_slot_lost: resync` "
        "to copy the tables anew, and look for a newer minor version of the server"
    )


class SlotInUse(PenstockError):
    """Another connection holds the slot."""

    retry = True
    remedy = "Stop the other pipeline, or give this one a slot_name of its own"


class PublicationMissing(PenstockError):
    """The publication does not exist, or no longer does."""

    remedy = "Create it, or set create_publication: true and let Penstock do it"


class MalformedMessage(PenstockError):
    """A message of the replication stream does not parse."""

    remedy = "Nothing was skipped. Check for a proxy between; report it with the position"


class WrongSpool(PenstockError):
    """The spool belongs to another source, slot or server."""

    remedy = "Give this source a spool path of its own, or remove the old spool for good"


class SpoolInUse(PenstockError):
    """Another process captures into this spool."""

    retry = True
    remedy = "One process captures into a spool; stop the other one first"


class SpoolDamaged(PenstockError):
    """A file of the spool is missing or does not read."""

    remedy = "Restore the file from a backup, or remove the spool and copy the tables anew"


class SpoolFull(PenstockError):
    """There is no room for the spool."""

    retry = True
    remedy = "Make room; capture goes on by itself and nothing is lost"


class SpoolUnreachable(PenstockError):
    """The manifest of the spool cannot be read or written at the moment."""

    retry = True
    remedy = "Check the disk and the folder's permissions; it goes on by itself"


class PositionGone(PenstockError):
    """A reader asks for changes that the spool no longer has."""

    remedy = (
        "Start with a new checkpoint and a new copy of the tables; the spool keeps only "
        "what some consumer has still to read"
    )


class ValueRefused(PenstockError):
    """A value that the typed view cannot hold."""

    scope = Scope.TABLE
    remedy = "Read the column as text: add it to the option `textColumns`"


class OldRowUnsent(PenstockError):
    """An update or delete does not tell the whole old row, and the table has no key to find it by."""

    scope = Scope.TABLE
    remedy = (
        "Run `alter table … replica identity full` at the source, of a partitioned table for each partition, "
        "too, then `penstock reload CONFIG TABLE`"
    )


class SchemaChanged(PenstockError):
    """The table has other columns or types than the running query was started with."""

    scope = Scope.TABLE
    retry = True
    remedy = "Load the stream and start the query again: it goes on from its checkpoint"


class UnknownTable(PenstockError):
    """No such table among those captured."""

    scope = Scope.TABLE
    remedy = "Check the name (schema.table) and the publication"


class UnknownConsumer(PenstockError):
    """No such reader of the spool, or none that may be forgotten."""

    scope = Scope.RUN
    remedy = "`penstock consumers CONFIG` lists them"


class ReadDenied(AccessDenied):
    """The role may not read a table, or not all of its rows."""

    scope = Scope.TABLE
    remedy = (
        "Grant the role SELECT on the table and on each of its partitions; under row-level security it needs "
        "the attribute BYPASSRLS"
    )


class TableBusy(PenstockError):
    """Somebody holds a lock on the table, or waits for one, that keeps readers out."""

    scope = Scope.TABLE
    retry = True
    endless = True
    remedy = "It is tried again by itself; let the other session end, or cancel its statement"


class SnapshotLost(PenstockError):
    """The snapshot that a copy reads under is gone, or the table in it."""

    scope = Scope.TABLE
    retry = True
    remedy = "Nothing is wrong at the destination: copy the table anew"


class CaptureKilled(PenstockError):
    """A signal ended the capture's process."""

    retry = True
    remedy = "Look for who did it: a lack of memory, an administrator"
