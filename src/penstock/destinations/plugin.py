"""What a type of destination is: its options, and how one is made, checked and granted its rights.

A type is a folder or module with an object of this protocol, and a line in `config/destination_types.py` or
an entry point of the group `penstock.destinations`. Its functions import what they need when they are called:
the configuration loads the type for its options alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from penstock.config import Config, DestinationConfig, destination_types
from penstock.config.destination_options import Options

if TYPE_CHECKING:
    from psycopg.sql import Composable

    from penstock.destinations.protocol import Target
    from penstock.model import TableSchema
    from penstock.postgres.preflight.check import Check
    from penstock.postgres.providers import Ways
    from penstock.postgres.script import Script


Tables = Callable[[], "Sequence[TableSchema]"]


@dataclass(frozen=True, slots=True)
class Rights:
    """What a role needs at a PostgreSQL server that is a destination, for `penstock grant`."""

    conninfo: str
    """Of the server, with the password in it: not for any output."""
    tables: Composable
    """The query that chooses the tables."""
    write: Callable[[Script], None]


class DestinationType(Protocol):
    options: type[Options]

    def make(self, config: Config, destination: DestinationConfig) -> Target:
        """Make the destination. Connects nowhere yet."""

    def check(
        self, config: Config, destination: DestinationConfig, tables: Sequence[TableSchema]
    ) -> list[Check]:
        """Check what can be checked without changing anything. `tables`: those that are to arrive, as far as
        the sources could be asked."""

    def owns(self, destination: DestinationConfig) -> Mapping[str, Sequence[str]]:
        """Tell the schemas that the role of a source has to own there for it, with the tables in them."""

    def rights(
        self, destination: DestinationConfig, tables: Tables, role: str | None, ways: Ways
    ) -> Rights | None:
        """Tell what the role (by default the connection's own) needs there; None: it is no PostgreSQL server.
        `tables` asks the sources which are to arrive, as far as they answer."""


def type_of(destination: DestinationConfig) -> DestinationType:
    return cast(DestinationType, destination_types.load(destination.type))
