"""What a decoder makes of a stream; every sentence holds for both of them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.capture.decoder import FastDecoder
from penstock.capture.messages import HEARTBEAT_PREFIX
from penstock.capture.plain_decoder import ReferenceDecoder
from penstock.capture.runs import Decoder, MessageRun
from penstock.model import ZERO, Lsn
from penstock.model.errors import MalformedMessage
from penstock.model.events import Begin, Commit, Delete, Insert, Message, Relation, Truncate, Update
from tests.capture import pgoutput as pg
from tests.capture.decoding import Outcome, Versions, drive
from tests.capture.pgoutput import UNCHANGED, Table, xlog

USERS = Table(10, ("id", "name", "bio"))
ORDERS = Table(20, ("id",))
AT = datetime(2000, 1, 1, tzinfo=UTC) + timedelta(microseconds=pg.TIME)
Make = Callable[..., Decoder]


@pytest.fixture(params=[FastDecoder, ReferenceDecoder], ids=["fast", "reference"])
def make(request: pytest.FixtureRequest) -> Make:
    """A decoder of either sort; `start` is ZERO unless given."""
    return lambda start=ZERO: request.param(Versions(), start)


def decoded(decoder: Decoder, *messages: bytes) -> Outcome:
    return drive(decoder, [MessageRun.of(list(messages))])


def transaction(*payloads: bytes, commit_lsn: int = 500, xid: int = 7) -> list[bytes]:
    """A transaction whose changes stand at 101, 102, …; both tables are described first."""
    described = [pg.relation(USERS), pg.relation(ORDERS)]
    changes = [xlog(101 + place, payload) for place, payload in enumerate(payloads)]
    return [
        xlog(100, pg.begin(commit_lsn, xid)),
        *(xlog(100, payload) for payload in described),
        *changes,
        xlog(commit_lsn, pg.commit(commit_lsn, commit_lsn + 40)),
    ]


def columns(outcome: Outcome, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in outcome.listed()]


def test_rows_carry_their_transaction_and_their_place_in_it(make: Make) -> None:
    changes = [pg.insert(USERS, ["1", "Ann", None]), pg.insert(ORDERS, ["9"])]
    outcome = decoded(make(), *transaction(*changes))
    assert outcome.listed() == [
        {
            "table_id": 10,
            "schema_version": 1,
            "op": ord("I"),
            "commit_lsn": 500,
            "lsn": 101,
            "seq": 0,
            "xid": 7,
            "committed_at": AT,
            "before_kind": 0,
            "before": None,
            "after": ["1", "Ann", None],
            "unchanged": None,
        },
        outcome.listed()[1],
    ]
    assert columns(outcome, "table_id", "lsn", "seq", "after") == [
        (10, 101, 0, ["1", "Ann", None]),
        (20, 102, 1, ["9"]),
    ]
    assert (outcome.position, outcome.ended) == (Lsn(540), 2)


def test_old_rows_know_whether_they_are_key_or_full(make: Make) -> None:
    key, full = (b"K", ["1", None, None]), (b"O", ["1", "Ann", ""])
    new = ["2", "Bob", None]
    changes = [
        pg.update(USERS, new),
        pg.update(USERS, new, key),
        pg.update(USERS, new, full),
        pg.delete(USERS, key),
        pg.delete(USERS, full),
    ]
    outcome = decoded(make(), *transaction(*changes))
    assert columns(outcome, "before_kind", "before", "after") == [
        (0, None, new),
        (1, ["1", None, None], new),
        (2, ["1", "Ann", ""], new),
        (1, ["1", None, None], None),
        (2, ["1", "Ann", ""], None),
    ]


def test_an_unchanged_value_is_neither_null_nor_a_value(make: Make) -> None:
    changes = [pg.update(USERS, ["1", None, UNCHANGED]), pg.insert(USERS, ["2", UNCHANGED, UNCHANGED])]
    outcome = decoded(make(), *transaction(*changes))
    assert columns(outcome, "after", "unchanged") == [(["1", None, None], [2]), (["2", None, None], [1, 2])]


def test_a_truncate_is_a_row_for_each_table(make: Make) -> None:
    changes = [
        pg.truncate([USERS, ORDERS], 3),
        pg.truncate([ORDERS]),
        pg.truncate([]),
        pg.insert(ORDERS, ["1"]),
    ]
    outcome = decoded(make(), *transaction(*changes))
    assert columns(outcome, "table_id", "op", "seq", "after") == [
        (10, ord("T"), 0, ["cascade", "restart identity"]),
        (20, ord("T"), 1, ["cascade", "restart identity"]),
        (20, ord("T"), 2, []),
        (20, ord("I"), 3, ["1"]),
    ]


def test_a_truncate_of_more_tables_than_there_are_messages_is_whole(make: Make) -> None:
    tables = [ORDERS] * 50
    changes = [pg.truncate(tables), *[pg.insert(ORDERS, ["1"])] * 30, pg.truncate(tables)]
    outcome = decoded(make(), *transaction(*changes))
    assert columns(outcome, "seq") == [(seq,) for seq in range(130)]


def test_a_message_of_a_transaction_is_one_of_its_rows(make: Make) -> None:
    said = pg.message(101, "über", b"\x00\xff", transactional=True)
    heartbeat = pg.message(102, HEARTBEAT_PREFIX, b"", transactional=True)
    outcome = decoded(make(), *transaction(said, heartbeat, pg.insert(ORDERS, ["1"])))
    assert columns(outcome, "table_id", "schema_version", "op", "seq", "after") == [
        (0, 0, ord("M"), 0, ["über", "transactional", "\\x00ff"]),
        (20, 1, ord("I"), 1, ["1"]),
    ]


def test_an_immediate_message_stands_for_itself(make: Make) -> None:
    said = xlog(900, pg.message(900, "note", b"hi", transactional=False), sent_at=5)
    outcome = decoded(make(), *transaction(pg.insert(ORDERS, ["1"])), said)
    row = outcome.listed()[-1]
    assert (row["commit_lsn"], row["lsn"], row["seq"], row["xid"]) == (899, 900, 0, 0)
    assert row["committed_at"] == datetime(2000, 1, 1, tzinfo=UTC) + timedelta(microseconds=5)
    assert row["after"] == ["note", "immediate", "\\x6869"]
    assert (outcome.position, outcome.ended) == (Lsn(900), 2)


def test_a_commit_that_begins_where_an_immediate_message_ends_is_still_to_come(make: Make) -> None:
    """A message's LSN is where its record ends; nothing that begins there is behind it."""
    message = xlog(500, pg.message(500, HEARTBEAT_PREFIX, b"", transactional=False))
    said = xlog(500, pg.message(500, "note", b"", transactional=False))
    commit = transaction(pg.insert(ORDERS, ["1"]), commit_lsn=500)
    reached = decoded(make(), message).position
    assert reached == Lsn(500)
    assert decoded(make(reached), said, *commit).rows.num_rows == 1
    places = columns(decoded(make(), said, *commit), "commit_lsn", "seq")
    assert places == [(499, 0), (500, 0)]


def test_a_heartbeat_moves_the_position_and_is_no_row(make: Make) -> None:
    outcome = decoded(make(), xlog(900, pg.message(900, HEARTBEAT_PREFIX, b"", transactional=False)))
    assert (outcome.listed(), outcome.position) == ([], Lsn(900))


def test_a_keepalive_moves_the_position_but_not_inside_a_transaction(make: Make) -> None:
    *opened, ends = transaction(pg.insert(ORDERS, ["1"]))
    decoder = make()
    assert decoded(decoder, pg.keepalive(90)).position == Lsn(90)
    inside = decoded(decoder, *opened, pg.keepalive(5000))
    assert (inside.position, inside.ended, inside.rows.num_rows) == (None, 0, 1)
    assert decoded(decoder, ends).position == Lsn(540)
    assert decoded(decoder, pg.keepalive(300)).position == Lsn(540)


def test_a_transaction_goes_on_in_the_next_run(make: Make) -> None:
    *first, second, ends = transaction(pg.insert(ORDERS, ["1"]), pg.insert(ORDERS, ["2"]))
    decoder = make()
    one, two = decoded(decoder, *first), decoded(decoder, second, ends)
    assert (one.position, one.ended, columns(one, "seq")) == (None, 0, [(0,)])
    assert (two.position, two.ended, columns(two, "seq")) == (Lsn(540), 1, [(1,)])


def test_what_the_spool_has_already_is_left_out(make: Make) -> None:
    before = transaction(pg.insert(ORDERS, ["1"]), commit_lsn=499)
    message = xlog(300, pg.message(300, "note", b"", transactional=False))
    decoder = make(Lsn(500))
    assert decoded(decoder, message, *before).listed() == []
    after = decoded(decoder, *transaction(pg.insert(ORDERS, ["2"]), commit_lsn=500))
    assert columns(after, "after") == [(["2"],)]


def test_a_row_has_the_version_of_its_tables_last_description(make: Make) -> None:
    wider = Table(ORDERS.id, ("id", "total"))
    changes = [pg.insert(ORDERS, ["1"]), pg.relation(wider), pg.insert(wider, ["2", "5"])]
    outcome = decoded(make(), *transaction(*changes))
    assert columns(outcome, "schema_version", "after") == [(1, ["1"]), (2, ["2", "5"])]


def test_types_and_origins_change_nothing(make: Make) -> None:
    changes = [pg.origin(5, "elsewhere"), pg.data_type(77, "mood"), pg.insert(ORDERS, ["1"])]
    outcome = decoded(make(), *transaction(*changes))
    assert columns(outcome, "seq") == [(0,)]
    assert len(outcome.steps) == 1


def test_a_value_that_is_no_text_is_as_many_nuls_and_disturbs_no_other_row(make: Make) -> None:
    """No value of PostgreSQL's has a NUL in it: whoever reads one knows."""
    texts: list[str | bytes] = ["1", b"\xed\xa0\x80", "ö", b"2\xff", "3"]
    outcome = decoded(make(), *transaction(*[pg.insert(ORDERS, [text]) for text in texts]))
    read = ["1", "\0\0\0", "ö", "\0\0", "3"]
    assert columns(outcome, "seq", "after") == [(seq, [text]) for seq, text in enumerate(read)]


REFUSED = {
    "a row outside of a transaction": [pg.insert(ORDERS, ["1"])],
    "a truncate outside of a transaction": [pg.truncate([])],
    "a message of no transaction": [pg.message(1, "a", b"", transactional=True)],
    "a commit without a begin": [pg.commit(1, 2)],
    "a begin inside a transaction": [pg.begin(500, 7), pg.begin(500, 7)],
    "a commit somewhere else": [pg.begin(500, 7), pg.commit(501, 540)],
    "a commit that ends before itself": [pg.begin(500, 7), pg.commit(500, 500)],
    "a commit with flags": [pg.begin(500, 7), pg.commit(500, 540)[:1] + b"\1" + pg.commit(500, 540)[2:]],
    "a begin in the year 12000": [pg.begin(500, 7, 320_000_000_000_000_000)],
    "a table that was not described": [pg.begin(500, 7), pg.insert(Table(99, ("id",)), ["1"])],
    "a truncate of such a table": [pg.begin(500, 7), pg.truncate([Table(99, ())])],
    "too few columns": [pg.begin(500, 7), pg.insert(ORDERS, [])],
    "too many columns": [pg.begin(500, 7), pg.insert(ORDERS, ["1", "2"])],
    "too many columns in the old row": [pg.begin(500, 7), pg.delete(ORDERS, (b"K", ["1", "2"]))],
    "an old row with unchanged values": [pg.begin(500, 7), pg.delete(ORDERS, (b"O", [UNCHANGED]))],
    "an insert with an old row": [pg.begin(500, 7), b"I" + pg.update(ORDERS, ["1"], (b"K", ["1"]))[1:]],
    "a delete without a row": [pg.begin(500, 7), b"D" + pg.insert(ORDERS, ["1"])[1:]],
    "a value in binary": [pg.begin(500, 7), pg.insert(ORDERS, ["1"]).replace(b"t\0\0\0\1", b"b\0\0\0\1")],
    "a value of negative length": [pg.begin(500, 7), pg.insert(ORDERS, ["1"]).replace(b"t\0", b"t\xff")],
    "a truncated row": [pg.begin(500, 7), pg.insert(ORDERS, ["1"])[:-1]],
    "bytes behind a row": [pg.begin(500, 7), pg.insert(ORDERS, ["1"]) + b"!"],
    "bytes behind a begin": [pg.begin(500, 7) + b"!"],
    "bytes behind a message": [pg.message(1, "a", b"", transactional=False) + b"!"],
    "an immediate message inside a transaction": [
        pg.begin(500, 7),
        pg.message(1, "a", b"", transactional=False),
    ],
    "a message at no position": [pg.message(0, "a", b"", transactional=False)],
    "an unknown kind": [b"Z"],
    "no kind": [b""],
    "an identity that does not exist": [pg.relation(Table(1, (), b"x"))],
    "a relation with fewer columns than it says": [pg.relation(USERS)[:-3]],
    "a relation with a negative number of columns": [pg.relation(Table(1, ()))[:-2] + b"\xff\xff"],
    "a name that is not UTF-8": [pg.data_type(1, "a").replace(b"public", b"publi\xff")],
    "a truncate of a negative number of tables": [struct.pack("!ciB", b"T", -1, 0)],
    "a stream stop without a start": [pg.stream_stop()],
    "a stream start inside a transaction": [pg.begin(500, 7), pg.stream_start(9)],
    "a begin inside a block": [pg.stream_start(9), pg.begin(500, 7)],
    "a block inside a block": [pg.stream_start(9), pg.stream_start(9)],
    "a row without its xid inside a block": [pg.stream_start(9), b"I\0\0"],
    "a stream commit that ends before itself": [pg.stream_commit(9, 500, 500)],
}


@pytest.mark.parametrize("payloads", REFUSED.values(), ids=REFUSED.keys())
def test_what_no_server_sends_is_refused_with_its_position(make: Make, payloads: list[bytes]) -> None:
    described = [xlog(1, pg.relation(ORDERS))]
    sent = [xlog(0x1_0000_0002, payload) for payload in payloads]
    with pytest.raises(MalformedMessage) as caught:
        list(make().decode(MessageRun.of(described + sent)))
    assert caught.value.where["lsn"] == Lsn(0x1_0000_0002)


@pytest.mark.parametrize(
    "message",
    [b"w", b"x" * 30, xlog(1 << 63, pg.begin(1, 1)), pg.keepalive(1)[:-1], pg.keepalive(1 << 63), b"k", b""],
)
def test_a_damaged_header_is_refused_without_a_position(make: Make, message: bytes) -> None:
    with pytest.raises(MalformedMessage) as caught:
        list(make().decode(MessageRun.of([message])))
    assert "lsn" not in caught.value.where


def test_the_reference_gives_events() -> None:
    changes = [
        pg.insert(ORDERS, ["1"]),
        pg.insert(USERS, ["1", "Ann", UNCHANGED]),
        pg.update(USERS, ["2", "Bob", UNCHANGED], (b"K", ["1", None, None])),
        pg.delete(ORDERS, (b"O", ["1"])),
        pg.truncate([USERS, ORDERS], 1),
        pg.message(1, "note", b"!", transactional=True),
    ]
    sent = transaction(*changes)
    events = list(ReferenceDecoder(Versions(), ZERO).events(MessageRun.of(sent)))
    begin, users, orders, *rows, commit = events
    assert begin == Begin(Lsn(100), Lsn(500), AT, 7)
    assert isinstance(users, Relation)
    assert isinstance(orders, Relation)
    at = Lsn(500)
    assert rows == [
        Insert(Lsn(101), at, 0, orders.table_schema.id, ("1",)),
        Insert(Lsn(102), at, 1, users.table_schema.id, ("1", "Ann", None), (2,)),
        Update(
            Lsn(103),
            at,
            2,
            users.table_schema.id,
            ("2", "Bob", None),
            (True, ("1", None, None)),
            (2,),
        ),
        Delete(Lsn(104), at, 3, orders.table_schema.id, (False, ("1",))),
        Truncate(Lsn(105), at, 4, 1, (users.table_schema.id, orders.table_schema.id)),
        Message(Lsn(106), at, 6, True, "note", b"!"),
    ]
    assert commit == Commit(Lsn(500), at, 0, Lsn(540), AT)
