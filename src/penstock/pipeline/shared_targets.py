"""Where tables arrive: no two at one place, as far as it can be told before anything is written.

Several sources share a table of one destination, where each row has its source. Otherwise two tables with one
target overwrite each other: two of one source, or any two by two destinations to one database. What cannot be
seen here (a server by two names, a table that comes later) the destination sees, and that table stops.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from psycopg.conninfo import conninfo_to_dict

from penstock.config import Config
from penstock.config.destination_options import Options
from penstock.config.destinations import DestinationConfig
from penstock.model import TableName, TableSchema
from penstock.model.errors import ConfigError

REMEDY = "Give one of them another `target` under `tables` of its destination, or exclude it"

Arrival = tuple[str, str, TableName]
"""A table on its way: destination, source and name there."""
Place = tuple[object, ...]


def may_collide(config: Config) -> bool:
    """Whether the tables have to be known: with one destination of its own names alone, none collide."""
    places = [_database(destination) for destination in _databases(config)]
    renames = any(d.options.get("schema") or _targets(d) for d in _databases(config))
    return renames or len(set(places)) < len(places)


def collisions(config: Config, tables: Mapping[str, Sequence[TableSchema]]) -> list[str]:
    """Return a sentence for each target that several tables have. `tables` by source."""
    arrivals: dict[tuple[Place, TableName], list[Arrival]] = defaultdict(list)
    for destination in _databases(config):
        for source, schemas in tables.items():
            for name in sorted(schema.name for schema in schemas):
                place = _database(destination), destination.target_of(name)
                arrivals[place].append((destination.name, source, name))
    return [_told(target, group) for (_, target), group in arrivals.items() if _collide(group)]


def refuse(config: Config, tables: Mapping[str, Sequence[TableSchema]]) -> None:
    wrong = collisions(config, tables)
    if wrong:
        raise ConfigError("\n".join(wrong), remedy=REMEDY)


def _collide(arrivals: Sequence[Arrival]) -> bool:
    destinations = {destination for destination, _, _ in arrivals}
    sources = {source for _, source, _ in arrivals}
    return len(destinations) > 1 or len(sources) < len(arrivals)


def _told(target: TableName, arrivals: Sequence[Arrival]) -> str:
    each = [f"{name} of source {source} by destination {by}" for by, source, name in arrivals]
    return f"these arrive at one table, {target}, and would overwrite each other: {'; '.join(each)}"


def _databases(config: Config) -> Iterator[DestinationConfig]:
    return (
        destination
        for destination in config.destinations
        if destination.settings(Options).database is not None
    )


def _targets(destination: DestinationConfig) -> list[str]:
    return [rules.target for rules in destination.tables.values() if rules.target]


def _database(destination: DestinationConfig) -> Place:
    """Return which database it is, as the configuration names it."""
    keywords = conninfo_to_dict(destination.settings(Options).database or "")
    return tuple(keywords.get(name) for name in ("service", "host", "hostaddr", "port", "dbname"))
