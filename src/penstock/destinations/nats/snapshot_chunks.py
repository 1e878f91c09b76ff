"""Rows of a snapshot as messages: some thousand rows in each, as large as a message may be at most.

    table, operation ("snapshot"), snapshot_id, chunk, lsn, data    a list of rows, each as in a change

The chunks of a part of the table, which one task reads, are numbered one after the other; the next part
begins at another million. Where they are compressed, the frame says by which dictionary.

Runs on executors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import zstandard

from penstock.changes.encoded import EncodedColumn, Encoding, encoded, encoded_constants
from penstock.changes.joined import Joiner
from penstock.changes.members import Member, add_map
from penstock.changes.message_pack import array_header, map_header
from penstock.destinations.nats.documents import HEADERS, packed
from penstock.destinations.nats.link import ANSWERING, NatsLink
from penstock.destinations.nats.subjects import SNAPSHOTS
from penstock.destinations.work import Partition
from penstock.model import TableSchema
from penstock.model.errors import MessageTooLarge, ValueRefused
from penstock.model.nats_access import Access
from penstock.postgres.snapshot import CopyRange
from penstock.spark.snapshot.fetch import fetch_text

SAMPLES = 2000
"""Rows that a dictionary is trained with, at most."""
SAMPLE_BYTES = 8 << 20
PART = 1_000_000
"""Chunks that a part has at most."""
LEVEL = 3
CONTENT_ENCODING = "Content-Encoding"


@dataclass(frozen=True, slots=True)
class SnapshotForm:
    """What all chunks of a snapshot have in common."""

    access: Access
    id: str
    token: str
    table: TableSchema
    lsn: str
    encoding: Encoding
    rows: int
    """Of a chunk, at most."""
    largest: int
    """Bytes of a message, at most."""
    dictionary: bytes | None
    compressed: bool


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """What one task reads."""

    form: SnapshotForm
    number: int
    conninfo: str
    snapshot: str
    range: CopyRange

    def __repr__(self) -> str:
        return f"SnapshotPart({self.form.token}, {self.number})"


@dataclass(frozen=True, slots=True)
class PartMade:
    rows: int
    chunks: int


def make_part(part: SnapshotPart) -> PartMade:
    batches = fetch_text(part.conninfo, part.snapshot, part.range, part.form.table.columns)
    return publish_chunks(part.form, part.number, batches)


def make_partition(form: SnapshotForm, partition: Partition) -> PartMade:
    """Publish rows that Spark made."""
    number, batches = partition
    return publish_chunks(form, number, batches)


def publish_chunks(form: SnapshotForm, number: int, batches: Iterable[pa.RecordBatch]) -> PartMade:
    link = NatsLink.of(form.access)
    compress = _compressor(form)
    rows = chunks = 0
    for count, data in _pieces(form, batches):
        chunk = number * PART + chunks
        payload = compress(_document(form, chunk, count, data))
        link.run(_publish(link, form, chunk, payload))
        rows, chunks = rows + count, chunks + 1
    return PartMade(rows, chunks)


def sample_partition(form: SnapshotForm, partition: Partition) -> list[bytes]:
    """Return samples of rows that Spark made."""
    return samples(form, partition[1])


def samples(form: SnapshotForm, batches: Iterable[pa.RecordBatch]) -> list[bytes]:
    """Return the first rows, each encoded, as many as a dictionary needs."""
    taken: list[bytes] = []
    size = 0
    for batch in batches:
        rows = row_texts(form, batch)
        for row in range(len(rows)):
            if len(taken) >= SAMPLES or size >= SAMPLE_BYTES:
                return taken
            taken.append(rows[row])
            size += len(taken[-1])
    return taken


def row_texts(form: SnapshotForm, batch: pa.RecordBatch) -> EncodedColumn:
    """Return each row as a map, encoded."""
    names = encoded_constants(form.table.column_names, form.encoding)
    members = []
    for name, column, values in zip(names, form.table.columns, batch.columns, strict=True):
        try:
            members.append(Member(name, encoded(values.cast(pa.string()), column.type, form.encoding)))
        except ValueRefused as refused:
            raise refused.at(table=form.table.name, column=column.name) from None
    rows = Joiner(len(batch))
    add_map(rows, form.encoding, members)
    return rows.joined()


def _pieces(form: SnapshotForm, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, list[bytes]]]:
    """Yield as many rows as fit into a chunk, and how many these are."""
    most = form.largest - HEADERS - len(_document(form, PART * PART, form.rows, []))
    comma = int(form.encoding is Encoding.JSON)
    held: list[bytes] = []
    count = size = 0
    for batch in batches:
        if not len(batch):
            continue
        rows = row_texts(form, batch)
        _refuse_too_large(form, batch, rows, most)
        first = 0
        ends = rows.offsets + comma * np.arange(len(rows.offsets))  # with a comma behind each row
        while first < len(rows):
            room = np.searchsorted(ends, ends[first] + most + comma - size, "right") - 1
            end = min(int(room), first + form.rows - count, len(rows))
            if end > first:
                held.append(_joined(form, rows, first, end))
                size += int(ends[end] - ends[first])
                count, first = count + end - first, end
            if first < len(rows):
                yield count, held
                held, count, size = [], 0, 0
    if count:
        yield count, held


def _joined(form: SnapshotForm, rows: EncodedColumn, first: int, end: int) -> bytes:
    """Return rows as they stand in a list."""
    if form.encoding is Encoding.JSON:
        return b",".join(rows[row] for row in range(first, end))
    return rows.data[rows.offsets[first] : rows.offsets[end]].tobytes()


def _refuse_too_large(form: SnapshotForm, batch: pa.RecordBatch, rows: EncodedColumn, most: int) -> None:
    sizes = np.diff(rows.offsets)
    if not (sizes > most).any():
        return
    row = int(np.argmax(sizes > most))
    pairs = zip(form.table.columns, batch.columns, strict=True)
    key = {column.name: values[row].as_py() for column, values in pairs if column.key}
    raise MessageTooLarge(
        f"a row has {int(sizes[row])} bytes, and a message takes {most}",
        table=form.table.name,
        key=", ".join(f"{name}={value}"[:80] for name, value in key.items()) or None,
    )


def _document(form: SnapshotForm, chunk: int, count: int, data: list[bytes]) -> bytes:
    """Return a chunk: what it says of itself, and behind it the rows."""
    about = {
        "table": form.token,
        "operation": "snapshot",
        "snapshot_id": form.id,
        "chunk": chunk,
        "lsn": form.lsn,
    }
    if form.encoding is Encoding.JSON:
        return packed(about, form.encoding)[:-1] + b',"data":[' + b",".join(data) + b"]}"
    members = packed(about, form.encoding)[1:]  # the first byte says how many there are
    name = encoded_constants(["data"], form.encoding)[0]
    return map_header(len(about) + 1) + members + name + array_header(count) + b"".join(data)


def _compressor(form: SnapshotForm) -> Callable[[bytes], bytes]:
    if not form.compressed:
        return lambda document: document
    dictionary = zstandard.ZstdCompressionDict(form.dictionary) if form.dictionary else None
    return zstandard.ZstdCompressor(level=LEVEL, dict_data=dictionary).compress


async def _publish(link: NatsLink, form: SnapshotForm, chunk: int, payload: bytes) -> None:
    jetstream = await link.jetstream()
    headers = {"Nats-Msg-Id": f"{form.id}-{chunk}"} | ({CONTENT_ENCODING: "zstd"} if form.compressed else {})
    subject = f"{SNAPSHOTS}.snap.{form.token}.{form.id}.{chunk}"
    await jetstream.publish(subject, payload, timeout=ANSWERING, headers=headers)
