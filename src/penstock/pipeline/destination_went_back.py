"""A destination that lacks what it had: restored from a backup, or failed over to a server that lagged.

What it recorded with its data says where it stands. If the spool still has what follows, the stream goes on
from there. A table of which the destination has another copy or schema than is known here is copied anew, and
so are all of them if the spool does not reach back that far, or if the destination knows nothing.

It is the same with a new spool in the place of one that the destination was ahead of.

What a failure or a crash leaves, after each step:
1. the spool is kept from there on, by a consumer of its own, which a stream that has begun forgets;
2. tables are to be copied anew, or wait from where they stand: the consumer is still where it was, and the
   next start comes here again;
3. the consumer is moved back: the stream goes on from there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.destinations.protocol import Recorded
from penstock.model import ZERO, Lsn
from penstock.model.phases import Phase
from penstock.spool.manifest import Manifest
from penstock.state.store import Store, TableState

if TYPE_CHECKING:
    from penstock.pipeline.stream import Stream

WHY = "the destination does not have what it had"
HOLDER = "went back"
"""The consumer that keeps the spool until the stream's own is moved back."""


def go_on_from(stream: Stream, manifest: Manifest, store: Store, there: Lsn | None) -> Lsn:
    """Return where the stream goes on, `there` being where the destination stands; put every table in a state
    that fits to it."""
    source, name = stream.feed.name, stream.config.name
    recorded = stream.target.recorded(source)
    reached_back = there is not None and manifest.rewind(f"{name}/{HOLDER}", there)
    for state in list(stream.tables):
        record = recorded.get(state.key.table)
        if record is None and state.phase is Phase.INIT:
            continue
        if there is None or record is None or not (reached_back and _goes_on(stream, state, record, there)):
            stands = (record.position if record is not None else None) or there or ZERO
            if stream.streaming_only and not state.phase.streams:
                stream.tables.hold_back(state, stands)  # no copy will have what the destination lacks now
            stream.copy_anew(state, WHY, stands)
    position = there if there is not None and reached_back else stream.position
    store.set_back(source, name, position)
    manifest.rewind(name, position)
    return position


def _goes_on(stream: Stream, state: TableState, record: Recorded, there: Lsn) -> bool:
    """Whether the table needs no new copy; one that waits does so from where it stands."""
    is_same = record.copy == state.copy and stream.changes.has_followed(state, record.version)
    if not is_same or state.snapshot is not None:
        return False
    if state.phase.streams:
        return True
    position = record.position or there
    if state.phase is not Phase.ERRORED or not stream.tables.hold_back(state, position):
        return False
    stream.tables.put(replace(state, position=position))
    return True
