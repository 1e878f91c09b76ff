"""A Spark session set up for small, quick batches: `session()`.

The settings come from measurements (`docs/spark.md`): on one machine, a micro-batch of a Python
source takes 226 ms with Spark's defaults and about 58 ms with these. Those that only hold on one machine are
given only there. Whatever the caller passes in `conf` wins; JVM options are added to ours, not put in
their place.

A session that runs already is used as it is, and so is the JVM that `spark-submit` or a notebook started.

What Spark keeps on the disk of one machine (blocks of rows, sockets to its workers, temporary files) is in a
folder that only we can enter; Spark's own choice is readable by everybody under the usual umask.

Settings may be secrets. pyspark hands them to the JVM as arguments, which everybody on the machine can read
(`ps`); here they go in a file of our own that is gone when the JVM is up. Only what are options of a JVM
(`spark.driver.extraJavaOptions`) is an argument in the end.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import pyspark
from pyspark.core.context import SparkContext
from pyspark.sql import SparkSession

from penstock.model import private
from penstock.spark import jvm

ALWAYS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

# Each Python task over TCP loses about 40 ms; the default checkpoint manager forks some 40 processes a batch,
# and a checksummed local file system does the rest. The loopback address: nobody else is meant to connect.
ON_ONE_MACHINE = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "penstock.spark.daemon",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

# Spark listens for executors, and for whoever else is on the machine: nobody is answered without its secret.
# It makes one by itself where there is no cluster, not even a pretended one.
WITHOUT_EXECUTORS = {"spark.authenticate": "true"}

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
LOCAL_FOLDER = "spark.local.dir"
LONGEST_OF_SOCKETS = 60
LOG = "spark.log"
"""The file that a pipeline has its Spark's errors in."""

# The stack: stopping a query inside foreachBatch recurses deeply. The log: of the JVM itself, errors only.
# (To compile less, -XX:TieredStopAtLevel=1, starts 1.3 s sooner and then does a quarter of the work.)
_JVM = "-Xss8m -Xlog:disable -Xlog:all=error:stderr"


def session(
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    app_name: str = "penstock",
    log: Path | None = None,
    withheld: Collection[str] = (),
) -> SparkSession:
    """Return the Spark session, started if there is none yet; what the JVM and its workers print is in `log`.
    They do not get the environment's variables that are `withheld`."""
    local = master.startswith("local")
    settings = ALWAYS | (
        ON_ONE_MACHINE | {"spark.sql.shuffle.partitions": str(_cores(master))} if local else {}
    )
    ours = not _jvm_is_there()
    with _environment(dict.fromkeys(withheld)), _interrupts_kept():
        environment: dict[str, str | None] = {}
        if ours:
            settings[JAVA_OPTIONS] = _quiet_logs()
            environment = {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}
            if local:
                java = jvm.find_java()
                environment["JAVA_HOME"] = str(jvm.java_home(java))
                # Or Spark asks who this machine is, and fails where its own name is not known.
                environment["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
                spark = _spark_home()
                environment["SPARK_HOME"] = str(spark)
                settings |= _scratch() | ({} if master.startswith("local-cluster") else WITHOUT_EXECUTORS)
                settings[JAVA_OPTIONS] += f" {_JVM} {jvm.archive_option(java, spark)}"
                settings[JAVA_OPTIONS] += f" -Djava.io.tmpdir={settings[LOCAL_FOLDER]}"
        merged = _merged(settings, conf or {})
        builder = SparkSession.builder.master(master).appName(app_name)
        for key, value in merged.items():
            builder = builder.config(key, value)
        with _environment(environment), _errors_to(log if ours else None):
            if ours:
                _start_jvm(merged | {"spark.master": master, "spark.app.name": app_name})
            started = builder.getOrCreate()
    if ours:
        atexit.register(started.stop)  # in good order, or Python workers complain of broken pipes
    return started


def _start_jvm(settings: Mapping[str, str]) -> None:
    """Start the JVM with settings from a file, which Spark reads before it answers."""
    with tempfile.TemporaryDirectory(prefix="penstock-spark-") as folder:  # nobody else can enter it
        file = Path(folder, "settings.properties")
        file.touch(0o600)
        file.write_text("".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items()))
        theirs = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
        arguments = f"--properties-file {shlex.quote(str(file))} --load-spark-defaults {theirs}"
        with _environment({"PYSPARK_SUBMIT_ARGS": arguments}):
            SparkContext._ensure_initialized()


def _escaped(text: str) -> str:
    """As Java's properties are written: any other character by its number, in UTF-16."""
    units = text.encode("utf-16-be")
    numbers = [units[at] << 8 | units[at + 1] for at in range(0, len(units), 2)]
    return "".join(chr(n) if chr(n).isalnum() and n < 128 else f"\\u{n:04x}" for n in numbers)


def _merged(ours: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, str]:
    """Return theirs over ours, but the JVM options of both: of two that contradict, Java takes the last."""
    merged = {**ours, **theirs}
    if JAVA_OPTIONS in ours and JAVA_OPTIONS in theirs:
        merged[JAVA_OPTIONS] = f"{ours[JAVA_OPTIONS]} {theirs[JAVA_OPTIONS]}"
    return merged


def _jvm_is_there() -> bool:
    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ


def _cores(master: str) -> int:
    """How many tasks run at once under a local master: local, local[4], local[*], local-cluster[2,1,1024]."""
    inside = master.partition("[")[2].rstrip("]").split(",")
    if master.startswith("local-cluster"):
        return int(inside[0]) * int(inside[1])
    if inside[0] == "*":
        return os.cpu_count() or 1
    return int(inside[0] or 1)


def _spark_home() -> Path:
    """The user's own Spark if there is one; otherwise that of the installed pyspark."""
    home = os.environ.get("SPARK_HOME")
    return Path(home) if home else jvm.spark_home(Path(pyspark.__file__).parent)


def _quiet_logs() -> str:
    return f"-Dlog4j2.configurationFile={files('penstock.spark') / 'log4j2.properties'}"


def _scratch() -> dict[str, str]:
    """Return settings for folders that are removed at exit. Sockets go below /tmp if the path gets long."""
    folder = sockets = tempfile.mkdtemp(prefix="penstock-spark-")
    if len(folder) > LONGEST_OF_SOCKETS:
        sockets = tempfile.mkdtemp(prefix="penstock-spark-", dir="/tmp")
    for path in {folder, sockets}:
        atexit.register(shutil.rmtree, path, ignore_errors=True)
    return {LOCAL_FOLDER: folder, "spark.python.unix.domain.socket.dir": sockets}


@contextmanager
def _environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Variables for the JVM that is about to start, None for one that it is not to have; it keeps them so,
    this process does not."""
    before = {key: os.environ.get(key) for key in values}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for key, value in values.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value


@contextmanager
def _errors_to(log: Path | None) -> Iterator[None]:
    """Send the standard error of a JVM that is started inside, and of all that it starts, to this file."""
    if log is None:
        yield
        return
    private.folder(log.parent)
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(log, "ab", opener=private.opener) as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextmanager
def _interrupts_kept() -> Iterator[None]:
    """Keep the caller's handler of Ctrl-C: pyspark's own would call the JVM in mid-call."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
