"""Rows of a snapshot in chunks, each as large as a message may be at most."""

from __future__ import annotations

import pyarrow as pa
import pytest
from nats.errors import MaxPayloadError

from penstock.changes.encoded import Encoding
from penstock.destinations.nats.documents import HEADERS, unpacked
from penstock.destinations.nats.link import NatsLink
from penstock.destinations.nats.snapshot_chunks import SnapshotForm, _document, _pieces
from penstock.model.errors import MessageTooLarge
from penstock.model.nats_access import Access
from tests.changes.made import table

LARGEST = 100_000
ACCESS = Access(("nats://localhost:4222",))


def form(encoding: Encoding, rows: int = 10_000) -> SnapshotForm:
    return SnapshotForm(
        access=ACCESS,
        id="snap-1767323045-0a1b2c3d",
        token="users",
        table=table(1, "public.users", {"id": "int4", "name": "text"}),
        lsn="00000000/00001000",
        encoding=encoding,
        rows=rows,
        largest=LARGEST,
        dictionary=None,
        compressed=False,
    )


def batch(names: list[str], first: int = 0) -> pa.RecordBatch:
    ids = [str(first + number) for number in range(len(names))]
    return pa.RecordBatch.from_arrays([pa.array(ids), pa.array(names)], ["id", "name"])


def documents(form: SnapshotForm, *batches: pa.RecordBatch) -> list[bytes]:
    pieces = _pieces(form, batches)
    return [_document(form, 10**12 + number, count, data) for number, (count, data) in enumerate(pieces)]


@pytest.mark.parametrize("encoding", list(Encoding))
@pytest.mark.parametrize("width", [0, 3, 80, 3000])
@pytest.mark.parametrize("cut", [7, 1000, 20_000])
@pytest.mark.parametrize("rows", [1000, 10_000])
def test_chunks_are_full_and_fit(encoding: Encoding, width: int, cut: int, rows: int) -> None:
    count = max(300, min(20_000, 400_000 // (width + 20)))
    names = ["x" * (width + number % 3) for number in range(count)]
    batches = [batch(names[first : first + cut], first) for first in range(0, count, cut)]
    chunks = documents(form(encoding, rows), *batches)
    assert max(map(len, chunks)) <= LARGEST - HEADERS
    found = [unpacked(chunk, encoding)["data"] for chunk in chunks]
    assert [row for part in found for row in part] == [
        {"id": number, "name": name} for number, name in enumerate(names)
    ]
    for part, chunk in list(zip(found, chunks, strict=True))[:-1]:
        assert len(part) == rows or len(chunk) > LARGEST - HEADERS - width - 30


@pytest.mark.parametrize("encoding", list(Encoding))
def test_a_row_may_be_as_large_as_a_chunk_and_no_larger(encoding: Encoding) -> None:
    (alone,) = documents(form(encoding, rows=9), batch(["x" * 70_000]))
    largest = 70_000 + LARGEST - HEADERS - len(alone)
    chunks = documents(form(encoding, rows=9), batch(["", "x" * largest, ""]))
    assert [len(unpacked(chunk, encoding)["data"]) for chunk in chunks] == [1, 1, 1]
    assert len(chunks[1]) == LARGEST - HEADERS
    with pytest.raises(MessageTooLarge, match="message takes") as told:
        documents(form(encoding, rows=9), batch(["", "x" * (largest + 1), ""]))
    assert told.value.where["key"] == "id=1"


def test_a_message_that_is_too_large_is_no_server_that_is_away() -> None:
    link = NatsLink(ACCESS)
    assert isinstance(link.explained(MaxPayloadError()), MessageTooLarge)
    link.close()
