"""The decoders on what real servers send: live, and recorded from PostgreSQL 14, 15 and 18.

The recordings are made by `python -m tests.capture.workload BIN_DIR…`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.capture.decoder import FastDecoder
from penstock.capture.plain_decoder import ReferenceDecoder
from penstock.capture.runs import Block, StreamAbort, StreamCommit
from penstock.model import ZERO
from tests.bed import Database
from tests.capture.decoding import Outcome, Versions, assert_same, cut, drive
from tests.capture.workload import RECORDINGS, peek, recorded, restricts

BIG, OTHER, LARGE = "big" * 1000, "y" * 3000, "z" * 3000
Values = Sequence[str | None]
OPTIONS = ["cascade", "restart identity"]
Change = tuple[str, str, int, Values | None, Values | None, list[int] | None]
FIRST: list[Change] = [
    ("plain", "I", 0, None, ["1", "Änn", "happy"], None),
    ("plain", "I", 0, None, ["2", None, "sad"], None),
    ("plain", "I", 0, None, ["3", "", None], None),
    ("plain", "U", 0, None, ["2", "Bob", "sad"], None),
    ("plain", "U", 1, ["3", None, None], ["30", "", None], None),
    ("plain", "D", 1, ["1", None, None], None, None),
    ('Odd " ü', "I", 0, None, ["1"], None),
    ("whole", "I", 0, None, ["1", BIG], None),
    ("whole", "I", 0, None, ["2", "small"], None),
    ("whole", "U", 2, ["1", BIG], ["10", None], [1]),
    ("whole", "U", 2, ["2", "small"], ["2", None], None),
    ("whole", "D", 2, ["10", BIG], None, None),
    ("whole", "D", 2, ["2", None], None, None),
    ("coded", "I", 0, None, ["1", "a", "x"], None),
    ("coded", "U", 1, [None, "a", None], ["1", "b", "x"], None),
    ("coded", "U", 0, None, ["1", "b", None], None),
    ("coded", "D", 1, [None, "b", None], None, None),
    ("nameless", "I", 0, None, ["1", None], None),
]
RESTRICTED: list[Change] = [
    ("listed", "I", 0, None, ["1", "shown"], None),
    ("listed", "U", 0, None, ["1", "still"], None),
    ("picky", "I", 0, None, ["2", "20", LARGE], None),
    ("picky", "U", 1, ["2", "20", None], ["2", "30", None], [2]),
    # The filter makes an insert of this update; PostgreSQL cannot send the value that it did not log.
    ("picky", "I", 0, None, ["1", "11", None], [2]),
    ("picky", "D", 1, ["2", "30", None], None, None),
    ("picky", "D", 1, ["1", "11", None], None, None),
]
BEFORE_15: list[Change] = [
    ("listed", "I", 0, None, ["1", "shown", "secret"], None),
    ("listed", "U", 0, None, ["1", "still", "other"], None),
    ("picky", "I", 0, None, ["1", "5", OTHER], None),
    ("picky", "I", 0, None, ["2", "20", LARGE], None),
    ("picky", "U", 1, ["2", "20", None], ["2", "30", None], [2]),
    ("picky", "U", 1, ["1", "5", None], ["1", "11", None], [2]),
    ("picky", "U", 1, ["2", "30", None], ["2", "1", None], [2]),
    ("picky", "D", 1, ["1", "11", None], None, None),
    ("picky", "D", 1, ["2", "1", None], None, None),
]
"""Of the same statements, where all columns and rows are published."""
LAST: list[Change] = [
    ("parted", "I", 0, None, ["1", "low"], None),
    ("parted", "I", 0, None, ["101", "high"], None),
    ("parted", "D", 1, ["1", None], None, None),
    ("parted", "I", 0, None, ["102", "low"], None),
    ("columnless", "I", 0, None, [], None),
    ("plain", "T", 0, None, OPTIONS, None),
    ("listed", "T", 0, None, OPTIONS, None),
    ("", "M", 0, None, ["note", "immediate", "\\x6f7574"], None),
    ("", "M", 0, None, ["note", "transactional", "\\x696e"], None),
    ("plain", "I", 0, None, ["4", "Cid", "sad", "9"], None),
    ("plain", "I", 0, None, ["5", "Dee", "1"], None),
    ("plain", "I", 0, None, ["6", "Eve", "2"], None),
]
STREAMED: list[tuple[str, Values]] = [
    *(("I", [str(number), "kept"]) for number in range(1, 501)),
    *(("U", [str(number), "changed"]) for number in range(1, 251)),
    *(("I", [str(number), "kept"]) for number in range(2001, 2401)),
    *(("D", [str(number), None]) for number in range(1, 11)),
    ("I", ["9000", "last"]),
]


def decoded(sent: list[bytes]) -> tuple[Outcome, Versions]:
    """What both decoders make of it, having agreed, in one run and in many."""
    for places in (range(0), range(0, len(sent), 7)):
        versions = Versions()
        runs = cut(sent, places)
        ours = drive(FastDecoder(versions, ZERO), runs)
        assert_same(ours, drive(ReferenceDecoder(Versions(), ZERO), runs))
    return ours, versions


def check(sent: list[bytes], restricted: bool) -> None:
    """The workload's changes are all there, as they were made, and nothing else."""
    outcome, versions = decoded(sent)
    assert outcome.refused is None
    names = {table_id: known[-1].name.name for table_id, known in versions.known.items()} | {0: ""}
    rows = outcome.listed()

    def is_streamed(row: dict[str, Any]) -> bool:
        return names[row["table_id"]] == "streamed"

    assert [
        (
            names[row["table_id"]],
            chr(row["op"]),
            row["before_kind"],
            row["before"],
            row["after"],
            row["unchanged"],
        )
        for row in rows
        if not is_streamed(row)
    ] == [*FIRST, *(RESTRICTED if restricted else BEFORE_15), *LAST]
    assert [(chr(row["op"]), row["after"] or row["before"]) for row in rows if is_streamed(row)] == STREAMED
    assert [row["schema_version"] for row in rows if names[row["table_id"]] == "plain"][-3:] == [2, 3, 3]
    places = [(row["commit_lsn"], row["seq"]) for row in rows]
    assert places == sorted(set(places))
    assert outcome.position is not None
    assert outcome.position.value > places[-1][0]
    assert outcome.ended == len(rows)
    kinds = {type(step) for step in outcome.steps}
    assert {Block, StreamAbort, StreamCommit} <= kinds


def test_a_real_stream_is_decoded_as_it_was_made(database: Database) -> None:
    check(peek(database), restricts(database))


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("*.gz")), ids=lambda path: path.stem)
def test_a_recorded_stream_is_decoded_as_it_was_made(path: Path) -> None:
    check(list(recorded(path)), restricted=path.stem != "postgresql-14")


def test_there_are_recordings_of_old_and_new_servers() -> None:
    assert {path.stem for path in RECORDINGS.glob("*.gz")} >= {
        "postgresql-14",
        "postgresql-15",
        "postgresql-18",
    }
