"""What a capture needs to know: one frozen value that crosses process boundaries as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CaptureSpec:
    """One source, one slot, one spool.

    `conninfo` is a libpq connection string and holds the password: it goes to a child process through a
    pipe, never through its arguments or environment, and is left out of the representation.
    """

    source: str
    conninfo: str
    slot: str
    publication: str
    spool: Path
    former_spool: Path | None = None
    """Where an earlier version would have it, without the pipeline's name. None: it is no pipeline's."""
    consumers: tuple[str, ...] = ()
    """Registered before anything is acknowledged, so that none of them misses a change."""
    ack: str = "destination"
    """`destination`: the slot follows the slowest consumer. `spool`: it follows the spool itself."""
    streaming: bool = True
    """Whether the server may send large transactions before they commit (protocol 2)."""
    temporary_slot: bool = False
    """A slot that ends with the connection, starting now: for looking on, not for keeping."""
    create_slot: bool = True
    failover: bool = False
    heartbeat: float = 10.0
    """Seconds between heartbeats through the WAL; 0 turns them off."""
    interval: float = 0.1
    """Seconds that an ended transaction waits at most before it is cut into a segment."""
    withheld: tuple[str, ...] = ()
    """Variables of the environment that hold secrets: the capture's process is started without them."""
    retry_initial: float = 1.0
    retry_max: float = 60.0

    def to_json(self) -> str:
        return json.dumps(asdict(self) | {"spool": str(self.spool), "former_spool": None})

    @classmethod
    def from_json(cls, text: str) -> CaptureSpec:
        fields = json.loads(text)
        tuples = {key: tuple(fields[key]) for key in ("consumers", "withheld")}
        return cls(**fields | tuples | {"spool": Path(fields["spool"])})

    def __repr__(self) -> str:
        return f"CaptureSpec({self.source}, slot {self.slot}, spool {self.spool})"
