"""What is redrawn at the bottom of a terminal, and the lines above it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cli.terminal import Terminal, in_terminal

BESIDE = """if True:
    import os, subprocess, sys, threading, time
    from rich.text import Text
    from penstock.cli.live import LiveDisplay

    def write(name):
        for number in range(300):
            os.write(2, f"{name} {number} of a thread\\n".encode())

    with LiveDisplay(lambda: Text("the view")):
        time.sleep(0.5)
        threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        child = "import os\\nfor n in range(300): os.write(2, f'child {n} of a process\\\\n'.encode())"
        subprocess.run([sys.executable, "-c", child], check=True)
        for thread in threads:
            thread.join()
        print("\\x1b[31mred\\x1b[0m of Python itself", file=sys.stderr)
        os.write(2, b"half a line")
    print("after it", file=sys.stderr)
"""


def numbers(terminal: Terminal, name: str) -> list[int]:
    return [int(number) for number in re.findall(rf"(?m)^{name} (\d+) of a \w+$", terminal.shown)]


def test_lines_of_threads_and_children_stand_whole_and_in_order_above_it(tmp_path: Path) -> None:
    with in_terminal(tmp_path, "-c", BESIDE) as terminal:
        assert terminal.ended() == 0
        assert "the view" in terminal.shown
        for name in ("a", "b", "child"):
            assert numbers(terminal, name) == list(range(300))
        assert "\x1b[31mred\x1b[0m of Python itself" in terminal.written
        rest = terminal.shown.partition("of Python itself")[2]
        assert rest.index("half a line") < rest.index("after it")
        assert terminal.written.endswith("after it\n")
        assert terminal.written.rindex("\x1b[?25h") > terminal.written.rindex(
            "\x1b[?25l"
        )  # the cursor is back


def test_nobody_waits_for_a_terminal_that_does_not_move(tmp_path: Path) -> None:
    """A terminal takes 64 kB or less that nobody reads; here are some megabytes."""
    program = """if True:
        import os, pathlib
        from rich.text import Text
        from penstock.cli import live
        live.LONGEST_END = 60
        with live.LiveDisplay(lambda: Text("the view")):
            for number in range(30000):
                os.write(2, f"{number} {'x' * 100}\\n".encode())
            pathlib.Path("written").touch()
            input()
    """
    with in_terminal(tmp_path, "-c", program) as terminal:
        while not (tmp_path / "written").exists():
            assert terminal.process.poll() is None
        terminal.type("\n")
        terminal.until("29999 x")
        dropped = re.search(r"… (\d+) lines were dropped", terminal.shown)
        assert dropped is not None
        assert 0 < int(dropped[1]) < 30000
        assert terminal.ended() == 0


def test_a_mistake_in_what_is_shown_stops_nothing(tmp_path: Path) -> None:
    program = """if True:
        import sys, time
        from penstock.cli.live import LiveDisplay
        with LiveDisplay(lambda: 1 / 0):
            time.sleep(0.6)
            print("goes on", file=sys.stderr)
    """
    with in_terminal(tmp_path, "-c", program) as terminal:
        assert terminal.ended() == 0
        assert "ZeroDivisionError" in terminal.shown
        assert "goes on" in terminal.shown
