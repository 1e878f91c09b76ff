"""Registers `postgres_snapshot` with every Spark session, as `pyspark_postgres_cdc` does `postgres_cdc`."""

from penstock.spark.snapshot.source import PostgresSnapshot as DefaultSource

__all__ = ["DefaultSource"]
