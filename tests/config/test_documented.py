"""Every key is documented: docs/configuration.md has the line that its description gives."""

from __future__ import annotations

from pathlib import Path

from penstock.config.environment import KNOWN
from penstock.config.key_reference import keys, table
from penstock.config.models import Config

PAGE = Path(__file__, "../../../docs/configuration.md").resolve().read_text()


def test_every_key_has_a_description() -> None:
    assert [str(key) for key in keys(Config).values() if not key.description] == []


def test_every_key_is_documented() -> None:
    missing = [line for line in table(Config).splitlines() if line not in PAGE.splitlines()]
    assert missing == [], "bring docs/configuration.md in step: python -m penstock.config"


def test_every_variable_is_documented() -> None:
    assert [name for name in ("STARTUP_MODE", *KNOWN) if f"`{name}`" not in PAGE] == []
