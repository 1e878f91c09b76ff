"""Errors of those who read what the destination `nats` has published."""

from __future__ import annotations

from penstock.model.errors.base import PenstockError, Scope
from penstock.model.errors.source import ConnectionFailed


class FeedUnreachable(ConnectionFailed):
    """No NATS server answers, or it does not let us in."""

    scope = Scope.RUN
    remedy = "Check `servers`, the credentials and `tls` of the destination, and that the server runs"


class FeedMissing(PenstockError):
    """A stream or bucket of the destination is not there, or cannot be followed."""

    scope = Scope.RUN
    remedy = "Check `stream`, `init_stream` and `schema_bucket`, and start the pipeline: it creates them"


class FeedUnreadable(PenstockError):
    """A message is not what the destination's encoding says."""

    scope = Scope.RUN
    remedy = "Check `encoding`: it has to be the one that the messages were published with"


class SnapshotRefused(PenstockError):
    """The pipeline gives no snapshot of a table."""

    scope = Scope.TABLE
    retry = True
    remedy = "Mend what it names, then ask again; a mirror does by itself"


class SnapshotUnanswered(PenstockError):
    """A snapshot was asked for, and does not come or is not whole."""

    scope = Scope.TABLE
    retry = True
    remedy = "Check that the pipeline runs (penstock status), then ask again; a mirror does by itself"


class MirrorRefused(PenstockError):
    """The file is no place for a mirror."""

    scope = Scope.RUN
    remedy = "Name another file"
