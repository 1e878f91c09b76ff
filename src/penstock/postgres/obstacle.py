"""Why a table cannot be followed, and what to do about it.

There are two kinds of reasons. Of some tables what is published does not tell everything that happens to them
(`gap`): such a table is left out, whoever made the publication. Of others PostgreSQL refuses the updates and
deletes as soon as they are published (`obstacle` has these, too): Penstock does not publish them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.config import TablesConfig
from penstock.model import ReplicaIdentity, TableId
from penstock.postgres.catalog import TableKind
from penstock.postgres.identity import lack
from penstock.postgres.outline import Outline, Outlines, TableShape
from penstock.postgres.publication import SET_ALL

Obstacle = tuple[str, str]
"""What it is, and the remedy."""

SET_STORED = "Run `alter publication … set (publish_generated_columns = stored)`"


def unfit(
    seen: Outlines, table: Outline, shapes: Mapping[TableId, TableShape], selection: TablesConfig
) -> str | None:
    """Return why a table cannot be followed, if so, and the remedy. Whoever may create tables may create
    such a one: it is no reason to refuse the others. `shapes` has the table's own and those of its leaves."""
    found = obstacle(seen, table, shapes, needs_identity=selection.require_primary_key)
    return None if found is None else f"{found[0]}. {found[1]}; or exclude it"


def obstacle(
    seen: Outlines,
    table: Outline,
    shapes: Mapping[TableId, TableShape],
    *,
    needs_identity: bool = True,
) -> Obstacle | None:
    if table.id not in shapes or not shapes[table.id].columns:
        return "it has no columns", "Add one"
    if found := gap(seen, table, shapes):
        return found
    for leaf in seen.leaves(table):
        if found := _refused(seen, leaf, shapes.get(leaf.id), needs_identity):
            remedy = found[1] if leaf is table else f"{found[1]}, {_for_all(table)}"
            return _of(leaf, table) + found[0], remedy
    return None


def gap(seen: Outlines, table: Outline, shapes: Mapping[TableId, TableShape]) -> Obstacle | None:
    """Return why what is published of a table does not tell everything that happens to it, if so."""
    if seen.publication is not None and seen.publication.unpublished:
        return f"the publication does not publish {', '.join(seen.publication.unpublished)}", SET_ALL
    leaves = seen.leaves(table)
    for leaf in leaves:
        if leaf.unlogged:
            return f"{_of(leaf, table)}it is unlogged", "Run `alter table … set logged`"
        if leaf.kind is TableKind.FOREIGN:
            return (
                f"{_of(leaf, table)}it is a foreign table, whose changes are not in this server's WAL",
                "Run `alter table … detach partition …`",
            )
    for part in leaves if leaves == [table] else [table, *leaves]:
        if part.id in shapes and (remedy := _lacks_key(seen, part, table, shapes[part.id])):
            return f"{_of(part, table)}a part of its key is not published", remedy
    as_one = seen.publication is None or seen.publication.via_partition_root
    return _half_told(table, leaves, shapes) if as_one and leaves != [table] else None


def _half_told(
    table: Outline, leaves: Sequence[Outline], shapes: Mapping[TableId, TableShape]
) -> Obstacle | None:
    """Return why partitions do not tell what the table's replica identity says: the server takes an old row
    by the partition's identity, and sends it as one by the table's. A table that has none is followed, up to
    its first update or delete (`changes/old_rows.py`)."""
    whole = table.identity is ReplicaIdentity.FULL
    key = shapes[table.id].key_names if table.id in shapes else frozenset()
    if not whole and not key:
        return None
    for leaf in leaves:
        shape = shapes.get(leaf.id)
        if leaf.identity is ReplicaIdentity.FULL:
            continue  # it tells all of any key
        if shape is None or not shape.identified:
            continue  # its updates and deletes are refused
        if whole or not key <= shape.key_names:
            return (
                f"{_of(leaf, table)}its updates and deletes do not tell {table.name}'s replica identity",
                "Run `alter table … replica identity full`, or `… default` where there is a primary key, "
                f"{_for_all(table)}",
            )
    return None


def _for_all(table: Outline) -> str:
    return f"for {table.name} and for each of its partitions: it does not pass to them"


def _lacks_key(seen: Outlines, part: Outline, table: Outline, shape: TableShape) -> str | None:
    """Return the remedy if the stream has only a part of the key: rows would be taken for others."""
    if table.listed_columns is not None:
        if part is not table or shape.key <= table.listed_columns:
            return None
        return "Publish all columns of the key"
    if seen.sends_stored or not shape.key & shape.stored:
        return None
    if seen.version >= 180000:
        return SET_STORED
    return (
        "PostgreSQL publishes generated columns from 18 on. Run `alter table … replica identity full`, or "
        "`… using index …` with a unique index without them"
    )


def _refused(
    seen: Outlines, leaf: Outline, shape: TableShape | None, needs_identity: bool
) -> Obstacle | None:
    """Return why PostgreSQL would refuse the table's updates and deletes."""
    if leaf.identity is not ReplicaIdentity.FULL:
        if not needs_identity or (shape is not None and shape.identified):
            return None
        return lack(leaf.identity, deferrable=shape is not None and shape.deferrable)
    if shape is None:
        return None
    refuses = "once it is published, PostgreSQL refuses its updates and deletes"
    if shape.virtual:
        return (
            f"its replica identity is full, and it has a virtual generated column: {refuses}",
            "Give it a key and run `alter table … replica identity default`, or make the column stored",
        )
    if shape.stored and seen.version >= 180000 and not seen.sends_stored:
        return (
            f"its replica identity is full, and it has a generated column that is not published: {refuses}",
            SET_STORED,
        )
    return None


def _of(part: Outline, table: Outline) -> str:
    return "" if part is table else f"of its partition {part.name}: "
