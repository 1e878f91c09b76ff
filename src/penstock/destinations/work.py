"""Work for a destination, done by Spark's tasks or by the driver itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.destinations.protocol import TableChanges
from penstock.model.errors import PenstockError
from penstock.spark.tasks import explained

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Work = TypeVar("Work")

FEW_ROWS = 2_000
SMALL_BYTES = 1_000_000
"""Up to here the driver writes by itself: a Spark job takes tens of milliseconds, and as much of a core."""


class Workers:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @property
    def are_local(self) -> bool:
        """Whether a task would run on this machine, in a process beside this one."""
        master = str(self._spark.sparkContext.master)
        return master.startswith("local") and not master.startswith("local-cluster")

    def ask(self, function: Callable[[Work], Any], work: Sequence[Work], *, here: bool) -> list[Any]:
        """A task for each piece of work, or, where tasks would cost more than the work, here and now. What
        each of them says; an error is said, not raised."""
        if here or not work:
            return [function(one) for one in work]
        with explained():
            return self._spark.sparkContext.parallelize(work, len(work)).map(function).collect()

    def do(self, function: Callable[[Work], Any], work: Sequence[Work], *, here: bool) -> list[Any]:
        """The same; the first error among what they say is raised."""
        return raise_first(self.ask(function, work, here=here))


def raise_first(said: list[Any]) -> list[Any]:
    for one in said:
        if isinstance(one, PenstockError):
            raise one
    return said


def are_few(changes: Sequence[TableChanges]) -> bool:
    return sum(table.rows for table in changes) <= FEW_ROWS
