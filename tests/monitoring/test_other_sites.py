"""Pages of other sites, in a real browser on the dashboard's machine: they change nothing."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Page, sync_playwright

from penstock.state.store import Store
from tests.monitoring.asking import Served

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ELSEWHERE = "evil.example"
"""A name that its owner lets point to this machine."""
PATHS = ("/shutdown", "/tables/public.orders/reload")

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no Chromium here (Debian: apt install chromium)"
)

# Whatever a page can send elsewhere without asking first.
ATTACK = """async ([target, paths]) => {
  for (const path of paths) {
    for (const type of ["text/plain", "application/x-www-form-urlencoded"]) {
      await fetch(target + path, { method: "POST", mode: "no-cors", credentials: "include",
                                   headers: { "content-type": type }, body: "x" }).catch(() => {});
    }
    await fetch(target + path, { method: "POST", headers: { Authorization: "Bearer x" } }).catch(() => {});
    navigator.sendBeacon(target + path, "x");
    const frame = document.createElement("iframe");
    frame.name = "frame" + path;
    const form = document.createElement("form");
    Object.assign(form, { method: "post", action: target + path, target: frame.name });
    document.body.append(frame, form);
    const done = new Promise((loaded) => { frame.onload = loaded; setTimeout(loaded, 3000); });
    form.submit();
    await done;
  }
}"""


class Elsewhere(BaseHTTPRequestHandler):
    """A page with nothing in it; what is sent here is noted."""

    posted: list[str]

    def do_GET(self) -> None:
        self._answer(b"<!doctype html><body></body>")

    def do_POST(self) -> None:
        self.posted.append(self.path)
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self._answer(b"")

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def elsewhere() -> Iterator[tuple[int, list[str]]]:
    """The port of another site's server, and the paths of what was posted there."""
    posted: list[str] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Noted", (Elsewhere,), {"posted": posted})) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port, posted
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def browser() -> Iterator[Page]:
    with sync_playwright() as playwright:
        rule = f"--host-resolver-rules=MAP {ELSEWHERE} 127.0.0.1"
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", rule])
        yield opened.new_page()
        opened.close()


def test_a_page_of_another_site_triggers_nothing(http: Served, store: Store) -> None:
    with elsewhere() as (port, posted), browser() as page:
        page.goto(f"http://{ELSEWHERE}:{port}/")
        page.evaluate(ATTACK, [f"http://127.0.0.1:{port}", PATHS])
        assert set(posted) == set(PATHS), "the browser sends it"
        assert len(posted) >= 6
        page.evaluate(ATTACK, [f"http://{http.ask.host}", PATHS])
        page.evaluate(ATTACK, [f"http://localhost:{http.ask.host.rpartition(':')[2]}", PATHS])
    assert (store.requests(), http.stopped.is_set()) == ([], False)


def test_a_name_that_points_here_is_not_answered(http: Served, store: Store) -> None:
    """A page whose name was let point to this machine after it was loaded is of the same origin as we are."""
    port = http.ask.host.rpartition(":")[2]
    with browser() as page:
        seen = page.goto(f"http://{ELSEWHERE}:{port}/status")
        assert seen is not None
        assert (seen.status, "sources" in seen.text()) == (421, False)
        code = "async (path) => (await fetch(path, { method: 'POST' })).status"
        assert [page.evaluate(code, path) for path in PATHS] == [421, 421]
        assert page.evaluate("async () => (await fetch('/metrics')).status") == 421
    assert (store.requests(), http.stopped.is_set()) == ([], False)
