"""Overrides from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config import Config, load
from penstock.model.errors import ConfigError

FILE = """
pipeline: shop
sources:
  - {name: eu, connection: {host: db}, tables: {include: [public.a]}}
  - {name: us, connection: {host: db}}
spool: {path: here}
"""


def loaded(folder: Path, **environ: str) -> Config:
    (folder / "shop.yml").write_text(FILE)
    return load(folder / "shop.yml", environ)


def test_the_names_that_deployments_know(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        STARTUP_MODE="streaming_only",
        MAX_EXPORT_WORKERS="2",
        EXPORT_BATCH_SIZE="500",
        STREAMING_BATCH_INTERVAL="300",
    )
    assert [source.startup_mode for source in config.sources] == ["streaming_only", "streaming_only"]
    assert config.initial_copy.workers == 2
    assert config.initial_copy.batch_rows == 500
    assert config.batch_control.interval == 300


def test_any_key_by_its_path(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        PENSTOCK_PIPELINE="other",
        PENSTOCK_SPOOL__PATH="/there",
        PENSTOCK_SOURCES__1__CONNECTION__PASSWORD="123",
        PENSTOCK_SOURCES__0__REPLICATION__CREATE_PUBLICATION="false",
        PENSTOCK_SOURCES__0__TABLES__INCLUDE="[public.b, public.c]",
        PENSTOCK_SOURCES__0__DDL_CAPTURE="off",
        PENSTOCK_SOURCES__2__NAME="asia",
        PENSTOCK_SOURCES__2__DSN="host=far",
        PENSTOCK_SPARK__CONF="{spark.ui.enabled: false}",
        PENSTOCK_MONITORING__TOKEN_ENV="null",
        PENSTOCK_TEST_PG_BINS="not for us",
    )
    assert config.pipeline == "other"
    assert config.spool.path == Path("/there")
    assert "password=123" in config.source("us").conninfo()
    assert config.source("eu").replication.create_publication is False
    assert config.source("eu").tables.include == ("public.b", "public.c")
    assert config.source("eu").ddl_capture == "off"
    assert config.source("asia").slot_name == "penstock_other_asia"
    assert config.spark.conf == {"spark.ui.enabled": "false"}


def test_the_particular_has_the_last_word(tmp_path: Path) -> None:
    config = loaded(tmp_path, STARTUP_MODE="auto", PENSTOCK_SOURCES__1__STARTUP_MODE="force_reload")
    assert [source.startup_mode for source in config.sources] == ["auto", "force_reload"]


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("PENSTOCK_COPY__WORKERS", "x", "copy.workers: expected a valid integer, found 'x'"),
        ("PENSTOCK_COPY__WORKRES", "1", "copy.workres: is not a key here; `workers` is"),
        ("STARTUP_MODE", "now", "sources[0].startup_mode: expected 'auto'"),
        ("PENSTOCK_COPYING__WORKERS", "1", "there is no section copying; expected batch_control, copy"),
        ("PENSTOCK_SOURCES__7__NAME", "x", "expected an index up to 2, found 7"),
        ("PENSTOCK_SOURCES__EU__NAME", "x", "expected an index up to 2, found eu"),
        ("PENSTOCK_PIPELINE__NAME", "x", "pipeline has no keys"),
        ("PENSTOCK_SPARK__CONF", "{a: [", "spark.conf: expected keys below it"),
        ("PENSTOCK_STATE__URL", "[hush]", "state.url: expected a valid string"),
    ],
)
def test_what_is_wrong_names_the_variable(tmp_path: Path, variable: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, **{variable: value})
    assert str(caught.value).startswith(f"environment variable {variable}: {said}")
    assert "hush" not in str(caught.value)
