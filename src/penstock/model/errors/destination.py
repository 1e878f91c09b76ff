"""Errors of a destination: a row, a table, or the whole of it."""

from __future__ import annotations

from penstock.model.errors.base import PenstockError, Scope
from penstock.model.errors.source import AccessDenied


class LedgerNewer(PenstockError):
    """A later version of Penstock has written to the destination's records, or to those beside the files."""

    scope = Scope.RUN
    remedy = "Use the version of Penstock that wrote them"


class RowRefused(PenstockError):
    """The destination does not take a row: a constraint, a value that its column cannot hold."""

    scope = Scope.TABLE
    remedy = (
        "Mend the cause at the destination (a constraint, a column's type), "
        "then `penstock retry CONFIG TABLE`"
    )


class RefusedAtTheEnd(RowRefused):
    """The destination does not take a row: a deferred constraint, which is looked at when all is written."""

    remedy = "See which rows the constraint keeps apart, or drop it, then `penstock retry CONFIG TABLE`"


class ForeignKeyRefused(RowRefused):
    """A foreign key at the destination refuses a row, maybe only until another table has come as far."""

    retry = True
    remedy = (
        "It is tried again by itself for a while. See what the foreign key misses, drop it, or let the role "
        "write as replication does (grant set on parameter session_replication_role to …), then "
        "`penstock retry CONFIG TABLE`"
    )


class MessageTooLarge(PenstockError):
    """A change is larger than a message can be."""

    scope = Scope.TABLE
    remedy = (
        "Raise `max_payload` of the NATS server (and `max_msg_size` of the stream), or leave the column out "
        "with `drop`, then `penstock retry CONFIG TABLE`"
    )


class TargetTaken(PenstockError):
    """A table was renamed at the source, and the destination has a table of the new name."""

    scope = Scope.TABLE
    retry = True
    remedy = "It goes on when the other one has made room, or is copied anew into its place"


class TargetUnfit(PenstockError):
    """The table at the destination is not what the source's table needs, and cannot be made so."""

    scope = Scope.TABLE
    remedy = "Change the table at the destination, then `penstock retry CONFIG TABLE`"


class TargetShared(PenstockError):
    """Another table arrives at the same table of the destination."""

    scope = Scope.TABLE
    retry = True
    endless = True
    remedy = (
        "Give one of them another `target` under `tables` of its destination, or exclude it; it is tried "
        "again by itself"
    )


class WriteDenied(AccessDenied):
    """The role may not do at the destination's table what has to be done."""

    scope = Scope.TABLE
    remedy = (
        "Grant the destination's role what it needs on the table and its schema (where row-level security "
        "hides rows from it: bypassrls), then `penstock retry CONFIG TABLE`"
    )


class DestinationBusy(PenstockError):
    """The destination could not do it now for one table: a deadlock, a lock."""

    scope = Scope.TABLE
    retry = True
    endless = True
    remedy = "It is tried again by itself"


class RowsReferenced(PenstockError):
    """Rows are to go, and a foreign key at the destination would delete others with them that may stay."""

    scope = Scope.TABLE
    retry = True
    endless = True
    remedy = (
        "It is tried again by itself, when no row references them. Drop the foreign key, or let the role "
        "write as replication does: grant set on parameter session_replication_role to …"
    )


class DestinationUnready(PenstockError):
    """The destination takes nothing at all now: it is read-only, or full."""

    retry = True
    remedy = "Make room, or let it be written to; it goes on by itself and nothing is lost"


class DestinationWentBack(PenstockError):
    """The destination lacks what it had: it was restored from a backup, or failed over to a server that had
    not received all of it."""

    retry = True
    remedy = (
        "It goes on from there by itself where the spool still has the changes; where not, tables are copied "
        "anew"
    )


class StorageFailed(PenstockError):
    """Where files are to be written they cannot be: no room, no permission, no such place."""

    retry = True
    remedy = "Make room, or let the place be written; it goes on by itself and nothing is lost"


class CopyNeeded(PenstockError):
    """The table does not follow the stream any more: it is copied anew, for this reason."""

    scope = Scope.TABLE
    retry = True
    remedy = "It is copied anew by itself"


class CopyRuledOut(PenstockError):
    """The table's changes cannot be followed without a new copy, and `streaming_only` copies nothing."""

    scope = Scope.TABLE
    remedy = "Start once with `startup_mode: auto`, and `penstock reload CONFIG TABLE`; or exclude the table"


class TransformRefused(PenstockError):
    """A transform (`where`, `set`, `drop`) cannot be carried out."""

    scope = Scope.TABLE
    remedy = "Mend the table's `where`, `set` or `drop`, start again and run `penstock retry`"


class DestinationFailed(PenstockError):
    """The code of a destination raised an error."""

    retry = True
    remedy = "Nothing is lost: it is tried again. Mend the destination's code, or its input"
