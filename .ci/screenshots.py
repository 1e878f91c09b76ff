"""Makes the documentation's pictures of the dashboard anew: `python .ci/screenshots.py`, on an idle machine.

The demo runs for a while, as a user starts it, and its dashboard is looked at in light and in dark, with
Chromium (Debian: apt install chromium). Look at the pictures before you commit them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

IMAGES = Path(__file__).parent.parent / "docs" / "images"
DEMO = ["demo", "--to", "postgres", "--rows", "50000"]
TRADES = 120
"""Seconds that the shop trades."""
GATHERS = 75
"""Seconds that the chart gathers points, once all tables follow."""
WIDTH, HEIGHT = 1100, 1000


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("There is no Chromium here. Install it (Debian: apt install chromium)")
    program = [sys.executable, "-u", "-c", "from penstock.cli import main; main()", *DEMO]
    with subprocess.Popen([*program, "--seconds", str(TRADES)], stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        address = next(found[0] for line in demo.stdout if (found := re.search(r"http://[\d.:]+/", line)))
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            _wait(browser, address)
            for scheme in ("light", "dark"):
                _picture(browser, address, scheme)
            browser.close()
        for line in demo.stdout:
            print(line, end="")
    sys.exit(demo.returncode)


def _wait(browser: Browser, address: str) -> None:
    """Wait until every table is past its copy, and then for the chart."""
    page = browser.new_page()
    page.goto(address)
    page.wait_for_function(
        "() => fetch('/ready').then((answer) => answer.ok)", timeout=TRADES * 1000, polling=1000
    )
    page.close()
    time.sleep(GATHERS)


def _picture(browser: Browser, address: str, scheme: str) -> None:
    size = {"width": WIDTH, "height": HEIGHT}
    page = browser.new_page(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(address)
    page.wait_for_selector("#rows tr")
    page.wait_for_timeout(3000)
    page.screenshot(path=IMAGES / f"dashboard-{scheme}.png")
    page.close()


if __name__ == "__main__":
    main()
