"""The addresses that are served. What each answers is described in `openapi.py`."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from mimetypes import guess_type
from typing import Any

import structlog
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from penstock.config import Config
from penstock.model.errors import ConnectionFailed, PenstockError, UnknownTable, to_dict
from penstock.monitoring import openapi, requests, stream_info
from penstock.monitoring.guard import Guard
from penstock.monitoring.mapping_api import CODES, MappingApi
from penstock.monitoring.observing import Observer
from penstock.monitoring.readiness import DEAD
from penstock.monitoring.requests import WrongPhase
from penstock.monitoring.stream_info import UnknownStream
from penstock.pipeline.table_actions import ACTIONS

METRICS = "text/plain; version=0.0.4; charset=utf-8"
_CODES: dict[type[PenstockError], int] = {
    UnknownTable: 404,
    UnknownStream: 404,
    WrongPhase: 409,
    ConnectionFailed: 503,
    **CODES,
}


class ReadOnly(PenstockError):
    """This server only looks."""

    remedy = "Ask the server of `penstock run`, or use the commands"


class Api:
    """Answers for one pipeline; `stop` is None where it runs elsewhere, and may not be asked for anything."""

    def __init__(self, observer: Observer, stop: Callable[[], None] | None) -> None:
        self._observer = observer
        self._stop = stop

    @property
    def _config(self) -> Config:
        return self._observer.config

    async def page(self, request: Request) -> Response:
        return await self.asset(request, "index.html")

    async def asset(self, request: Request, name: str | None = None) -> Response:
        name = name or request.path_params["name"]
        file = files("penstock.monitoring").joinpath("page", name)
        if "/" in name or name.startswith(".") or not file.is_file():
            raise HTTPException(404)
        kind, _ = guess_type(name)
        return Response(file.read_bytes(), media_type=kind, headers={"cache-control": "no-cache"})

    async def health(self, request: Request) -> Response:
        """Whether the process lives: it is not for a restart to mend a server that is away."""
        silent_seconds = self._observer.look.document.get("silent_seconds") or 0
        lives = self._stop is None or silent_seconds < DEAD
        return self._probed(request, lives, "ok" if lives else "stuck")

    async def ready(self, request: Request) -> Response:
        is_ready = all(condition.ok for condition in self._observer.look.conditions)
        return self._probed(request, is_ready, "ready" if is_ready else "not ready")

    def _probed(self, request: Request, ok: bool, status: str) -> Response:
        document: dict[str, Any] = {"status": status}
        if request.scope["trusted"]:
            document["conditions"] = [each.document() for each in self._observer.look.conditions]
        return JSONResponse(document, 200 if ok else 503)

    async def status(self, _: Request) -> Response:
        return Response(self._observer.look.status, media_type="application/json")

    async def metrics(self, _: Request) -> Response:
        return Response(self._observer.look.metrics, headers={"content-type": METRICS})

    async def history(self, _: Request) -> Response:
        return JSONResponse({"points": list(self._observer.history.points)})

    async def events(self, _: Request) -> Response:
        return JSONResponse({"events": self._observer.events.recent()})

    async def stream(self, request: Request) -> Response:
        return JSONResponse(await stream_info.described(self._config, request.query_params.get("stream")))

    async def description(self, _: Request) -> Response:
        return JSONResponse(openapi.DOCUMENT)

    async def shutdown(self, _: Request) -> Response:
        self.refuse_if_read_only()
        assert self._stop is not None
        self._stop()
        return JSONResponse({"status": "stopping"}, 202)

    def asked(self, action: str) -> Callable[[Request], Any]:
        async def ask(request: Request) -> Response:
            self.refuse_if_read_only()
            table, query = request.path_params["table"], request.query_params
            asked = await run_in_threadpool(
                requests.ask, self._config, action, table, query.get("source"), query.get("destination")
            )
            return JSONResponse({"action": action, "table": table, "asked": asked}, 202)

        return ask

    def refuse_if_read_only(self) -> None:
        if self._stop is None:
            raise ReadOnly("this server shows a pipeline that runs elsewhere: it changes nothing")


def make(observer: Observer, stop: Callable[[], None] | None) -> Starlette:
    api, config = Api(observer, stop), observer.config.monitoring
    get, post = ["GET"], ["POST"]
    routes = [
        Route("/", api.page, methods=get),
        Route("/assets/{name}", api.asset, methods=get),
        Route("/health", api.health, methods=get),
        Route("/ready", api.ready, methods=get),
        Route("/status", api.status, methods=get),
        Route("/metrics", api.metrics, methods=get),
        Route("/history", api.history, methods=get),
        Route("/events", api.events, methods=get),
        Route("/streams/info", api.stream, methods=get),
        Route("/openapi.json", api.description, methods=get),
        Route("/shutdown", api.shutdown, methods=post),
    ]
    routes += [
        Route(f"/tables/{{table:path}}/{action}", api.asked(action), methods=post) for action in ACTIONS
    ]
    routes += MappingApi(observer.config, api.refuse_if_read_only).routes()
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, host=config.host, token=config.token)],
        exception_handlers={PenstockError: _failed, HTTPException: _refused, Exception: _unforeseen},
    )


async def _failed(_: Request, error: Exception) -> Response:
    assert isinstance(error, PenstockError)
    code = (
        403
        if isinstance(error, ReadOnly)
        else next((code for kind, code in _CODES.items() if isinstance(error, kind)), 503)
    )
    return JSONResponse({"error": to_dict(error)}, code)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    document = {"kind": "Refused", "reason": error.detail, "remedy": "See /openapi.json", "where": {}}
    return Response(
        json.dumps({"error": document}), error.status_code, error.headers, media_type="application/json"
    )


async def _unforeseen(request: Request, error: Exception) -> Response:
    """Whatever it is, it is for the log: there may be anything in it."""
    log = structlog.get_logger("penstock.monitoring")
    log.error("a request failed", path=request.url.path, exc_info=error)
    remedy = "Look at the log, and report it"
    document = {"kind": "Unforeseen", "reason": "the request failed", "remedy": remedy, "where": {}}
    return JSONResponse({"error": document}, 500)
