"""How much WAL the source keeps for us: told when it is much, and when it is not any more."""

from __future__ import annotations

import structlog

from penstock.postgres.preflight.check import size
from penstock.postgres.slot import SlotState

LEVELS = (512 << 20, 1 << 30)
"""Bytes from which on it is told, and told again."""
LOOK = 30.0
"""Seconds between two looks."""


class RetainedWal:
    def __init__(self, source: str) -> None:
        self._level = 0
        self._log = structlog.get_logger("penstock.pipeline").bind(source=source)

    def note(self, slot: SlotState | None) -> None:
        if slot is None:
            return
        level = sum(slot.retained >= bound for bound in LEVELS)
        if level > self._level:
            self._log.warning(
                "the source keeps much WAL for the slot",
                slot=slot.name,
                retained=size(slot.retained),
                wal_status=slot.wal_status,
                remedy="See in `penstock status` who is behind; max_slot_wal_keep_size bounds what is kept",
            )
        elif level < self._level:
            self._log.info(
                "the source keeps less WAL for the slot", slot=slot.name, retained=size(slot.retained)
            )
        self._level = level
