"""The replication connection: receives messages and gathers them into runs, sends feedback.

This is libpq as psycopg's `pq` layer gives it, driven by one thread. Messages are gathered by compiled code
(`postgres/libpq.py`; the server sends one for each row, every 3 µs); keepalives are looked for afterwards, in
the whole run at once. When all is read that has arrived, more is left to pile up for a moment: who takes each
message as it comes makes the kernel hand them over one by one, and that costs the walsender as much again as
the sending itself.

What the server has against it is raised as psycopg's errors; what that means is for `diagnosis` to say.

Feedback says two things: how far we have received (`write`) and how far the server may forget (`flush`).
A server that shuts down waits until `flush` has reached its end, which would take until the slowest
destination is done; but it takes `write` where no `flush` is given. So a keepalive that asks for a reply,
which is what a server shutting down sends, is answered with `write` alone.

A server that has nothing to send is silent, and so is a connection that somebody between has let go of. So
after some silence it is asked for a reply, and given up when none comes.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Callable
from types import TracebackType

import numpy as np
import psycopg
from psycopg import pq

from penstock.capture.diagnosis import SOMETHING_GONE, waits_for_standby
from penstock.capture.runs import MessageRun
from penstock.model import ZERO, Lsn, Reached
from penstock.model.errors import ServerSilent
from penstock.postgres import timeline
from penstock.postgres.connection import explain, settle
from penstock.postgres.libpq import Inbox
from penstock.postgres.refusal import with_state
from penstock.postgres.timeline import Server

KEEPALIVE = ord("k")
KEEPALIVE_SIZE = 18
RUN_BYTES = 2 << 20
GATHER = 0.02
NAP = 0.01
"""Seconds that messages pile up, once a first one has come."""
ASK = 10.0
"""Seconds of silence after which the server is asked for a reply, and asked again."""
SILENCE = 60.0
"""Seconds of silence after which the connection is given up."""


class Receiver:
    def __init__(self, conninfo: str) -> None:
        """Connect. `conninfo` has `replication=database` and the session's settings in it."""
        try:  # psycopg's own way lets other threads run meanwhile
            self._connection = psycopg.connect(conninfo, autocommit=True)
        except psycopg.Error as error:
            raise explain(with_state(error, conninfo)) from None
        self._pg = self._connection.pgconn
        settle(self._pg)
        self._query(b"set client_min_messages to warning", pq.ExecStatus.COMMAND_OK)  # whatever the role has
        self._pg.notice_handler = self._notice
        self._warnings: list[psycopg.Error] = []
        self._received = ZERO
        self.patience = SILENCE
        """Seconds of silence before the connection is given up."""
        self._silent = 0.0
        """Seconds spent waiting since anything came. What passes while nobody reads is no silence."""
        self._ask_at = ASK
        self._poll = select.poll()
        self._poll.register(self._pg.socket, select.POLLIN)
        self._inbox = Inbox(self._pg, RUN_BYTES, waits=False)

    def __enter__(self) -> Receiver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def cancel(self) -> None:
        """Cancel what the server is doing for this connection."""
        self._connection.cancel_safe(timeout=5)

    def identify(self) -> Server:
        """Return what the server says of itself, as of now: what is compared with its end was read before."""
        return timeline.identify(self._query)

    def check_history(self, server: Server, reached: Reached) -> None:
        """Raise `SlotLost` if the server went back since we came so far, or is another one."""
        timeline.check(self._query, server, reached)

    def create_temporary_slot(self, slot: str) -> Lsn:
        """Make a slot that ends with this connection; return where it starts."""
        self._query(b"set lock_timeout to 0", pq.ExecStatus.COMMAND_OK)  # it waits for transactions
        result = self._query(f'CREATE_REPLICATION_SLOT "{slot}" TEMPORARY LOGICAL pgoutput'.encode())
        return Lsn.parse((result.get_value(0, 1) or b"").decode())

    def start(self, slot: str, publication: str, position: Lsn, *, streaming: bool) -> None:
        """Ask for everything that committed at or after `position`."""
        options = {
            "proto_version": "2",
            "publication_names": _quoted(publication, '"'),
            "messages": "true",
            "streaming": "on" if streaming else "off",
        }
        listed = ", ".join(f"{key} {_quoted(value, chr(39))}" for key, value in options.items())
        self._query(
            f'START_REPLICATION SLOT "{slot}" LOGICAL {position} ({listed})'.encode(), pq.ExecStatus.COPY_BOTH
        )
        self._received = position
        self._pg.nonblocking = 1

    def receive(
        self, seconds: float, gather: float = GATHER, has_room: Callable[[], bool] = lambda: True
    ) -> MessageRun | None:
        """Return the next run: wait up to `seconds` for a first message, then gather up to `gather` seconds
        more, or until there are enough, or no more room for them. None if nothing came."""
        begun = time.monotonic()
        until = begun + seconds
        messages = self._inbox
        while has_room() and messages.take():
            now = time.monotonic()
            if messages.count:
                until = min(until, now + gather)
            if now >= until:
                break
            if messages.count:
                time.sleep(min(NAP, until - now))
            else:
                self._poll.poll((until - now) * 1000)
        if messages.ended:
            raise self._failed() if messages.lost else self._ended()
        if self._warnings:
            raise self._warnings[0]
        if not messages.count:
            self._bear_silence(time.monotonic() - begun)
            return None
        self._silent, self._ask_at = 0.0, ASK
        run = MessageRun(*messages.empty())
        self._answer_keepalives(run)
        return run

    def _bear_silence(self, seconds: float) -> None:
        self._silent += seconds
        if self._silent >= self.patience:
            raise ServerSilent(f"the server has been silent for {self._silent:.0f} seconds")
        if self._silent >= self._ask_at:
            self._ask_at += ASK
            self.feedback(self._received, ZERO, reply_wanted=True)

    def _answer_keepalives(self, run: MessageRun) -> None:
        starts = np.concatenate(([0], run.ends[:-1]))
        kinds = np.frombuffer(run.data, np.uint8)[starts]
        for start in starts[(kinds == KEEPALIVE) & (run.ends - starts == KEEPALIVE_SIZE)]:
            end_of_wal, reply_wanted = struct.unpack_from("!xQ8x?", run.data, start)
            self._received = max(self._received, Lsn(end_of_wal))
            if reply_wanted:
                self.feedback(self._received, ZERO)

    def feedback(self, written: Lsn, flushed: Lsn, *, reply_wanted: bool = False) -> None:
        """Tell the server what we have, and what it may forget; zero leaves the latter where it is."""
        now = int(time.time() * 1_000_000) - 946_684_800_000_000
        self._pg.put_copy_data(
            struct.pack("!cQQQq?", b"r", written.value, flushed.value, 0, now, reply_wanted)
        )
        self._pg.flush()

    def _query(self, command: bytes, expected: pq.ExecStatus = pq.ExecStatus.TUPLES_OK) -> pq.abc.PGresult:
        result = self._pg.exec_(command)
        if result.status != expected:
            raise self._failed(result)
        return result

    def _ended(self) -> psycopg.Error:
        """The server ended the stream: an error, or an orderly shutdown."""
        return self._failed(self._pg.get_result())

    def _failed(self, result: pq.abc.PGresult | None = None) -> psycopg.Error:
        if result is not None and result.error_message:
            return psycopg.errors.error_from_result(result)
        text = self._pg.error_message.decode(errors="replace").strip()
        return psycopg.OperationalError(text or "the server ended the connection")

    def _notice(self, notice: pq.abc.PGresult) -> None:
        """From 18 on a missing publication is but a warning to the server; to us it is lost changes."""
        state = (notice.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        warning = psycopg.errors.error_from_result(notice)
        if state in SOMETHING_GONE and not waits_for_standby(warning):
            self._warnings.append(warning)


def _quoted(text: str, quote: str) -> str:
    return quote + text.replace(quote, quote * 2) + quote
