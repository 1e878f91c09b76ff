"""One expression of `where` or `set`: what it reads, what type it gives, and its value as PostgreSQL's text.

Spark itself says what an expression reads, by analysing it over a frame that has the table's columns and no
rows. To look for names in the text would be wrong in both directions: a name may stand inside a string, and
a column that is read in vain may hold a value that its type cannot hold, or that was not sent.

The text is what PostgreSQL itself would have written under UTC, so that a computed value reads the same way
at every destination, whether it is taken as text or typed again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from pyspark.sql import Column as Value
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as sql
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

from penstock.changes.arrow_types import arrow_type, delimiter
from penstock.model import Column, ColumnType
from penstock.model.errors import TransformRefused
from penstock.spark.types import spark_type

TEXT = ColumnType(25, "text")

_TYPES: dict[type[sql.DataType], ColumnType] = {
    sql.StringType: TEXT,
    sql.BooleanType: ColumnType(16, "bool"),
    sql.ByteType: ColumnType(21, "int2"),
    sql.ShortType: ColumnType(21, "int2"),
    sql.IntegerType: ColumnType(23, "int4"),
    sql.LongType: ColumnType(20, "int8"),
    sql.FloatType: ColumnType(700, "float4"),
    sql.DoubleType: ColumnType(701, "float8"),
    sql.BinaryType: ColumnType(17, "bytea"),
    sql.DateType: ColumnType(1082, "date"),
    sql.TimestampType: ColumnType(1184, "timestamptz"),
    sql.TimestampNTZType: ColumnType(1114, "timestamp"),
}
_LIMITED = {"varchar", "bpchar", "name", "char"}
"""Strings of a certain length: what is made of one, a hash for example, may be longer."""


@dataclass(frozen=True, slots=True)
class Expression:
    sql_text: str
    reads: tuple[int, ...]
    """Places of the frame's columns."""
    type: sql.DataType

    @property
    def value(self) -> Value:
        return f.expr(self.sql_text)

    def column(self, like: Column) -> Column:
        """Return the column that holds it: of the source column's type where the expression keeps that."""
        if isinstance(self.type, sql.NullType) or self._keeps(like.type):
            return like
        if isinstance(self.type, sql.DecimalType):
            modifier = ((self.type.precision << 16) | self.type.scale) + 4
            return replace(like, type=ColumnType(1700, "numeric", modifier))
        if type(self.type) not in _TYPES:
            raise TransformRefused(
                f"`set` gives {like.name} the type {self.type.simpleString()}, which no column can have",
                remedy="Make it a string: to_json(…) or cast(… as string)",
            )
        return replace(like, type=_TYPES[type(self.type)])

    def _keeps(self, column_type: ColumnType) -> bool:
        before = spark_type(arrow_type(column_type))
        if isinstance(before, sql.ArrayType) and isinstance(self.type, sql.ArrayType):
            return before.elementType == self.type.elementType
        return before == self.type and column_type.base.name not in _LIMITED

    def text(self, column_type: ColumnType) -> Value:
        """Return its value as the text of a value of this type."""
        inner = column_type.base.inner
        if isinstance(self.type, sql.ArrayType) and inner is not None:
            return _array(self.value, self.type.elementType, delimiter(inner) or ",")
        return _text(self.value, self.type)


def examine(rows: DataFrame, text: str) -> Expression:
    """Return an expression over these columns; raise what Spark has against it."""
    return _examined(rows.select(f.expr(text)), text)


def examine_condition(rows: DataFrame, text: str) -> Expression:
    rows.where(text)  # raises if it is no condition
    return examine(rows, text)


def _examined(selected: DataFrame, text: str) -> Expression:
    plan = cast(ClassicFrame, selected)._jdf.queryExecution().analyzed()
    source = plan.children().head()
    if plan.nodeName() != "Project" or source.children().nonEmpty() or len(selected.schema) != 1:
        raise TransformRefused("an expression has one value for one row: it cannot look at other rows")
    there, read = source.output(), plan.references()
    reads = tuple(place for place in range(there.size()) if read.contains(there.apply(place)))
    return Expression(text, reads, selected.schema[0].dataType)


def _text(value: Value, value_type: sql.DataType) -> Value:
    match value_type:
        case sql.BooleanType():
            return f.when(value, "t").when(~value, "f")
        case sql.BinaryType():
            return f.concat(f.lit("\\x"), f.lower(f.hex(value)))
        case sql.DateType() | sql.TimestampNTZType():
            return _dated(value)
        case sql.TimestampType():
            epoch = f.lit("1970-01-01 00:00:00").cast("timestamp_ntz")
            return _dated(f.timestamp_add("MICROSECOND", f.unix_micros(value), epoch), "+00")
        case _:
            return value.cast("string")


def _dated(value: Value, zone: str = "") -> Value:
    """Spark writes the years before 1 as 0, -1, …, PostgreSQL as 1 BC, 2 BC, …; and no sign after 9999."""
    shown, year = value.cast("string"), f.year(value)
    before_christ = f.regexp_replace(shown, f.lit("^-?[0-9]+"), f.format_string("%04d", 1 - year))
    return f.when(year > 0, f.concat(f.replace(shown, f.lit("+")), f.lit(zone))).otherwise(
        f.concat(before_christ, f.lit(f"{zone} BC"))
    )


def _array(value: Value, element: sql.DataType, separator: str) -> Value:
    def quoted(item: Value) -> Value:
        escaped = f.regexp_replace(_text(item, element), r'(["\\])', r"\\$1")
        return f.coalesce(f.concat(f.lit('"'), escaped, f.lit('"')), f.lit("NULL"))

    return f.concat(f.lit("{"), f.array_join(f.transform(value, quoted), separator), f.lit("}"))
