"""The image: built from the Dockerfile, and run as its user."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sysconfig
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from penstock import __version__
from tests.bed import Database
from tests.deploy import builder
from tests.deploy.builder import ROOT, buildah, command, container, environment
from tests.pipeline.running import configuration

DOCKERFILE = ROOT / "deploy/Dockerfile"
USER = 10001


def pinned(lock: Path) -> set[str]:
    return set(re.findall(r"(?m)^[\w.-]+==\S+", lock.read_text()))


def test_the_image_has_the_versions_that_are_tested() -> None:
    only_there = pinned(ROOT / "deploy/requirements.lock") - pinned(ROOT / "requirements.lock")
    assert {package.partition("==")[0] for package in only_there} == {"dumb-init"}
    assert "hatchling==1.33.0" in pinned(ROOT / "deploy/build.lock")


def test_a_linter_of_dockerfiles_finds_nothing(tmp_path: Path) -> None:
    def lint(file: Path) -> str:
        program = Path(sysconfig.get_path("scripts")) / "hadolint"
        return subprocess.run([program, file], capture_output=True, text=True, check=False).stdout

    assert lint(DOCKERFILE) == ""
    (tmp_path / "Dockerfile").write_text(DOCKERFILE.read_text().replace("WORKDIR /build", "WORKDIR build"))
    assert "absolute WORKDIR" in lint(tmp_path / "Dockerfile")


def test_what_the_dockerfile_copies_is_not_ignored() -> None:
    copied = re.findall(r"(?m)^COPY (?!--from)(.+) \S+$", DOCKERFILE.read_text())
    names = {name for line in copied for name in line.split()}
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert names == kept
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_the_dockerfile_ends_as_an_ordinary_user_and_installs_by_hash_alone() -> None:
    text = DOCKERFILE.read_text()
    instructions = re.findall(r"(?m)^(FROM|USER|ENTRYPOINT|HEALTHCHECK|VOLUME)\b", text)
    assert instructions == ["FROM", "FROM", "USER", "VOLUME", "HEALTHCHECK", "ENTRYPOINT"]
    installs = re.findall(r"pip (?:install|wheel) ([^\\\n]+)|install (--no-index [^\\\n]+)", text)
    assert [step for step in installs if not re.search("--require-hashes|--no-deps", "".join(step))] == []


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The configuration of the image that was built."""
    if why := builder.missing() or builder.make_base(tmp_path_factory.mktemp("base") / "root"):
        pytest.skip(why)
    return builder.build()


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A folder that is the container's volume."""
    folder = tmp_path / "volume"
    folder.mkdir(mode=0o700)
    os.chown(folder, USER, USER)
    return folder


def inside(name: str, mounts: dict[Path, str], *words: str) -> list[str | Path]:
    """A command in a container; all in one have the same mounts, else buildah does not mount them."""
    mounted = [part for origin, place in mounts.items() for part in ("--volume", f"{origin}:{place}")]
    return command("run", "--network", "host", *mounted, name, "--", *words)


def written(volume: Path, source: Database, **sections: Any) -> str:
    """A configuration as the image's user sees it: to files in the volume, state and spool where they are."""
    file = configuration(volume, source, {"name": "out", "type": "files", "base_path": "files"}, **sections)
    document = yaml.safe_load(file.read_text())
    for section in ("spool", "state"):
        del document[section]
    file.write_text(yaml.safe_dump(document))
    os.chown(file, USER, USER)
    return f"/var/lib/penstock/{file.name}"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_image_is_built_and_delivers_as_an_ordinary_user(
    image: dict[str, Any], volume: Path, database: Database
) -> None:
    assert image["User"] == f"{USER}:{USER}"
    assert image["Healthcheck"]["Test"][0] == "CMD"
    assert image["Labels"]["org.opencontainers.image.version"] == __version__
    assert set(image["Volumes"]) == {"/var/lib/penstock"}
    database.execute("create table item (id integer primary key)", "insert into item values (1), (2)")
    with container() as name:

        def run(*arguments: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                inside(name, {volume: "/var/lib/penstock"}, *image["Entrypoint"], *arguments),
                env=environment(),
                capture_output=True,
                text=True,
                check=False,
            )

        assert run("--version").stdout == f"penstock {__version__}\n"
        (volume / "wrong.yaml").write_text("pipeline: shop\nsources: []\n")
        refused = run("check", "/var/lib/penstock/wrong.yaml")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr.startswith("error: /var/lib/penstock/wrong.yaml:2: sources")
        done = run("run", written(volume, database, monitoring={"enabled": False}), "--once")
        assert done.returncode == 0, done.stderr
    (copy,) = (volume / "files").glob("public.item/*/full_reload.csv.gz")
    assert copy.stat().st_uid == USER
    assert (volume / ".penstock").stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_container_is_healthy_and_stops_in_good_order(
    image: dict[str, Any], volume: Path, database: Database
) -> None:
    database.execute("create table item (id integer primary key)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    written(volume, database, monitoring={"port": port})
    mounts = {volume: "/var/lib/penstock", volume / "pipeline.yaml": "/etc/penstock/pipeline.yaml"}
    with container() as name:
        buildah("config", "--env", "PENSTOCK_MONITORING__ENABLED=true", name)
        probe = inside(name, mounts, *image["Healthcheck"]["Test"][1:])
        assert subprocess.run(probe, env=environment(), capture_output=True, check=False).returncode == 1
        running = subprocess.Popen(
            inside(name, mounts, *image["Entrypoint"], *image["Cmd"]),
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            until_ready(port, running)
        except AssertionError:
            running.kill()
            raise AssertionError(running.communicate()[1]) from None
        assert subprocess.run(probe, env=environment(), check=False).returncode == 0
        (init,) = (
            process
            for process in psutil.Process(running.pid).children(recursive=True)
            if process.name() == "dumb-init"
        )
        init.send_signal(signal.SIGTERM)
        _, told = running.communicate(timeout=120)
        assert running.returncode == 0, told
        assert "Traceback" not in told


def until_ready(port: int, running: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 900
    while True:
        assert running.poll() is None, "it ended"
        with suppress(OSError), closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as asked:
            asked.request("GET", "/ready")
            if asked.getresponse().status == 200:
                return
        assert time.monotonic() < end, "it was not ready within a quarter of an hour"
        time.sleep(0.5)
