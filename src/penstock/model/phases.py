"""The phases of a table on its way to one destination.

init           found, to be copied
data_sync      its copy is being made
finished_copy  the copy is complete, and set aside where the destination can do that
sync_wait      waits until the stream has come past the copy's snapshot    (in memory only)
catchup        the copy becomes visible with the changes it does not hold  (in memory only)
sync_done      handed over: what follows comes with the stream
ready          the stream's
errored        stopped, with a reason; its changes wait in the spool
"""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    INIT = "init"
    DATA_SYNC = "data_sync"
    FINISHED_COPY = "finished_copy"
    SYNC_WAIT = "sync_wait"
    CATCHUP = "catchup"
    SYNC_DONE = "sync_done"
    READY = "ready"
    ERRORED = "errored"

    @property
    def stored(self) -> bool:
        return self not in (Phase.SYNC_WAIT, Phase.CATCHUP)

    @property
    def streams(self) -> bool:
        """Whether the table's changes are delivered with the stream."""
        return self in (Phase.SYNC_DONE, Phase.READY)
