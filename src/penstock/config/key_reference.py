"""Every key of the configuration with its default and meaning: for messages, and for the documentation.

`python -m penstock.config` prints the tables of docs/configuration.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from penstock.config import destination_types

_DURATIONS = {"interval", "heartbeat", "initial", "max"}


@dataclass(frozen=True, slots=True)
class Key:
    path: tuple[str, ...]
    """`*` stands for a place in a list or a name in a mapping."""
    default: str
    description: str

    def __str__(self) -> str:
        return ".".join(self.path).replace(".*", "[]")


def keys(model: type[BaseModel]) -> dict[tuple[str | int, ...], Key]:
    return {key.path: key for key in _keys(model, ())}


def option_keys(type: str) -> dict[tuple[str | int, ...], Key]:
    """The further keys of a destination of this type."""
    if type not in destination_types.names():
        return {}
    options = destination_types.load(type).options
    return {key.path: key for key in _keys(options, ("destinations", "*"))}


def _keys(model: type[BaseModel], at: tuple[str, ...]) -> Iterator[Key]:
    required_first = sorted(model.model_fields.items(), key=lambda item: not item[1].is_required())
    for name, field in required_first:
        path = (*at, field.alias or name)
        yield Key(path, _default(path[-1], field), field.description or "")
        below = _model(field.annotation)
        if below is not None:
            repeated = any(kind in str(field.annotation) for kind in ("tuple[", "dict["))
            yield from _keys(below, (*path, "*") if repeated else path)


def _model(annotation: Any) -> type[BaseModel] | None:
    """The model in an annotation such as `X`, `X | None`, `tuple[X, ...]` or `dict[str, X]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model(part))), None)


def _default(name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel) or value is None or value in ((), {}):
        return ""
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if name.endswith("_mb"):
        value //= 10**6
    if name in _DURATIONS:
        return f"`{value:g}s`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def table(model: type[BaseModel]) -> str:
    """Return the model's keys as a table in Markdown."""
    return _table(keys(model).values())


def option_tables() -> dict[str, str]:
    """Return, for each type of destination, a table in Markdown of its further keys."""
    return {type: _table(option_keys(type).values()) for type in destination_types.BUILT_IN}


def _table(described: Iterable[Key]) -> str:
    rows = [f"| `{key}` | {key.default} | {key.description} |" for key in described]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows])
