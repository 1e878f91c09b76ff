"""Every block of the documentation is one that a test runs, loads or parses, or says why not."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.config import load
from penstock.model.errors import ConfigError
from penstock.spark.session import ALWAYS, ON_ONE_MACHINE
from tests.docs.blocks import BLOCKS, Block, of_language
from tests.docs.shop import SECRETS

CHECKED = {"python", "yaml", "sql", "console", "sh", "json", "toml", "properties", "promql"}
SHOWN = {"text"}
"""Layouts, pictures, output, lines of other programs' files: nothing to run."""
MOST_NOT_RUN = 3
MOST_SHOWN = 8

BASE: dict[str, Any] = {
    "pipeline": "shop",
    "sources": [{"name": "eu", "dsn": "postgresql://cdc@localhost/shop"}],
}
CONFIGURATIONS = [block for block in of_language("yaml") if "scrape_configs:" not in block.text]
"""Without that of Prometheus, which the tests of the alerts look at."""
DESTINATION = {"name": "d", "type": "postgres", "dsn": "postgresql://cdc@localhost/dw"}


def test_every_block_says_what_it_is() -> None:
    assert [str(block) for block in BLOCKS if block.language not in CHECKED | SHOWN] == []


def test_few_blocks_are_not_run() -> None:
    not_run = [f"{block}: {block.not_run}" for block in BLOCKS if block.not_run]
    assert len(not_run) <= MOST_NOT_RUN, "\n".join(not_run)
    shown = [str(block) for block in BLOCKS if block.language in SHOWN and block.not_run is None]
    assert len(shown) <= MOST_SHOWN, "\n".join(shown)


@pytest.mark.parametrize("block", of_language("json"), ids=str)
def test_json_is_json(block: Block) -> None:
    assert isinstance(json.loads(block.text), dict)


@pytest.mark.parametrize("block", of_language("toml"), ids=str)
def test_toml_is_toml(block: Block) -> None:
    assert tomllib.loads(block.text)


@pytest.mark.parametrize("block", of_language("properties"), ids=str)
def test_settings_of_spark_are_those_of_our_own_session(block: Block) -> None:
    settings = dict(line.split() for line in block.text.splitlines())
    ours = ALWAYS | ON_ONE_MACHINE
    assert {key: ours.get(key) for key in settings} == settings


@pytest.mark.parametrize("block", CONFIGURATIONS, ids=str)
def test_configurations_are_taken(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are, or, of a part, where it belongs: in the file, in a source, in a destination."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    errors = []
    for whole in _placed(yaml.safe_load(block.text)):
        file = tmp_path / "shop.yaml"
        file.write_text(yaml.safe_dump(whole))
        try:
            load(file)
            return
        except ConfigError as error:
            errors.append(str(error))
    pytest.fail(f"{block} is not taken:\n" + "\n".join(errors))


def _reached(source: dict[str, Any]) -> dict[str, Any]:
    return source if {"connection", "dsn"} & source.keys() else BASE["sources"][0] | source


def _placed(part: dict[str, Any]) -> list[dict[str, Any]]:
    if isinstance(part.get("config"), dict):  # values of the Helm chart, which hold one
        return [part["config"]]
    if "pipeline" in part:
        return [part]
    if "sources" in part:
        part |= {"sources": [_reached(source) for source in part["sources"]]}
    source = {"name": "eu", **part} if "connection" in part else BASE["sources"][0] | part
    return [
        BASE | part,
        BASE | {"sources": [source]},
        BASE | {"destinations": [DESTINATION | part]},
    ]
