"""The publication of a capture by a temporary slot, for as long as that lasts.

The slot ends with its connection, whatever becomes of us; the publication would stay if we were killed. So
whoever makes one first removes those that were left. Slot and publication have one name, with the time in it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg

from penstock.config import SourceConfig
from penstock.postgres import publication
from penstock.postgres.connection import Connection, connect, wait_briefly
from penstock.postgres.selection import select

PREFIX = "penstock_tail_"
LONGEST_START = 3_600_000_000_000
"""Nanoseconds within which a publication has its slot, if ever: clocks of two machines may differ, too."""


def temporary_name() -> str:
    return f"{PREFIX}{time.time_ns()}"


@contextmanager
def temporary_publication(source: SourceConfig, name: str) -> Iterator[str]:
    """Yield the configured publication where there is one; otherwise one of this name, dropped afterwards."""
    with connect(source.conninfo()) as connection:
        if existing := publication.describe(connection, source.publication_name):
            if source.replication.create_publication:
                existing.refuse_if_a_strangers()
            yield source.publication_name
            return
        tables = select(connection, source).fit
    try:  # from here on: if we are interrupted while we make it, it may be there
        with connect(source.conninfo()) as connection:
            wait_briefly(connection)
            _drop_abandoned(connection)
            publication.ensure(connection, name, tables, create=True)
        yield name
    finally:
        with connect(source.conninfo()) as connection:
            publication.drop(connection, name)


def _drop_abandoned(connection: Connection) -> None:
    rows = connection.execute(
        """
        select p.pubname from pg_publication p
        where not exists (select from pg_replication_slots s where s.slot_name = p.pubname)
        """
    ).fetchall()
    for (name,) in rows:
        begun = re.fullmatch(f"{PREFIX}([0-9]+)", name)
        if begun and int(begun[1]) < time.time_ns() - LONGEST_START:
            with suppress(psycopg.Error):  # another one drops it, or we may not
                publication.drop(connection, name)
