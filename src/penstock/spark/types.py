"""Which Spark type an Arrow type becomes: the second half of the type map, after `changes/arrow_types.py`."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as sql

from penstock.changes.arrow_types import TEXT, TIMESTAMP

_SPARK_TYPES: dict[pa.DataType, sql.DataType] = {
    TEXT: sql.StringType(),
    pa.bool_(): sql.BooleanType(),
    pa.int16(): sql.ShortType(),
    pa.int32(): sql.IntegerType(),
    pa.int64(): sql.LongType(),
    pa.float32(): sql.FloatType(),
    pa.float64(): sql.DoubleType(),
    pa.binary(): sql.BinaryType(),
    pa.date32(): sql.DateType(),
    pa.timestamp("us"): sql.TimestampNTZType(),
    TIMESTAMP: sql.TimestampType(),
}


def spark_type(arrow: pa.DataType) -> sql.DataType:
    if pa.types.is_decimal(arrow):
        return sql.DecimalType(arrow.precision, arrow.scale)
    if pa.types.is_list(arrow):
        return sql.ArrayType(spark_type(arrow.value_type))
    if pa.types.is_map(arrow):
        return sql.MapType(spark_type(arrow.key_type), spark_type(arrow.item_type))
    if pa.types.is_struct(arrow):
        return spark_schema(pa.schema(list(arrow)))
    return _SPARK_TYPES[arrow]


def spark_schema(arrow: pa.Schema) -> sql.StructType:
    return sql.StructType(
        [sql.StructField(field.name, spark_type(field.type), field.nullable) for field in arrow]
    )
