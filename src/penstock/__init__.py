"""Penstock: every change of a PostgreSQL database, delivered to Apache Spark and beyond."""

__version__ = "0.1.0"
