"""A program of somebody else's, started by a Python that is not the `python3` of the PATH."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.changes.made import USERS, MadeSpool

PROGRAM = """
import sys
from pyspark.sql import SparkSession
from penstock.spark import register

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
users = spark.readStream.format("postgres_cdc").options(spool=sys.argv[1], table="public.users").load()
query = users.writeStream.format("parquet").option("checkpointLocation", sys.argv[2] + "/checkpoint")
query.trigger(availableNow=True).start(sys.argv[2] + "/rows").awaitTermination()
print(spark.read.parquet(sys.argv[2] + "/rows").select("id", "name", "score").collect())
"""


@pytest.mark.slow
@pytest.mark.usefixtures("silent_java")
def test_a_session_that_is_not_ours_reads_the_stream_though_another_python_is_on_the_path(
    spool: MadeSpool, tmp_path: Path
) -> None:
    spool.insert(USERS, ("1", "Ann", "1.50"))
    spool.commit()
    venv.create(tmp_path / "other", with_pip=False)
    other = tmp_path / "other" / "bin"
    lacking = subprocess.run([other / "python3", "-c", "import penstock"], capture_output=True, check=False)
    assert b"No module named 'penstock'" in lacking.stderr
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "PYTHON"))
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, spool.path, tmp_path],
        env=environment | {"PATH": f"{other}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "[Row(id=1, name='Ann', score=Decimal('1.50'))]\n", done.stderr
