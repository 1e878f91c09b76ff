"""The net change of a batch, applied to a table that others reference by foreign keys which are at work.

No row that the source still has may go with one that is deleted for a moment, or too early. So rows get
their new keys in place, which a foreign key can follow. What is gone is deleted when no row of another table
that we deliver references it any more, and after the rest is written where rows of the table itself still do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from penstock.changes.net import INSERTED, MOVED, UPDATED, Net
from penstock.changes.row_lines import Mask
from penstock.destinations.postgres.table.references import refuse_if_it_references, refuse_if_referenced
from penstock.destinations.postgres.table.target_table import TargetTable, both, comma
from penstock.destinations.postgres.write.merge import origin, value, was
from penstock.destinations.postgres.write.staging import Stage
from penstock.postgres.connection import Connection

Way = Callable[[Connection, TargetTable, Net], None]


def ways(target: TargetTable) -> list[Callable[..., None]]:
    """Return the ways to try."""
    if target.fixed.intersection(target.key):
        return [moved_anew]
    return [deleted_first, deleted_last, moved_anew]


def deleted_first(connection: Connection, target: TargetTable, net: Net, way: Way) -> None:
    """Keys that pass from one row that stays to another are refused as not unique."""
    _refuse(connection, target, net.deletes, by_ours=True)
    _delete(connection, target, net.deletes)
    way(connection, target, _moved(connection, target, _without_deletes(net)))


def deleted_last(connection: Connection, target: TargetTable, net: Net, way: Way) -> None:
    """The same for a table that references itself."""
    way(connection, target, _moved(connection, target, _without_deletes(net)))
    _refuse(connection, target, net.deletes, by_ours=True)
    _delete(connection, target, net.deletes)


def moved_anew(connection: Connection, target: TargetTable, net: Net, way: Way) -> None:
    """As for any table, if nothing goes with the rows that move either."""
    _refuse(connection, target, net.deletes, by_ours=True)
    _refuse(connection, target, net.origin.filter(pa.array(_is_moved(net))), by_ours=False)
    way(connection, target, net)


def _without_deletes(net: Net) -> Net:
    return replace(net, deletes=net.deletes.slice(0, 0))


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


def _refuse(connection: Connection, target: TargetTable, keys: pa.Table, *, by_ours: bool) -> None:
    """Refuse to delete rows if others that stay would go with them."""
    if not target.cascades or not keys.num_rows:
        return
    with _staged(connection, target, keys) as gone:
        refuse_if_referenced(connection, target, gone, by_ours=by_ours)
        refuse_if_it_references(connection, target, gone)


def _delete(connection: Connection, target: TargetTable, keys: pa.Table) -> None:
    if keys.num_rows:
        with _staged(connection, target, keys) as gone:
            connection.execute(sql.SQL("delete from {} t where {}").format(target.identifier, gone))


@contextmanager
def _staged(connection: Connection, target: TargetTable, keys: pa.Table) -> Iterator[sql.Composable]:
    """Yield the condition that a row `t` has one of the keys."""
    with Stage(connection, target) as stage:
        stage.add((origin(number), column) for number, column in enumerate(keys.columns))
        rows = sql.SQL("exists (select from {} s where {})").format(stage.identifier, was(target))
        yield both([target.own("t"), rows])
