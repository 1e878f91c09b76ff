"""Questions to a person at a terminal, each of which an option can answer instead.

A wrong answer is asked for again. Where there is no terminal, or nobody wants to be asked, defaults are
taken, and what is wrong or has no default is wrong usage.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import typer

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Question:
    words: str
    option: str
    default: str | None = None
    """None: it has to be answered."""


class Questions:
    def __init__(self, *, ask: bool) -> None:
        self.asked = ask and sys.stdin.isatty() and sys.stdout.isatty()
        """Whether there is somebody to ask."""

    def answer(self, question: Question, given: str | None, understood: Callable[[str], Answer]) -> Answer:
        """Return what the option, the person or the default says, as `understood` reads it, which raises a
        `ValueError` for what is none."""
        answer = given
        while True:
            if answer is None:
                answer = self._asked(question)
            try:
                return understood(answer.strip())
            except ValueError as error:
                if not self.asked:
                    raise typer.BadParameter(str(error), param_hint=question.option) from None
                typer.echo(f"  {error}")  # without the answer, which may be a secret
                answer = None

    def secret(self, words: str) -> str:
        """Ask for what is not shown, and not kept."""
        return str(typer.prompt(words, hide_input=True, default="", show_default=False))

    def _asked(self, question: Question) -> str:
        if self.asked:
            default = question.default
            return str(typer.prompt(question.words, default=default, show_default=bool(default)))
        if question.default is None:
            raise typer.BadParameter(
                "expected an answer: there is no terminal to ask at", param_hint=question.option
            )
        return question.default
