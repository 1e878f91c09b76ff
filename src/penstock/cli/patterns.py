"""Tables as they are named on the command line."""

from __future__ import annotations

from collections.abc import Sequence

import typer


def check(patterns: Sequence[str]) -> None:
    """Refuse what is no pattern, as wrong usage."""
    from penstock.config.tables import check_pattern

    for pattern in patterns:
        try:
            check_pattern(pattern)
        except ValueError as error:
            raise typer.BadParameter(f"{pattern}: {error}") from None
