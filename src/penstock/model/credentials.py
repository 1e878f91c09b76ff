"""Keys for an object store. They travel with what is to be done there, from the driver to the executors."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StoreKeys:
    access: str = field(repr=False)
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
