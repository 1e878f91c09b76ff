"""A user's class: found, looked at, and made."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.destinations.protocol import Destination
from penstock.model.errors import ConfigError
from penstock.model.secrets import without_secrets
from penstock.postgres.preflight.check import Check, failure, ok

METHODS = ("truncate_table", "write_table_rows", "write_events")
IMPORT_REMEDY = "Give `class: module.Class`, in the working directory or installed"


def make(path: str, options: Mapping[str, Any], destination: str) -> Destination:
    """Make an object of the class `module.Class` with its options."""
    try:
        user_class = _find(path)
    except Exception as error:
        raise ConfigError(
            f"the class {path} cannot be imported: {_reason(error)}",
            destination=destination,
            remedy=IMPORT_REMEDY,
        ) from error
    try:
        instance: Destination = user_class(**options)
    except TypeError as error:
        raise ConfigError(f"{path} does not take these options: {error}", destination=destination) from None
    if lacking := _lacking(instance):
        raise ConfigError(f"{path} has no method {', '.join(lacking)}", destination=destination)
    return instance


def check(path: str, options: Mapping[str, Any]) -> Check:
    """Check the class without making an object of it: that could do anything."""
    try:
        user_class = _find(path)
    except Exception as error:
        return failure("class", f"{path} cannot be imported: {_reason(error)}", IMPORT_REMEDY)
    if inspect.isclass(user_class) and (lacking := _lacking(user_class)):
        return failure("class", f"{path} has no method {', '.join(lacking)}", "Add it")
    try:
        inspect.signature(user_class).bind(**options)
    except (TypeError, ValueError) as error:
        return failure("class", f"{path} does not take these options: {error}", "Correct `options`")
    return ok("class", f"{path} can be imported")


def _find(path: str) -> Any:
    """Import the class; the working directory is looked in as well."""
    module, _, attribute = path.rpartition(".")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return getattr(import_module(module), attribute)


def _lacking(candidate: object) -> list[str]:
    return [method for method in METHODS if not callable(getattr(candidate, method, None))]


def _reason(error: Exception) -> str:
    return without_secrets(f"{type(error).__name__}: {error}")
