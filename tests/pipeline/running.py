"""A pipeline that runs beside a test, in a thread (to look into) or a process (to kill)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import yaml
from pyspark.sql import SparkSession

from penstock.config import Config, load
from penstock.model import TableName
from penstock.model.phases import Phase
from penstock.pipeline.pipeline import Pipeline
from penstock.postgres.connection import connect
from penstock.state.store import Store, TableState
from tests.bed import Database
from tests.checker import rows_difference, text_rows


def configuration(folder: Path, source: Database, *destinations: dict[str, Any], **sections: Any) -> Path:
    """A configuration file for a quick pipeline from one source; everything of its own is in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "pipeline": "test",
        "sources": [{"name": "source", "dsn": source.dsn}],
        "destinations": list(destinations),
        "batch_control": {"interval": "50ms"},
        "spool": {"path": str(folder / "spool")},
        "state": {"url": f"sqlite:///{folder}/state.db"},
        "spark": {"master": "local[2]"},
        "retry": {"initial": "100ms", "max": "1s", "attempts": 5},
    }
    file = folder / "pipeline.yaml"
    file.write_text(yaml.safe_dump(document | sections, sort_keys=False))
    return file


def to_postgres(database: Database, **other: Any) -> dict[str, Any]:
    return {"name": "copy", "type": "postgres", "dsn": database.dsn, **other}


class Running:
    def __init__(self, config: Config, spark: SparkSession) -> None:
        self.config = config
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._pipeline = Pipeline(config, self._stop, spark)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._pipeline.run()
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def tables(self) -> dict[str, TableState]:
        """Where there are several destinations, as one of them has it."""
        return {str(state.name): state for state in self.states()}

    def states(self) -> list[TableState]:
        url = self.config.state.url.get_secret_value()
        with Store.open(url, self.config.pipeline, exclusive=False) as store:
            return store.tables()

    def until_equal(
        self, source: Database, destination: Database, tables: Callable[[], list[TableName]]
    ) -> None:
        def differs() -> str:
            return difference(source, destination, tables())

        self.until(lambda: not differs(), tell=differs)

    def until(
        self, check: Callable[[], object], seconds: float = 120, tell: Callable[[], str] = lambda: ""
    ) -> Any:
        """Wait until `check` gives something true, and return that; raises what ended the pipeline."""
        end, pause = time.monotonic() + seconds, 0.05
        while not (found := check()):
            if self.error is not None:
                raise self.error
            assert time.monotonic() < end, f"not within {seconds} seconds: {tell()} {self.tables()}"
            time.sleep(pause)
            pause = min(pause * 1.3, 0.4)  # each look takes from the pipeline that it waits for
        return found

    def until_phase(self, phase: Phase, *tables: str) -> None:
        self.until(lambda: all((s := self.tables().get(t)) and s.phase is phase for t in tables))


@contextmanager
def running(file: Path, spark: SparkSession) -> Iterator[Running]:
    pipeline = Running(load(file), spark)
    try:
        yield pipeline
    finally:
        pipeline.stop()
    if pipeline.error is not None:
        raise pipeline.error


def contents(database: Database, table: TableName | str) -> list[str]:
    """The rows of a table as text, sorted; [] where there is no such table (yet)."""
    name = table if isinstance(table, str) else f'"{table.schema}"."{table.name}"'
    with database.connect() as connection:
        if connection.execute("select to_regclass(%s)", (name,)).fetchone() == (None,):
            return []
        return sorted(row for (row,) in connection.execute(f"select t::text from {name} t".encode()))


def difference(source: Database, destination: Database, tables: Iterable[TableName]) -> str:
    """How tables differ at the destination, column by name; empty where they are equal."""
    lines = []
    with connect(source.dsn) as there, connect(destination.dsn) as here:
        for table in tables:
            columns, expected = text_rows(there, table)
            try:
                found_columns, found = text_rows(here, table)
            except psycopg.errors.UndefinedTable:
                lines.append(f"{table} is not there")
                continue
            if set(columns) != set(found_columns):
                lines.append(f"{table}: columns {found_columns} where the source has {columns}")
                continue
            places = [found_columns.index(column) for column in columns]
            if told := rows_difference(expected, (tuple(row[p] for p in places) for row in found)):
                lines.append(f"{table}: {told}")
    return "\n".join(lines)
