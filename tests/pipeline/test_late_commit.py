"""A commit whose answer was lost may still be on its way at the server when the next attempt begins."""

from __future__ import annotations

from contextlib import closing
from threading import Timer

import pytest

from penstock.destinations import ledger
from penstock.destinations.ledger import StreamId
from penstock.destinations.sql_ledger import SqlLedger
from penstock.postgres.connection import connect
from tests.pipeline.stepping import Bed, Process


@pytest.mark.parametrize("bed", ["files"], indirect=True)
def test_a_batch_that_an_attempt_before_is_committing_is_not_registered_again(bed: Bed) -> None:
    config = bed.clear()
    bed.source.execute("create table t (id integer primary key)")
    process = Process(config, bed.spark)
    count = "select count(*) from cdc_registry.file_log where file_type = 'streaming'"
    try:
        process.start()
        for _ in range(40):
            process.round()
            bed.until_captured()
        (stream,) = process.pipeline._streams
        assert [state.phase.streams for state in stream.tables] == [True]
        bed.source.execute("insert into t values (1)")
        bed.until_captured()
        end = stream._manifest.next_position(stream.position)
        with closing(connect(bed.source.dsn, autocommit=False)) as attempt:
            ledger.begin(SqlLedger(attempt, StreamId("test", "copy", "source")), end)
            Timer(1, attempt.commit).start()
            stream.query.deliver(end)
        assert stream.position >= end
        assert bed.source.query(count) == [(0,)], "that was registered, or not, by the attempt before"
        bed.source.execute("insert into t values (2)")
        bed.until_captured()
        process.round()
        assert bed.source.query(count) == [(1,)]
        assert not bed.delivered.left_over(), "what was written in vain is gone"
    finally:
        process.abandon()
