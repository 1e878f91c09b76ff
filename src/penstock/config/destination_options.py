"""What the options of every type of destination have in common, and what others ask of them.

A type's options are checked while the configuration is read, so that a mistake is told with its line. The
methods say what the rest of Penstock has to know before a destination is made; a type overrides those that
concern it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator

from penstock.config.section import Section

if TYPE_CHECKING:
    from penstock.config.destinations import DestinationTable


def _identifier(name: str) -> str:
    if not name or len(name.encode()) > 63 or "\0" in name:
        raise ValueError("expected a name of at most 63 bytes")
    return name


Identifier = Annotated[str, AfterValidator(_identifier)]
MARKER_PREFIX = "CDC_RELOAD:"
"""How markers of reloads begin where nobody says otherwise."""
Misfit = tuple[str, tuple[str, ...]]
"""What is wrong, and with which key of the destination."""


class Options(Section):
    def misfits(
        self,
        tables: Mapping[str, DestinationTable],  # noqa: ARG002
        sources: int,  # noqa: ARG002
        taken: Collection[str],  # noqa: ARG002
    ) -> Iterator[Misfit]:
        """Yield what does not go with the rules for tables, with so many sources, or with the schemas that
        other destinations have taken at them."""
        yield from ()

    @property
    def schema_at_sources(self) -> str | None:
        """The schema of its own that it keeps at every source, and that is never captured."""
        return None

    @property
    def marker_prefix(self) -> str | None:
        """How markers of reloads begin, for a destination that wants schema changes recorded; None: it does
        not."""
        return None

    @property
    def database(self) -> str | None:
        """The connection to the database that holds its tables, where two with one name are one table; None:
        tables never meet there. Holds the password: not for any output."""
        return None
