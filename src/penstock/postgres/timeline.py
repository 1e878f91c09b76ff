"""Whether a server still has the history that a position was taken from.

A server that was restored from a backup, recovered to a point in time, or is a standby that lagged when it
was promoted, lacks the end of what its predecessor sent. Asked for what follows a position beyond that, it
skips every commit up to there, without a word. So the position is kept with the timeline it was read on: a
promotion begins a new timeline, and the server's history says where each earlier one was left. What lies
beyond that place, or beyond the end of the WAL, is of a history that is gone.

A snapshot of the server's disks that is put back and started has the timeline it had: that shows only while
its WAL is shorter than what was read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psycopg
from psycopg import pq

from penstock.model import Lsn, Reached
from penstock.model.errors import ConnectionFailed, SlotLost

Ask = Callable[[bytes], pq.abc.PGresult]
"""Sends a command of the replication protocol; raises what the server has against it."""

REMEDY = (
    "Check that it is the right server. What was read from the former one may be at the destinations and not "
    "here: set `on_slot_lost: resync` to copy the tables anew"
)


@dataclass(frozen=True, slots=True)
class Server:
    """What a server says of itself on a replication connection (IDENTIFY_SYSTEM)."""

    system_id: str
    timeline: int
    end: Lsn
    """Up to where its WAL is flushed, or, on a standby, received or replayed."""
    database: str


def asking(connection: pq.abc.PGconn) -> Ask:
    def ask(command: bytes) -> pq.abc.PGresult:
        answer = connection.exec_(command)
        if answer.status != pq.ExecStatus.TUPLES_OK:
            raise psycopg.errors.error_from_result(answer)
        return answer

    return ask


def identify(ask: Ask) -> Server:
    answer = ask(b"IDENTIFY_SYSTEM")
    system_id, timeline, end, database = ((answer.get_value(0, n) or b"").decode() for n in range(4))
    return Server(system_id, int(timeline), Lsn.parse(end), database)


def left_at(ask: Ask, server: Server) -> dict[int, Lsn]:
    """Return the timelines that this server's history came through, and where it left each of them."""
    if server.timeline == 1:  # the first has no history
        return {}
    answer = ask(f"TIMELINE_HISTORY {server.timeline}".encode())
    return parse(answer.get_value(0, 1) or b"")


def parse(history: bytes) -> dict[int, Lsn]:
    """Of a history file: a line for each timeline, its number, where it was left, and in words why."""
    lines = (line.split(None, 2) for line in history.splitlines())
    return {
        int(fields[0]): Lsn.parse(fields[1].decode())
        for fields in lines
        if len(fields) >= 2 and not fields[0].startswith(b"#")
    }


def departure(reached: Reached, server: Server, left: Mapping[int, Lsn]) -> str | None:
    """Return why the server does not have the history that we followed, if so. Without a timeline
    only the end of the WAL tells."""
    position, timeline = reached.position, reached.timeline
    if reached.system_id != server.system_id:
        return f"it is another server: we had read from system {reached.system_id}, it is {server.system_id}"
    if timeline not in (None, server.timeline):
        if timeline not in left:
            return f"the server is on timeline {server.timeline}, which never was on {timeline} as we were"
        if position > left[timeline]:
            return (
                f"the server left timeline {timeline} at {left[timeline]}, and we had read up to {position}: "
                f"it was restored, or a standby that lagged was promoted (timeline {server.timeline})"
            )
    if position > server.end:
        return (
            f"the server's WAL ends at {server.end}, and we had read up to {position}: "
            "it was restored to an earlier state"
        )
    return None


def check(ask: Ask, server: Server, reached: Reached) -> None:
    """Raise `SlotLost` if the server does not have the history in which we came so far. A standby may still
    come there, or be promoted: it is waited for."""
    reason = departure(reached, server, left_at(ask, server))
    if reason is None:
        return
    is_standby = ask(b"select pg_is_in_recovery()").get_value(0, 0) == b"t"
    if is_standby and reached.system_id == server.system_id:
        raise ConnectionFailed(f"the server is a standby, and {reason}", remedy="It is waited for")
    raise SlotLost(reason, remedy=REMEDY)
