"""Overrides from the environment.

`PENSTOCK_<SECTION>__<KEY>` sets any key, however deep, lists by their index:
`PENSTOCK_SOURCES__0__REPLICATION__SLOT_NAME=other`. A value is text as it would stand in the file; in
brackets or braces it is a YAML list or mapping; `null` unsets. Four names without a prefix are kept for the
sake of deployments that know them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from penstock.config.document import safe_load
from penstock.config.models import Config
from penstock.model.errors import ConfigError

Path = tuple[str | int, ...]

PREFIX = "PENSTOCK_"
KNOWN: Mapping[str, Path] = {
    "MAX_EXPORT_WORKERS": ("copy", "workers"),
    "EXPORT_BATCH_SIZE": ("copy", "batch_rows"),
    "STREAMING_BATCH_INTERVAL": ("batch_control", "interval"),
}
_SECTIONS = {field.alias or name for name, field in Config.model_fields.items()}


def override(data: dict[str, Any], environ: Mapping[str, str]) -> tuple[dict[str, Any], dict[Path, str]]:
    """Return the data with the environment laid over it, and which variable set which key."""
    data = copy.deepcopy(data)
    set_by: dict[Path, str] = {}
    for variable, at in _wanted(data, environ):
        set_by[_put(data, at, _value(environ[variable]), variable)] = variable
    return data, set_by


def _wanted(data: Mapping[str, Any], environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """General ones first, so that the particular ones have the last word."""
    if "STARTUP_MODE" in environ and isinstance(sources := data.get("sources"), list):
        yield from (("STARTUP_MODE", ("sources", place, "startup_mode")) for place in range(len(sources)))
    yield from ((variable, at) for variable, at in KNOWN.items() if variable in environ)
    for variable in sorted(environ):
        section, *below = variable.removeprefix(PREFIX).lower().split("__")
        if not variable.startswith(PREFIX) or (not below and section not in _SECTIONS):
            continue
        if section not in _SECTIONS:
            raise ConfigError(
                f"environment variable {variable}: there is no section {section}; "
                f"expected {', '.join(sorted(_SECTIONS))}"
            )
        yield variable, (section, *(int(part) if part.isdecimal() else part for part in below))


def _value(text: str) -> Any:
    if text == "null":
        return None
    if not text.startswith(("[", "{")):
        return text
    try:
        return safe_load(text)
    except yaml.YAMLError:
        return text  # then it is text that begins so, and its model says what it expected


def _put(data: dict[str, Any], at: Path, value: Any, variable: str) -> Path:
    """Set the value, making what is missing on the way; the path with the keys as the file spells them."""
    within: Any = data
    spelled: list[str | int] = []
    for part, following in zip(at, (*at[1:], None), strict=True):
        if isinstance(within, list):
            if not isinstance(part, int) or part > len(within):
                raise ConfigError(
                    f"environment variable {variable}: expected an index up to {len(within)}, found {part}"
                )
            if part == len(within):
                within.append(None)
            key: Any = part
        elif isinstance(within, dict):
            key = next((own for own in within if str(own).lower() == str(part)), str(part))
        else:
            raise ConfigError(f"environment variable {variable}: {'.'.join(map(str, spelled))} has no keys")
        spelled.append(key)
        if following is None:
            within[key] = value
        else:
            if (within.get(key) if isinstance(within, dict) else within[key]) is None:
                within[key] = [] if isinstance(following, int) else {}
            within = within[key]
    return tuple(spelled)
