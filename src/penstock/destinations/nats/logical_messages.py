"""PostgreSQL's logical messages (`pg_logical_emit_message`) as messages of NATS.

    content             what was emitted: bytes in MessagePack, `\\x…` in JSON; null if it is too large
    size                bytes of the content
    prefix              as it was given, its first 1,000 characters; as a token it ends the subject
    transactional       whether it came with its transaction; if not, `xid` and `committed_at` say nothing
    msg_id, operation, subject, source, lsn, commit_lsn, seq, xid, committed_at     as changes have them

Runs on executors.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.columns import RowColumns
from penstock.changes.encoded import INT8, TEXT, Encoding, encoded, encoded_constants
from penstock.changes.joined import Joiner
from penstock.changes.members import Member, add_map
from penstock.changes.position_text import lsn_text, time_text
from penstock.destinations.nats.documents import Form
from penstock.destinations.nats.messages import Messages, change_ranks
from penstock.destinations.nats.subjects import message_subject
from penstock.model import ColumnType

BESIDES = 8192
"""Bytes that are left for everything but the content, of what the server takes."""
LONGEST_SHOWN = 1000
"""Characters of a prefix: what is longer is cut."""
_BOOL = ColumnType(16, "bool")
_BYTEA = ColumnType(17, "bytea")


class LogicalMessages:
    def __init__(self, source: str, form: Form) -> None:
        self._source = source
        self._encoding = form.encoding
        self._id_prefix = form.id_prefix
        self._largest = form.largest - BESIDES

    def messages(self, rows: pa.RecordBatch) -> Messages:
        """Return the messages of rows as the spool has them."""
        prefix, kind, content = (RowColumns(rows["after"], 3).column(place) for place in range(3))
        different, numbers = np.unique(np.array(prefix.to_pylist(), object), return_inverse=True)
        subjects = [message_subject(each) for each in different]
        commit_lsn, seq = lsn_text(np.asarray(rows["commit_lsn"])), rows["seq"].cast(pa.string())
        ids = pc.binary_join_element_wise(commit_lsn, seq, "message", "-")
        ids = pc.binary_join_element_wise(self._id_prefix, ids, "")
        letters = pc.binary_length(content)
        size = pc.divide(pc.subtract(letters, 2), 2)
        sent = letters if self._encoding is Encoding.JSON else size
        content = pc.if_else(pc.less_equal(sent, self._largest), content, None)
        columns = {
            "msg_id": (ids, TEXT),
            "operation": (pa.array(["MESSAGE"] * len(rows)), TEXT),
            "subject": (pa.array(subjects).take(pa.array(numbers)), TEXT),
            "source": (pa.array([self._source] * len(rows)), TEXT),
            "prefix": (pc.utf8_slice_codeunits(prefix, 0, LONGEST_SHOWN), TEXT),
            "transactional": (pc.if_else(pc.equal(kind, "transactional"), "t", "f"), _BOOL),
            "content": (content, _BYTEA),
            "size": (size.cast(pa.string()), INT8),
            "lsn": (lsn_text(np.asarray(rows["lsn"])), TEXT),
            "commit_lsn": (commit_lsn, TEXT),
            "seq": (seq, INT8),
            "xid": (rows["xid"].cast(pa.string()), INT8),
            "committed_at": (time_text(rows["committed_at"]), TEXT),
        }
        names = encoded_constants([*columns], self._encoding)
        members = [
            Member(name, encoded(text, type, self._encoding))
            for name, (text, type) in zip(names, columns.values(), strict=True)
        ]
        joiner = Joiner(len(rows))
        add_map(joiner, self._encoding, members)
        payload = joiner.joined()
        return Messages(
            payload.data,
            payload.offsets[:-1],
            payload.offsets[1:],
            tuple(subject.encode() for subject in subjects),
            numbers.astype(np.int64),
            ids,
            np.asarray(rows["commit_lsn"]),
            change_ranks(np.asarray(rows["seq"])),
        )
