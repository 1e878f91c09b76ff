"""What Spark says when a job of ours fails: tasks tell their own errors as values, the rest is Spark's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from penstock.model.errors import TaskFailed


@contextmanager
def explained() -> Iterator[None]:
    """A task that failed, or whose executor is gone, may be tried again."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        said = [line.strip() for line in str(error).splitlines() if line.strip()]
        telling = next(
            (line for line in said if "Error" in line or "Exception" in line), said[0] if said else ""
        )
        raise TaskFailed(f"a Spark task failed: {telling[:300]}") from error
