"""Where files are, and what they are called.

A table's folders sort by time, and no two of its batches share one: a batch that comes within the same second
as the one before is given the next second.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from penstock.model import TableName

STREAMING, FULL, SCHEMA, DDL = "streaming", "full_reload", "schema", "ddl"
"""Types of file, as the registry names them."""

_TOKENS = {"YYYY": "%Y", "MM": "%m", "DD": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
_TOKEN = re.compile("|".join(_TOKENS))
_UNSAFE = re.compile(r'[\x00-\x1f\x7f-\x9f\u2028\u2029/\\%.:*?"<>|]')
LONGEST = 120
"""Bytes of a name in a path: two of them and a dot fit into the 255 that file systems take. A name that has
more, as nearly all of it is encoded, is cut and told apart by its hash."""


@dataclass(frozen=True, slots=True)
class Layout:
    pattern: str
    timestamp_format: str

    def folder(self, source: str, table: TableName, at: datetime) -> str:
        """Return a batch's folder, below the base path."""
        return self.pattern.format(
            source=encoded(source),
            schema=encoded(table.schema),
            table=encoded(table.name),
            timestamp=at.strftime(self.strftime),
        )

    def is_batch(self, folder: str) -> bool:
        """Whether it has the name of a batch's folder."""
        try:
            datetime.strptime(folder.rpartition("/")[2], self.strftime)
        except ValueError:
            return False
        return True

    @property
    def strftime(self) -> str:
        return _TOKEN.sub(lambda match: _TOKENS[match[0]], self.timestamp_format.replace("%", "%%"))


def encoded(name: str) -> str:
    """Return a name as part of a path: it cannot leave its folder, and no two names become the same."""
    safe = _UNSAFE.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), name)
    if len(safe.encode()) <= LONGEST:
        return safe
    end = f"%-{hashlib.sha256(name.encode()).hexdigest()[:32]}"  # `%-` is in no name that was not cut
    return safe.encode()[: LONGEST - len(end)].decode(errors="ignore") + end


def next_batch(now: datetime, last: datetime | None) -> datetime:
    """Return the timestamp of a batch that begins now: UTC, whole seconds, later than the table's last."""
    second = now.astimezone(UTC).replace(microsecond=0, tzinfo=None)
    return second if last is None else max(second, last + timedelta(seconds=1))
