"""Who may ask what: nobody from another site, nobody without the token where one is needed, nothing large or
slow.

A server on a loopback address answers only under a loopback name: a page on another site can have its own
name point here. What asks for a change must come from our own page, or from no page at all.
"""

from __future__ import annotations

import asyncio
import hmac
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.model.network import is_loopback

LARGEST = 64 << 10
"""Bytes of a request's body."""
SLOWEST = 15.0
"""Seconds for an answer."""
OPEN = frozenset({"/", "/health", "/ready"})
"""What is answered without a token wherever it is asked for: the page has nothing in it that is secret, and
the probes say without a token only whether, not why."""
ASSETS = "/assets/"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_ENCODED = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]


class Guard:
    def __init__(self, app: ASGIApp, host: str, token: str | None) -> None:
        self._app = app
        self._is_local = is_loopback(host)
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        scope["trusted"] = self._is_trusted(headers)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await refusal(scope, receive, _with_headers(send))
            return
        answered = _Answered(_with_headers(send))
        try:
            async with asyncio.timeout(SLOWEST):
                await self._app(scope, _limited(receive), answered)
        except TimeoutError:
            if not answered.begun:
                await _said(503, "it takes too long", "Try again later")(scope, receive, answered)
        except _TooLarge:
            if not answered.begun:
                await _too_large()(scope, receive, answered)

    def _refusal(self, scope: Scope, headers: Headers) -> JSONResponse | None:
        host = headers.get("host", "")
        if self._is_local and not is_loopback(_name(host)):
            return _said(421, "this server has another name", "Ask for it as localhost or 127.0.0.1")
        is_safe = scope["method"] in _SAFE
        if not is_safe and not _is_of_our_page(headers, host):
            return _said(
                403, "a page of another site may ask for nothing", "Use the dashboard, or no browser"
            )
        path = scope["path"]
        is_open = is_safe and (path in OPEN or path.startswith(ASSETS) or self._is_local)
        if not is_open and not scope["trusted"]:
            refused = _said(
                401, "the bearer token is missing, or is another one", "Send `Authorization: Bearer …`"
            )
            refused.headers["www-authenticate"] = "Bearer"
            return refused
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdecimal():
            return _said(400, "Content-Length is no number", "Send a number of bytes")
        return _too_large() if int(length) > LARGEST else None

    def _is_trusted(self, headers: Headers) -> bool:
        """Whether who asks has the token; without one, whoever asks on this machine."""
        if self._token is None:
            return self._is_local
        scheme, _, given = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(
            given.strip().encode(), self._token.encode()
        )


class _TooLarge(Exception):
    pass


class _Answered:
    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False

    async def __call__(self, message: Message) -> None:
        self.begun = True
        await self._send(message)


def _limited(receive: Receive) -> Receive:
    """A body without a length is counted as it comes."""
    size = 0

    async def limited() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > LARGEST:
            raise _TooLarge
        return message

    return limited


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {name.lower() for name, _ in message["headers"]}
            more = [header for header in _ENCODED if header[0] not in given]
            message = {**message, "headers": [*message["headers"], *more]}
        await send(message)

    return sending


def _is_of_our_page(headers: Headers, host: str) -> bool:
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    try:
        origin = urlsplit(headers.get("origin", f"//{host}"))
    except ValueError:
        return False
    return origin.netloc.lower() == host.lower()


def _name(host: str) -> str:
    """The host without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _said(code: int, reason: str, remedy: str) -> JSONResponse:
    error: dict[str, Any] = {"kind": "Refused", "reason": reason, "remedy": remedy, "where": {}}
    return JSONResponse({"error": error}, code)


def _too_large() -> JSONResponse:
    return _said(413, f"a request has at most {LARGEST} bytes", "Send less")
