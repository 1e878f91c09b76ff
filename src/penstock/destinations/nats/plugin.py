"""The type `nats`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.config import Config, DestinationConfig
from penstock.destinations.nats.options import NatsOptions

if TYPE_CHECKING:
    from penstock.destinations.plugin import Tables
    from penstock.destinations.protocol import Target
    from penstock.model import TableSchema
    from penstock.postgres.preflight.check import Check
    from penstock.postgres.providers import Ways


class NatsType:
    options = NatsOptions

    def make(self, config: Config, destination: DestinationConfig) -> Target:
        from penstock.destinations.nats.target import NatsTarget

        return NatsTarget(config, destination)

    def check(
        self,
        config: Config,
        destination: DestinationConfig,
        tables: Sequence[TableSchema],
    ) -> list[Check]:
        from penstock.destinations.nats import preflight
        from penstock.destinations.nats.subjects import position_subjects

        positions = position_subjects(config.pipeline, (source.name for source in config.sources))
        return preflight.run(destination.settings(NatsOptions), tables, positions)

    def owns(self, destination: DestinationConfig) -> Mapping[str, Sequence[str]]:  # noqa: ARG002
        return {}

    def rights(self, destination: DestinationConfig, tables: Tables, role: str | None, ways: Ways) -> None:
        """Return None: it is no PostgreSQL server."""


TYPE = NatsType()
