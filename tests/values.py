"""Random values of PostgreSQL types, as text that PostgreSQL reads; awkward ones among them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from random import Random

_TEXTS = ("", " ", "null", "\\N", "it's", 'say "x"', "a\tb\nc\\d", "ünïcödé 日本 🚰", "{}", "%s", "x" * 18)


def text(random: Random) -> str:
    return random.choice(_TEXTS) if random.random() < 0.4 else f"text {random.randrange(10**6)}"


def wide_text(random: Random) -> str:
    """Mostly long enough to be stored out of line, and not all of it one byte wide."""
    return text(random) + random.choice("abcé日") * random.choice((10, 2500, 6000))


def wide_json(random: Random) -> str:
    return json.dumps({"n": random.randrange(1000), "fill": wide_text(random)})


def _numeric(random: Random) -> str:
    digits = str(random.getrandbits(random.choice((8, 64, 400))))
    return random.choice(("NaN", "0.00", "-1e-20", digits, f"-{digits}.{digits}"))


def _timestamp(random: Random) -> str:
    plain = f"20{random.randrange(100):02d}-{random.randrange(1, 13):02d}-28 23:59:5{random.random():.6f}"
    return random.choice(("infinity", "-infinity", "0044-03-15 12:00:00+01 BC", plain, f"{plain}+05:30"))


def _array_of(random: Random, element: Callable[[Random], str]) -> str:
    if random.random() < 0.1:
        return "[0:1][-1:0]={{1,NULL},{3,4}}"
    values = [None if random.random() < 0.2 else element(random) for _ in range(random.randrange(4))]
    escaped = [
        "NULL" if v is None else '"' + v.replace("\\", r"\\").replace('"', r"\"") + '"' for v in values
    ]
    return "{" + ",".join(escaped) + "}"


VALUES: dict[str, Callable[[Random], str]] = {
    "integer": lambda r: str(r.choice((0, -(2**31), 2**31 - 1, r.randrange(1000)))),
    "bigint": lambda r: str(r.choice((0, -(2**31), 2**31 - 1, r.randrange(1000)))),
    "text": text,
    "character varying(20)": lambda r: text(r)[:20],
    "character(5)": lambda r: r.choice(("", "ab", "abcde")),
    "numeric(10,2)": lambda r: f"{r.randrange(-(10**6), 10**6) / 100:.2f}",
    "numeric(20,2)": lambda r: f"{r.randrange(-(10**6), 10**6) / 100:.2f}",
    "numeric": _numeric,
    "double precision": lambda r: r.choice(("NaN", "-Infinity", "-0", "1e-300", repr(r.random()))),
    "boolean": lambda r: r.choice(("true", "false")),
    "timestamp with time zone": _timestamp,
    "date": lambda r: r.choice(("infinity", "4713-01-01 BC", f"2024-02-{r.randrange(1, 30)}")),
    "interval": lambda r: f"{r.randrange(-9, 9)} years {r.randrange(-40, 40)} days {r.random():.6f} seconds",
    "bytea": lambda r: "\\x" + r.randbytes(r.choice((0, 3, 20))).hex(),
    "uuid": lambda r: str(uuid.UUID(int=r.getrandbits(128))),
    "integer[]": lambda r: _array_of(r, lambda r: str(r.randrange(100))),
    "text[]": lambda r: _array_of(r, text),
    "jsonb": lambda r: json.dumps({text(r): r.choice((None, 1e300, 12345678901234567890, [True, text(r)]))}),
    "int4range": lambda r: r.choice(("empty", "(,)", f"[{r.randrange(9)},{r.randrange(10, 99)})")),
    "mood": lambda r: r.choice(("sad", "ok", 'so "happy"')),
}


def value(random: Random, type: str, *, wide: bool = False) -> str | None:
    if random.random() < 0.1:
        return None
    if wide:
        return wide_json(random) if type == "jsonb" else wide_text(random)
    return VALUES[type](random)
