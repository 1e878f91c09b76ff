"""The net change of a batch, applied to a table whose rows have a key: `clone` and `append`.

A few statements for any number of rows. In this order they are right also when rows swap keys:

    1. what PostgreSQL did not send is taken from the row as it was;
    2. rows that are gone, and rows that moved to another key, are deleted;
    3. the rest is merged.

What can be told apart goes a shorter way: only new rows are copied straight into the table, and where no row
moves and nothing is to be filled in, so are the new ones among others (`parted`), which takes a fifth less of
the server's time than to merge all. A few changes go without a staging table (`few_rows.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from penstock.changes.net import INSERTED, MOVED, UPDATED, Net
from penstock.destinations.postgres.session import is_to_be_found, kind_of_refusal
from penstock.destinations.postgres.table.references import refuse_if_children
from penstock.destinations.postgres.table.target_table import TargetTable, both, comma
from penstock.destinations.postgres.write import few_rows, referenced
from penstock.destinations.postgres.write.merge import has_key, inserted, merge, origin, value, was
from penstock.destinations.postgres.write.referenced import LateDeletes
from penstock.destinations.postgres.write.refused_row import described, first_refused, refused
from penstock.destinations.postgres.write.staging import Stage, Values, copy_in
from penstock.model.errors import RowRefused, RowsReferenced
from penstock.postgres.connection import Connection, without_values

Way = Callable[[Connection, TargetTable, Net], None]

DELETED = ord("D")

KIND, KEPT, FOUND = sql.Identifier("kind"), sql.Identifier("kept"), sql.Identifier("found")

_GIVES_WAY = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.ExclusionViolation,
    psycopg.errors.ForeignKeyViolation,
    RowsReferenced,
)

EXTRA = (
    sql.SQL("""''::"char" as kind"""),
    sql.SQL("null::int[] as kept"),
    sql.SQL("null::boolean as found"),
)


def apply(connection: Connection, target: TargetTable, net: Net, late: LateDeletes) -> int:
    """Write the net change; return how many rows were written or deleted. A refused row's error has its key.

    A way that meets a key which is there already, unexpectedly or since values of another unique column were
    swapped, what an exclusion constraint keeps apart, or what a foreign key holds, gives way to the next.
    `late`: takes what is to be deleted when other tables have been written.
    """
    failed: psycopg.Error | RowsReferenced | None = None
    for way in _ways(target, net, late):
        try:
            with connection.transaction():
                way(connection, target, net)
            return int(net.rows.num_rows + net.deletes.num_rows)
        except _GIVES_WAY as error:
            failed = error
            if target.hasty and isinstance(error, psycopg.errors.ForeignKeyViolation):
                break
        except psycopg.Error as error:
            failed = error
            break
    assert failed is not None
    late.clear()
    if isinstance(failed, RowsReferenced):
        raise failed
    if not is_to_be_found(failed, target):
        raise failed
    raise _refused(connection, target, net, failed) from None


def _ways(target: TargetTable, net: Net, late: LateDeletes) -> list[Way]:
    """Return the ways to try."""
    ways = _ways_of(target, net)
    if net.truncated:
        ways = [partial(_emptied, way=way) for way in ways]
    if target.referenced and not target.append:
        way = few_rows.apply if few_rows.are_few(target, net) else merged
        first = [partial(each, way=way) for each in referenced.ways(target, net, late)]
        return [*first, *(ways if net.truncated else [replaced] * (not target.cascades))]
    return ways


def _emptied(connection: Connection, target: TargetTable, net: Net, way: Way) -> None:
    empty(connection, target)
    way(connection, target, net)


def _ways_of(target: TargetTable, net: Net) -> list[Way]:
    last: list[Way] = [] if target.cascades else [replaced]
    if last and target.fixed.difference(target.key):
        return last
    if few_rows.are_few(target, net):
        return [few_rows.apply, *last]
    if target.append or len(net.kept.flatten()) or (np.asarray(net.kind) == MOVED).any():
        return [merged, *last]
    return [copied if _only_new(net) else parted, merged, *last]


def _refused(connection: Connection, target: TargetTable, net: Net, error: psycopg.Error) -> RowRefused:
    if target.referenced:
        net = replace(net, deletes=net.deletes.slice(0, 0))

    def attempt(first: int, end: int) -> None:
        (merged if target.referenced else replaced)(connection, target, _part(net, first, end))

    count = net.deletes.num_rows + net.rows.num_rows
    if not count:
        return kind_of_refusal(error)(without_values(error), table=target.delivery.table.name)
    number, cause = first_refused(connection, count, attempt)
    alone = _part(net, number, number + 1)
    keys = alone.deletes if alone.deletes.num_rows else alone.rows.select(list(target.key))
    values = [column[0].as_py() for column in keys.columns]
    same = cause is not None and cause.sqlstate == error.sqlstate
    return refused(target, cause if cause is not None and same else error, keys.column_names, values)


def _part(net: Net, first: int, end: int) -> Net:
    """Return a part of it: deletes are counted first, then rows."""
    deletes = net.deletes.num_rows
    at, length = max(0, first - deletes), max(0, end - deletes) - max(0, first - deletes)
    return replace(
        net,
        deletes=net.deletes.slice(first, max(0, min(end, deletes) - first)),
        rows=net.rows.slice(at, length),
        kind=net.kind.slice(at, length),
        origin=net.origin.slice(at, length),
        kept=net.kept.slice(at, length),
    )


def _only_new(net: Net) -> bool:
    return net.deletes.num_rows == 0 and bool((np.asarray(net.kind) == INSERTED).all())


def copied(connection: Connection, target: TargetTable, net: Net) -> None:
    copy_rows(connection, target, net.rows.columns)


def copy_rows(connection: Connection, target: TargetTable, values: Sequence[Values]) -> None:
    """Copy new rows straight into the table."""
    columns, added = [sql.Identifier(name) for name in target.written], target.insert()
    values = [values[target.columns.index(name)] for name in target.written]
    constants = [pa.repeat(target.delivery.source, len(values[0])) for _ in added[0]]
    copy_in(connection, target.identifier, [*added[0], *columns], [*constants, *values])


def empty(connection: Connection, target: TargetTable) -> None:
    """Remove all rows of this source: by DELETE where others reference the table, or share it."""
    if target.cascades:
        refuse_if_children(connection, target)
    if target.source_column is None:
        try:
            with connection.transaction():
                connection.execute(sql.SQL("truncate {}").format(target.identifier))
            return
        except (psycopg.errors.FeatureNotSupported, psycopg.errors.InsufficientPrivilege):
            pass
    connection.execute(sql.SQL("delete from {} t where {}").format(target.identifier, target.own("t")))


def parted(connection: Connection, target: TargetTable, net: Net) -> None:
    """Write what is gone, what changed and what is new, one by one. In the stage a row that is gone has only
    the key it had, one that changed only values: neither is found by the other's statement."""
    kind = np.asarray(net.kind)
    changed = net.rows.filter(pa.array(kind == UPDATED))
    with Stage(connection, target) as stage:
        if net.deletes.num_rows:
            stage.add((origin(number), column) for number, column in enumerate(net.deletes.columns))
            connection.execute(
                sql.SQL("delete from {} t using {} s where {} and {}").format(
                    target.identifier, stage.identifier, was(target), target.own("t")
                )
            )
        if changed.num_rows:
            stage.add((value(number), column) for number, column in enumerate(changed.columns))
            _update(stage, changed.num_rows)
    new = net.rows.filter(pa.array(kind == INSERTED))
    if new.num_rows:
        copy_rows(connection, target, new.columns)


def _update(stage: Stage, count: int) -> None:
    """Update all rows that have values in the stage. Any that the table lacks, unexpectedly, are added."""
    target = stage.target
    changed = [
        sql.SQL("{} = s.{}").format(sql.Identifier(name), value(number))
        for number, name in enumerate(target.columns)
        if name in target.written and name not in target.key
    ]
    if changed:
        statement = sql.SQL("update {} t set {} from {} s where {} and {}").format(
            target.identifier, comma(changed), stage.identifier, has_key(target), target.own("t")
        )
        if stage.connection.execute(statement).rowcount >= count:
            return
    has_values = sql.SQL("{} is not null").format(value(target.columns.index(target.key[0])))
    rows = sql.SQL("(select * from {} where {})").format(stage.identifier, has_values)
    stage.connection.execute(merge(target, rows))


def merged(connection: Connection, target: TargetTable, net: Net) -> None:
    with Stage(connection, target, EXTRA) as stage:
        _delete_staged(stage, net)
        if net.rows.num_rows:
            rows = sql.SQL("(select * from {} where kind <> 'D')").format(stage.identifier)
            connection.execute(merge(target, rows))


def replaced(connection: Connection, target: TargetTable, net: Net) -> None:
    """Delete all that is touched, then insert it."""
    with Stage(connection, target, EXTRA) as stage:
        _delete_staged(stage, net)
        columns, values = inserted(target)
        connection.execute(
            sql.SQL("delete from {} t using {} s where s.kind <> 'D' and {} and {}").format(
                target.identifier, stage.identifier, has_key(target), target.own("t")
            )
        )
        connection.execute(
            sql.SQL(
                "insert into {} ({}) overriding system value select {} from {} s where kind <> 'D'"
            ).format(target.identifier, comma(columns), comma(values), stage.identifier)
        )


def _delete_staged(stage: Stage, net: Net) -> None:
    """Stage it all, fill in what was not sent, and delete what is gone or moved."""
    target = stage.target
    kept = bool(len(net.kept.flatten()))
    moved = bool((np.asarray(net.kind) == MOVED).any()) and not target.append
    if net.deletes.num_rows:
        keys = [(origin(number), column) for number, column in enumerate(net.deletes.columns)]
        stage.add([*keys, (KIND, pa.repeat(chr(DELETED), net.deletes.num_rows))])
    if net.rows.num_rows:
        stage.add(_staged(net, origins=kept or moved, kept=kept))
    if kept:
        keep(stage, sql.SQL("true"))
    if net.deletes.num_rows or moved:
        stage.connection.execute(
            sql.SQL("delete from {} t using {} s where s.kind in ('D', 'M') and {} and {}").format(
                target.identifier, stage.identifier, was(target), target.own("t")
            )
        )


def _staged(net: Net, *, origins: bool, kept: bool) -> list[tuple[sql.Composable, Values]]:
    columns: list[tuple[sql.Composable, Values]] = [
        (value(number), column) for number, column in enumerate(net.rows.columns)
    ]
    letters = pa.array([chr(code) for code in range(128)])
    columns.append((KIND, letters.take(net.kind)))
    if origins:
        columns += [(origin(number), column) for number, column in enumerate(net.origin.columns)]
    if kept:
        columns.append((KEPT, as_arrays(net.kept)))
    return columns


def as_arrays(places: pa.ListArray) -> pa.StringArray:
    """Return lists of places as PostgreSQL's arrays; NULL for an empty one."""
    texts = pc.binary_join(places.cast(pa.list_(pa.string())), ",")
    some = pc.greater(pc.fill_null(pc.list_value_length(places), 0), 0)
    arrays = pc.binary_join_element_wise("{", pc.fill_null(texts, ""), "}", "")
    return pc.if_else(some, arrays, pa.scalar(None, pa.string()))


def keep(stage: Stage, condition: sql.Composable) -> None:
    """Fill in what PostgreSQL did not send from the rows as they are at the destination."""
    target = stage.target
    values = [
        sql.SQL("{0} = case when {1} = any (s.kept) then t.{2} else s.{0} end").format(
            value(number), sql.Literal(number), sql.Identifier(name)
        )
        for number, name in enumerate(target.columns)
    ]
    stage.connection.execute(
        sql.SQL("update {} s set found = true, {} from {} t where s.kept is not null and {}").format(
            stage.identifier,
            comma(values),
            target.identifier,
            both([was(target), target.own("t"), condition]),
        )
    )
    keys = [
        sql.SQL("s.{}::text").format(value(number))
        for number, name in enumerate(target.columns)
        if name in target.key
    ]
    lacking = stage.connection.execute(
        sql.SQL("select s.kept[1], {} from {} s where s.kept is not null and s.found is null limit 1").format(
            comma(keys), stage.identifier
        )
    ).fetchone()
    if lacking is not None:
        raise unknown_value(target, target.columns[lacking[0]], lacking[1:])


def unknown_value(target: TargetTable, column: str, key: Sequence[str | None]) -> RowRefused:
    in_order = [name for name in target.columns if name in target.key]
    return RowRefused(
        f"the value of column `{column}` was not sent, since it did not change, and the destination does not "
        "have the row",
        table=target.delivery.table.name,
        key=described(in_order, key),
        remedy="Copy the table anew; `alter table … replica identity full` at the source makes it send all",
    )
