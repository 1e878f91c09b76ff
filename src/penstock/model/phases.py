"""The phases of a table on its way to one destination.

init           found, to be copied
data_sync      its copy is being made
finished_copy  the copy is complete, and set aside where the destination can do that
ready          handed over: its changes come with the stream
errored        stopped, with a reason; its changes wait in the spool
"""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    INIT = "init"
    DATA_SYNC = "data_sync"
    FINISHED_COPY = "finished_copy"
    READY = "ready"
    ERRORED = "errored"

    @property
    def streams(self) -> bool:
        """Whether the table's changes are delivered with the stream."""
        return self is Phase.READY
