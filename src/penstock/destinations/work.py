"""Work for a destination, done by Spark's tasks or by the driver itself.

An error of ours comes off an executor as a value (`outcome`): of one that is raised there Spark makes a text.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

import pyarrow as pa

from penstock.destinations.protocol import TableChanges
from penstock.model.errors import PenstockError
from penstock.spark.tasks import explained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Work = TypeVar("Work")
Result = TypeVar("Result")

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

    def outcomes(
        self, function: Callable[[Work], Result], work: Sequence[Work], *, here: bool
    ) -> list[Result | PenstockError]:
        """Do each piece of work in a task, or, where tasks would cost more than the work, here and now.
        Return the result of each, or its error."""
        each = partial(outcome, function)
        if here or not work:
            return [each(piece) for piece in work]
        with explained():
            return self._spark.sparkContext.parallelize(work, len(work)).map(each).collect()

    def results(
        self, function: Callable[[Work], Result], work: Sequence[Work], *, here: bool
    ) -> list[Result]:
        """Do the same, and raise the first error: what would come after it is not done here."""
        if here:
            return [function(piece) for piece in work]
        return raise_first(self.outcomes(function, work, here=here))


def outcome(function: Callable[[Work], Result], work: Work) -> Result | PenstockError:
    """Return the error instead of raising it."""
    try:
        return function(work)
    except PenstockError as error:
        return error


def raise_first(outcomes: Sequence[Result | PenstockError]) -> list[Result]:
    for result in outcomes:
        if isinstance(result, PenstockError):
            raise result
    return [result for result in outcomes if not isinstance(result, PenstockError)]


Partition = tuple[int, Iterator[pa.RecordBatch]]
"""Its number, and its rows, every column as text."""


def partition_results(
    rows: DataFrame, write: Callable[[Partition], Result], *, first_only: bool = False
) -> list[Result]:
    """Have a task write each partition of rows that Spark made, or only the first. Raises the first error.

    Columns go by their place: Spark would look for some names (a dot, a backtick) in vain.
    """
    rows = rows.toDF(*(f"c{place}" for place in range(len(rows.columns))))
    with explained():
        outcomes = rows.mapInArrow(partial(_write_partition, write), "outcome binary")
        collected = outcomes.take(1) if first_only else outcomes.collect()
    return raise_first([cast("Result | PenstockError", pickle.loads(pickled)) for (pickled,) in collected])


def _write_partition(
    write: Callable[[Partition], Result], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs on executors."""
    from pyspark import TaskContext

    context = TaskContext.get()
    number = context.partitionId() if context is not None else 0
    texts = (
        pa.record_batch([column.cast(pa.string()) for column in batch.columns], batch.schema.names)
        for batch in batches
    )
    yield pa.record_batch({"outcome": pa.array([pickle.dumps(outcome(write, (number, texts)))], pa.binary())})


def are_few(changes: Sequence[TableChanges]) -> bool:
    return sum(table.rows for table in changes) <= FEW_ROWS
