"""The replication slot: what it is, whether it still holds what we need, and its making.

A slot that is gone, was invalidated, or was moved past our position has lost changes. `check_usable` says
exactly which of these it is and never papers over it; whether to copy the tables anew is for the
configuration (`on_slot_lost`) to say, not for this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from penstock.model import ZERO, Lsn
from penstock.model.errors import NotPromoted, NotReady, SlotLost
from penstock.postgres.connection import Connection, explain

PLUGIN = "pgoutput"
TWO_PHASE = "the slot was made with two_phase: it sends transactions when they are prepared"
ONE_PHASE = "Drop it and let Penstock make its own, or choose another slot_name"

# Of these a server has what its version knows.
_WITHOUT_LIMITS = """
    select set_config(name, '0', false) from pg_settings
    where name in ('statement_timeout', 'lock_timeout', 'transaction_timeout')
"""


@dataclass(frozen=True, slots=True)
class SlotState:
    """A row of pg_replication_slots; what a server is too old to know has its harmless value."""

    name: str
    plugin: str | None
    """None for a physical slot."""
    database: str | None
    here: bool
    """Whether it belongs to the database that we are connected to."""
    active: bool
    active_pid: int | None
    temporary: bool
    two_phase: bool
    failover: bool
    synced: bool
    """Whether it is a standby's image of the primary's slot, or was one before the standby's promotion."""
    confirmed_flush: Lsn | None
    restart_lsn: Lsn | None
    wal_status: str | None
    """reserved, extended, unreserved or lost"""
    safe_wal_size: int | None
    """Bytes of WAL that may still be written before the slot is in danger; None: no limit."""
    conflicting: bool
    invalidation_reason: str | None
    retained: int
    """Bytes of WAL that the slot keeps on the server."""
    behind: int
    """Bytes of WAL written since what was last confirmed."""


# As JSON, so that one statement serves every version: later ones have more columns.
_DESCRIBE = """
    select to_jsonb(s), s.database = current_database(),
           (here.lsn - s.restart_lsn)::int8, (here.lsn - s.confirmed_flush_lsn)::int8
    from pg_replication_slots s,
         (select case when pg_is_in_recovery() then pg_last_wal_replay_lsn()
                      else pg_current_wal_lsn() end as lsn) here
    where s.slot_name = %s
"""


def describe(connection: Connection, name: str) -> SlotState | None:
    row = connection.execute(_DESCRIBE, (name,)).fetchone()
    if row is None:
        return None
    slot: Mapping[str, Any] = row[0]
    return SlotState(
        name=slot["slot_name"],
        plugin=slot["plugin"],
        database=slot["database"],
        here=bool(row[1]),
        active=slot["active"],
        active_pid=slot["active_pid"],
        temporary=slot["temporary"],
        two_phase=slot["two_phase"],
        failover=slot.get("failover", False),
        synced=slot.get("synced", False),
        confirmed_flush=_lsn(slot["confirmed_flush_lsn"]),
        restart_lsn=_lsn(slot["restart_lsn"]),
        wal_status=slot["wal_status"],
        safe_wal_size=slot["safe_wal_size"],
        # PostgreSQL 16 reports this for every invalidated slot, also for one whose WAL was removed.
        conflicting=bool(slot.get("conflicting")) and slot["restart_lsn"] is not None,
        invalidation_reason=slot.get("invalidation_reason"),
        retained=row[2] or 0,
        behind=row[3] or 0,
    )


def create(connection: Connection, name: str, *, failover: bool = False, temporary: bool = False) -> Lsn:
    """Make the slot; return where it has everything from. It waits for running transactions, however
    long the role's statements may take elsewhere."""
    if failover and connection.info.server_version < 170000:
        raise NotReady("failover slots need PostgreSQL 17", slot=name, remedy="Set failover: false")
    statement = sql.SQL(
        "select lsn::text from pg_create_logical_replication_slot(%s, %s, temporary => %s{})"
    ).format(sql.SQL(", failover => true" if failover else ""))
    try:
        connection.execute(_WITHOUT_LIMITS)
        row = connection.execute(statement, (name, PLUGIN, temporary)).fetchone()
    except psycopg.errors.ObjectNotInPrerequisiteState as error:
        raise NotReady(explain(error).reason, slot=name) from None
    except psycopg.Error as error:
        raise explain(error).at(slot=name) from None
    assert row is not None
    return Lsn.parse(row[0])


def drop(connection: Connection, name: str) -> bool:
    """Remove the slot, and with it the WAL that it kept; False if there was none."""
    try:
        connection.execute("select pg_drop_replication_slot(%s)", (name,))
    except psycopg.errors.UndefinedObject:
        return False
    except psycopg.Error as error:
        raise explain(error).at(slot=name) from None
    return True


def refuse_unpromoted(connection: Connection, state: SlotState | None) -> None:
    """Raise `NotPromoted` on a standby whose slot is not there, or not to be read, before its promotion: that
    says nothing of what the slot of the primary still has."""
    row = connection.execute("select pg_is_in_recovery()").fetchone()
    if row != (True,):
        return
    if connection.info.server_version < 160000:
        reason = "the server is a standby, and of a version that does not decode there"
    elif state is None:
        reason = "the server is a standby, and the slot is not there"
    elif state.synced:
        reason = "the server is a standby, and its slot an image of the primary's"
    else:
        return
    raise NotPromoted(reason, slot=state.name if state else None)


def check_usable(state: SlotState | None, position: Lsn) -> None:
    """Raise `SlotLost` unless the slot still has every change from `position` on (0/0: from wherever), and
    `NotReady` if it is one that we cannot read."""
    if state is None:
        raise SlotLost("the slot does not exist", position=position or None)
    if state.two_phase:
        raise NotReady(TWO_PHASE, slot=state.name, remedy=ONE_PHASE)
    reason = loss(state, position)
    if reason:
        raise SlotLost(reason, slot=state.name)


def loss(state: SlotState, position: Lsn = ZERO) -> str | None:
    """Return why the slot cannot give what follows `position`; None if it can."""
    if state.plugin is None:
        return "it is a physical slot, not one for logical replication"
    if state.plugin != PLUGIN:
        return f"the slot was made for the plugin {state.plugin}, not for {PLUGIN}"
    if not state.here:
        return f"the slot belongs to the database {state.database}"
    if state.conflicting:
        return (
            f"the slot conflicted with recovery on this standby: {state.invalidation_reason or 'invalidated'}"
        )
    if state.wal_status == "lost":
        return "the server removed WAL that the slot still needed (max_slot_wal_keep_size)"
    if state.invalidation_reason:
        return f"the server invalidated the slot: {state.invalidation_reason}"
    if position and state.confirmed_flush and state.confirmed_flush > position:
        return (
            f"the slot was moved on to {state.confirmed_flush}, but only what came before {position} was read"
        )
    return None


def _lsn(text: str | None) -> Lsn | None:
    return Lsn.parse(text) if text else None
