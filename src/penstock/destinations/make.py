"""From the configuration to a destination that the pipeline can drive."""

from __future__ import annotations

from penstock.config import Config
from penstock.config.models import DestinationConfig
from penstock.destinations.protocol import Target


def make(config: Config, destination: DestinationConfig) -> Target:
    sources = [source.name for source in config.sources]
    match destination.type:
        case "files":
            from penstock.destinations.files.target import FilesTarget

            return FilesTarget(config, destination)
        case "postgres":
            from penstock.destinations.postgres.target import PostgresTarget

            beside = [other.name for other in config.destinations if other is not destination]
            return PostgresTarget(config.pipeline, destination, sources, beside)
        case _:
            from penstock.destinations import custom

            given = destination.options
            return custom.load(destination.name, given.get("class", ""), given.get("options", {}))
