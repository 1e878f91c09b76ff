"""Whether the chosen tables can be copied and followed."""

from __future__ import annotations

from dataclasses import replace

from penstock.postgres import obstacle
from penstock.postgres.catalog import TableKind
from penstock.postgres.identity import lack
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
from penstock.postgres.selection import select


def matched(now: Situation) -> Check:
    if not now.captured:
        return failure(
            "tables",
            f"no table matches {now.source.tables}",
            "Correct tables.include; a pattern is schema.table, and case matters",
        )
    total = size(sum(table.bytes for table in now.captured))
    names = some(table.name for table in now.captured)
    return ok("tables", f"{len(now.captured)} to capture, {total}: {names}")


def not_logged(now: Situation) -> Check | None:
    """A pattern that matches them is no mistake, but nobody should wait for their rows."""
    unlogged = [table.name for table in now.matched if table.unlogged]
    foreign = [table.name for table in now.matched if table.kind is TableKind.FOREIGN]
    if not unlogged and not foreign:
        return None
    parts = [
        f"{kind}: {some(names)}" for kind, names in (("unlogged", unlogged), ("foreign", foreign)) if names
    ]
    return warning(
        "not captured",
        f"{'; '.join(parts)} (no changes in the WAL)",
        "Exclude them, or run: alter table … set logged",
    )


def identity(now: Situation) -> Check | None:
    """Without a replica identity PostgreSQL itself refuses updates and deletes of a published table."""
    lacking = [table for table in now.captured if not table.identified]
    if not lacking:
        return ok("replica identity", "every table has a key") if now.captured else None
    reasons: dict[tuple[str, str], list[str]] = {}
    for table in lacking:
        reason = lack(table.identity, deferrable=table.deferrable)
        reasons.setdefault(reason, []).append(str(table.name))
    detail = "; ".join(f"{some(names)}: {why}" for (why, _), names in reasons.items())
    remedy = ". ".join(remedy for _, remedy in reasons) + "; or exclude them"
    if now.source.tables.require_primary_key:
        return failure("replica identity", f"left out: {detail}", remedy)
    changed = [str(table.name) for table in lacking if table.id in _changed(now)]
    if changed:
        return failure(
            "replica identity",
            f"{detail}; {some(changed)} had updates or deletes, which the server will refuse once published",
            remedy,
        )
    return warning("replica identity", f"{detail}; once published, only inserts are possible", remedy)


def obstacles(now: Situation) -> Check | None:
    """What else keeps tables from being followed: they are left out."""
    if not now.makes_publication and now.publication is not None and now.publication.unpublished:
        return None  # all of them, and the publication's check has told it
    selection = select(now.connection, now.source)
    ours = now.makes_publication  # it will publish what is to be published
    seen = replace(selection.seen, publication=None) if ours else selection.seen
    remedies: dict[str, None] = {}
    details: list[str] = []
    for table in seen.captured(now.source.tables):
        if found := obstacle.obstacle(seen, table, selection.shapes, needs_identity=False):
            details.append(f"{table.name}: {found[0]}")
            remedies[found[1]] = None
    if not details:
        return None
    return warning("left out", "; ".join(details), ". ".join(remedies) + "; or exclude them")


def _changed(now: Situation) -> set[int]:
    """Tables that had updates or deletes, in themselves or in a partition."""
    rows = now.connection.execute(
        """
        select s.relid, pg_partition_root(s.relid) from pg_stat_user_tables s
        where s.n_tup_upd + s.n_tup_del > 0
        """
    )
    return {oid for row in rows for oid in row if oid}


def row_security(now: Situation) -> Check | None:
    """The stream has every row, the copy only what the policies show: together they would be wrong."""
    hidden = [table.name for table in now.captured if table.row_security_applies]
    if hidden:
        return failure(
            "row level security",
            f"hides rows from this role: {some(hidden)}",
            "Give the role BYPASSRLS, or capture with a role that the policies do not concern",
        )
    if any(table.row_security for table in now.captured):
        return ok("row level security", "does not concern this role")
    return None


def privileges(now: Situation) -> Check | None:
    """Of a partitioned table the partitions are read, each by itself."""
    if not now.captured:
        return None
    rows = now.connection.execute(
        """
        select format('%%I.%%I', n.nspname, c.relname)
        from pg_class c
        join pg_namespace n on n.oid = c.relnamespace
        where (c.oid = any(%(tables)s) or c.relkind = 'r' and c.oid in (
                   select t.relid from unnest(%(tables)s) r, pg_partition_tree(r) t where t.isleaf))
          and not (has_table_privilege(c.oid, 'select') and has_schema_privilege(n.oid, 'usage'))
        """,
        {"tables": [table.id for table in now.captured]},
    )
    denied = [row[0] for row in rows]
    if denied:
        return failure(
            "privileges",
            f"the role may not read {some(denied)}",
            "Run: grant usage on schema … and grant select on … to the role; `penstock grant` prints it",
        )
    return ok("privileges", "the role may read every table")


def generated_columns(now: Situation) -> Check | None:
    """What pgoutput leaves out: a destination has to compute it, or does without."""
    publishes = now.version >= 180000 and (
        now.makes_publication or bool(now.publication and now.publication.generated_columns)
    )
    missing = [
        f"{table.name}.{column.name}"
        for table in now.captured
        for column in table.columns
        if column.generated and not (publishes and column.stored)
    ]
    if not missing:
        return None
    why = "PostgreSQL publishes only stored ones" if publishes else "they are not published"
    if now.version < 180000:
        why = "PostgreSQL publishes them from 18 on"
    return warning(
        "generated columns",
        f"{some(missing)}: {why}",
        "They do not arrive, in copies neither; a table of your own at a destination can compute them itself",
    )


def partitions(now: Situation) -> Check | None:
    roots = [table.name for table in now.captured if table.kind is TableKind.PARTITIONED]
    if not roots:
        return None
    if now.publication and not now.publication.via_partition_root:
        return warning(
            "partitions",
            f"changes of {some(roots)} arrive under the names of the partitions",
            "Run: alter publication … set (publish_via_partition_root = true)",
        )
    return ok("partitions", f"changes arrive under the name of the whole table: {some(roots)}")


CHECKS: tuple[CheckFunction, ...] = (
    matched,
    not_logged,
    identity,
    obstacles,
    row_security,
    privileges,
    generated_columns,
    partitions,
)
