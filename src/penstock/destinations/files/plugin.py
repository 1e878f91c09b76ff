"""The type `files`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.config import Config, DestinationConfig
from penstock.destinations.files.options import FilesOptions

if TYPE_CHECKING:
    from penstock.destinations.plugin import Tables
    from penstock.destinations.protocol import Target
    from penstock.model import TableSchema
    from penstock.postgres.preflight.check import Check
    from penstock.postgres.providers import Ways


class FilesType:
    options = FilesOptions

    def make(self, config: Config, destination: DestinationConfig) -> Target:
        from penstock.destinations.files.target import FilesTarget

        return FilesTarget(config, destination)

    def check(
        self,
        config: Config,
        destination: DestinationConfig,
        tables: Sequence[TableSchema],  # noqa: ARG002
    ) -> list[Check]:
        from penstock.destinations.files import preflight

        return preflight.run(config, destination)

    def owns(self, destination: DestinationConfig) -> Mapping[str, Sequence[str]]:
        from penstock.postgres.grants import LEDGER, OWN

        registry = destination.settings(FilesOptions).file_registry
        return {OWN: LEDGER} | ({registry.schema_name: ()} if registry.enabled else {})

    def rights(self, destination: DestinationConfig, tables: Tables, role: str | None, ways: Ways) -> None:
        """Return None: what it needs at a source is granted with that source."""


TYPE = FilesType()
