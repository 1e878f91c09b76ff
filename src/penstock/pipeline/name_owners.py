"""Tables in each other's place at a destination: renamed to a name that another one had, or swapped.

A table is its oid, and names pass from one to the other. A table has its target from when its copy is handed
over until it is delivered under another one, is let go, or is to be copied anew; until then no other may take
it. One that is about to move on is waited for. Where nobody will make room, because two have swapped their
names, the table is copied anew: it then has no target, and the copy is put in the place of whatever is left
there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.model import TableId, TableName
from penstock.model.errors import TargetShared
from penstock.model.phases import Phase
from penstock.pipeline.schema_evolution import is_newer
from penstock.pipeline.source_feed import SourceFeed
from penstock.pipeline.table_states import Tables, is_handed_over
from penstock.state.store import TableState


@dataclass(frozen=True, slots=True)
class Places:
    feed: SourceFeed
    tables: Tables

    def owner(self, target: TableName, besides: TableId) -> TableState | None:
        """Return another table that has this target, if there is one."""
        return next(filter(_is_delivered, self._meant_for(target, besides)), None)

    def _meant_for(self, target: TableName, besides: TableId) -> Iterator[TableState]:
        return (state for state in self.tables if state.target == target and state.key.table != besides)

    def refuse_if_shared(self, target: TableName, table: TableId) -> None:
        """Raise if another table has this target, or will have it, and keeps it."""
        for other in self._meant_for(target, table):
            if other.phase is not Phase.INIT and self.target_now(other.key.table) == target:
                raise TargetShared(f"{other.name} arrives at the same table", target=target)

    def target_now(self, table: TableId) -> TableName | None:
        """Return the target that its present name gives it at the destination; None: the table is gone."""
        facts = self.feed.published.tables.get(table)
        return self.tables.target_of(facts.schema.name) if facts is not None else None

    def is_lost(self, copied: TableState) -> bool:
        """Whether another table has the target that a copy was made for, and keeps it, the one that was
        copied having another name by now."""
        facts = self.feed.published.tables.get(copied.key.table)
        owner = self.owner(copied.target, copied.key.table)
        return (
            owner is not None
            and self.target_now(owner.key.table) == copied.target
            and facts is not None
            and is_newer(facts, copied.detail)
            and self.target_now(copied.key.table) != copied.target
        )

    def is_awaited(self, state: TableState) -> bool:
        """Whether another table has the target that this one is to have, and moves on to one that is free, or
        will be."""
        target, passed = self.target_now(state.key.table), {state.key.table}
        if target is None or self.owner(target, state.key.table) is None:
            return False
        while (owner := self.owner(target, state.key.table)) is not None:
            now = self.target_now(owner.key.table)
            if now is None:
                return True  # the table is gone, and will be let go
            if owner.key.table in passed or not owner.phase.streams or now in (target, state.target):
                return False
            passed.add(owner.key.table)
            target = now
        return True


def _is_delivered(state: TableState) -> bool:
    """Whether the table stands under its target: a copy that was not handed over is set aside."""
    stopped = state.phase is Phase.ERRORED and state.position is not None and is_handed_over(state)
    return state.phase.streams or stopped
