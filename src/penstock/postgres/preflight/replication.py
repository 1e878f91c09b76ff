"""Whether publication and slot are there, or can be made, and hold what they should."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.config.tables import HISTORY
from penstock.model import ZERO, TableName
from penstock.model.errors import NotReady
from penstock.postgres import ddl
from penstock.postgres import publication as publications
from penstock.postgres import slot as slots
from penstock.postgres.catalog import Table
from penstock.postgres.preflight.check import (
    Check,
    CheckFunction,
    Situation,
    failure,
    ok,
    size,
    some,
    warning,
)


def publication(now: Situation) -> Check:
    name = now.source.publication_name
    if now.publication is None and not now.source.replication.create_publication:
        return failure(
            "publication",
            f"{name} does not exist",
            "Create it, or set create_publication: true and let Penstock do it",
        )
    if now.publication is None:
        return _can_make(now, f"{name} will be created") or ok("publication", f"{name} will be created")
    return _existing(now, now.publication)


def _can_make(now: Situation, detail: str) -> Check | None:
    """Return a failure if the role lacks what `create publication` asks for."""
    if not now.one("select has_database_privilege(current_database(), 'create')"):
        return failure(
            "publication",
            f"{detail}, but the role may not create anything in this database",
            "Run: grant create on database … to …; or create it yourself, with create_publication: false",
        )
    return _owns(now, [table.id for table in now.captured], detail)


def _owns(now: Situation, tables: list[int], detail: str) -> Check | None:
    rows = now.connection.execute(
        """
        select format('%%I.%%I', n.nspname, c.relname)
        from pg_class c
        join pg_namespace n on n.oid = c.relnamespace
        where c.oid = any(%s) and not pg_has_role(c.relowner, 'usage')
        """,
        (tables,),
    )
    foreign = [row[0] for row in rows]
    if not foreign:
        return None
    return failure(
        "publication",
        f"{detail}, but the role does not own {some(foreign)}",
        "Make the role a member of the owner; or let the owner do it, with create_publication: false",
    )


def _existing(now: Situation, existing: publications.Publication) -> Check:
    if now.source.replication.create_publication:
        try:
            existing.refuse_if_a_strangers()
        except NotReady as error:
            return failure("publication", error.reason, error.remedy)
    held = _Held.of(now, existing)
    if now.makes_publication and (held.missing or held.beyond or not held.is_whole(now)):
        return _adjusted(now, held)
    return (
        _silent(existing)
        or _lacking(now, held)
        or _beyond(held)
        or _without_history(now, held)
        or _good(held)
    )


@dataclass(frozen=True, slots=True)
class _Held:
    """What a publication has, beside what it should have."""

    publication: publications.Publication
    tables: set[TableName]
    missing: list[Table]
    beyond: set[TableName]
    """Tables that the configuration does not choose."""

    @classmethod
    def of(cls, now: Situation, publication: publications.Publication) -> _Held:
        tables = {entry.table for entry in publications.tables(now.connection, publication.name)}
        above = {table.name: table.ancestors for table in now.matched}
        covered = tables | {ancestor for name in tables for ancestor in above.get(name, ())}
        chosen = {table.name for table in now.captured}
        strange = {name for name in tables if chosen.isdisjoint({name, *above.get(name, ())})}
        return cls(
            publication,
            tables,
            [table for table in now.captured if table.name not in covered],
            {name for name in strange if not now.source.tables.is_ours(name)},
        )

    def is_whole(self, now: Situation) -> bool:
        return self.publication.all_tables or self.publication.is_whole(now.version)


def _adjusted(now: Situation, held: _Held) -> Check:
    changes = ((some(table.name for table in held.missing), "added"), (some(held.beyond), "removed"))
    parts = [f"{names} {verb}" for names, verb in changes if names]
    summary = ", ".join(parts if held.is_whole(now) else [*parts, "its options set back"])
    detail = f"{held.publication.name} will be adjusted: {summary}"
    return _owns(now, [table.id for table in held.missing], detail) or ok("publication", detail)


def _lacking(now: Situation, held: _Held) -> Check | None:
    if not held.missing:
        return None
    return (failure if len(held.missing) == len(now.captured) else warning)(
        "publication",
        f"{held.publication.name} is not Penstock's to alter, and lacks "
        f"{some(table.name for table in held.missing)}",
        "Run: alter publication … add table …",
    )


def _silent(existing: publications.Publication) -> Check | None:
    if not existing.unpublished:
        return None
    return failure(
        "publication",
        f"{existing.name} does not publish {some(existing.unpublished)}: no table can be followed by it",
        publications.SET_ALL,
    )


def _beyond(held: _Held) -> Check | None:
    if not held.beyond:
        return None
    return warning(
        "publication",
        f"{held.publication.name} also publishes {some(held.beyond)}, "
        "which the configuration does not choose",
        "Include them, or run: alter publication … drop table …",
    )


def _without_history(now: Situation, held: _Held) -> Check | None:
    unheard = now.source.ddl_capture != "off" and HISTORY not in held.tables and not now.makes_publication
    if not unheard or not ddl.is_installed(now.connection):
        return None
    return warning(
        "publication",
        f"{held.publication.name} does not publish {HISTORY}, where schema changes are recorded",
        f"Run: alter publication … add table {HISTORY}",
    )


def _good(held: _Held) -> Check:
    whose = "Penstock's" if held.publication.ours else "used as it is"
    return ok("publication", f"{held.publication.name}, {whose}, tables: {len(held.tables)}")


def slot(now: Situation) -> Check:
    state, name = now.slot, now.source.slot_name
    if state is None and now.source.replication.failover and now.version < 170000:
        return failure("slot", "failover slots need PostgreSQL 17", "Set failover: false")
    if state is None and now.position is None:
        return ok("slot", f"{name} will be created")
    lost = slots.loss(state, now.position or ZERO) if state else "the slot does not exist any more"
    if lost:
        return _lost(now, f"{name}: {lost}")
    assert state is not None
    if state.two_phase:
        return failure("slot", f"{name}: {slots.TWO_PHASE}", slots.ONE_PHASE)
    detail = f"{name}, {size(state.behind)} behind, keeps {size(state.retained)} of WAL"
    if state.wal_status == "unreserved" or (state.safe_wal_size is not None and state.safe_wal_size < 0):
        return warning("slot", f"{detail}, about to be lost", "Start the pipeline at once")
    if state.active:
        return ok("slot", f"{detail}, in use by process {state.active_pid}")
    if state.failover != now.source.replication.failover:
        return warning(
            "slot",
            f"{detail}, made with failover = {str(state.failover).lower()}, unlike the configuration",
            "Change the configuration, or drop the slot and copy the tables anew",
        )
    return ok("slot", detail)


def _lost(now: Situation, detail: str) -> Check:
    """Report a lost slot: made anew if that is wanted, unless it is somebody else's (plugin, database)."""
    ours = now.slot is None or (now.slot.plugin == slots.PLUGIN and now.slot.here)
    if ours and now.source.replication.on_slot_lost == "resync":
        remedy = "Nothing to do: `on_slot_lost: resync` makes it anew and copies the tables again"
        return warning("slot", detail, remedy)
    remedy = "set `on_slot_lost: resync` to copy the tables anew, or choose another slot_name"
    return failure("slot", detail, f"Changes are lost: {remedy}" if ours else "Choose another slot_name")


CHECKS: tuple[CheckFunction, ...] = (publication, slot)
