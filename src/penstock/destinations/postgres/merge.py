"""The statements that bring rows into a table by their key.

Rows to be written come as `s`, a staging table or a subquery, whose columns are named by place: `c0`, `c1`, …
the values, `o0`, … the key that the row had before.
"""

from __future__ import annotations

from psycopg import sql

from penstock.destinations.postgres.place import Place, both, comma


def value(place: int) -> sql.Identifier:
    return sql.Identifier(f"c{place}")


def origin(place: int) -> sql.Identifier:
    return sql.Identifier(f"o{place}")


def was(place: Place) -> sql.Composable:
    """That a row of the target is the one that was changed or deleted, by the key it had."""
    return both(
        sql.SQL("t.{} {} s.{}").format(sql.Identifier(name), place.equals(name), origin(number))
        for number, name in enumerate(place.key)
    )


def has_key(place: Place) -> sql.Composable:
    """That a row of the target has the key of the one to be written."""
    return both(
        sql.SQL("t.{} {} s.{}").format(
            sql.Identifier(name), place.equals(name), value(place.columns.index(name))
        )
        for name in place.key
    )


def merge(place: Place, rows: sql.Composable) -> sql.Composed:
    columns, values = inserted(place)
    changed = [
        sql.SQL("{} = s.{}").format(sql.Identifier(name), value(number))
        for number, name in enumerate(place.columns)
        if name in place.written and name not in place.key
    ]
    update = sql.SQL("update set {}").format(comma(changed)) if changed else sql.SQL("do nothing")
    return sql.SQL(
        """
        merge into {target} t using {rows} s on {has_key} and {own}
        when matched then {update}
        when not matched then insert ({columns}) overriding system value values ({values})
        """
    ).format(
        target=place.identifier,
        rows=rows,
        has_key=has_key(place),
        own=place.own("t"),
        update=update,
        columns=comma(columns),
        values=comma(values),
    )


def inserted(place: Place) -> tuple[list[sql.Composable], list[sql.Composable]]:
    """The columns of an inserted row, and where their values come from."""
    columns, values = place.insert()
    columns += [sql.Identifier(name) for name in place.written]
    values += [sql.SQL("s.{}").format(value(place.columns.index(name))) for name in place.written]
    return columns, values
