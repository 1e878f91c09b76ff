"""Money moves between rows while it is copied and followed: the sum is right at every moment one looks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import psycopg
from pyspark.sql import SparkSession

from penstock.model import TableName
from penstock.model.phases import Phase
from tests.bed import Database
from tests.pipeline.running import configuration, running, to_postgres

ACCOUNTS, EACH = 2000, 100
BANKS = ("here", "there")
_MOVE = """
    with amount as (select (random() * 10)::integer as n),
         paid as (update {} set balance = balance - (select n from amount) where id = %s returning 1)
    update {} set balance = balance + (select n from amount) where id = %s
"""


def open_banks(source: Database) -> None:
    for bank in BANKS:
        source.execute(
            f"create table {bank} (id integer primary key, balance integer, padding text)",
            f"insert into {bank} select n, {EACH}, repeat('x', 200) from generate_series(1, {ACCOUNTS}) n",
        )


@contextmanager
def trading(source: Database, writers: int = 3) -> Iterator[None]:
    """Each transaction moves money once or a few times, within a bank or from one to the other."""
    stop = threading.Event()

    def trade(seed: int) -> None:
        random = Random(seed)
        with source.connect() as connection:
            while not stop.is_set():
                try:
                    with connection.transaction():
                        for _ in range(random.randint(1, 5)):
                            one, other = random.choices(BANKS, k=2)
                            payer, payee = random.sample(range(1, ACCOUNTS + 1), 2)
                            connection.execute(_MOVE.format(one, other).encode(), (payer, payee))
                        time.sleep(random.choice((0, 0, 0.02)))
                except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure):
                    continue

    threads = [threading.Thread(target=trade, args=(seed,)) for seed in range(writers)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


class Auditor(threading.Thread):
    """Looks at the destination all the time; `wrong` has what it should not have seen."""

    def __init__(self, destination: Database) -> None:
        super().__init__()
        self._destination = destination
        self._stop_looking = threading.Event()
        self.looks = 0
        self.wrong: list[object] = []

    def run(self) -> None:
        with self._destination.connect() as connection:
            while not self._stop_looking.is_set():
                there = [
                    bank
                    for bank in BANKS
                    if connection.execute("select to_regclass(%s)", (bank,)).fetchone() != (None,)
                ]
                if there:
                    self._look(connection, there)
                time.sleep(0.005)

    def _look(self, connection: psycopg.Connection, banks: list[str]) -> None:
        """The sum over the banks that are there: of one alone only that no account is missing."""
        sums = " union all ".join(f"select count(*), sum(balance) from {bank}" for bank in banks)
        found = connection.execute(sums.encode()).fetchall()
        self.looks += 1
        if any(count != ACCOUNTS for count, _ in found):
            self.wrong.append(found)
        if len(banks) == 2 and sum(total for _, total in found) != 2 * ACCOUNTS * EACH:
            self.wrong.append(found)

    def finish(self) -> None:
        self._stop_looking.set()
        self.join()


def test_the_sum_is_right_at_every_moment(
    spark: SparkSession, source: Database, destination: Database, tmp_path: Path
) -> None:
    open_banks(source)
    auditor = Auditor(destination)
    with trading(source):
        file = configuration(tmp_path, source, to_postgres(destination, consistency="batch"))
        auditor.start()
        with running(file, spark) as pipeline:
            pipeline.until_phase(Phase.READY, *(f"public.{bank}" for bank in BANKS))
            before = auditor.looks
            pipeline.until(lambda: auditor.looks > before + 200)
    with running(file, spark) as pipeline:
        pipeline.until_equal(source, destination, lambda: [TableName("public", bank) for bank in BANKS])
    auditor.finish()
    assert not auditor.wrong[:5]
    assert auditor.looks > 200
