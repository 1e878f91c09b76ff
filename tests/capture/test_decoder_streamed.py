"""Transactions that are streamed before they commit (protocol 2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from penstock.capture.decoder import FastDecoder
from penstock.capture.plain_decoder import ReferenceDecoder
from penstock.capture.runs import Block, DecodedRows, Decoder, MessageRun, StreamAbort, StreamCommit
from penstock.model import ZERO, Lsn
from penstock.model.errors import MalformedMessage
from tests.capture import pgoutput as pg
from tests.capture.decoding import Versions, drive
from tests.capture.pgoutput import Table, xlog

TABLE = Table(10, ("id",))
WIDER = Table(10, ("id", "name"))
TOP, SUB = 70, 71
Make = Callable[..., Decoder]


@pytest.fixture(params=[FastDecoder, ReferenceDecoder], ids=["fast", "reference"])
def make(request: pytest.FixtureRequest) -> Make:
    """A decoder of either sort; `start` is ZERO unless given."""
    return lambda start=ZERO: request.param(Versions(), start)


def block(*payloads: bytes) -> list[bytes]:
    return [xlog(100, payload) for payload in (pg.stream_start(TOP), *payloads, pg.stream_stop())]


def inserted(value: str, xid: int = TOP) -> bytes:
    return pg.insert(TABLE, [value], xid)


def committed(xid: int, *payloads: bytes, commit_lsn: int = 300) -> Iterator[bytes]:
    """An ordinary transaction."""
    for payload in (pg.begin(commit_lsn, xid), *payloads, pg.commit(commit_lsn, commit_lsn + 5)):
        yield xlog(200, payload)


COMMIT = xlog(500, pg.stream_commit(TOP, 500, 540))


def test_a_block_is_handed_on_as_it_came(make: Make) -> None:
    sent = block(pg.relation(TABLE, TOP), inserted("1"), inserted("2", SUB))
    (step,) = make().decode(MessageRun.of(sent))
    assert isinstance(step, Block)
    assert (step.xid, step.xids.tolist()) == (TOP, [TOP, TOP, SUB])
    assert [step.run.message(place) for place in range(3)] == sent[1:-1]


def test_a_block_may_end_in_a_later_run(make: Make) -> None:
    decoder = make()
    start, described, row, stop = block(pg.relation(TABLE, TOP), inserted("1"))
    steps = [
        step for part in ([start, described], [row], [stop]) for step in decoder.decode(MessageRun.of(part))
    ]
    blocks = [step for step in steps if isinstance(step, Block)]
    assert [step.run.data for step in blocks] == [described, row]
    assert all(step.batch.num_rows == 0 for step in steps if isinstance(step, DecodedRows))


def test_keepalives_and_origins_are_not_part_of_a_block(make: Make) -> None:
    start, described, row, stop = block(pg.relation(TABLE, TOP), inserted("1"))
    between = [pg.keepalive(900), xlog(100, pg.origin(5, "elsewhere"))]
    (step,) = make().decode(MessageRun.of([start, between[1], described, *between, row, between[0], stop]))
    assert isinstance(step, Block)
    assert step.run.data == described + row
    assert step.run.ends.tolist() == [len(described), len(described) + len(row)]


def test_an_empty_block_is_no_step(make: Make) -> None:
    steps = list(make().decode(MessageRun.of(block())))
    assert [type(step) for step in steps] == [DecodedRows]


def test_a_streamed_transaction_is_one_like_any_other_once_it_commits(make: Make) -> None:
    said = pg.message(1, "note", b"!", transactional=True, xid=TOP)
    sent = [
        *block(pg.relation(TABLE, TOP), inserted("1")),
        *block(pg.data_type(5, "mood", TOP), said, pg.truncate([TABLE], xid=TOP), inserted("2", SUB)),
        COMMIT,
    ]
    outcome = drive(make(), [MessageRun.of(sent)])
    assert [(row["op"], row["seq"], row["xid"], row["commit_lsn"]) for row in outcome.listed()] == [
        (ord(op), seq, TOP, 500) for seq, op in enumerate("IMTI")
    ]
    assert (outcome.position, outcome.ended) == (Lsn(540), 4)
    assert StreamCommit(TOP, Lsn(500), Lsn(540), pg.TIME) in outcome.steps


def test_what_was_rolled_back_is_not_there(make: Make) -> None:
    sent = [
        *block(pg.relation(TABLE, TOP), inserted("1"), inserted("2", SUB)),
        xlog(100, pg.stream_abort(TOP, SUB)),
        *block(pg.relation(TABLE, TOP), inserted("3")),
        COMMIT,
    ]
    outcome = drive(make(), [MessageRun.of(sent)])
    assert StreamAbort(TOP, SUB) in outcome.steps
    assert [row["after"] for row in outcome.listed()] == [["1"], ["3"]]


def test_rows_come_in_the_order_of_their_commits(make: Make) -> None:
    ordinary = [pg.relation(TABLE), pg.insert(TABLE, ["other"])]
    sent = [
        *committed(60, *ordinary, commit_lsn=200),
        *block(pg.relation(TABLE, TOP), inserted("streamed")),
        *committed(61, ordinary[1]),
        COMMIT,
        *committed(62, ordinary[1], commit_lsn=600),
    ]
    outcome = drive(make(), [MessageRun.of(sent)])
    assert [(row["commit_lsn"], row["xid"]) for row in outcome.listed()] == [
        (200, 60),
        (300, 61),
        (500, TOP),
        (600, 62),
    ]
    assert (outcome.position, outcome.ended) == (Lsn(605), 4)


def test_a_streamed_transaction_that_the_spool_has_is_left_out(make: Make) -> None:
    sent = [*block(pg.relation(TABLE, TOP), inserted("1")), COMMIT]
    later = committed(80, pg.insert(TABLE, ["2"]), commit_lsn=700)
    outcome = drive(make(Lsn(600)), [MessageRun.of([*sent, *later])])
    assert [row["after"] for row in outcome.listed()] == [["2"]]
    assert outcome.position == Lsn(705)


def test_what_a_streamed_transaction_described_holds_from_its_commit_on(make: Make) -> None:
    sent = [
        *block(pg.relation(TABLE, TOP), inserted("1")),
        COMMIT,
        *committed(80, pg.insert(TABLE, ["2"]), commit_lsn=700),
    ]
    outcome = drive(make(), [MessageRun.of(sent)])
    assert outcome.refused is None
    assert [row["schema_version"] for row in outcome.listed()] == [1, 1]


def test_a_description_that_arrived_later_is_not_undone_by_an_older_one(make: Make) -> None:
    """The columns that are published change while a transaction is being streamed."""
    sent = [
        *block(pg.relation(TABLE, TOP), inserted("1")),
        *committed(61, pg.relation(WIDER), pg.insert(WIDER, ["2", "Ann"])),
        COMMIT,
        *committed(62, pg.insert(WIDER, ["3", "Bob"]), commit_lsn=700),
    ]
    outcome = drive(make(), [MessageRun.of(sent)])
    assert outcome.refused is None
    versions = {tuple(row["after"]): row["schema_version"] for row in outcome.listed()}
    assert versions[("2", "Ann")] == versions[("3", "Bob")] != versions[("1",)]


def test_a_streamed_transaction_describes_its_tables_itself(make: Make) -> None:
    known = committed(61, pg.relation(TABLE), pg.insert(TABLE, ["0"]))
    outcome = drive(make(), [MessageRun.of([*known, *block(inserted("1")), COMMIT])])
    assert outcome.refused == str(Lsn(100))


def test_a_begin_among_the_kept_messages_is_refused(make: Make) -> None:
    decoder = make()
    commit = StreamCommit(TOP, Lsn(500), Lsn(540), pg.TIME)
    with pytest.raises(MalformedMessage):
        list(decoder.replay(commit, [MessageRun.of([xlog(100, pg.begin(500, TOP))])]))
