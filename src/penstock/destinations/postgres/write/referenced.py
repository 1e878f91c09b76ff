"""The net change of a batch, applied to a table that others reference by foreign keys which are at work.

No row that the source still has may go with one that is deleted for a moment, or too early; and rows of
other tables may need those that are new. So a key is changed in place, which a foreign key can follow, and
rows that are gone are deleted last of all, when the batch's other tables have been written (`LateDeletes`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from penstock.changes.net import INSERTED, MOVED, UPDATED, Net
from penstock.changes.row_lines import Mask
from penstock.destinations.postgres.table.references import refuse_if_it_references, refuse_if_referenced
from penstock.destinations.postgres.table.target_table import TargetTable, both, comma
from penstock.destinations.postgres.table.trust import guard, unchanged
from penstock.destinations.postgres.write.merge import origin, value, was
from penstock.destinations.postgres.write.staging import Stage
from penstock.model.errors import RowsReferenced
from penstock.postgres.connection import Connection, without_values

Way = Callable[[Connection, TargetTable, Net], None]

EXACT = {"int2", "int4", "int8", "oid", "uuid", "text", "varchar", "bool", "date"}
"""Types of keys that are equal only where their texts are: no row is written under a key that is gone."""


@dataclass
class LateDeletes:
    """Rows of a table that are gone and still to be deleted."""

    connection: Connection
    target: TargetTable | None = None
    keys: pa.Table | None = None
    but: bool = False
    """Whether all rows are gone but those that have the keys."""

    def put(self, target: TargetTable, keys: pa.Table, *, but: bool = False) -> None:
        if but or keys.num_rows:
            self.target, self.keys, self.but = target, keys, but

    def clear(self) -> None:
        self.keys = None

    def flush(self) -> None:
        """Delete them now: what is written next may be of the same rows."""
        self.carry_out()
        self.clear()

    def carry_out(self) -> None:
        """Delete them, unless rows that stay would go with them."""
        target, keys = self.target, self.keys
        if target is None or keys is None:
            return
        try:
            with self.connection.transaction(), Stage(self.connection, target) as stage:
                guarded = guard(self.connection, target)
                stage.add((origin(number), column) for number, column in enumerate(keys.columns))
                gone = self._gone(stage)
                if target.cascades:
                    refuse_if_referenced(self.connection, target, gone, by_ours=not self.but)
                    refuse_if_it_references(self.connection, target, gone)
                self.connection.execute(sql.SQL("delete from {} t where {}").format(target.identifier, gone))
                unchanged(self.connection, guarded, target)
        except psycopg.errors.ForeignKeyViolation as error:
            raise RowsReferenced(without_values(error), target=target.name) from None

    def _gone(self, stage: Stage) -> sql.Composable:
        rows = sql.SQL("{} exists (select from {} s where {})").format(
            sql.SQL("not" if self.but else ""), stage.identifier, was(stage.target)
        )
        return both([stage.target.own("t"), rows])


def ways(target: TargetTable, net: Net, late: LateDeletes) -> list[Callable[..., None]]:
    """Return the ways to try, before the table is emptied if it was."""

    def deleted_last(connection: Connection, target: TargetTable, net: Net, way: Way) -> None:
        if net.truncated:
            late.put(target, net.rows.select(list(target.key)), but=True)
        else:
            late.put(target, net.deletes)
        way(connection, target, _moved(connection, target, _without_deletes(net)))

    is_exact = all(
        column.type.name in EXACT for column in target.delivery.table.columns if column.name in target.key
    )
    in_place = not target.fixed.intersection(target.key)
    first = [deleted_last] * (in_place and is_exact)
    return first if net.truncated else [*first, *[deleted_first] * in_place, moved_anew]


def deleted_first(connection: Connection, target: TargetTable, net: Net, way: Way) -> None:
    """Where a new row needs the room of one that is gone."""
    _delete(connection, target, net.deletes)
    way(connection, target, _moved(connection, target, _without_deletes(net)))


def moved_anew(connection: Connection, target: TargetTable, net: Net, way: Way) -> None:
    """As to any table, if nothing goes with the rows that move: they exchange their keys."""
    _delete(connection, target, net.deletes)
    moved = net.origin.filter(pa.array(_is_moved(net)))
    if moved.num_rows and target.cascades:
        with Stage(connection, target) as stage:
            stage.add((origin(number), column) for number, column in enumerate(moved.columns))
            rows = sql.SQL("exists (select from {} s where {})").format(stage.identifier, was(target))
            refuse_if_referenced(connection, target, both([target.own("t"), rows]), by_ours=False)
            refuse_if_it_references(connection, target, both([target.own("t"), rows]))
    way(connection, target, _without_deletes(net))


def _delete(connection: Connection, target: TargetTable, keys: pa.Table) -> None:
    at_once = LateDeletes(connection)
    at_once.put(target, keys)
    at_once.carry_out()


def _without_deletes(net: Net) -> Net:
    return replace(net, truncated=False, deletes=net.deletes.slice(0, 0))


def _is_moved(net: Net) -> Mask:
    moved: Mask = np.asarray(net.kind) == MOVED
    return moved


def _moved(connection: Connection, target: TargetTable, net: Net) -> Net:
    """Give the rows that moved their new keys; return what is left to do with them."""
    if not _is_moved(net).any():
        return net
    moved = pa.array(_is_moved(net))
    places = [target.columns.index(name) for name in target.key]
    with Stage(connection, target) as stage:
        before, now = net.origin.filter(moved), net.rows.filter(moved)
        stage.add(
            [(origin(number), column) for number, column in enumerate(before.columns)]
            + [(value(place), now.column(place)) for place in places]
        )
        keys = comma(
            sql.SQL("{} = s.{}").format(sql.Identifier(name), value(place))
            for name, place in zip(target.key, places, strict=True)
        )
        connection.execute(
            sql.SQL("update {} t set {} from {} s where {} and {}").format(
                target.identifier, keys, stage.identifier, was(target), target.own("t")
            )
        )
    kind = pc.if_else(moved, pa.scalar(UPDATED, pa.int8()), net.kind)
    new = pc.equal(kind, pa.scalar(INSERTED, pa.int8()))
    own = [pc.if_else(new, pa.scalar(None, pa.string()), net.rows.column(place)) for place in places]
    return replace(net, kind=kind, origin=pa.table(own, list(target.key)))
