"""What the documentation shows in blocks of code: a test runs, loads or parses each, or it says why not.

A block's language says what is done with it (see the tests beside this file). One that is not run has a
comment before it, which readers do not see:

    <!-- not run: it needs a cluster -->

`console` has commands after `$ `, and what they print; `sh` has commands alone; `text` is to be looked at. A
block that is indented, not fenced, is `console` if it begins with a command, otherwise `text`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])

PROGRAMS = {
    "cd", "cp", "curl", "docker", "export", "helm", "install", "journalctl", "jq", "kubectl", "make", "node",
    "npm", "penstock", "pip", "psql", "python", "python3", "sed", "sudo", "systemctl", "systemd-sysusers",
}  # fmt: skip
"""What the documentation's commands begin with."""

_MARK = re.compile(r"<!-- not run: (.+?) -->", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    page: Path
    line: int
    language: str
    text: str
    not_run: str | None
    """The reason, if it is marked."""

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    before = None
    for token in MarkdownIt("commonmark").parse(page.read_text()):
        if token.type in ("fence", "code_block"):
            assert token.map is not None
            language = token.info.split()[0] if token.info else _unfenced(token.content)
            yield Block(page, token.map[0] + 1, language, token.content, before)
        marked = _MARK.search(token.content) if token.type == "html_block" else None
        before = marked[1] if marked else None


def _unfenced(text: str) -> str:
    program, what = re.split(r"\s+", text.removeprefix("$ "), maxsplit=2)[:2]
    is_command = re.sub(r".*/", "", program) in PROGRAMS and not what.startswith(
        "["
    )  # that would be a synopsis
    return "console" if is_command else "text"


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def of_language(*languages: str) -> list[Block]:
    """Return the blocks that are to be run, as parameters of a test have them."""
    return [block for block in BLOCKS if block.language in languages and block.not_run is None]


def on_page(name: str, *languages: str) -> list[Block]:
    return [block for block in of_language(*languages) if block.page.name == name]


def lines(block: Block) -> list[str]:
    """Return the lines of a block that a shell is given, each whole, without comments."""
    prompted = any(line.startswith("$ ") for line in block.text.splitlines())
    joined = re.sub(r"\\\n\s*", "", block.text).splitlines()
    given = [line.removeprefix("$ ") for line in joined if not prompted or line.startswith("$ ")]
    bare = (re.sub(r"(^|\s{2,})# .*$", "", line).strip() for line in given)
    return [line for line in bare if line]


def commands(block: Block) -> list[list[str]]:
    """Return the commands of a block, each as a list of words; those of a pipe one after the other."""
    found = []
    for line in lines(block):
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|><&;()")
        lexer.whitespace_split, lexer.commenters = True, "#"
        command: list[str] = []
        for word in [*lexer, "|"]:
            if word in ("|", "&&", ";"):
                found += [command] if command else []
                command = []
            else:
                command.append(word)
    return found
