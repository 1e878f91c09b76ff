"""The benchmarks' own machinery; and, among the slow tests, each benchmark once, small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import count

import pytest

from bench import rows, tables
from bench.__main__ import main, names
from bench.report import ROUNDS, Case, alternate, to_json
from bench.servers import MARK, NeverArrived, two_servers
from bench.subscription import Subscription
from bench.usage import watched
from tests.bed import Database

BURN = "import time; began = time.process_time()\nwhile time.process_time() < began + {}: pass"


def test_the_json_has_the_fields_that_others_read() -> None:
    case = Case("1 row", 2.0, 4.0, "ms", 0.5, 10.0, "that", notes=("why",))

    read = json.loads(to_json("latency", [case]))

    assert read["name"] == "latency"
    assert set(read["cases"][0]) >= {
        "case", "ours", "theirs", "unit", "ratio", "peak_memory_mb", "against",
    }  # fmt: skip
    assert case.less_is_better


def test_the_sides_take_turns() -> None:
    moments = count()

    ours, theirs = alternate(lambda: next(moments), lambda: next(moments))

    assert ours == [2 * number for number in range(ROUNDS)]
    assert theirs == [2 * number + 1 for number in range(ROUNDS)]


def test_the_mixed_changes_are_as_many_as_asked_for_and_no_row_twice_in_a_transaction(
    database: Database,
) -> None:
    database.execute(rows.TABLE, rows.INSERTS, rows.MIXED, "call inserts(1, 3000)")
    database.execute("create publication p for table t")
    database.query("select pg_create_logical_replication_slot('mixed', 'pgoutput')")

    database.execute("call mixed(10000)")

    changes = database.query(
        "select chr(get_byte(data, 0)), count(*) from pg_logical_slot_peek_binary_changes("
        " 'mixed', null, null, 'proto_version', '1', 'publication_names', 'p')"
        " where chr(get_byte(data, 0)) in ('I', 'U', 'D') group by 1 order by 1"
    )
    assert changes == [("D", 2500), ("I", 2500), ("U", 5000)]
    assert database.query("select count(*), max(id) - min(id) + 1 from t") == [(3000, 3000)]


def test_a_subscription_delivers_what_was_written_while_it_was_held_and_a_difference_is_noticed() -> None:
    with two_servers() as servers:
        with servers.at_source() as connection:
            for statement in (rows.TABLE, rows.INSERTS):
                connection.execute(statement.encode())
            connection.execute("call inserts(1, 50)")
        servers.make_database("native", MARK, rows.TABLE)
        subscription = Subscription(servers, ("mark", "t"))
        subscription.create()
        subscription.wait_until_ready()
        subscription.hold()
        with servers.at_source() as connection:
            connection.execute("call inserts(51, 50)")
        mark = servers.mark()
        with pytest.raises(NeverArrived):
            servers.prove_equal("native", ["t"])

        subscription.release()
        servers.wait_for(mark, "native")

        servers.prove_equal("native", ["t", "mark"])
        subscription.remove()


def test_what_the_pipeline_and_the_servers_use_is_told_by_part_without_what_the_benchmark_does_itself() -> (
    None
):
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN.format(0.6)!r}]); input()"
    with two_servers() as servers:
        pipeline = subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE)
        try:
            with watched(servers, pipeline.pid, {"client": os.getpid()}) as usage:
                servers.source.execute("select pg_sleep(0.6)")
                with servers.at_destination("postgres") as connection:
                    connection.execute("select pg_sleep(0.6)")
                pipeline.communicate(b"\n")
        finally:
            pipeline.kill()
            pipeline.wait()

    assert usage.cpu["Python workers"] >= 0.2
    assert usage.memory["driver"] > 1
    assert usage.ours_peak_mb >= usage.memory["Python workers"]
    assert "source's backends" in usage.cpu
    assert "destination's backends" not in usage.cpu
    assert usage.memory["client"] > 1


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("name", "size"), [("catchup", 4000), ("copy", 5000), ("latency", 4000), ("nats", 3000), ("tables", 5)]
)
def test_every_benchmark_of_the_pipeline_runs(
    name: str, size: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "SECONDS", 3.0)
    assert name in names()

    assert main([name, "--json", "--rows", str(size)]) == 0

    read = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert all(case["ours"] > 0 and case["theirs"] > 0 for case in read["cases"])
    assert all(case["peak_memory_mb"] > 100 for case in read["cases"])
