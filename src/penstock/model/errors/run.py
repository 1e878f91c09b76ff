"""Errors of a whole run: the configuration, the state store, Spark, programs that are missing."""

from __future__ import annotations

from penstock.model.errors.base import PenstockError, Scope
from penstock.model.errors.source import AccessDenied, ConnectionFailed


class ConfigError(PenstockError):
    """The configuration file is not what it should be."""

    scope = Scope.RUN


class NotPrivate(PenstockError):
    """A file or folder that has to be ours alone is not, or cannot be made so."""

    scope = Scope.RUN
    remedy = "It holds rows of the source: give it to the user that Penstock runs as, or name another place"


class StateInUse(PenstockError):
    """Another process works on the state of this pipeline."""

    scope = Scope.RUN
    remedy = "Stop the other one first, or give this pipeline another name or `state.url`"


class StateUnreachable(ConnectionFailed):
    """The state store cannot be read or written."""

    scope = Scope.RUN
    remedy = "Check `state.url`, and that its server runs or its folder can be written"


class StateMissing(PenstockError):
    """There is no state store yet, and who only looks makes none."""

    scope = Scope.RUN
    remedy = (
        "Start the pipeline first, or look where it runs: a relative path in `state.url` begins at the"
        " working directory"
    )


class StateDenied(AccessDenied):
    """The state store's server refuses this role."""

    scope = Scope.RUN
    remedy = (
        "Check username and password in `state.url`, and pg_hba.conf; the role needs CREATE in the database"
    )


class WrongState(PenstockError):
    """What is in the state store is not ours to read: another format, or no store at all."""

    scope = Scope.RUN
    remedy = "Use the version of Penstock that wrote it, or another `state.url` and a new copy"


class StateOlder(WrongState):
    """The state store is of an earlier version, and nobody has worked on it with this one yet."""

    remedy = "`penstock run` of this version brings it up to date; until then use the version that wrote it"


class MappingChanged(PenstockError):
    """Two people decided about one table at the same time."""

    scope = Scope.RUN
    remedy = "Look at what is decided now, and decide again"


class MappingRefused(PenstockError):
    """What was to be decided about a table cannot be."""

    scope = Scope.RUN
    remedy = "Decide otherwise: the reason says what is in the way"


class ServerMissing(PenstockError):
    """An embedded server is not there or does not start."""

    scope = Scope.RUN
    remedy = "Install it: `pip install 'penstock[embedded]'`"


class TaskFailed(PenstockError):
    """A Spark task failed, or the executor it ran on is gone."""

    retry = True
    remedy = "It is tried again by itself; `spark.log` in the spool has more"


class EngineLost(PenstockError):
    """Spark's JVM has ended, or does not start."""

    scope = Scope.RUN
    retry = True
    remedy = (
        "Start again: it goes on where it was. If the JVM was killed, give it memory: spark.driver.memory in "
        "`spark.conf`"
    )


class JavaMissing(PenstockError):
    """No Java runtime for Spark."""

    scope = Scope.RUN
    remedy = "Install Java 17 or 21, or `pip install 'penstock[embedded]'`"


class TablePaused(PenstockError):
    """Somebody wanted the table to stop."""

    scope = Scope.TABLE
    remedy = "`penstock resume CONFIG TABLE` lets it go on where it stopped"
