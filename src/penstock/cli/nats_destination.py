"""The destination of type `nats` that a command is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.destinations.nats.options import NatsOptions


def nats_options(config: Config, name: str | None) -> NatsOptions:
    """Return the keys of the only one, or of the one of this name."""
    from penstock.destinations.nats.options import NatsOptions
    from penstock.model.errors import ConfigError

    chosen = [each for each in config.destinations if each.type == "nats" and name in (None, each.name)]
    if len(chosen) != 1:
        names = ", ".join(each.name for each in config.destinations if each.type == "nats") or "none"
        raise ConfigError(
            "expected one destination of type nats", remedy=f"Name it with --destination; there is {names}"
        )
    return chosen[0].settings(NatsOptions)
