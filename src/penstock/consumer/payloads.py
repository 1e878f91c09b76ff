"""Payloads as values: MessagePack or JSON, in a zstd frame where the header says so.

A frame names the dictionary that it was compressed with; `Dictionaries` has those of the bucket, each fetched
once. Numbers of documents that neither 64 bits nor a double hold are texts in MessagePack; JSON's are read
the same way. However deep a document is nested, it is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, cast

import msgpack
import zstandard
from nats.js.errors import NotFoundError
from nats.js.kv import KeyValue

from penstock.consumer.deep_documents import read_json, read_message_pack
from penstock.model.errors import FeedUnreadable
from penstock.model.nats_names import dictionary_key

_SURELY_64_BITS, _LONGEST_64_BITS = 19, 20
"""Digits."""
LARGEST = 1 << 30
"""Bytes that one frame may become."""


class Payloads:
    """Decodes what was published with one encoding."""

    def __init__(self, encoding: str) -> None:
        self._is_json = encoding == "json"

    def decode(self, data: bytes) -> dict[str, Any]:
        """Return the map that a payload is. Raises FeedUnreadable."""
        try:
            try:
                value = _JSON.decode(data.decode()) if self._is_json else msgpack.unpackb(data)
            except (RecursionError, msgpack.exceptions.StackError):
                value = read_json(data.decode(), _JSON) if self._is_json else read_message_pack(data)
        except (ValueError, msgpack.exceptions.UnpackException):
            value = None
        if not isinstance(value, dict):
            raise FeedUnreadable(f"a message is no {'JSON' if self._is_json else 'MessagePack'} map")
        return value

    def encode(self, value: Mapping[str, Any]) -> bytes:
        return json.dumps(value).encode() if self._is_json else cast(bytes, msgpack.packb(value))


class Dictionaries:
    """Opens zstd frames of one table."""

    def __init__(self, bucket: KeyValue, token: str) -> None:
        self._bucket = bucket
        self._token = token
        self._by_id: dict[int, zstandard.ZstdDecompressor] = {}

    async def opened(self, data: bytes, headers: Mapping[str, str] | None) -> bytes:
        """Return the payload out of its frame, if the headers say that it is in one."""
        if not headers or headers.get("Content-Encoding") != "zstd":
            return data
        try:
            number = zstandard.get_frame_parameters(data).dict_id
            if number not in self._by_id:
                self._by_id[number] = await self._decompressor(number)
            return self._by_id[number].decompress(data, max_output_size=LARGEST)
        except zstandard.ZstdError:
            raise FeedUnreadable("a chunk of a snapshot is no zstd frame", table=self._token) from None

    async def _decompressor(self, number: int) -> zstandard.ZstdDecompressor:
        if number == 0:
            return zstandard.ZstdDecompressor()
        key = dictionary_key(self._token, number)
        try:
            # Keys hold `=`, which nats-py's own check of keys allows; the bucket's server decides.
            entry = await self._bucket.get(key, validate_keys=False)
        except NotFoundError:
            raise FeedUnreadable(
                f"the bucket has no dictionary {key}",
                table=self._token,
                remedy="Ask for another snapshot; if it stays, let the pipeline write the dictionary anew",
            ) from None
        return zstandard.ZstdDecompressor(dict_data=zstandard.ZstdCompressionDict(entry.value or b""))


def _integer(text: str) -> int | float | str:
    if len(text) < _SURELY_64_BITS:
        return -0.0 if text == "-0" else int(text)
    value = int(text) if len(text) <= _LONGEST_64_BITS else None
    return value if value is not None and -(1 << 63) <= value < 1 << 64 else _number(text)


def _number(text: str) -> float | str:
    """The double whose shortest text means the number; otherwise the text."""
    value = float(text)
    if repr(value) == text or (math.isfinite(value) and Decimal(repr(value)) == Decimal(text)):
        return value
    return text


_JSON = json.JSONDecoder(parse_float=_number, parse_int=_integer)
