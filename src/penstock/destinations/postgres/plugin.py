"""The type `postgres`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.config import Config, DestinationConfig
from penstock.destinations.postgres.options import PostgresOptions
from penstock.model import TableName, TableSchema

if TYPE_CHECKING:
    from penstock.destinations.plugin import Rights, Tables
    from penstock.destinations.protocol import Target
    from penstock.postgres.preflight.check import Check
    from penstock.postgres.providers import Ways


class PostgresType:
    options = PostgresOptions

    def make(self, config: Config, destination: DestinationConfig) -> Target:
        from penstock.destinations.postgres.target import PostgresTarget

        sources = [source.name for source in config.sources]
        beside = [other.name for other in config.destinations if other is not destination]
        return PostgresTarget(config.pipeline, destination, sources, beside)

    def check(
        self,
        config: Config,  # noqa: ARG002
        destination: DestinationConfig,
        tables: Sequence[TableSchema],
    ) -> list[Check]:
        from penstock.destinations.postgres import preflight

        return preflight.run(destination, _targets(destination, tables))

    def owns(self, destination: DestinationConfig) -> Mapping[str, Sequence[str]]:  # noqa: ARG002
        return {}

    def rights(self, destination: DestinationConfig, tables: Tables, role: str | None, ways: Ways) -> Rights:
        from penstock.destinations.plugin import Rights
        from penstock.destinations.postgres import grants
        from penstock.postgres.script import user

        options = destination.settings(PostgresOptions)
        targets = _targets(destination, tables())
        needs = grants.DestinationNeeds(
            role or user(options.conninfo()),
            ways,
            targets or _named_targets(destination, options.schema_name),
            bool(targets),
            options.create_tables,
        )
        return Rights(
            options.conninfo(), grants.chosen(needs.targets), lambda script: grants.destination(script, needs)
        )


TYPE = PostgresType()


def _targets(destination: DestinationConfig, tables: Sequence[TableSchema]) -> list[TableName]:
    """Where these arrive. Of which source each is has no say, but where something was decided of it."""
    deciding: dict[TableName, list[str]] = {}
    for source, name in destination.decided:
        deciding.setdefault(name, []).append(source)
    return sorted(
        {
            destination.target_of(table.name, source)
            for table in tables
            for source in deciding.get(table.name, [None])
        }
    )


def _named_targets(destination: DestinationConfig, schema: str | None) -> list[TableName]:
    """What the configuration itself says of where tables go."""
    targets = [rules.target for rules in destination.tables.values()]
    targets += [placing.target for placing in destination.decided.values()]
    named = {TableName.parse(target) for target in targets if target}
    return sorted(named | ({TableName(schema, "")} if schema else set()))
