"""A connection to the HTTP server, as uvicorn has it, but with an end to its patience.

uvicorn lets go of a client that is silent after an answer, not of one that never asked, that stops half-way
through its headers, or that does not take what it is sent. Each holds a place, and places are few. Once a
request's headers are there, its time is the guard's matter.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class Connection(HttpToolsProtocol):
    """Is closed `timeout_keep_alive` seconds after it was made, or after its last answer, unless the headers
    of a request have come by then; what it has not taken so many seconds later it does not get."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_answering():
            self._cancel_deadline()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._is_answering():
            self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def _is_answering(self) -> bool:
        is_asked = self.cycle is not None and not self.cycle.response_complete
        return is_asked and not self.flow.write_paused and not self.transport.is_closing()

    def _await_request(self) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(self.timeout_keep_alive, self._end)

    def _end(self) -> None:
        if self.transport.is_closing():
            self.transport.abort()
        else:
            self.transport.close()
            self._await_request()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
