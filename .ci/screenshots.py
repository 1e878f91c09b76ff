"""Makes the documentation's pictures of the dashboard anew: `python .ci/screenshots.py [SECONDS]`.

The demo runs as a user starts it. Once every table follows, the dashboard's chart gathers points for so many
seconds (300), and then it is looked at in light and in dark, with Chromium (Debian: apt install chromium).
Look at the pictures before you commit them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).parent.parent / "docs" / "images"
DEMO = ["demo", "--to", "postgres", "--rows", "50000", "--seconds", "7200"]
PROGRAM = [sys.executable, "-u", "-c", "from penstock.cli import main; main()", *DEMO]
WIDTH, HEIGHT = 1100, 795


def main(seconds: float) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("There is no Chromium here. Install it (Debian: apt install chromium)")
    with subprocess.Popen(PROGRAM, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        address = next(found[0] for line in demo.stdout if (found := re.search(r"http://[\d.:]+/", line)))
        while not _follows(address):
            time.sleep(1)
        time.sleep(seconds)
        for scheme in ("light", "dark"):
            _picture(chromium, address, scheme)
        demo.terminate()  # in the background SIGINT is ignored


def _follows(address: str) -> bool:
    """Tell whether every table is past its copy."""
    with urlopen(f"{address}status") as answer:
        status = json.load(answer)
    phases = [table["phase"] for each in status.get("destinations", ()) for table in each["tables"]]
    return bool(phases) and set(phases) == {"ready"}


def _picture(chromium: str, address: str, scheme: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        size = {"width": WIDTH, "height": HEIGHT}
        page = browser.new_page(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
        page.goto(address)
        page.wait_for_selector("#rows tr")
        page.wait_for_timeout(3000)
        page.screenshot(path=IMAGES / f"dashboard-{scheme}.png")
        browser.close()


if __name__ == "__main__":
    main(float(sys.argv[1]) if sys.argv[1:] else 300)
