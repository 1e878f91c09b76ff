"""The page in a real browser: what a person sees, by mouse and by keyboard, in light and dark, on a phone."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from penstock.config import Config
from penstock.model import TableId, TableName
from penstock.model.errors import ConnectionFailed
from penstock.monitoring.events import Events
from penstock.monitoring.observing import Observer
from penstock.monitoring.serving import HttpServer
from penstock.state.store import Store, TableKey
from tests.monitoring.asking import Served
from tests.monitoring.serving import beside, servers

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MARKUP = "<img src=x onerror=document.title=1>"

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no Chromium here (Debian: apt install chromium)"
)


@contextmanager
def opened(
    url: str, width: int = 1200, scheme: str = "light", ready: str = "#rows tr", refused: str = "none"
) -> Iterator[Page]:
    """The page, which has asked nobody else for anything and has not complained when it is closed."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        complaints, asked = list[str](), set[str]()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        page.on("request", lambda request: asked.add(request.url))
        page.goto(url)
        page.wait_for_selector(ready)
        yield page
        assert [said for said in complaints if f"status of {refused}" not in said] == []
        assert {address for address in asked if not address.startswith(url.partition("#")[0])} == set()
        browser.close()


def many(store: Store, count: int) -> None:
    (ready,) = [state for state in store.tables() if state.name.name == "orders"]
    for number in range(count):
        name = TableName("public", f"t{number:04}" if number else MARKUP)
        key = TableKey("source", "copy", TableId(1000 + number))
        store.put(replace(ready, key=key, name=name, target=name))


def url(http: Served) -> str:
    return f"http://{http.ask.host}/"


def test_a_table_that_stopped_is_retried_by_keyboard(http: Served, store: Store) -> None:
    with opened(url(http)) as page:
        assert page.inner_text("#pipeline") == "test"
        stopped = page.locator("#rows tr", has_text="public.users")
        assert "no (table public.users). Mend the cause at the destination" in stopped.inner_text()
        assert page.locator("#rows tr").first.inner_text().startswith("public.users")
        button = stopped.get_by_role("button", name="retry public.users for copy")
        button.focus()
        page.keyboard.press("Enter")
        expect(page.locator("#told")).to_contain_text("asked to retry")
    assert [request.kind for request in store.requests()] == ["retry"]


def test_a_copy_is_asked_for_only_after_a_yes(http: Served, store: Store) -> None:
    with opened(url(http)) as page:
        button = page.get_by_role("button", name="reload public.orders for copy")
        button.click()
        page.get_by_role("button", name="Cancel").click()
        assert store.requests() == []
        button.click()
        assert "Copy public.orders anew for copy?" in page.inner_text("#question")
        page.get_by_role("button", name="Yes").click()
        expect(page.locator("#told")).to_contain_text("asked to reload")
    assert [request.kind for request in store.requests()] == ["reload"]


def test_a_thousand_tables_are_there_and_found(http: Served, store: Store) -> None:
    many(store, 1000)
    with opened(url(http)) as page:
        expect(page.locator("#rows tr")).to_have_count(1003, timeout=20_000)
        page.fill("#find", "T0999")
        assert page.locator("#rows tr").count() == 1
        page.fill("#find", "onerror")
        assert MARKUP in page.inner_text("#rows")
        page.fill("#find", "nothing of the kind")
        assert page.is_visible("#none")


def test_what_fails_is_told_with_its_remedy_and_goes_away(http: Served, store: Store) -> None:
    with opened(url(http)) as page:
        store.waits("source", "copy", ConnectionFailed("the destination is away", remedy="Start it"))
        expect(page.locator("#troubles")).to_contain_text(
            "destination:copy the destination is away. Start it"
        )
        store.waits("source", "copy", None)
        expect(page.locator("#troubles")).not_to_contain_text("destination:copy")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_it_fits_and_can_be_read(http: Served, width: int, scheme: str) -> None:
    with opened(url(http), width, scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CONTRAST) == []
        for button in page.get_by_role("button").all():
            if button.is_visible():
                assert button.get_attribute("aria-label") or button.inner_text()


# Of every text that is seen: how it stands out from what is behind it, as WCAG 2 reckons it.
CONTRAST = """() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, place) => sum + c * [0.2126, 0.7152, 0.0722][place], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const [r, g, b, a = 1] = channels(getComputedStyle(at).backgroundColor);
      if (a > 0.99) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const weak = [];
  for (const element of document.querySelectorAll("body *")) {
    const said = [...element.childNodes].some((each) => each.nodeType === 3 && each.textContent.trim());
    if (!said || !element.checkVisibility() || element.closest("svg")) continue;
    const one = light(channels(getComputedStyle(element).color)) + 0.05;
    const other = light(behind(element)) + 0.05;
    const ratio = Math.max(one / other, other / one);
    if (ratio < 4.5) weak.push(`${element.textContent.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return weak;
}"""


def test_the_server_goes_and_comes_back(config: Config, store: Store) -> None:
    assert store.tables()
    first = HttpServer(Observer(config, Events()), None)
    port = int(first.url.rstrip("/").rpartition(":")[2])
    thread = threading.Thread(target=first.run)
    thread.start()
    with sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]).new_page()
        page.goto(first.url)
        page.wait_for_selector("#rows tr")
        first.end()
        thread.join()
        page.wait_for_selector("text=the pipeline does not answer")
        monitoring = config.monitoring.model_copy(update={"port": port})
        second = HttpServer(Observer(config.model_copy(update={"monitoring": monitoring}), Events()), None)
        thread = threading.Thread(target=second.run)
        thread.start()
        page.wait_for_selector("#state.bad:not(:text('does not answer'))", timeout=15_000)
        second.end()
        thread.join()


def test_a_server_that_says_nothing_is_not_taken_for_well(config: Config, store: Store) -> None:
    assert store.tables()
    with beside(config) as monitoring, sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]).new_page()
        assert monitoring.url is not None
        page.goto(monitoring.url)
        page.wait_for_selector("#rows tr")
        (server,) = servers()
        server.suspend()  # its connections stay open
        try:
            page.wait_for_selector("text=the pipeline does not answer", timeout=10_000)
        finally:
            server.resume()
        page.wait_for_selector("#state:not(:text('does not answer'))")
