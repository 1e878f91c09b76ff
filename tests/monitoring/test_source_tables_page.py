"""The page's part about the sources' tables, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from penstock.config.mapping import Decision, Placing
from penstock.model import TableName
from tests.bed import Database
from tests.monitoring.mapped import MARKUP, Deciding, deciding, of
from tests.monitoring.test_dashboard import CHROMIUM, CONTRAST, opened

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no Chromium here (Debian: apt install chromium)"
)
USERS = "source", TableName("public", "users")


@pytest.fixture
def http(database: Database, tmp_path: Path) -> Iterator[Deciding]:
    with deciding(database, of(database, tmp_path)) as made:
        yield made


@contextmanager
def shown(http: Deciding, width: int = 1200, scheme: str = "light") -> Iterator[Page]:
    url, ready = f"http://{http.ask.host}/#source-tables", "#source-rows tr"
    with opened(url, width, scheme, ready, refused="409") as page:  # the browser tells its console of it
        yield page


def test_a_table_is_no_longer_captured_by_keyboard(http: Deciding) -> None:
    with shown(http) as page:
        row = page.locator("#source-rows tr", has_text="public.users")
        row.get_by_role("button", name="remove: public.users of source").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#question")).to_contain_text("Capture public.users no longer?")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("#told")).to_contain_text("when it is started")
        expect(row).to_contain_text("not captured")
        expect(row).to_contain_text("decided here")
        assert http.store.mapping.read().decisions == {USERS: Decision(False)}
        row.get_by_role("button", name="as the file says").click()
        page.get_by_role("button", name="Yes").click()
        expect(row).to_contain_text("coming")
    assert http.decided() == 0


def test_target_and_kind_are_changed_after_they_were_seen(http: Deciding) -> None:
    with shown(http) as page:
        row = page.locator("#source-rows tr", has_text="public.users")
        expect(row).to_contain_text("copy: there.users as clone (computed: email; left out: password)")
        row.get_by_role("button", name="change").click()
        page.get_by_label("target at copy").fill("app.people")
        page.get_by_label("kind at copy").select_option("history")
        page.get_by_role("button", name="Save").click()
        expect(row).to_contain_text("copy: app.people as history")
        placed = Decision(None, {"copy": Placing("app.people", "history")})
        assert http.store.mapping.read().decisions == {USERS: placed}
        row.get_by_role("button", name="change").click()
        assert page.get_by_label("target at copy").input_value() == "app.people"
        http.store.mapping.decide(USERS, Decision(False))
        page.get_by_label("target at copy").fill("app.others")
        page.get_by_role("button", name="Save").click()
        expect(page.locator("#told")).to_contain_text("somebody else has decided about the table meanwhile")
    assert http.store.mapping.read().decisions == {USERS: Decision(False)}


def test_what_is_refused_is_told(http: Deciding) -> None:
    with shown(http) as page:
        page.locator("#source-rows tr", has_text="public.users").get_by_role("button", name="change").click()
        page.get_by_label("target at copy").fill("there.orders")
        page.get_by_role("button", name="Save").click()
        expect(page.locator("#told")).to_contain_text("these arrive at one table, there.orders")
    assert http.decided() == 0


def test_tables_are_found_and_names_are_text(http: Deciding, database: Database) -> None:
    database.execute(
        "do $$ begin for n in 1..120 loop execute format('create table t%s (id int primary key)', n);"
        " end loop; end $$"
    )
    with shown(http) as page:
        expect(page.locator("#source-counts")).to_contain_text("128 of 128")
        assert page.locator("#source-rows tr").count() == 50
        page.get_by_role("button", name="Next").click()
        expect(page.locator(".pages")).to_contain_text("51–100 of 128")
        page.fill("#source-find", "ONERROR")
        expect(page.locator("#source-rows tr")).to_have_count(1)
        assert MARKUP in page.inner_text("#source-rows")
        page.fill("#source-find", "")
        page.select_option("#source-which", "false")
        expect(page.locator("#source-rows")).to_contain_text("it is unlogged")
        assert page.locator("#source-rows tr").count() == 1
        assert page.title().endswith("Penstock")


def test_where_the_file_decides_there_is_no_button(database: Database, tmp_path: Path) -> None:
    with deciding(database, of(database, tmp_path, "file")) as http, shown(http) as page:
        assert page.locator("#source-rows button").count() == 0
        assert "the configuration file decides" in page.inner_text("#source-who")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_it_fits_and_can_be_read(http: Deciding, width: int, scheme: str) -> None:
    http.put("public.orders", {"destinations": {"copy": {"kind": "append"}}})
    with shown(http, width, scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CONTRAST) == []
        page.locator("#source-rows tr", has_text="public.users").get_by_role("button", name="change").click()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CONTRAST) == []
