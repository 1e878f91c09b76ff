"""The type `python`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field

from penstock.config import Config, DestinationConfig
from penstock.config.destination_options import Options

if TYPE_CHECKING:
    from penstock.destinations.plugin import Tables
    from penstock.destinations.protocol import Target
    from penstock.model import TableSchema
    from penstock.postgres.preflight.check import Check
    from penstock.postgres.providers import Ways

_CLASS = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


def _class(path: str) -> str:
    if not _CLASS.fullmatch(path):
        raise ValueError("expected a class with its module, such as my_module.MyDestination")
    return path


class PythonOptions(Options):
    class_name: Annotated[str, AfterValidator(_class)] = Field(
        alias="class", description="The class, with its module: `my_module.MyDestination`"
    )
    options: dict[str, Any] = Field(default={}, description="What the class is made with", repr=False)


class PythonType:
    options = PythonOptions

    def make(self, config: Config, destination: DestinationConfig) -> Target:  # noqa: ARG002
        from penstock.destinations.python import user_class
        from penstock.destinations.python.target import CustomTarget

        options = destination.settings(PythonOptions)
        instance = user_class.make(options.class_name, options.options, destination.name)
        return CustomTarget(destination.name, instance)

    def check(
        self,
        config: Config,  # noqa: ARG002
        destination: DestinationConfig,
        tables: Sequence[TableSchema],  # noqa: ARG002
    ) -> list[Check]:
        from penstock.destinations.python import user_class

        options = destination.settings(PythonOptions)
        return [user_class.check(options.class_name, options.options)]

    def owns(self, destination: DestinationConfig) -> Mapping[str, Sequence[str]]:  # noqa: ARG002
        return {}

    def rights(self, destination: DestinationConfig, tables: Tables, role: str | None, ways: Ways) -> None:
        """Return None: what a class of the user's needs is not known."""


TYPE = PythonType()
