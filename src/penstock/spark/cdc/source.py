"""`spark.readStream.format("postgres_cdc")`: the changes of a PostgreSQL database as a Spark stream.

The source reads a spool; where a configuration is given and nobody captures into it, capture is started
along.

Where things run: `schema` in a process of its own when the stream is loaded; the reader's offsets and plans
in one long-lived process beside the driver; `read` on the executors, which get their rows from the spool's
files and nowhere else. Each of these processes imports this module first, and one of them nothing more, so
it imports the rest only when that is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from penstock.model.errors import ConfigError
from penstock.spark.cdc.options import CdcOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from penstock.spark.cdc.chosen_table import ChosenTable
    from penstock.spark.cdc.reader import SpoolReader
    from penstock.spark.cdc.shapes import Shape


class PostgresCdc(DataSource):
    """The data source. What it learns of its table when loaded travels with it to reader and executors."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = CdcOptions.read(options)
        self._chosen: ChosenTable | None = None

    @classmethod
    def name(cls) -> str:
        return "postgres_cdc"

    def schema(self) -> StructType:
        from penstock.spark.types import spark_schema

        if self._options.table is not None:
            self._chosen = self._find_table()
        return spark_schema(self._shape().schema)

    def _find_table(self) -> ChosenTable:
        from penstock.spark.cdc.chosen_table import choose_table
        from penstock.spark.cdc.query_spool import QuerySpool

        name, spool = self._options.table, QuerySpool(self._options)
        assert name is not None
        with closing(spool.open()) as manifest:
            schemas = manifest.schemas()
        if any(schema.name == name for schema in schemas.values()):
            return choose_table(name, schemas, self._options.text_columns)
        return choose_table(name, schemas, self._options.text_columns, spool.describe(name))

    def _shape(self) -> Shape:
        from penstock.spark.cdc.shapes import AllTables

        return self._chosen.shape(self._options.before) if self._chosen else AllTables()

    def streamReader(self, schema: StructType) -> SpoolReader:
        from penstock.spark.cdc.reader import SpoolReader
        from penstock.spark.types import spark_schema

        shape = self._shape()
        if schema != spark_schema(shape.schema):
            raise ConfigError(
                "postgres_cdc finds the schema itself", remedy="Leave .schema(…) out of the query"
            )
        return SpoolReader(self._options, shape, self._chosen)
