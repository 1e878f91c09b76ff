"""What a pipeline remembers of itself, in SQLite or PostgreSQL: `Store`."""

from penstock.state.records import PhaseChange, Progress, Request, TableKey, TableState
from penstock.state.store import Store

__all__ = ["PhaseChange", "Progress", "Request", "Store", "TableKey", "TableState"]
