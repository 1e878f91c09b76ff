"""docs/quickstart.md from top to bottom, as a person follows it, on a real server."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from tests.docs.blocks import commands, on_page
from tests.docs.shop import Shop
from tests.pipeline.running import contents

PAGE = "quickstart.md"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("silent_java")
def test_the_quick_start_leads_to_a_copy_that_follows(shop: Shop) -> None:
    (configuration,) = on_page(PAGE, "yaml")
    shop.save(configuration, "shop.yaml")
    steps = (words for block in on_page(PAGE, "console") for words in commands(block))
    environment = shop.leads_to_warehouse | {"PENSTOCK_SPARK__MASTER": "local[2]"}

    assert next(steps) == ["make", "demo"]  # it has tests of its own
    _granted(shop, next(steps), environment)
    assert "failure" not in shop.run(_is(steps, "check"), environment)

    with shop.popen(_is(steps, "tail"), environment) as looking:
        _trading(shop, looking)
        printed, _ = looking.communicate()
    lines = [line for line in printed.splitlines() if "public.users" in line]
    assert (looking.returncode, len(lines)) == (0, 5)

    running = shop.popen(_is(steps, "run"), environment)
    try:
        _until(running, lambda: _phases(shop, environment) == ["ready"] * 2)
        shop.source.execute("insert into users (name) values ('after the copy')")
        _until(
            running, lambda: contents(shop.warehouse, "public.users") == contents(shop.source, "public.users")
        )
        assert "ready" in shop.run(_is(steps, "status"), environment)
        running.send_signal(signal.SIGINT)
        printed, _ = running.communicate(timeout=120)
    finally:
        running.kill()
    assert running.returncode == 0, printed

    shop.run(_is(steps, "teardown"), environment, typed="y\n")
    assert shop.source.query("select slot_name from pg_replication_slots") == []
    assert contents(shop.warehouse, "public.users") == contents(shop.source, "public.users")
    assert list(steps) == []


def _is(steps: Iterator[list[str]], name: str) -> list[str]:
    """The next command, which is this one."""
    words = next(steps)
    assert words[1] == name
    return words


def _granted(shop: Shop, words: list[str], environment: dict[str, str]) -> None:
    """The whole script is for reading; each of its parts is for one database."""
    script = shop.run(words, environment)
    assert "-- For source eu." in script
    assert "-- For destination warehouse." in script
    for part, database in (("eu", "shop"), ("warehouse", "dw")):
        script = shop.run([*words, "--only", part], environment)
        psql = [str(shop.server.bin / "psql"), "-v", "ON_ERROR_STOP=1", "-d", shop.server.dsn(database)]
        done = subprocess.run(psql, input=script, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def _trading(shop: Shop, looking: subprocess.Popen[str]) -> None:
    number = 0
    while looking.poll() is None:
        number += 1
        assert number < 600
        shop.source.execute(f"update users set name = 'user {number}' where id = 1")
        time.sleep(0.1)


def _phases(shop: Shop, environment: dict[str, str]) -> list[str]:
    status = json.loads(shop.run(["penstock", "status", "shop.yaml", "--json"], environment))
    return [table["phase"] for each in status["destinations"] for table in each["tables"]]


def _until(running: subprocess.Popen[str], check: Callable[[], bool]) -> None:
    end = time.monotonic() + 240
    while not check():
        assert running.poll() is None, running.communicate()[0]
        assert time.monotonic() < end
        time.sleep(1)
