"""Registers `postgres_cdc` with every Spark session.

Spark imports top-level modules called `pyspark_*` and takes their `DefaultSource`, so
`spark.readStream.format("postgres_cdc")` works wherever Penstock is installed, without an import.
"""

from penstock.spark.cdc.source import PostgresCdc as DefaultSource

__all__ = ["DefaultSource"]
