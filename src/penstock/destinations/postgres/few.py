"""A few changes, applied without a staging table: the rows stand in the statements.

A staging table costs some milliseconds and rows in the server's catalogs, each time. Where many tables change
a little in each batch that would be most of the work.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from penstock.destinations.postgres import tables
from penstock.destinations.postgres.merge import merge, was
from penstock.destinations.postgres.place import Place, comma
from penstock.postgres.connection import Connection
from penstock.spark.net import MOVED, Net

ROWS = 500
BYTES = 1 << 18


def are_few(place: Place, net: Net) -> bool:
    """Whether it is the way for them. What has to be filled in from the table is staged; so are names of
    objects (`regclass`), for which a cast from text is not what their input is."""
    count = net.rows.num_rows + net.deletes.num_rows
    if count > ROWS or net.rows.nbytes > BYTES or len(net.kept.flatten()):
        return False
    return not any(column.type.base.name.startswith("reg") for column in place.delivery.table.columns)


def apply(connection: Connection, place: Place, net: Net) -> None:
    types = tables.types_of(connection, place.name)
    gone = [net.deletes]
    if not place.append:
        gone.append(net.origin.filter(pc.equal(net.kind, pa.scalar(MOVED, pa.int8()))))
    keys = pa.concat_tables(gone)
    if keys.num_rows:
        connection.execute(
            sql.SQL("delete from {} t using {} s where {} and {}").format(
                place.identifier, _rows(keys, types, "o"), was(place), place.own("t")
            )
        )
    if net.rows.num_rows:
        connection.execute(merge(place, _rows(net.rows, types, "c")))


def _rows(rows: pa.Table, types: dict[str, sql.Composable], letter: str) -> sql.Composable:
    """The rows as a subquery, in the types of the target's columns, named by place.

    Without modifiers: a cast to varchar(5) cuts what is too long, where an assignment refuses it.
    """
    names = [sql.Identifier(f"{letter}{place}") for place in range(rows.num_columns)]
    given = [_array(column.to_pylist()) for column in rows.columns]
    cast = [
        sql.SQL("u.{0}::{1} as {0}").format(name, types.get(column, sql.SQL("text")))
        for name, column in zip(names, rows.column_names, strict=True)
    ]
    return sql.SQL("(select {} from unnest({}) u ({}))").format(comma(cast), comma(given), comma(names))


def _array(values: Sequence[str | None]) -> sql.Composable:
    return sql.SQL("{}::text[]").format(sql.Literal(list(values)))
