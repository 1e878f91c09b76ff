"""Addresses about the sources' tables: all of them, and what is decided of one (`pipeline/mapping.py`)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from penstock.config import Config
from penstock.config.mapping import Decision, Placing
from penstock.model.errors import MappingChanged, MappingRefused, PenstockError, UnknownTable
from penstock.pipeline.mapping import InvalidMapping, MappingInFile, TableMapping
from penstock.pipeline.source_tables import SourceTables, TableFilter
from penstock.state.mapping_records import UNDECIDED
from penstock.state.store import Store

MOST_TABLES = 1000
"""In one answer."""
HIGHEST = 10**9

Result = TypeVar("Result")


class NotJson(PenstockError):
    """The body of a request is of another type."""

    remedy = "Send JSON, with `Content-Type: application/json`"


CODES: dict[type[PenstockError], int] = {
    NotJson: 415,
    InvalidMapping: 400,
    MappingInFile: 409,
    MappingRefused: 409,
    MappingChanged: 409,
}


class MappingApi:
    def __init__(self, config: Config, refuse_if_read_only: Callable[[], None]) -> None:
        self._config = config
        self._tables = SourceTables(config)
        self._refuse_if_read_only = refuse_if_read_only

    def routes(self) -> list[Route]:
        return [
            Route("/tables", self.browse, methods=["GET"]),
            Route("/tables/{table:path}/mapping", self.mapping, methods=["GET", "PUT", "DELETE"]),
        ]

    async def browse(self, request: Request) -> Response:
        wanted = _wanted(request.query_params)
        if wanted.source is not None and wanted.source not in self._tables.catalogs:
            names = ", ".join(self._tables.catalogs)
            raise UnknownTable("no source has this name", remedy=f"Name one of them: {names}")
        return JSONResponse(
            await self._with_store(lambda mapping: self._tables.browse(mapping.store, wanted))
        )

    async def mapping(self, request: Request) -> Response:
        table, source = request.path_params["table"], request.query_params.get("source")
        if request.method in ("PUT", "DELETE"):
            self._refuse_if_read_only()
            decision = await _decision(request) if request.method == "PUT" else Decision()
            seen = _seen(request.headers.get("if-match"))
            document = await self._with_store(lambda mapping: mapping.decide(table, source, decision, seen))
        else:
            document = await self._with_store(lambda mapping: mapping.described(table, source))
            if document["revision"] == UNDECIDED:
                raise UnknownTable("nothing is decided of the table", remedy="See in /tables how it is")
        return JSONResponse(document, headers={"etag": f'"{document["revision"]}"'})

    async def _with_store(self, work: Callable[[TableMapping], Result]) -> Result:
        def worked() -> Result:
            url = self._config.state.url.get_secret_value()
            with Store.existing(url, self._config.pipeline) as store:
                return work(TableMapping(self._tables, store))

        return await run_in_threadpool(worked)


def _wanted(query: Mapping[str, str]) -> TableFilter:
    captured = query.get("captured")
    if captured not in (None, "true", "false"):
        raise InvalidMapping("`captured` is true or false", remedy="Leave it out for all tables")
    return TableFilter(
        search=query.get("search", ""),
        source=query.get("source"),
        captured=None if captured is None else captured == "true",
        offset=_number(query, "offset", 0, 0, HIGHEST),
        limit=_number(query, "limit", 100, 1, MOST_TABLES),
    )


def _number(query: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    given = query.get(name)
    if given is None:
        return default
    if not re.fullmatch(r"[0-9]{1,10}", given) or not least <= int(given) <= most:
        raise InvalidMapping(f"`{name}` is a number from {least} to {most}", remedy="Send one, or none")
    return int(given)


def _seen(etag: str | None) -> int | None:
    """Return the revision that whoever asks had before him, by `If-Match`."""
    if etag is None or etag.strip() == "*":
        return None
    match = re.fullmatch(r'"?([0-9]{1,18})"?', etag.strip())
    if match is None:
        raise InvalidMapping(
            "If-Match is a revision, a number", remedy="Send the ETag of what you have seen, or none"
        )
    return int(match[1])


async def _decision(request: Request) -> Decision:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise NotJson("the body is to be JSON")
    try:
        document = json.loads(await request.body())
    except ValueError:
        raise InvalidMapping("the body is no JSON", remedy='Send such as {"captured": true}') from None
    return decision_of(document)


def decision_of(document: Any) -> Decision:
    """Read a decision as people send it. Whatever else stands there is refused: it may be a slip of the pen,
    and without effect."""
    _check_keys("a decision", document, {"captured", "destinations"})
    captured, destinations = document.get("captured"), document.get("destinations", {})
    if captured is not None and not isinstance(captured, bool):
        raise InvalidMapping("`captured` is true, false or null")
    if not isinstance(destinations, dict):
        raise InvalidMapping("`destinations` has the names of destinations, with `target` and `kind` below")
    placings = {}
    for name, placing in destinations.items():
        _check_keys("what is below a destination", placing, {"target", "kind"})
        target, kind = placing.get("target"), placing.get("kind")
        if not all(isinstance(text, str | None) for text in (target, kind)):
            raise InvalidMapping("`target` and `kind` are text, or null")
        if target == "" or kind == "":
            raise InvalidMapping(
                "`target` and `kind` are not empty", remedy="Leave out what the file decides"
            )
        placings[name] = Placing(target, kind)
    return Decision(captured, placings)


def _check_keys(what: str, document: Any, allowed: set[str]) -> None:
    if not isinstance(document, dict) or not document.keys() <= allowed:
        raise InvalidMapping(f"{what} has no keys but {', '.join(sorted(allowed))}")
