"""How far the changes of a source came: kept in the stream itself, behind each batch, and atomically as the
last message of each group. A stream that was restored from a backup is known by it.

A position has a subject of its own, and only the newest is kept there (`Nats-Rollup`), however long other
messages are (`Nats-TTL`). It is stored only if the one before is the last at that subject: of two writers the
second is refused.

A table that is delivered by itself, after it had stopped or when it arrives, has a position of its own. One
that stops in a batch is told of in the source's position, as the others go on: if the batch comes again the
table stops there once more, and what it has missed is not taken for published.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nats.js.errors import APIError, NotFoundError

from penstock.destinations.nats.documents import position_text
from penstock.destinations.nats.frames import frame
from penstock.destinations.nats.link import ANSWERING, NatsLink
from penstock.destinations.nats.messages import Place, Stop
from penstock.destinations.nats.streams import StreamInfo, ask
from penstock.model import Lsn, TableId
from penstock.model.errors import from_dict, to_dict

_EXPECTED = "Nats-Expected-Last-Subject-Sequence"
_END = 2**62
"""Behind all changes of a transaction."""


@dataclass(frozen=True, slots=True)
class NatsPosition:
    source: str
    subject: str
    sequence: int = 0
    """Of its message; 0: there is none."""
    last_sequence: int = 0
    """Of the whole stream, if nobody else writes to it."""
    place: Place | None = None
    """Everything up to there is published; None: nothing is known."""
    copy: str = ""
    """Which arrival of a table it is the position of."""
    schema: str = ""
    """The last schema of a table that came without any change."""
    stops: Mapping[TableId, Stop] = field(default_factory=dict)
    """Tables of the source that do not come as far."""

    @property
    def reached(self) -> Lsn | None:
        """Everything that committed before is published; None: nothing is known."""
        if self.place is None:
            return None
        return Lsn(self.place.commit_lsn + (self.place.rank == _END))

    def after(self, place: Place, messages: int, *, complete: bool) -> NatsPosition:
        """Return what it is when so many more messages are stored."""
        reached = Place(place.commit_lsn, _END) if complete else place
        return replace(self, place=reached).at(self.last_sequence + messages)

    def stopping(self, stops: Mapping[TableId, Stop], start: Lsn) -> NatsPosition:
        """Return it with these tables stopped, too, and none that stopped before the start of a batch."""
        kept = {table: stop for table, stop in self.stops.items() if stop.place.commit_lsn >= start.value}
        return replace(self, stops={**kept, **stops})

    def at(self, sequence: int) -> NatsPosition:
        """Return it with its message as the last one of the stream."""
        return replace(self, sequence=sequence, last_sequence=sequence)

    def document(self) -> bytes:
        assert self.place is not None
        complete = self.place.rank == _END
        document = {
            "source": self.source,
            "commit_lsn": position_text(self.place.commit_lsn),
            "seq": None if complete else self.place.seq,
            "rank": self.place.rank,
            "complete": complete,
            "copy": self.copy,
            "schema": self.schema,
            "stops": {str(table): _stop_document(stop) for table, stop in self.stops.items()},
        }
        return json.dumps(document).encode()


def before(position: Lsn) -> Place:
    """Return the place behind everything that committed before."""
    return Place(position.value - 1, _END)


async def read(link: NatsLink, stream: StreamInfo, source: str, subject: str) -> NatsPosition:
    """Return the position as the stream has it now."""
    state = (await ask(link, f"STREAM.INFO.{stream.name}"))["state"]
    position = NatsPosition(source, subject, 0, int(state["last_seq"]))
    try:
        answer = await ask(link, f"STREAM.MSG.GET.{stream.name}", {"last_by_subj": subject})
    except NotFoundError:
        return position
    message = answer["message"]
    document = json.loads(base64.b64decode(message["data"]))
    return replace(
        position,
        sequence=int(message["seq"]),
        place=_place(document),
        copy=document["copy"],
        schema=document.get("schema", ""),
        stops={TableId(int(table)): _stop(stop) for table, stop in document.get("stops", {}).items()},
    )


def _stop_document(stop: Stop) -> dict[str, Any]:
    commit_lsn = position_text(stop.place.commit_lsn)
    return {"commit_lsn": commit_lsn, "rank": stop.place.rank, "error": to_dict(stop.error)}


def _stop(document: Mapping[str, Any]) -> Stop:
    place = Place(Lsn.parse(document["commit_lsn"]).value, document["rank"])
    return Stop(place, from_dict(document["error"]))


def _place(document: Mapping[str, Any]) -> Place:
    """Return the place of a document; those of earlier versions have no rank."""
    commit_lsn, seq = Lsn.parse(document["commit_lsn"]).value, document["seq"]
    if seq is None:
        return Place(commit_lsn, _END)
    return Place(commit_lsn, document["rank"]) if "rank" in document else Place.of_change(commit_lsn, seq)


async def store(
    link: NatsLink, stream: StreamInfo, position: NatsPosition, *, behind: bool = False
) -> NatsPosition:
    """Put a position into the stream, whatever is there; or `behind` the one that is known, and nothing else.
    Return it as it is there."""
    client = await link.client()
    headers = kept_headers(stream) | ({_EXPECTED: str(position.sequence)} if behind else {})
    answer = await client.request(position.subject, position.document(), ANSWERING, headers=headers)
    document = json.loads(answer.data)
    if "error" in document:
        raise APIError.from_error(document["error"])
    return position.at(int(document["seq"]))


async def forget(link: NatsLink, stream: StreamInfo, subject: str) -> None:
    await ask(link, f"STREAM.PURGE.{stream.name}", {"filter": subject})


def kept_headers(stream: StreamInfo) -> dict[str, str]:
    """Return what lets a position take the place of the one before, and outlive other messages."""
    headers = {"Nats-Rollup": "sub"} if stream.allows("allow_rollup_hdrs") else {}
    return headers | ({"Nats-TTL": "never"} if stream.allows("allow_msg_ttl") else {})


def position_frame(
    position: NatsPosition,
    following: NatsPosition,
    batch: str,
    number: int,
    reply: str,
    kept: Mapping[str, str],
) -> bytes:
    """Return the last message of a group: its new position, if the one before is still the last there."""
    headers = {
        "Nats-Batch-Id": batch,
        "Nats-Batch-Sequence": str(number),
        "Nats-Batch-Commit": "1",
        _EXPECTED: str(position.sequence),
        **kept,
    }
    return frame(position.subject, reply, headers, following.document())
