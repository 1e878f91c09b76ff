"""Decisions about single tables (`config/mapping.py`), taken up by a pipeline while it runs.

They hold from one moment on for everybody who has the configuration. What follows from it is what follows
from another file at the next start: the look at the tables (`catalog_look.py`) brings the publication in
step, a table that is new is copied and one that has left is let go (`arrivals.py`), and one that is to arrive
elsewhere, or as something else, is copied anew (`Tables.why_anew`), each between two batches. A crash at any
point leaves the decision in the store, where the next start finds it.
"""

from __future__ import annotations

from penstock.config import Config
from penstock.state.mapping_records import UNDECIDED
from penstock.state.store import Store


class FollowedMapping:
    def __init__(self, config: Config) -> None:
        self._config = config
        self.revision = UNDECIDED
        """Of what holds now."""

    def look(self, store: Store) -> bool:
        """Let hold what was decided since the last look; return whether there was something."""
        if self._config.mapping == "file" or store.mapping.revision() == self.revision:
            return False
        mapped = store.mapping.read()
        self._config.decide(mapped.decisions)
        self.revision = mapped.revision
        return True
