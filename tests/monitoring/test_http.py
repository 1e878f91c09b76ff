"""What is answered, and to whom."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.config import Config, load
from penstock.monitoring.guard import LARGEST
from penstock.state.store import Store
from tests.bed import Database
from tests.monitoring.asking import Served, served
from tests.pipeline.running import configuration, to_postgres

TOKEN = "0123456789abcdef"
FIELDS = {
    *("status", "uptime_seconds", "wal_messages_received", "cdc_events_published", "current_lsn"),
    *("is_connected", "reconnect_count", "nats_reconnect_count", "last_processing_time_us", "slot_active"),
    *("wal_lag_bytes", "wal_lag_mb"),
}


def test_the_status_has_everything(http: Served) -> None:
    answer = http.ask("/status")
    assert (answer.code, answer.headers["content-type"]) == (200, "application/json")
    document = answer.document
    assert document.keys() >= FIELDS
    assert document["cdc_events_published"] == 42
    (destination,) = document["destinations"]
    phases = {table["table"]: table["phase"] for table in destination["tables"]}
    assert phases == {
        "public.orders": "ready",
        "public.users": "errored",
        'public."odd ""/%"": é"': "data_sync",
    }


def test_metrics_are_what_prometheus_reads(http: Served) -> None:
    http.observer.events.take(
        {"event": "batch", "level": "debug", "source": "source", "destination": "copy", "seconds": 0.3,
         "bytes": 1000, "table_rows": {"public.orders": 7}}
    )  # fmt: skip
    answer = http.ask.until("/metrics", lambda answer: b"table_changes_total{" in answer.body)
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {
        (sample.name, tuple(sorted(sample.labels.values()))): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }
    stream = ("copy", "source")
    assert samples["penstock_cdc_events_published_total", stream] == 42
    assert samples["penstock_table_changes_total", (*stream[:1], "public.orders", "source")] == 7
    assert samples["penstock_batch_duration_seconds_count", stream] == 1
    assert samples["penstock_connected", ("source",)] == 1
    assert samples["penstock_slot_active", ("source",)] == 0
    assert 3 <= samples["penstock_lag_seconds", stream] < 60
    assert samples["penstock_table_phase", ("copy", "errored", "public.users", "source")] == 1
    assert samples["penstock_copy_progress_ratio", ("copy", 'public."odd ""/%"": é"', "source")] == 0.5


def test_what_is_not_ready_is_named_with_its_remedy(http: Served) -> None:
    answer = http.ask("/ready")
    failing = {each["name"]: each for each in answer.document["conditions"] if not each["ok"]}
    assert (answer.code, set(failing)) == (503, {"slot:source", "capture:source"})
    assert "penstock_test_source is missing" in failing["slot:source"]["reason"]
    assert all(each["remedy"] for each in failing.values())
    assert http.ask("/health").code == 200


@pytest.mark.parametrize("action", ["reload", "retry", "pause"])
def test_tables_are_asked_for_by_their_name(http: Served, store: Store, action: str) -> None:
    table = "public.users"
    answer = http.ask(f"/tables/{table}/{action}?destination=copy", "POST")
    assert answer.code == 202
    assert answer.document["asked"] == [{"source": "source", "destination": "copy"}]
    (request,) = store.requests()
    assert (request.kind, request.what["tables"]) == (action, ['"public"."users"'])


def test_names_of_every_kind_can_be_asked_for(http: Served, store: Store) -> None:
    name = 'public."odd ""/%"": é"'
    assert http.ask(f"/tables/{quote(name, safe='')}/reload", "POST").code == 202
    (request,) = store.requests()
    assert request.what["tables"] == ['"public"."odd ""/%"": é"']


def test_what_cannot_be_done_is_said(http: Served, store: Store) -> None:
    unknown = http.ask("/tables/public.nobody/reload", "POST")
    assert (unknown.code, unknown.document["error"]["kind"]) == (404, "UnknownTable")
    ready = http.ask("/tables/public.orders/retry", "POST")
    assert (ready.code, ready.document["error"]["kind"]) == (409, "WrongPhase")
    assert http.ask("/tables/public.orders/resume", "POST").code == 409
    assert http.ask("/tables/public.orders/reload").code == 405
    assert http.ask("/nothing").code == 404
    assert http.ask("/streams/info?stream=CDC").code == 404
    assert store.requests() == []


def test_a_stop_is_asked_for(http: Served) -> None:
    assert (http.ask("/shutdown", "POST").code, http.stopped.is_set()) == (202, True)


def test_who_only_looks_changes_nothing(config: Config, store: Store) -> None:
    with served(config, read_only=True) as http:
        refused = http.ask("/tables/public.orders/reload", "POST")
        assert (refused.code, refused.document["error"]["kind"]) == (403, "ReadOnly")
        assert http.ask("/shutdown", "POST").code == 403
        assert store.requests() == []
        assert http.ask("/health").code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_a_page_of_another_site_asks_in_vain(http: Served, store: Store, headers: dict[str, str]) -> None:
    assert http.ask("/tables/public.orders/reload", "POST", **headers).code == 403
    assert http.ask("/shutdown", "POST", **headers).code == 403
    assert (store.requests(), http.stopped.is_set()) == ([], False)


def test_our_own_page_asks(http: Served) -> None:
    ours = {"Origin": f"http://{http.ask.host}", "Sec_Fetch_Site": "same-origin"}
    assert http.ask("/tables/public.orders/reload", "POST", **ours).code == 202


def test_another_name_for_this_machine_is_not_answered(http: Served) -> None:
    """A page can have its own name point to a loopback address, and is then of the same origin."""
    for host in ("evil.example", "evil.example:8080", "127.0.0.1.evil.example", "[", ""):
        assert http.ask("/status", Host=host).code == 421
    assert http.ask("/status", Host="LOCALHOST:1").code == 200


def test_large_requests_are_refused(http: Served) -> None:
    answer = http.ask.send("/tables/public.orders/reload", "POST", b"x" * (LARGEST + 1), {})
    assert answer.code == 413


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.usefixtures("store")
def test_the_token_opens(database: Database, tmp_path: Path, host: str) -> None:
    monitoring = {"host": host, "port": 0, "token_env": "HUSH"}
    config = load(
        configuration(tmp_path, database, to_postgres(database), monitoring=monitoring), {"HUSH": TOKEN}
    )
    open_to_all = 200 if host == "127.0.0.1" else 401
    with served(config) as http:
        http.ask.host = http.ask.host.replace("0.0.0.0", "127.0.0.1")
        http.ask.until("/status", lambda a: a.code == 401 or "sources" in a.document)
        for path in ("/status", "/metrics", "/events", "/history", "/openapi.json", "/streams/info"):
            assert http.ask(path).code in (open_to_all, 404 if open_to_all == 200 else 401)
        for wrong in ("", "Bearer", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", f"Basic {TOKEN}"):
            assert http.ask("/shutdown", "POST", Authorization=wrong).code == 401
        assert not http.stopped.is_set()
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert http.ask("/status", **right).code == 200
        assert "conditions" in http.ask("/ready", **right).document
        assert http.ask("/ready").document.keys() == {"status"}
        assert http.ask("/").code == 200
        assert http.ask("/shutdown", "POST", **right).code == 202


def test_the_page_comes_from_here_alone(http: Served) -> None:
    page = http.ask("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert b"://" not in page.body
    for name, kind in (
        ("storage.js", "text/javascript"),
        ("style.css", "text/css"),
        ("dashboard.js", "text/javascript"),
        ("icon.svg", "image/svg"),
    ):
        answer = http.ask(f"/assets/{name}")
        assert (answer.code, answer.headers["content-type"].startswith(kind)) == (200, True)
    for name in ("..%2Fapp.py", "%2e%2e/app.py", "nothing.js", ".", ""):
        assert http.ask(f"/assets/{name}").code == 404
