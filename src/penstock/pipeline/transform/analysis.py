"""What the rules for a table make of it, as Spark's own analysis of their expressions has it.

Nothing is computed here: an expression is analysed over a frame that has the table's columns and no rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException, PythonException
from pyspark.logger import PySparkLogger
from pyspark.sql import Column as Value
from pyspark.sql import SparkSession

from penstock.changes.arrow_types import arrow_type
from penstock.config.destinations import DestinationConfig, DestinationTable
from penstock.model import Column, ReplicaIdentity, TableSchema
from penstock.model.errors import PenstockError, TransformRefused, from_dict
from penstock.pipeline.transform.expression import TEXT, Expression, examine, examine_condition
from penstock.pipeline.transform.images import Imaging
from penstock.pipeline.transform.rules import Finding, applied, check
from penstock.spark.tasks import explained, is_of_a_value
from penstock.spark.types import spark_schema

Made = TypeVar("Made")

CARRIED = "penstock error: "
"""How the text of an error begins that a task raised and that is one of ours, as JSON."""
_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


@dataclass(frozen=True, slots=True)
class Transform:
    """The rules for one table, under one schema of it."""

    rules: DestinationTable
    source: TableSchema
    imaging: Imaging
    computed: tuple[Expression, ...]
    """For each computed column, in the order of the delivered ones."""

    @property
    def delivered(self) -> TableSchema:
        return self.imaging.delivered

    def texts(self) -> list[Value]:
        """Return the computed columns as PostgreSQL reads them."""
        columns = zip(self.delivered.columns, self.imaging.taken, strict=True)
        types = [column.type for column, place in columns if place is None]
        return [expression.text(type) for expression, type in zip(self.computed, types, strict=True)]


class Analysis:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._by_case: SparkSession | None = None
        self._transforms: dict[tuple[TableSchema, str], Transform] = {}
        for name in _LOGGERS:  # pyspark logs what it raises, with all of the JVM's stack
            PySparkLogger.getLogger(name).disabled = True

    def of(self, rules: DestinationTable, source: TableSchema) -> Transform:
        """Return the transform; raise `TransformRefused` where the rules do not fit the table."""
        key = source, rules.model_dump_json()
        if key not in self._transforms:
            self._transforms[key] = refusing(source, lambda: self._transform(rules, source))
        return self._transforms[key]

    def _transform(self, rules: DestinationTable, source: TableSchema) -> Transform:
        check(rules, source)
        fitting = rules.on(source.column_names)
        fields = [pa.field(column.name, arrow_type(column.type)) for column in source.columns]
        empty = self.session(source).createDataFrame([], spark_schema(pa.schema(fields)))
        condition = refusing(source, lambda: examine_condition(empty, rules.where or "true"), rule="where")
        computed = {
            name: refusing(source, partial(examine, empty, text), rule=f"set.{name}")
            for name, text in fitting.set.items()
        }
        kept = [(c, place) for place, c in enumerate(source.columns) if c.name not in fitting.drop]
        full = source.identity is ReplicaIdentity.FULL
        new = [Column(name, TEXT, full) for name in computed if name not in source.column_names]
        delivered = [*(c for c, _ in kept), *new]
        columns = tuple(computed[c.name].column(c) if c.name in computed else c for c in delivered)
        taken = (*(None if c.name in computed else place for c, place in kept), *(None for _ in new))
        needed = sorted(
            {place for expression in (condition, *computed.values()) for place in expression.reads}
        )
        imaging = Imaging(source, replace(source, columns=columns), tuple(needed), taken)
        return Transform(
            rules, source, imaging, tuple(computed[c.name] for c in delivered if c.name in computed)
        )

    def session(self, source: TableSchema) -> SparkSession:
        """Return the session; where columns differ by nothing but case, one in which case matters."""
        if len({name.casefold() for name in source.column_names}) == len(source.columns):
            return self._spark
        if self._by_case is None:
            self._by_case = self._spark.newSession()
            for key, value in self._spark.conf.getAll.items():
                if self._by_case.conf.isModifiable(key):
                    self._by_case.conf.set(key, value)
            self._by_case.conf.set("spark.sql.caseSensitive", "true")
        return self._by_case

    def findings(self, destination: DestinationConfig, tables: Iterable[TableSchema]) -> Iterator[Finding]:
        """Yield what Spark has against the expressions of rules that are right otherwise."""
        for glob, taken in applied(destination, tables).items():
            rules = destination.tables[glob]
            for table in taken if rules.where is not None or rules.set else ():
                try:
                    check(rules, table)
                except TransformRefused:
                    continue  # `rules.findings` tells of it
                try:
                    self.of(rules, table)
                except TransformRefused as error:
                    rule = f"`{error.where['rule']}`: " if "rule" in error.where else ""
                    yield Finding(glob, f"{rule}{error.reason} (table {table.name})")


def refusing(source: TableSchema, work: Callable[[], Made], **where: str) -> Made:
    """Do the work; raise what Spark says of an expression as an error of the table. What a task says may be
    ours; if it is not, something happened to the task."""
    try:
        return _explained(work)
    except PenstockError as error:
        error.where.pop("value", None)  # a row's value: the error is stored and logged
        raise error.at(table=source.name, **where) from None


def _explained(work: Callable[[], Made]) -> Made:
    with explained():
        try:
            return work()
        except PythonException as error:
            carried = re.search(rf"{CARRIED}(\{{.*\}})", str(error))
            if carried is None:
                raise
            raise from_dict(json.loads(carried[1])) from None
        except PySparkException as error:
            message = (error.getMessage() or str(error)).splitlines()[0]
            if is_of_a_value(error):
                message = f"{error.getCondition() or 'a value'}, for a value of a row"
            raise TransformRefused(f"Spark SQL refuses it: {message[:500]}") from None
