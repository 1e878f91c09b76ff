"""What tests of snapshots share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.model import TableId
from tests.bed import Database


def oid(database: Database, table: str) -> TableId:
    ((found,),) = database.query("select to_regclass(%s)::oid", table)
    return TableId(found)


@contextmanager
def beside(*work: Any) -> Iterator[list[BaseException]]:
    """Functions that run in threads of their own; each is given the event that ends it."""
    stop, errors = threading.Event(), list[BaseException]()

    def run(function: Any) -> None:
        try:
            function(stop)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in work]
    for thread in threads:
        thread.start()
    try:
        yield errors
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors, errors
