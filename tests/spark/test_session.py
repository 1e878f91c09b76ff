"""The session and its Java."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.model.errors import JavaMissing
from penstock.spark import daemon, jvm
from penstock.spark.session import session

PROGRAM = "from penstock.spark.session import session; print(session('local[1]').range(5).count())"


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Java: a folder on the PATH that has only what Spark's scripts call."""
    for name in ("bash", "sh", "env", "dirname", "ps", "head"):
        found = next(path for path in (Path("/bin") / name, Path("/usr/bin") / name) if path.exists())
        (tmp_path / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tmp_path


def fake_java(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    java.chmod(0o755)
    return java


def test_a_suitable_java_home_is_used(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = fake_java(no_java / "jdk", "21.0.3")
    monkeypatch.setenv("JAVA_HOME", str(no_java / "jdk"))
    assert jvm.find_java() == jvm.Java(java, 21)


def test_a_java_on_the_path_is_used(no_java: Path) -> None:
    java = fake_java(no_java / "jdk", "17.0.15")
    (no_java / "java").symlink_to(java)
    assert jvm.find_java() == jvm.Java(java, 17)


@pytest.mark.parametrize("version", ["1.8.0_302", "11.0.2"])
def test_an_old_java_gives_way_to_the_embedded_one(
    no_java: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    fake_java(no_java / "jdk", version)
    monkeypatch.setenv("JAVA_HOME", str(no_java / "jdk"))
    assert jvm.find_java().program.is_relative_to(Path(sys.prefix).resolve())


def test_without_any_java_the_remedy_is_said(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = fake_java(no_java / "jdk", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(no_java / "jdk"))
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(JavaMissing) as missing:
        jvm.find_java()
    assert f"Spark needs Java 17 or newer; {java} is version 11. Install Java 17" in str(missing.value)


@pytest.mark.slow  # where no other Java is installed all tests run on it
@pytest.mark.usefixtures("no_java", "silent_java")
def test_the_embedded_java_runs_spark_without_a_word() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("5\n", "")


@pytest.mark.slow
@pytest.mark.usefixtures("silent_java")
def test_spark_starts_where_the_machine_does_not_know_its_own_name() -> None:
    renamed = ["unshare", "--uts", "sh", "-c", 'hostname nowhere-known && exec "$@"', "sh"]
    if subprocess.run([*renamed, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a machine can be given another name only by root")
    done = subprocess.run(
        [*renamed, sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.stdout == "5\n", done.stderr


def test_the_settings_are_ours_and_the_environment_the_callers(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.conf.get("spark.driver.memory") == "768m"
    assert spark.conf.get("spark.authenticate") == "true", "others on the machine reach Spark's ports, too"
    assert "penstock" not in os.environ.get("JAVA_HOME", "") + os.environ.get("SPARK_HOME", "")


def test_a_running_session_is_used_as_it_is(spark: SparkSession) -> None:
    assert session("local[2]").sparkContext is spark.sparkContext


def test_a_half_written_archive_of_classes_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    java = jvm.Java(tmp_path / "jdk" / "bin" / "java", 17)
    (tmp_path / "jdk" / "lib" / "server").mkdir(parents=True)
    (tmp_path / "jdk" / "lib" / "server" / "classes.jsa").touch()
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    wanted = jvm.archive_option(java, tmp_path / "spark").partition("=")
    assert wanted[0] == "-XX:ArchiveClassesAtExit"
    written = Path(wanted[2])
    written.write_bytes(bytes(1000))
    assert jvm.archive_option(java, tmp_path / "spark") == ""
    written.write_bytes(bytes.fromhex("a8ab0bf0") + bytes(1000))
    used = jvm.archive_option(java, tmp_path / "spark")
    assert used == f"-XX:SharedArchiveFile={written.with_suffix('')}"
    assert not written.exists()


@pytest.mark.parametrize(("error", "shown"), [(BrokenPipeError(), False), (ValueError("wrong"), True)])
def test_a_worker_tells_of_every_error_but_a_broken_pipe(
    error: Exception, shown: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        raise error
    except Exception:
        daemon.print_unless_pipe_broke()
    assert bool(capsys.readouterr().err) == shown
