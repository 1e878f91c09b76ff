"""WAL that piles up at the source is told, once for each threshold, and when it is over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.model.phases import Phase
from penstock.pipeline import retained_wal
from tests.bed import Database
from tests.pipeline.running import configuration, running, to_postgres


def test_much_wal_is_told_until_it_is_less(
    spark: SparkSession,
    own_database: Database,
    destination: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An open transaction keeps the WAL of everything that comes after it."""
    monkeypatch.setattr(retained_wal, "LEVELS", (3 << 20, 12 << 20))
    monkeypatch.setattr(retained_wal, "LOOK", 0.2)
    own_database.execute("create table t (id int)", "alter table t replica identity full")
    printed = ""

    def said(text: str, times: int) -> Callable[[], bool]:
        def look() -> bool:
            nonlocal printed
            printed += capsys.readouterr().out
            return printed.count(text) == times

        return look

    with running(configuration(tmp_path, own_database, to_postgres(destination)), spark) as pipeline:
        pipeline.until_phase(Phase.READY, "public.t")
        with own_database.connect() as connection:
            connection.execute("begin; insert into t values (0)")
            for times in (1, 2):
                own_database.execute(
                    *(
                        "select pg_logical_emit_message(false, 'fill', repeat('x', 1000000))"
                        for _ in range(5 * times)
                    )
                )
                pipeline.until(said("keeps much WAL", times))
            connection.execute("commit")
        own_database.execute("checkpoint", "insert into t values (1)")
        pipeline.until(said("keeps less WAL", 1))
    assert "MiB" in printed or "MB" in printed
