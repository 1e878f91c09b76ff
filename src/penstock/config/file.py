"""Reading the configuration file, so that whatever is wrong with it is said with its place.

The file is composed twice over from one parse: as plain data for the models, and as the line of each key.
Overrides from the environment are laid over the data; an error in one of them names the variable instead
of a line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from penstock.config.document import LARGEST, Loader
from penstock.config.environment import Path as KeyPath
from penstock.config.environment import override
from penstock.config.key_reference import Key, keys, option_keys
from penstock.config.models import Config
from penstock.model.errors import ConfigError
from penstock.model.secrets import without_secrets

MOST = 100
"""Mistakes that are told; nobody reads more."""

_SECRET = ("password", "dsn", "url", "secret", "token")
_NO_SCALAR = {"tuple_type", "list_type", "dict_type", "model_type", "model_attributes_type"}
"""Something with keys or a list was expected: what stands there instead may be the secret of one of them."""
_SAID = {
    "tuple_type": "expected a list",
    "dict_type": "expected keys below it",
    "model_type": "expected keys below it",
    "model_attributes_type": "expected keys below it",
    "path_type": "expected a path",
}


def load(path: Path | str, environ: Mapping[str, str] = os.environ) -> Config:
    """Return the configuration in the file, or raise a `ConfigError` that lists everything wrong with it."""
    document = _read(Path(path))
    places = {at: f"{path}:{line}" for at, line in document.lines.items()}
    data, variables = override(document.data, environ)
    places |= {at: f"environment variable {variable}" for at, variable in variables.items()}
    secret = set(variables.values())
    try:
        config = Config.model_validate(data, context={"environ": environ, "secret": secret})
        config._withheld = frozenset(secret)
        return config
    except ValidationError as error:
        problems = error.errors(include_url=False)
    reference = keys(Config)
    lines = dict.fromkeys(
        _problem(problem, places, reference | _keys_of_type(problem["loc"], data))
        for problem in problems[:MOST]
    )
    if len(problems) > MOST:
        lines[f"and {len(problems) - MOST} more"] = None
    raise ConfigError("\n".join(lines))


@dataclass(frozen=True, slots=True)
class _Document:
    data: dict[str, Any]
    lines: dict[KeyPath, int]


def _read(path: Path) -> _Document:
    try:
        with path.open("rb") as file:
            read = file.read(LARGEST + 1)
        text = read.decode()
    except OSError as error:
        raise ConfigError(f"{path}: expected a configuration file: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: expected text in UTF-8, byte {error.start} is not") from None
    if len(read) > LARGEST:
        raise ConfigError(f"{path}: expected a file of at most {LARGEST // 10**6} MB")
    try:
        loader = Loader(text)
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            line = root.start_mark.line + 1 if root else 1
            raise ConfigError(f"{path}:{line}: expected keys such as `pipeline:` and `sources:`")
        lines = dict(_lines(root, ()))
        doubled = [
            f"{path}:{key.start_mark.line + 1}: {key.value}: expected once, it stands here a second time"
            for key in _doubled(root)
        ]
        if doubled:
            raise ConfigError("\n".join(doubled))
        return _Document(loader.construct_document(root), {(): 1} | lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise ConfigError(f"{path}:{line}: expected YAML: {error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{path}:{line}: expected YAML: {error.reason}") from None


def _children(node: yaml.Node) -> Iterator[tuple[str | int, yaml.Node, yaml.Node]]:
    """Key, the node that stands for it in the file, and its value."""
    if isinstance(node, yaml.MappingNode):
        yield from ((key.value, key, value) for key, value in node.value)
    elif isinstance(node, yaml.SequenceNode):
        yield from ((place, value, value) for place, value in enumerate(node.value))


def _lines(node: yaml.Node, at: KeyPath) -> Iterator[tuple[KeyPath, int]]:
    for key, mark, value in _children(node):
        yield (*at, key), mark.start_mark.line + 1
        yield from _lines(value, (*at, key))


def _doubled(node: yaml.Node) -> Iterator[yaml.Node]:
    seen: set[str | int] = set()
    for key, mark, value in _children(node):
        if isinstance(key, str) and key in seen and key != "<<":
            yield mark
        seen.add(key)
        yield from _doubled(value)


def _problem(problem: ErrorDetails, places: Mapping[KeyPath, str], reference: Mapping[KeyPath, Key]) -> str:
    context = problem.get("ctx", {})
    location = problem["loc"][:-1] if problem["loc"][-1:] == ("[key]",) else problem["loc"]
    at: KeyPath = (*location, *context.get("at", ()))
    nearest = next(at[:length] for length in range(len(at), -1, -1) if at[:length] in places)
    shown = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in at).lstrip(".")
    return f"{places[nearest]}: {shown + ': ' if shown else ''}{_said(problem, at, reference)}"


def _keys_of_type(at: KeyPath, data: Mapping[str, Any]) -> dict[KeyPath, Key]:
    """What a destination of its type takes, if the problem is in a destination."""
    if at[:1] != ("destinations",) or len(at) < 2 or not isinstance(at[1], int):
        return {}
    destination = data["destinations"][at[1]]
    return option_keys(str(destination.get("type"))) if isinstance(destination, dict) else {}


def _said(problem: ErrorDetails, at: KeyPath, reference: Mapping[KeyPath, Key]) -> str:
    general = _general(at, reference)
    if problem["type"] == "missing":
        expected = reference[general].description
        return f"is missing; expected {expected[:1].lower()}{expected[1:]}"
    if problem["type"] == "extra_forbidden":
        siblings = [str(path[-1]) for path in reference if path[:-1] == general[:-1] and len(path) == len(at)]
        near = get_close_matches(str(at[-1]), siblings, 1)
        return f"is not a key here; {f'`{near[0]}` is' if near else f'expected {_listed(siblings)}'}"
    message = _SAID.get(problem["type"], problem["msg"])
    message = (
        message.removeprefix("Value error, ").replace("Input should be", "expected").split(", unable")[0]
    )
    value = problem["input"]
    secret = any(word in str(part) for part in at for word in _SECRET)
    if secret or "at" in problem.get("ctx", {}) or isinstance(value, dict | list | tuple):
        return message
    if problem["type"] in _NO_SCALAR:
        return message if value is not None else f"{message}, found nothing"
    if at[-1:] == ("port",) and isinstance(value, str) and not value.isdecimal():
        return message  # of a connection string that was taken apart wrongly
    if isinstance(value, int) and value.bit_length() > 100:
        return f"{message}, found a number of some {value.bit_length() * 3 // 10} digits"
    if at[-1:] == ("mode",) and isinstance(value, int) and not isinstance(value, bool):
        return f"{message}, found {value:04o} (decimal {value})"  # the file may have either
    return f"{message}, found {without_secrets(repr(value))[:60]}"


def _general(at: KeyPath, reference: Mapping[KeyPath, Key]) -> KeyPath:
    """The path as the reference has it, with `*` for a place in a list or a name in a mapping."""
    general: KeyPath = ()
    for part in at:
        repeated = any(path[: len(general) + 1] == (*general, "*") for path in reference)
        general = (*general, "*" if repeated else part)
    return general


def _listed(words: list[str]) -> str:
    return ", ".join(words[:-1]) + f" or {words[-1]}" if len(words) > 1 else "".join(words)
