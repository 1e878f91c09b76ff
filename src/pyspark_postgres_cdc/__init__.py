"""Registers `postgres_cdc` with every Spark session."""
