"""The types of destinations: the built-in ones, and those that installed packages add.

A package adds one through the entry point group `penstock.destinations`: the entry's name is the type, its
object a `penstock.destinations.plugin.DestinationType`. A built-in type cannot be replaced.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol, cast

from penstock.config.destination_options import Options
from penstock.model.errors import ConfigError

GROUP = "penstock.destinations"
BUILT_IN = {
    "files": "penstock.destinations.files.plugin:TYPE",
    "nats": "penstock.destinations.nats.plugin:TYPE",
    "postgres": "penstock.destinations.postgres.plugin:TYPE",
    "python": "penstock.destinations.python.plugin:TYPE",
}


class HasOptions(Protocol):
    """What the configuration needs to know of a type."""

    options: type[Options]


@cache
def _entries() -> dict[str, EntryPoint]:
    installed = {entry.name: entry for entry in entry_points(group=GROUP)}
    return installed | {name: EntryPoint(name, value, GROUP) for name, value in BUILT_IN.items()}


def names() -> list[str]:
    return sorted(_entries())


@cache
def load(name: str) -> HasOptions:
    """The type of this name, which is one of `names()`."""
    try:
        return cast(HasOptions, _entries()[name].load())
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"the type {name} of destination cannot be loaded: {error}",
            remedy="Mend the package that adds it, or remove the destination",
        ) from error
