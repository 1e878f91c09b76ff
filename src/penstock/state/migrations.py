"""A state store of an earlier version is brought up to date by who opens it for work.

A change to a table that is there takes a step here, and tables that are missing are made; both need a larger
`FORMAT`. Whoever only looks at an older store changes nothing and is told.

Several pipelines may share a store: as long as one of them is at work, in the earlier version, nothing is
changed under its feet.
"""

from __future__ import annotations

from contextlib import ExitStack

from sqlalchemy import Connection, select, union, update

from penstock import __version__
from penstock.model.errors import StateInUse, WrongState
from penstock.model.formats import Steps, carry_out, refusal
from penstock.state import tables
from penstock.state.database import Database
from penstock.state.lease import Lease, lock_of

STEPS: Steps = {
    1: ["alter table {schema}state_format add column written_by text"],
}


def bring_up_to_date(database: Database) -> None:
    """Migrate a store of an earlier version. Raises `StateInUse` where a pipeline is at work on it."""
    if not database.is_older:
        return
    with ExitStack() as held:
        for pipeline in _pipelines(database):
            lock = lock_of(database, pipeline)
            if not lock.take():
                who = Lease.holder(database, pipeline) or "a process that has not said its name yet"
                raise StateInUse(
                    "the state store is of an earlier version of Penstock, "
                    f"and pipeline {pipeline} is at work on it: {who}",
                    store=database.place,
                    remedy="Stop it, then start this version, which brings the store up to date",
                )
            held.callback(lock.release)
        with database.writing() as connection:
            _migrate(connection, database)


def _pipelines(database: Database) -> list[str]:
    with database.reading() as connection:
        pipelines = union(
            *(select(table.c.pipeline) for table in (tables.leases, tables.tables, tables.progress))
        )
        return sorted(connection.execute(pipelines).scalars())


def _migrate(connection: Connection, database: Database) -> None:
    schema = "" if database.file else f"{tables.SCHEMA}."
    if not database.file:  # two that begin at once: one waits for the other, and finds it done
        connection.exec_driver_sql(f"lock table {schema}state_format in access exclusive mode")
    stored = database.stored_format(connection)
    reached = carry_out(STEPS, stored, lambda step: connection.exec_driver_sql(step.format(schema=schema)))
    if reached != tables.FORMAT:
        raise WrongState(**refusal("the state store", stored, tables.FORMAT, None), store=database.place)
    tables.metadata.create_all(connection)
    connection.execute(update(tables.formats).values(format=reached, written_by=__version__))
