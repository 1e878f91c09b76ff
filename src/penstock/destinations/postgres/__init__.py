"""PostgreSQL as a destination."""

from penstock.destinations.postgres.target import PostgresTarget

__all__ = ["PostgresTarget"]
