"""The streaming source, the source of whole tables, and the session that they run in.

`register` is for sessions that are somebody else's. Nothing is imported before it is needed: every Python
worker of Spark's comes through here.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Let this session know `postgres_cdc` and `postgres_snapshot`, whichever Python it would look into.

    Spark finds data sources by itself in the Python that PYSPARK_PYTHON names when the JVM starts, otherwise
    in the `python3` of the PATH, which need not be the one that has Penstock. Here they are handed to it, and
    on one machine this Python runs them. A cluster's executors have a Python of their own, and need Penstock
    in that.
    """
    from penstock.spark.cdc.source import PostgresCdc
    from penstock.spark.snapshot.source import PostgresSnapshot

    context = spark.sparkContext
    if str(context.master).startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable
    for source in (PostgresCdc, PostgresSnapshot):
        spark.dataSource.register(source)
