"""What a person sees who watches `penstock run`: the log, and below it the pipeline as it is now."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.rule import Rule

from penstock.cli.live import LiveDisplay
from penstock.cli.overview import duration, heading, overview
from penstock.cli.run import STOPPING
from penstock.config import Config
from penstock.monitoring.events import Events
from penstock.monitoring.observing import Observer


class RunView:
    """Is shown for as long as it is entered. It looks at the pipeline as anybody else does, once a second."""

    def __init__(self, config: Config, stop: threading.Event) -> None:
        self._pipeline = config.pipeline
        self._stop = stop
        self._observer = Observer(config, Events())
        self._display = LiveDisplay(self._render)
        self._began = time.monotonic()
        self.address: Callable[[], str | None] = lambda: None
        """Where the dashboard is served, once it is."""

    def __enter__(self) -> RunView:
        self._observer.start()
        self._display.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._observer.stop()
        self._display.__exit__()

    def _render(self) -> RenderableType:
        document = self._observer.look.document
        running = any(source["capture"]["pid"] for source in document.get("sources", ()))
        state = "is stopping" if self._stop.is_set() else "runs" if running else "is starting"
        since = duration(time.monotonic() - self._began)
        title = heading(self._pipeline, f"{state}, {since}", self.address())
        note = STOPPING if self._stop.is_set() else "Ctrl-C stops it in good order"
        return Group(Rule(style="dim"), overview(document, title, note))
