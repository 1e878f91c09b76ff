"""The decoder alone, against the plain-Python reference decoder.

Messages are made beforehand and cut into runs of the size that the receiver gathers. Both decoders turn
the same runs into the same Arrow batches.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.report import Case, compare, rate
from penstock.capture.decoder import FastDecoder
from penstock.capture.plain_decoder import ReferenceDecoder
from penstock.capture.runs import Decoder, MessageRun
from penstock.model import ZERO
from tests.capture import pgoutput as pg
from tests.capture.decoding import Versions
from tests.capture.pgoutput import Table, xlog

ROWS = 50_000
RUN_MESSAGES = 20_000
NARROW = Table(1, ("id", "customer", "amount", "at"))
MIDDLE = Table(2, tuple(f"c{number}" for number in range(8)))
WIDE = Table(3, tuple(f"c{number}" for number in range(50)))
COMMIT_LSN = 1 << 40


def cases(rows: int | None) -> Iterator[Case]:
    count = rows or ROWS
    yield _case(
        "narrow inserts", count, _one_transaction(pg.insert(NARROW, _narrow(row)) for row in range(count))
    )
    fewer = max(count // 5, 1)
    yield _case(
        "wide rows", fewer, _one_transaction(pg.insert(WIDE, _values(WIDE, row)) for row in range(fewer))
    )
    yield _case("updates, full identity", count, _one_transaction(_update(row) for row in range(count)))
    yield _case("tiny transactions", count, _tiny_transactions(count))


def _case(name: str, rows: int, sent: list[bytes]) -> Case:
    runs = [MessageRun.of(sent[at : at + RUN_MESSAGES]) for at in range(0, len(sent), RUN_MESSAGES)]
    return compare(
        name,
        "reference decoder",
        lambda: rate(rows, lambda: _decode(FastDecoder(Versions(), ZERO), runs)),
        lambda: rate(rows, lambda: _decode(ReferenceDecoder(Versions(), ZERO), runs)),
    )


def _decode(decoder: Decoder, runs: list[MessageRun]) -> None:
    for run in runs:
        for _ in decoder.decode(run):
            pass


def _one_transaction(changes: Iterator[bytes]) -> list[bytes]:
    described = [pg.begin(COMMIT_LSN, 700), *map(pg.relation, (NARROW, MIDDLE, WIDE))]
    payloads = [*described, *changes, pg.commit(COMMIT_LSN, COMMIT_LSN + 48)]
    return [xlog(100 + place, payload) for place, payload in enumerate(payloads)]


def _tiny_transactions(count: int) -> list[bytes]:
    sent = [xlog(1, pg.relation(NARROW))]
    for row in range(count):
        at = 1000 * (row + 1)
        changes = (pg.begin(at, row + 700), pg.insert(NARROW, _narrow(row)), pg.commit(at, at + 48))
        sent += (xlog(at, payload) for payload in changes)
    return sent


def _narrow(row: int) -> list[str | None]:
    return [str(row), f"customer {row % 977}", f"{row % 9973}.50", "2026-11-15 03:29:34.528009+00"]


def _values(table: Table, row: int) -> list[str | None]:
    return [
        str(row),
        *(None if place % 9 == 8 else f"value {row} {place}" for place in range(len(table.columns) - 1)),
    ]


def _update(row: int) -> bytes:
    return pg.update(MIDDLE, _values(MIDDLE, row + 1), (b"O", _values(MIDDLE, row)))
