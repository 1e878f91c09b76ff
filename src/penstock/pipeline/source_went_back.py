"""A source that went back: the server was restored, a standby that lagged was promoted, or it is another
server. What the destination recorded is then a position in a history that is gone.

Left there, the stream would wait until the WAL has grown past it, and then leave out what committed before.
Once every table is to be copied anew nothing relies on that position, and the stream begins where the spool
does. A crash in between leaves tables to be copied: the next start comes here again.
"""

from __future__ import annotations

from penstock.model import Lsn
from penstock.model.phases import Phase
from penstock.pipeline.source_feed import SourceFeed
from penstock.pipeline.table_states import Tables
from penstock.state.store import TableState


def copied_anew(feed: SourceFeed, tables: Tables, delivered: Lsn) -> bool:
    """Have the tables that rely on `delivered`, which the spool does not reach, copied anew, and return True;
    False if the source still has that position, so that capture is only to come there."""
    relying = [state for state in tables if _relies_on_positions(state)]
    if relying and not feed.is_behind(delivered):
        return False
    for state in relying:
        tables.copy_anew(state, f"the server went back behind {delivered}, up to where it was delivered")
    return True


def _relies_on_positions(state: TableState) -> bool:
    if state.phase is Phase.ERRORED:
        return state.position is not None
    return state.phase not in (Phase.INIT, Phase.DATA_SYNC)
