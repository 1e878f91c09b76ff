"""The API, described for programs: OpenAPI 3.1."""

from __future__ import annotations

from typing import Any

from penstock import __version__
from penstock.monitoring import mapping_openapi
from penstock.pipeline.table_actions import ACTIONS

Document = dict[str, Any]

_ERROR: Document = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["kind", "reason", "remedy", "where"],
            "properties": {
                "kind": {"type": "string"},
                "reason": {"type": "string"},
                "remedy": {"type": "string"},
                "where": {"type": "object", "additionalProperties": {"type": "string"}},
            },
        }
    },
}
_CONDITION: Document = {
    "type": "object",
    "required": ["name", "ok"],
    "properties": {
        "name": {"type": "string"},
        "ok": {"type": "boolean"},
        "reason": {"type": "string"},
        "remedy": {"type": "string"},
    },
}
_PROBE: Document = {
    "type": "object",
    "required": ["status"],
    "properties": {
        "status": {"type": "string"},
        "conditions": {"type": "array", "items": {"$ref": "#/components/schemas/Condition"}},
    },
}
_STATUS: Document = {
    "type": "object",
    "required": ["pipeline", "running"],
    "properties": {
        "pipeline": {"type": "string"},
        "running": {"type": ["string", "null"], "description": "Who runs it, in words"},
        "ready": {"type": "boolean"},
        "conditions": {"type": "array", "items": {"$ref": "#/components/schemas/Condition"}},
        "status": {"type": "string", "enum": ["connected", "disconnected"]},
        "uptime_seconds": {"type": ["integer", "null"]},
        "wal_messages_received": {"type": ["integer", "null"]},
        "cdc_events_published": {"type": "integer"},
        "current_lsn": {"type": ["string", "null"]},
        "is_connected": {"type": "boolean"},
        "reconnect_count": {"type": "integer"},
        "nats_reconnect_count": {"type": "integer"},
        "last_processing_time_us": {"type": "integer"},
        "slot_active": {"type": "boolean"},
        "wal_lag_bytes": {"type": "integer"},
        "wal_lag_mb": {"type": "integer"},
        "sources": {"type": "array", "items": {"type": "object"}},
        "state": {"type": "object", "properties": {"bytes": {"type": ["integer", "null"]}}},
        "destinations": {"type": "array", "items": {"type": "object"}},
    },
}
_ASKED: Document = {
    "type": "object",
    "required": ["action", "table", "asked"],
    "properties": {
        "action": {"type": "string"},
        "table": {"type": "string"},
        "asked": {"type": "array", "items": {"type": "object"}},
    },
}
_WHAT_ACTIONS_DO = {
    "reload": "Copy the table anew, while the others go on",
    "retry": "Let a table that stopped go on, once the cause is mended",
    "pause": "Deliver nothing of the table until it is resumed; its changes wait in the spool",
    "resume": "Let a paused table go on where it was paused",
}


def _answer(what: str, schema: Document) -> Document:
    return {"description": what, "content": {"application/json": {"schema": schema}}}


def _errors(**codes: str) -> Document:
    reference = {"$ref": "#/components/schemas/Error"}
    common = {
        "400": "The request cannot be read",
        "401": "The token is missing",
        "413": "The request is too large",
        "421": "The server has another name",
        "503": "It cannot be answered now",
    }
    return {code: _answer(what, reference) for code, what in (common | codes).items()}


def _get(what: str, schema: Document, **codes: str) -> Document:
    return {"get": {"summary": what, "responses": {"200": _answer(what, schema), **_errors(**codes)}}}


def _probe(what: str, holds: str, fails: str) -> Document:
    schema = {"$ref": "#/components/schemas/Probe"}
    answers = _errors() | {"200": _answer(holds, schema), "503": _answer(fails, schema)}
    return {"get": {"summary": what, "responses": answers}}


def _post(what: str, schema: Document, parameters: list[Document], **codes: str) -> Document:
    refused = {"403": "It may not be asked for from here", **codes}
    answers = {"202": _answer(what, schema), **_errors(**refused)}
    return {"post": {"summary": what, "parameters": parameters, "responses": answers}}


def _parameter(name: str, place: str, what: str) -> Document:
    wanted = {"type": "string", "minLength": 1}
    return {"name": name, "in": place, "required": place == "path", "description": what, "schema": wanted}


_OF_A_TABLE = [
    _parameter("table", "path", "`schema.table`"),
    _parameter("source", "query", "Only of this source"),
    _parameter("destination", "query", "Only for this destination"),
]
_ANY: Document = {"type": "object"}
_TEXT: Document = {"type": "string"}

DOCUMENT: Document = {
    "openapi": "3.1.0",
    "info": {
        "title": "Penstock",
        "version": __version__,
        "description": "What a pipeline does, and what may be asked of it.",
    },
    "paths": {
        "/health": _probe("Whether the pipeline's process lives", "It lives", "It is stuck"),
        "/ready": _probe("Whether everything works", "Everything works", "Something does not, by name"),
        "/status": _get("Sources, destinations and tables", {"$ref": "#/components/schemas/Status"}),
        "/metrics": {
            "get": {
                "summary": "The numbers, for Prometheus",
                "responses": {
                    "200": {"description": "The numbers", "content": {"text/plain": {"schema": _TEXT}}},
                    **_errors(),
                },
            }
        },
        "/history": _get("An hour of lag and rates", _ANY),
        "/events": _get("What the log said last", _ANY),
        "/openapi.json": _get("This description", _ANY),
        "/streams/info": {
            "get": _get("A stream of JetStream", _ANY, **{"404": "There is no such stream"})["get"]
            | {"parameters": [_parameter("stream", "query", "Default: the stream of changes")]}
        },
        "/shutdown": _post("Stop the pipeline in good order", _ANY, []),
        **{
            f"/tables/{{table}}/{action}": _post(
                _WHAT_ACTIONS_DO[action],
                {"$ref": "#/components/schemas/Asked"},
                _OF_A_TABLE,
                **{"404": "There is no such table", "409": "The table has nothing of the kind to do"},
            )
            for action in ACTIONS
        },
        **mapping_openapi.paths(_answer, _errors),
    },
    "components": {
        "schemas": {
            "Error": _ERROR,
            "Condition": _CONDITION,
            "Probe": _PROBE,
            "Status": _STATUS,
            "Asked": _ASKED,
            **mapping_openapi.SCHEMAS,
        },
        "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
    },
    "security": [{}, {"token": []}],
}
