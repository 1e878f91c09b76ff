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
from penstock.config.mapping import TableOfSource
from penstock.model import TableName, TableSchema
from penstock.model.errors import ConfigError

REMEDY = "Give one of them another `target` under `tables` of its destination, or exclude it"

Arrival = tuple[str, str, TableName]
"""A table on its way: destination, source and name there."""
Place = tuple[object, ...]


def may_collide(config: Config) -> bool:
    """Whether the tables have to be known: with one destination of its own names alone, none collide."""
    renames = any(d.options.get("schema") or _targets(d) or d.decided for d in _databases(config))
    places = [_database(destination) for destination in _databases(config)]
    return renames or len(set(places)) < len(places)


def collisions(config: Config, tables: Mapping[str, Sequence[TableSchema]]) -> list[str]:
    """Return a sentence for each target that several tables have. `tables` by source."""
    names = {source: [schema.name for schema in schemas] for source, schemas in tables.items()}
    return [
        _told(target, group) for (_, target), group in _arrivals(config, names).items() if _collide(group)
    ]


def meeting(config: Config, names: Mapping[str, Sequence[TableName]], table: TableOfSource) -> list[str]:
    """Return a sentence for each target that this table would have together with others, although they would
    overwrite each other, or are not of one kind. `names` of what is captured, by source."""
    groups = {
        target: group
        for (_, target), group in _arrivals(config, names).items()
        if any(arrival[1:] == table for arrival in group)
    }
    return [
        *(_told(target, group) for target, group in groups.items() if _collide(group)),
        *(_told_kinds(target, group) for target, group in groups.items() if _is_mixed(config, group)),
    ]


def _is_mixed(config: Config, arrivals: Sequence[Arrival]) -> bool:
    """Whether some arrive as a history and others do not: its columns are others."""
    destinations = {destination.name: destination for destination in config.destinations}
    kinds = [destinations[by].rules_of(name, source).kind for by, source, name in arrivals]
    return len({kind == "history" for kind in kinds}) > 1


def _told_kinds(target: TableName, arrivals: Sequence[Arrival]) -> str:
    each = [f"{name} of source {source}" for _, source, name in arrivals]
    return f"these arrive at one table, {target}, and not all of them as a history: {'; '.join(each)}"


def _arrivals(
    config: Config, names: Mapping[str, Sequence[TableName]]
) -> dict[tuple[Place, TableName], list[Arrival]]:
    arrivals: dict[tuple[Place, TableName], list[Arrival]] = defaultdict(list)
    for destination in _databases(config):
        for source, tables in names.items():
            for name in sorted(tables):
                place = _database(destination), destination.target_of(name, source)
                arrivals[place].append((destination.name, source, name))
    return arrivals


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
