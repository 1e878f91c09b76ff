"""Messages that are no change of a row, and documents in the bucket: a table's schema, its beginning.

Each is a map in the destination's encoding, as changes are.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgpack

from penstock.changes.encoded import Encoding
from penstock.destinations.nats.messages import Messages, Place
from penstock.destinations.nats.subjects import change_subject, token
from penstock.destinations.protocol import Delivery
from penstock.model import ColumnType, Lsn, TypeKind

_STANDARD = {
    "bool": "boolean",
    "bpchar": "character",
    "float4": "real",
    "float8": "double precision",
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "time": "time without time zone",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
    "timetz": "time with time zone",
    "varbit": "bit varying",
    "varchar": "character varying",
}
"""What the SQL standard calls some of PostgreSQL's types."""

HEADERS = 512
"""Bytes that are left for a message's headers, of what the server takes."""

Details = Mapping[str, tuple[bool, str | None]]
"""Of each column, by name: whether it may be NULL, and its default."""


@dataclass(frozen=True, slots=True)
class Form:
    """What messages are like."""

    encoding: Encoding
    id_prefix: str
    """What ids begin with, where those of several sources would be the same."""
    largest: int
    """Bytes of a message with its headers, at most."""


def packed(document: Mapping[str, Any], encoding: Encoding) -> bytes:
    if encoding is Encoding.JSON:
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    return bytes(msgpack.packb(document))


def unpacked(payload: bytes, encoding: Encoding) -> Any:
    return json.loads(payload) if encoding is Encoding.JSON else msgpack.unpackb(payload)


def position_text(position: Lsn | int) -> str:
    """Return a position with all its digits, as changes have it."""
    value = position.value if isinstance(position, Lsn) else position
    return f"{value >> 32:08X}/{value & 0xFFFFFFFF:08X}"


def data_type(type: ColumnType) -> str:
    """Return what a type is called, without its length or precision."""
    if type.kind is TypeKind.ARRAY and type.inner is not None:
        return f"{data_type(type.inner)}[]"
    return _STANDARD.get(type.name, type.name)


def schema_document(
    delivery: Delivery, details: Details = MappingProxyType({}), version: int = 0
) -> dict[str, Any]:
    table = delivery.table
    columns = []
    for place, column in enumerate(table.columns, 1):
        detail = None if column.name in delivery.computed else details.get(column.name)
        nullable, default = detail or (None, None)
        columns.append(
            {
                "name": column.name,
                "position": place,
                "data_type": data_type(column.type),
                "is_nullable": nullable,
                "column_default": default,
                "key": column.name in delivery.key,
            }
        )
    return {
        "table": token(table.name),
        "schema": str(table.name),
        "source": delivery.source,
        "relation_id": int(table.id),
        "version": version,
        "timestamp": int(time.time()),
        "primary_key": list(delivery.primary_key),
        "identity": str(table.identity),
        "columns": columns,
    }


def without_defaults(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description without the columns' defaults, which may be of any length."""
    columns = [column | {"column_default": None} for column in document["columns"]]
    return {**document, "columns": columns}


def schema_message(delivery: Delivery, form: Form, version: int, place: Place, details: Details) -> Messages:
    """Tell of a table's new schema, before the first change under it; if need be without defaults."""
    about = schema_document(delivery, details, version) | {"lsn": position_text(place.commit_lsn)}
    message = _message(delivery, form, "schema", f"v{version}", place, about)
    if message.size + HEADERS > form.largest:
        message = _message(delivery, form, "schema", f"v{version}", place, without_defaults(about))
    return message


def reset_message(delivery: Delivery, form: Form, copy: str, position: Lsn, place: Place) -> Messages:
    """Tell that changes of the table may be missing before: it is new, or it comes again after a gap."""
    table = delivery.table
    document = {
        "table": token(table.name),
        "schema": str(table.name),
        "source": delivery.source,
        "relation_id": int(table.id),
        "lsn": position_text(position),
    }
    return _message(delivery, form, "reset", copy, place, document)


def _message(
    delivery: Delivery, form: Form, operation: str, id: str, place: Place, document: Mapping[str, Any]
) -> Messages:
    name = delivery.table.name
    subject = change_subject(name, operation)
    message_id = f"{form.id_prefix}{position_text(place.commit_lsn)}-{id}-{token(name)}-{operation}"
    content = {**document, "operation": operation.upper(), "subject": subject, "msg_id": message_id}
    return Messages.single(packed(content, form.encoding), subject, message_id, place)
