"""The part of the API's description that is about the sources' tables (`mapping_api.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.config.mapping import TARGET
from penstock.monitoring.mapping_api import HIGHEST, MOST_TABLES
from penstock.pipeline.mapping import KINDS

Document = dict[str, Any]

_TEXT: Document = {"type": "string"}
_MAYBE_TEXT: Document = {"type": ["string", "null"]}
_YES_OR_NO: Document = {"type": "boolean"}
_NAMES: Document = {"type": "array", "items": _TEXT}


def _object(required: Document, **optional: Document) -> Document:
    return {"type": "object", "required": sorted(required), "properties": required | optional}


_PLACING: Document = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "target": {
            "type": ["string", "null"],
            "minLength": 1,
            "maxLength": 300,
            "pattern": TARGET.replace("\\x00", "\\u0000"),
            "description": '`table` or `schema.table`; in double quotes what holds a dot, a star or a "',
        },
        "kind": {"enum": [*KINDS, None]},
    },
}
_DECISION: Document = {
    "type": "object",
    "additionalProperties": False,
    "description": "What is left out, or null, is as the file says",
    "properties": {
        "captured": {"type": ["boolean", "null"]},
        "destinations": {
            "type": "object",
            "additionalProperties": {"$ref": "#/components/schemas/Placing"},
        },
    },
}
_ARRIVAL = _object(
    {
        "destination": _TEXT,
        "type": _TEXT,
        "target": _TEXT,
        "kind": {"enum": list(KINDS)},
        "filtered": _YES_OR_NO,
        "set": _NAMES,
        "drop": _NAMES,
        "takes_target": _YES_OR_NO,
        "phase": _MAYBE_TEXT,
        "pending": _YES_OR_NO,
    }
)
_TABLE = _object(
    {
        "source": _TEXT,
        "table": _TEXT,
        "schema": _TEXT,
        "name": _TEXT,
        "type": {"enum": ["table", "partitioned table", "foreign table"]},
        "part_of": _MAYBE_TEXT,
        "rows": {"type": ["integer", "null"], "description": "As the planner believes"},
        "bytes": {"type": "integer", "description": "As the planner believes"},
        "can_be_followed": _YES_OR_NO,
        "reason": {**_MAYBE_TEXT, "description": "Why it cannot be followed, and what to do"},
        "captured": _YES_OR_NO,
        "decided_by": {"enum": ["file", "mapping"]},
        "state": {
            "enum": ["captured", "coming", "changing", "leaving", "left out", "part", "not captured"],
            "description": "What is so, or is yet to come; `part`: it comes with what it is a partition of",
        },
        "revision": {"type": "integer", "description": "Of what is decided of it; 0: nothing"},
        "decision": {"$ref": "#/components/schemas/Decision"},
        "destinations": {"type": "array", "items": {"$ref": "#/components/schemas/Arrival"}},
    },
    takes_effect={**_TEXT, "description": "After a change: when"},
)
_TABLES = _object(
    {
        "mapping": {"enum": ["file", "database"]},
        "revision": {"type": ["integer", "null"]},
        "running": {**_MAYBE_TEXT, "description": "Who runs the pipeline, in words"},
        "total": {"type": "integer"},
        "matching": {"type": "integer"},
        "captured": {"type": "integer", "description": "Of those that match"},
        "offset": {"type": "integer"},
        "tables": {"type": "array", "items": {"$ref": "#/components/schemas/SourceTable"}},
        "errors": {"type": "array", "items": {"type": "object"}, "description": "Sources that do not answer"},
    }
)
SCHEMAS: Document = {
    "Placing": _PLACING,
    "Decision": _DECISION,
    "Arrival": _ARRIVAL,
    "SourceTable": _TABLE,
    "SourceTables": _TABLES,
}


def _query(name: str, what: str, schema: Document) -> Document:
    return {"name": name, "in": "query", "required": False, "description": what, "schema": schema}


_SEARCH = [
    _query("search", "Part of the name, in capitals or not", _TEXT),
    _query("source", "Only of this source", {"type": "string", "minLength": 1}),
    _query("captured", "Only what is captured, or is not", _YES_OR_NO),
    _query("offset", "So many are passed over", {"type": "integer", "minimum": 0, "maximum": HIGHEST}),
    _query("limit", "So many at most", {"type": "integer", "minimum": 1, "maximum": MOST_TABLES}),
]
_OF_A_TABLE = [
    {
        "name": "table",
        "in": "path",
        "required": True,
        "description": "As `/tables` has it",
        "schema": {"type": "string", "minLength": 1},
    },
    _query("source", "Its source, where there are several", {"type": "string", "minLength": 1}),
]
_IF_MATCH = {
    "name": "If-Match",
    "in": "header",
    "required": False,
    "description": "The ETag of what was seen: nothing is changed if somebody else was quicker",
    "schema": {"type": "string", "pattern": '^("?[0-9]{1,18}"?|\\*)$'},
}


def paths(answer: Callable[[str, Document], Document], errors: Callable[..., Document]) -> Document:
    table = {"$ref": "#/components/schemas/SourceTable"}
    unknown = {"404": "There is no such table, or no such source"}
    refused = unknown | {"403": "It may not be asked for from here", "409": "It cannot be decided so"}
    body = {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Decision"}}},
    }
    return {
        "/tables": {
            "get": {
                "summary": "All tables of the sources, and which are captured",
                "parameters": _SEARCH,
                "responses": {
                    "200": answer("The tables", {"$ref": "#/components/schemas/SourceTables"}),
                    **errors(**{"404": "There is no such source"}),
                },
            }
        },
        "/tables/{table}/mapping": {
            "get": {
                "summary": "A table of which something is decided",
                "parameters": _OF_A_TABLE,
                "responses": {
                    "200": answer("The table", table),
                    **errors(**{"404": "There is no such table, or nothing is decided of it"}),
                },
            },
            "put": {
                "summary": "Decide whether a table is captured, and where and as what it arrives",
                "parameters": [*_OF_A_TABLE, _IF_MATCH],
                "requestBody": body,
                "responses": {
                    "200": answer("The table as it is to be", table),
                    **errors(**refused, **{"415": "The body is no JSON"}),
                },
            },
            "delete": {
                "summary": "Take back what was decided: the file says how it is",
                "parameters": [*_OF_A_TABLE, _IF_MATCH],
                "responses": {"200": answer("The table as it is to be", table), **errors(**refused)},
            },
        },
    }
