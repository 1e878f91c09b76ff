"""Alert rules and the Grafana dashboard: every alert fires when it should, and every number exists."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.monitoring.observing import Heart
from tests.docs.blocks import on_page
from tests.monitoring.asking import Served

ROOT = Path(__file__, "../../..").resolve()
RULES = ROOT / "deploy/prometheus/penstock.rules.yml"
GRAFANA = ROOT / "deploy/grafana/penstock.json"
PROMTOOL = shutil.which("promtool")
NAME = re.compile(r"penstock_\w+")

needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="there is no promtool (Debian: apt install prometheus)"
)

LABELS = 'instance="a", source="eu"'
STREAM = f'{LABELS}, destination="warehouse"'
GIGABYTES = 2 << 30
# The series that make each alert fire, for as long as it takes.
FIRING: dict[str, dict[str, Any]] = {
    "PenstockDown": {'penstock_up{instance="a"}': 0},
    "PenstockNotReady": {'penstock_ready{instance="a"}': 0},
    "PenstockSourceUnreachable": {f"penstock_connected{{{LABELS}}}": 0},
    "PenstockSlotInactive": {f"penstock_slot_active{{{LABELS}}}": 0, f"penstock_connected{{{LABELS}}}": 1},
    "PenstockWalRetained": {f"penstock_wal_retained_bytes{{{LABELS}}}": 600 << 20},
    "PenstockWalRetainedMuch": {f"penstock_wal_retained_bytes{{{LABELS}}}": GIGABYTES},
    "PenstockSlotInDanger": {
        f"penstock_wal_safe_bytes{{{LABELS}}}": 100 << 20,
        f"penstock_wal_retained_bytes{{{LABELS}}}": 400 << 20,
    },
    "PenstockBehind": {f"penstock_lag_seconds{{{STREAM}}}": 301},
    "PenstockDestinationAway": {f"penstock_destination_waiting{{{STREAM}}}": 1},
    "PenstockTableStopped": {f'penstock_table_phase{{{STREAM}, table="t", phase="errored"}}': 1},
    "PenstockTablePaused": {f'penstock_table_phase{{{STREAM}, table="t", phase="paused"}}': 1},
    "PenstockCaptureRestarts": {f"penstock_reconnects_total{{{LABELS}}}": "0+1x1000"},
    "PenstockReaderGone": {
        f'penstock_consumer_kept_bytes{{{LABELS}, consumer="q", kind="other"}}': GIGABYTES
    },
}
QUIET = {
    'penstock_up{instance="a"}': 1,
    'penstock_ready{instance="a"}': 1,
    f"penstock_connected{{{LABELS}}}": 1,
    f"penstock_slot_active{{{LABELS}}}": 1,
    f"penstock_wal_retained_bytes{{{LABELS}}}": 100 << 20,
    f"penstock_wal_safe_bytes{{{LABELS}}}": 900 << 20,
    f"penstock_lag_seconds{{{STREAM}}}": 1,
    f"penstock_destination_waiting{{{STREAM}}}": 0,
    f'penstock_table_phase{{{STREAM}, table="t", phase="ready"}}': 1,
    f"penstock_reconnects_total{{{LABELS}}}": 1,
    f'penstock_consumer_kept_bytes{{{LABELS}, consumer="q", kind="destination"}}': GIGABYTES,
}
IN_CLUSTER = 'job="penstock", namespace="data", service="shop-penstock"'
AN_HOUR = "1x60 stale"
# What Prometheus has of a pipeline whose HTTP ended with it, and the alerts for that.
NO_ANSWER: dict[str, tuple[dict[str, Any], set[str]]] = {
    "one of two targets": (
        {
            'up{job="penstock", instance="a"}': "1x60 0x840",
            'penstock_up{job="penstock", instance="a"}': AN_HOUR,
            'up{job="penstock", instance="b"}': 1,
            'penstock_up{job="penstock", instance="b"}': 1,
        },
        {"PenstockDown"},
    ),
    "a pod that is gone": (
        {f'up{{{IN_CLUSTER}, instance="a"}}': AN_HOUR, f'penstock_up{{{IN_CLUSTER}, instance="a"}}': AN_HOUR},
        {"PenstockDown"},
    ),
    "a job of another name": (
        {'up{job="shop", instance="a"}': "1x60 0x840", 'penstock_up{job="shop", instance="a"}': AN_HOUR},
        {"PenstockDown"},
    ),
    "a pod at another address": (
        {
            f'penstock_up{{{IN_CLUSTER}, instance="a"}}': AN_HOUR,
            f'penstock_up{{{IN_CLUSTER}, instance="b"}}': 1,
        },
        set(),
    ),
    "none ever": ({'up{job="node", instance="a"}': 0}, set()),
}


def rules() -> dict[str, dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def promtool(*arguments: object) -> str:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def fired(folder: Path, series: dict[str, Any]) -> set[str]:
    """The alerts that these series fire after a day, as promtool reckons it: it is told that none does."""
    constant = {name: value if isinstance(value, str) else f"{value}x900" for name, value in series.items()}
    given = [{"series": name, "values": values} for name, values in constant.items()]
    tests = [{"alertname": alert, "eval_time": "14h", "exp_alerts": []} for alert in rules()]
    document = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": given, "alert_rule_test": tests}],
    }
    file = folder / "test.yml"
    file.write_text(yaml.safe_dump(document))
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, "test", "rules", file], capture_output=True, text=True, check=False)
    found = set(re.findall(r"alertname: ?(\w+), time", done.stdout + done.stderr))
    assert bool(found) == bool(done.returncode), done.stderr
    return found


@needs_promtool
def test_prometheus_accepts_the_rules() -> None:
    assert f"SUCCESS: {len(rules())} rules found" in promtool("check", "rules", RULES)


@needs_promtool
@pytest.mark.parametrize("alert", FIRING)
def test_each_alert_fires(tmp_path: Path, alert: str) -> None:
    expected = {alert} | ({"PenstockWalRetained"} if alert == "PenstockWalRetainedMuch" else set())
    assert fired(tmp_path, FIRING[alert]) == expected


@needs_promtool
@pytest.mark.parametrize("which", NO_ANSWER)
def test_a_pipeline_that_gives_no_answer_is_down(tmp_path: Path, which: str) -> None:
    series, expected = NO_ANSWER[which]
    assert fired(tmp_path, series) == expected


@needs_promtool
@pytest.mark.parametrize(("safe", "kept", "in_danger"), [(49, 1, False), (30, 20, False), (20, 30, True)])
def test_a_slot_is_in_danger_when_more_is_kept_than_may_be_written(
    tmp_path: Path, safe: int, kept: int, in_danger: bool
) -> None:
    series = {
        f"penstock_wal_safe_bytes{{{LABELS}}}": safe << 30,
        f"penstock_wal_retained_bytes{{{LABELS}}}": kept << 30,
    }
    assert ("PenstockSlotInDanger" in fired(tmp_path, series)) is in_danger


@needs_promtool
def test_none_fires_while_all_is_well(tmp_path: Path) -> None:
    assert fired(tmp_path, QUIET) == set()


@needs_promtool
def test_prometheus_accepts_the_configuration_of_the_documentation(tmp_path: Path) -> None:
    (block,) = (block for block in on_page("operations.md", "yaml") if "scrape_configs:" in block.text)
    (job,) = yaml.safe_load(block.text)["scrape_configs"]
    assert f'up{{job="{job["job_name"]}"}} == 0' in rules()["PenstockDown"]["expr"]
    file = tmp_path / "prometheus.yml"
    file.write_text(block.text)
    promtool("check", "config", "--syntax-only", file)


def test_every_alert_has_a_test_and_says_what_to_do() -> None:
    assert rules().keys() == FIRING.keys()
    assert all(rule["annotations"].keys() == {"summary", "remedy"} for rule in rules().values())


def documented() -> set[str]:
    """The metrics of docs/operations.md, as series have their names."""
    section = (ROOT / "docs/operations.md").read_text().partition("## Metrics")[2].partition("## ")[0]
    names = {
        name for row in re.findall(r"(?m)^\| (`.*?) \|", section) for name in re.findall(r"`(\w+)`", row)
    }
    return {f"penstock_{name}" for name in names}


def test_every_number_is_documented_and_no_other_is_used(http: Served) -> None:
    http.observer.heart = Heart(os.getpid())
    answer = http.ask.until("/metrics", lambda answer: b"memory_bytes" in answer.body).body.decode()
    given = set(re.findall(r"(?m)^# TYPE (penstock_\w+)", answer))
    assert {name for name in given if not name.endswith("_created")} <= documented()
    used = {name for text in [*panels(), *queries(), RULES.read_text()] for name in NAME.findall(text)}
    assert {name.removesuffix("_bucket") for name in used} <= documented()


def panels() -> list[str]:
    """The expressions of the dashboard for Grafana."""
    panels = json.loads(GRAFANA.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


def queries() -> list[str]:
    """Those of the documentation."""
    (block,) = on_page("operations.md", "promql")
    return [line for line in block.text.splitlines() if not line.startswith("#")]


@needs_promtool
@pytest.mark.parametrize("expressions", [panels(), queries()], ids=["panels", "queries"])
def test_prometheus_accepts_what_it_is_asked(tmp_path: Path, expressions: list[str]) -> None:
    plain = [
        text.replace("$__rate_interval", "5m").replace("$source", ".*").replace("$destination", ".*")
        for text in expressions
    ]
    recorded = [{"record": f"asked:{number}", "expr": text} for number, text in enumerate(plain)]
    file = tmp_path / "asked.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "asked", "rules": recorded}]}))
    promtool("check", "rules", file)
