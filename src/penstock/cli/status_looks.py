"""Looks at a pipeline's status, one after the other, by connections that stay open; they leave no traces."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from pydantic import SecretStr

from penstock.config import Config
from penstock.config.models import StateConfig
from penstock.model.errors import PenstockError, to_dict
from penstock.pipeline import rates
from penstock.pipeline.status import Document, StatusReader
from penstock.state.store import Store

PATIENCE = 3.0
"""Seconds that a source has to answer before the rest is shown without it."""


@dataclass(frozen=True, slots=True)
class StatusLook:
    document: Document
    started: bool
    """Whether there is a state store."""


def look(config: Config) -> StatusLook:
    with _without_traces(config) as (settings, started), closing(StatusReader(settings)) as reader:
        return StatusLook(reader.read(), started)


def looks(config: Config, seconds: float) -> Iterator[StatusLook]:
    """Yield a look every so many seconds, with rates from the second on. What keeps one from being taken is
    its `error`."""
    while True:
        with _without_traces(config) as (settings, started), closing(StatusReader(settings)) as reader:
            before, before_at = Document(), 0.0
            while started or _store_is_missing(config):  # that was just now: the pipeline may begin
                began = time.monotonic()
                document = _read(reader, settings)
                if before:
                    rates.add(document, before, began - before_at)
                before, before_at = document, began
                yield StatusLook(document, started)
                time.sleep(max(seconds - (time.monotonic() - began), 0.05))


def _read(reader: StatusReader, config: Config) -> Document:
    try:
        return reader.read(PATIENCE) | {"error": None}
    except PenstockError as error:
        nothing: Document = {"pipeline": config.pipeline, "running": None, "sources": [], "destinations": []}
        return nothing | {"error": to_dict(error)}


@contextmanager
def _without_traces(config: Config) -> Iterator[tuple[Config, bool]]:
    """Yield the configuration, and whether there is a store. Where there is none, a temporary one stands in:
    looking at the status creates nothing."""
    if not _store_is_missing(config):
        yield config, True
        return
    with tempfile.TemporaryDirectory(prefix="penstock-status-") as folder:
        empty = StateConfig(url=SecretStr(f"sqlite:///{folder}/state.db"))
        yield config.model_copy(update={"state": empty}), False


def _store_is_missing(config: Config) -> bool:
    try:
        store = Store.find(config.state.url.get_secret_value(), config.pipeline)
    except (PenstockError, PermissionError):  # it may well be there: who opens it is told what is wrong
        return False
    if store is not None:
        store.close()
    return store is None
