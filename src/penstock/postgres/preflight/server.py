"""Whether the server is set up for logical replication, and lets this role do it."""

from __future__ import annotations

from penstock.postgres import ddl
from penstock.postgres.preflight.check import (
    Check,
    CheckFunction,
    Situation,
    failure,
    ok,
    size,
    warning,
)

SMALL_WAL = 1 << 30
"""Bytes of WAL that a busy server writes in minutes."""


MENDED = {14: 18, 15: 13, 16: 9, 17: 5}
"""By major version: the first minor one whose decoding learns of an ALTER PUBLICATION beside it."""


def loses_changes(version: int) -> str | None:
    """Return the version to update to, if this one can lose changes of a table that was just published."""
    major, minor = divmod(version, 10_000)
    mended = MENDED.get(major, 0)
    return f"{major}.{mended}" if minor < mended else None


def version(now: Situation) -> Check:
    shown = now.setting("server_version")
    if now.version < 140000:
        return failure("version", f"PostgreSQL {shown}", "Penstock needs PostgreSQL 14 or later")
    if fixed := loses_changes(now.version):
        return warning(
            "version",
            f"PostgreSQL {shown}: when a table is added to a publication while a transaction writes to it, "
            "later changes of the table can be missing from the stream",
            f"Update to {fixed} or later, one of the minor releases of May 2025, which mend it",
        )
    return ok("version", f"PostgreSQL {shown}")


def standby(now: Situation) -> Check | None:
    if not now.standby:
        return None
    if now.version < 160000:
        return failure(
            "standby", "the server is a standby", "Capture from the primary, or upgrade to PostgreSQL 16"
        )
    if now.publication is None:
        return failure(
            "standby",
            "the server is a standby, and the publication does not exist",
            "Create the publication on the primary",
        )
    return warning(
        "standby",
        "the server is a standby: its slot depends on the primary, and heartbeats cannot be written",
        "Set hot_standby_feedback = on here, and use a physical slot on the primary for this standby",
    )


def wal_level(now: Situation) -> Check:
    level = now.setting("wal_level")
    if level != "logical":
        return failure("wal_level", level, "Set wal_level = logical and restart the server")
    return ok("wal_level", level)


def role(now: Situation) -> Check:
    name, superuser, replication, managed = now.connection.execute(
        """
        select rolname, rolsuper, rolreplication,
               exists (select from pg_roles r
                       where r.rolname = 'rds_replication' and pg_has_role(r.oid, 'member'))
        from pg_roles where rolname = current_user
        """
    ).fetchone() or ("", False, False, False)
    if not (superuser or replication or managed):
        remedy = f'Run: alter role "{name}" replication; `penstock grant` prints all that it needs'
        return failure("role", f"{name} may not replicate", remedy)
    what = "a superuser" if superuser else "has REPLICATION" if replication else "in rds_replication"
    return ok("role", f"{name}, {what}")


def views(now: Situation) -> Check | None:
    """Whether a copy can be kept from reading a view in a table's place (see `exported_snapshot.settle`)."""
    superuser = now.one("select rolsuper from pg_roles where rolname = current_user")
    if not superuser or now.one(
        "select count(*) from pg_settings where name = 'restrict_nonsystem_relation_kind'"
    ):
        return None
    return warning(
        "role",
        "a superuser, on a server that cannot be told to read no views: who owns a schema could have his "
        "functions run with its rights during a copy",
        "Update the server to its newest minor version, or use an ordinary role: `penstock grant`",
    )


def slots(now: Situation) -> Check:
    most, used = (
        int(now.setting("max_replication_slots")),
        now.one("select count(*) from pg_replication_slots"),
    )
    detail = f"{used} of {most} in use"
    if now.slot is None and used >= most:
        return failure(
            "free slots", detail, "Drop a slot that nobody needs, or raise max_replication_slots and restart"
        )
    return ok("free slots", detail)


def senders(now: Situation) -> Check:
    most, used = int(now.setting("max_wal_senders")), now.one("select count(*) from pg_stat_replication")
    detail = f"{used} of {most} in use"
    running = now.slot is not None and now.slot.active
    if not running and used >= most:
        return failure("free senders", detail, "Raise max_wal_senders and restart the server")
    return ok("free senders", detail)


def wal_kept(now: Situation) -> Check:
    """How long the server waits for us, and what it costs the server."""
    limit = int(now.setting("max_slot_wal_keep_size"))
    idle = int(now.setting("idle_replication_slot_timeout")) if now.version >= 180000 else 0
    if limit < 0:
        return warning(
            "max_slot_wal_keep_size",
            "unlimited: while nothing is captured, WAL can fill the server's disk",
            "Set max_slot_wal_keep_size to what the disk can spare and an outage may last",
        )
    if limit << 20 < SMALL_WAL:
        return warning(
            "max_slot_wal_keep_size",
            f"{size(limit << 20)}: a short outage or a large transaction costs the slot",
            "Set max_slot_wal_keep_size to several gigabytes",
        )
    if idle:
        return warning(
            "max_slot_wal_keep_size",
            f"{size(limit << 20)}, but a slot idle for {idle} seconds is lost",
            "Set idle_replication_slot_timeout = 0, or to more than an outage may last",
        )
    return ok("max_slot_wal_keep_size", size(limit << 20))


def failover(now: Situation) -> Check | None:
    """What was captured must not be more than a standby has when it is promoted: that slot would be lost."""
    if now.version < 170000 or now.standby or not now.source.replication.failover:
        return None
    waited_for = now.setting("synchronized_standby_slots")
    if waited_for.strip():
        return ok("failover", f"captured is only what these standbys have: {waited_for}")
    return warning(
        "failover",
        "synchronized_standby_slots is empty: a standby that lags when it is promoted lacks what was read,"
        " and then the slot is lost",
        "Set synchronized_standby_slots to the physical slots of the standbys, on every server",
    )


def sender_timeout(now: Situation) -> Check:
    limit = int(now.setting("wal_sender_timeout"))
    if limit == 0:
        return warning(
            "wal_sender_timeout",
            "off: a connection that died keeps the slot busy",
            "Set wal_sender_timeout = 60s, the default",
        )
    if limit < 10_000:
        return warning(
            "wal_sender_timeout",
            f"{limit} ms: a short stall ends the connection",
            "Set wal_sender_timeout = 60s, the default",
        )
    return ok("wal_sender_timeout", f"{limit // 1000} s")


def encoding(now: Situation) -> Check:
    name = now.setting("server_encoding")
    if name == "SQL_ASCII":
        return warning(
            "encoding",
            "SQL_ASCII: the server does not check its text, and what is not UTF-8 cannot be read",
            "Move the data to a database with an encoding",
        )
    return ok("encoding", name)


def schema_changes(now: Situation) -> Check:
    mode = now.source.ddl_capture
    if mode != "off" and ddl.is_installed(now.connection):
        return ok("ddl_capture", f"{mode}: by event triggers, which are installed")
    superuser = now.one("select rolsuper from pg_roles where rolname = current_user")
    if mode == "off" or (mode == "auto" and not superuser):
        return ok("ddl_capture", f"{mode}: schema changes are seen with the next change of the table")
    if not superuser:
        return failure(
            "ddl_capture",
            "on, but the role may not create event triggers",
            "Let a DBA install them, by what `penstock grant` prints; or set ddl_capture: auto",
        )
    return ok("ddl_capture", f"{mode}: by event triggers")


CHECKS: tuple[CheckFunction, ...] = (
    version,
    standby,
    wal_level,
    role,
    views,
    slots,
    senders,
    wal_kept,
    failover,
    sender_timeout,
    encoding,
    schema_changes,
)
