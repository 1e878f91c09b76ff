"""What Spark says when a job of ours fails: tasks tell their own errors as values, the rest is Spark's.

Its messages quote values of rows (`The value 'x' … cannot be cast`). What comes after the name of a condition
or of an exception is therefore left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from penstock.model.errors import TaskFailed

_CONDITION = re.compile(r"\[[A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*\]")
_RAISED = re.compile(r"(\w+(?:Error|Exception))\b")


@contextmanager
def explained() -> Iterator[None]:
    """Raise Spark's errors as `TaskFailed`: a task, or a lost executor's, may be tried again."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        raise TaskFailed(f"a Spark task failed: {without_values(error)}") from error


def without_values(error: Exception) -> str:
    """Return in one line what Spark says of a failed job, up to where it may quote a row."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = next(
        (line for line in lines if "Error" in line or "Exception" in line), lines[0] if lines else ""
    )
    condition = _CONDITION.search(telling)
    if condition is not None:
        telling = telling[: condition.end()]
    for raised in reversed(list(_RAISED.finditer(telling))):
        if raised[1] not in (
            "SparkException",
            "PythonException",
        ):  # these tell of jobs and tasks, not of the cause
            telling = telling[: raised.end()]
            break
    return telling[:300]


def is_of_a_value(error: PySparkException) -> bool:
    """Whether Spark SQL refuses a value, and not the expression as such: then its message quotes it."""
    return (error.getSqlState() or "").startswith("22")
