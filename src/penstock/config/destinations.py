"""The section `destinations`: the keys that all of them have; what else there is, the type decides."""

from __future__ import annotations

import builtins
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationInfo, model_validator

from penstock.config import destination_types
from penstock.config.connection import wrong
from penstock.config.destination_options import Options
from penstock.config.mapping import Placing, TableOfSource
from penstock.config.quantities import Megabytes, Seconds, Whole
from penstock.config.section import Name, Section
from penstock.config.tables import Pattern, is_for_many, matches
from penstock.model import TableName

Settings = TypeVar("Settings", bound=Options)


class BatchControl(Section):
    interval: Seconds = Field(default=1, description="How long a batch gathers at most")
    max_batch_rows: Whole = Field(
        default=1_000_000, gt=0, le=1_000_000_000, description="Rows after which a batch ends"
    )
    max_batch_bytes: Megabytes = Field(
        default=500_000_000,
        alias="max_batch_size_mb",
        description="Size after which a batch ends (MB, or `500MB`)",
    )


class DestinationTable(Section):
    target: Pattern | None = Field(default=None, description="Name at the destination. Default: the same")
    kind: Literal["clone", "append", "history"] = Field(
        default="clone",
        description="`clone`: the same rows; `append`: nothing is deleted; `history`: every version",
    )
    where: str | None = Field(
        default=None, description="Spark SQL over the row; a row that leaves the filter is removed"
    )
    set: dict[str, str] = Field(default={}, description="Spark SQL per column: masks, computed columns")
    drop: tuple[str, ...] = Field(default=(), description="Columns that never leave")

    _for_many: bool = PrivateAttr(False)

    @property
    def for_many(self) -> bool:
        """Whether it stands under a glob, and not under the name of one table."""
        return self._for_many

    @property
    def hidden(self) -> frozenset[str]:
        """The columns whose values do not leave as they are."""
        return frozenset((*self.drop, *self.set))

    @property
    def masks(self) -> tuple[object, ...]:
        """Return what decides which values leave; if nothing in it is true, all of them do."""
        return self.where, frozenset(self.set.items()), frozenset(self.drop)

    def on(self, columns: Collection[str]) -> DestinationTable:
        """Return the rules for a table of these columns: a rule for many tables skips columns it lacks."""
        if not self.for_many:
            return self
        drop = tuple(name for name in self.drop if name in columns)
        computed = {name: expression for name, expression in self.set.items() if name in columns}
        return self.model_copy(update={"drop": drop, "set": computed})


AS_IS = DestinationTable()


class DestinationConfig(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)

    name: Name = Field(description="The destination's name")
    type: str = Field(
        description="`files`, `postgres`, `nats`, `python` or one that an installed package adds; it decides "
        "on further keys"
    )
    tables: dict[Pattern, DestinationTable] = Field(
        default={}, description="Per table (glob): how it arrives; the first entry that matches wins"
    )
    strict: bool = Field(
        default=True,
        description="Refuse to start with an entry of `tables` that matches no table or names no column; if "
        "false, warn",
    )
    batch_control: BatchControl | None = Field(
        default=None, description="The destination's own. Default: the pipeline's"
    )

    _settings: Options | None = PrivateAttr(None)
    _decided: Mapping[TableOfSource, Placing] = PrivateAttr({})
    _withdrawn: frozenset[TableName] = PrivateAttr(frozenset())

    @model_validator(mode="after")
    def _check_options(self, info: ValidationInfo) -> DestinationConfig:
        for glob, rules in self.tables.items():
            rules._for_many = is_for_many(glob)
        types = destination_types.names()
        if self.type not in types:
            near = get_close_matches(self.type.lower(), types, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise wrong(f"expected one of {', '.join(types)}, found {self.type[:60]!r}{hint}", "type")
        model = destination_types.load(self.type).options
        self._settings = model.model_validate(self.options, context=info.context)
        return self

    @property
    def options(self) -> dict[str, Any]:
        """The keys of its type, as they stand in the file."""
        return self.__pydantic_extra__ or {}

    def settings(self, kind: builtins.type[Settings]) -> Settings:
        """The keys of its type, checked, with secrets resolved."""
        assert isinstance(self._settings, kind), f"{self.name} is of type {self.type}"
        return self._settings

    @property
    def decided(self) -> Mapping[TableOfSource, Placing]:
        """What was decided of single tables (`config/mapping.py`): another object after each decision."""
        return self._decided

    @property
    def withdrawn(self) -> frozenset[TableName]:
        """Tables of which it was decided that they are not captured: a rule for them is no mistake."""
        return self._withdrawn

    def rules_of(self, table: TableName, source: str | None = None) -> DestinationTable:
        """The first entry of `tables` that the table matches, with what was decided of that source's table
        in its place."""
        rules = next((rule for glob, rule in self.tables.items() if matches(glob, table)), AS_IS)
        placing = self._decided.get((source, table)) if source is not None else None
        if placing is None:
            return rules
        decided = {"target": placing.target or rules.target, "kind": placing.kind or rules.kind}
        return rules.model_copy(update=decided)

    def target_of(self, table: TableName, source: str | None = None) -> TableName:
        """What the table is called at the destination."""
        return self.target_by(self.rules_of(table, source), table)

    def target_by(self, rules: DestinationTable, table: TableName) -> TableName:
        target = rules.target
        if target is not None:
            return TableName.parse(target)
        schema = self.options.get("schema")
        return TableName(schema, table.name) if schema else table

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """Its own keys by name only: any of them may hold a secret."""
        yield from ((key, getattr(self, key)) for key in type(self).model_fields)
        yield "options", tuple(self.options)
