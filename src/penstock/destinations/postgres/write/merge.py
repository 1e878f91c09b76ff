"""The statements that bring rows into a table by their key.

Rows to be written come as `s`, a staging table or a subquery, whose columns are named by place: `c0`, `c1`, …
the values, `o0`, … the key that the row had before.
"""

from __future__ import annotations

from psycopg import sql

from penstock.destinations.postgres.table.target_table import TargetTable, both, comma


def value(number: int) -> sql.Identifier:
    return sql.Identifier(f"c{number}")


def origin(number: int) -> sql.Identifier:
    return sql.Identifier(f"o{number}")


def was(target: TargetTable) -> sql.Composable:
    """Return the condition that a row of the target is the changed or deleted one, by the key it had."""
    return both(
        sql.SQL("t.{} {} s.{}").format(sql.Identifier(name), target.equals(name), origin(number))
        for number, name in enumerate(target.key)
    )


def has_key(target: TargetTable) -> sql.Composable:
    """Return the condition that a row of the target has the key of the one to be written."""
    return both(
        sql.SQL("t.{} {} s.{}").format(
            sql.Identifier(name), target.equals(name), value(target.columns.index(name))
        )
        for name in target.key
    )


def merge(target: TargetTable, rows: sql.Composable) -> sql.Composed:
    columns, values = inserted(target)
    changed = [
        sql.SQL("{} = s.{}").format(sql.Identifier(name), value(number))
        for number, name in enumerate(target.columns)
        if name in target.written and name not in target.key
    ]
    update = sql.SQL("update set {}").format(comma(changed)) if changed else sql.SQL("do nothing")
    return sql.SQL(
        """
        merge into {target} t using {rows} s on {has_key} and {own}
        when matched then {update}
        when not matched then insert ({columns}) overriding system value values ({values})
        """
    ).format(
        target=target.identifier,
        rows=rows,
        has_key=has_key(target),
        own=target.own("t"),
        update=update,
        columns=comma(columns),
        values=comma(values),
    )


def inserted(target: TargetTable) -> tuple[list[sql.Composable], list[sql.Composable]]:
    """Return the columns of an inserted row, and where their values come from."""
    columns, values = target.insert()
    columns += [sql.Identifier(name) for name in target.written]
    values += [sql.SQL("s.{}").format(value(target.columns.index(name))) for name in target.written]
    return columns, values
