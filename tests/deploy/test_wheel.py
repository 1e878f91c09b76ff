"""The wheel: built, installed where the repository is not to be found, and run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from penstock import __version__

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://git.example.com/us/penstock"
LINK = re.compile(r"\]\(([^)\s]+)\)")


def build(folder: Path, **environment: str) -> Iterator[Path]:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--directory", folder],
        cwd=ROOT,
        env=os.environ | {"PENSTOCK_REPOSITORY": "", **environment},
        check=True,
        capture_output=True,
    )
    yield from folder.iterdir()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Wheel and source distribution, by what their names end with."""
    return {file.suffix: file for file in build(tmp_path_factory.mktemp("dist"))}


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def run(program: Path, *arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run it elsewhere, with nothing of the tests' in its environment."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [program, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_the_wheel_has_every_file_of_the_packages(built: dict[str, Path]) -> None:
    with zipfile.ZipFile(built[".whl"]) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    tracked = subprocess.run(
        ["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    expected = {
        str(file.relative_to(ROOT / "src"))
        for file in (ROOT / "src").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert names == expected
    assert {
        "penstock/py.typed",
        "penstock/monitoring/page/index.html",
        "penstock/spark/log4j2.properties",
    } <= names
    assert {name.removeprefix("src/") for name in tracked.stdout.split()} <= names


def test_the_metadata_says_who_what_and_how(built: dict[str, Path]) -> None:
    told = metadata(built[".whl"])
    assert (told["Name"], told["Version"], told["License-Expression"]) == (
        "penstock",
        __version__,
        "Apache-2.0",
    )
    assert told["License-File"] == "LICENSE"
    assert told["Requires-Python"] == ">=3.11"
    assert told["Description-Content-Type"] == "text/markdown"
    assert {"spark", "embedded"} <= set(told.get_all("Provides-Extra", []))
    from trove_classifiers import classifiers

    assert set(told.get_all("Classifier", [])) <= set(classifiers)


def test_no_link_of_the_readme_is_dead_outside_the_repository(built: dict[str, Path], tmp_path: Path) -> None:
    assert "](docs/commands.md)" in (ROOT / "README.md").read_text()
    description = str(metadata(built[".whl"]).get_payload())
    assert LINK.findall(description) == []
    assert "commands (`docs/commands.md`)" in description
    (wheel,) = (
        file for file in build(tmp_path, PENSTOCK_REPOSITORY=f"{REPOSITORY}/") if file.suffix == ".whl"
    )
    told = metadata(wheel)
    links = LINK.findall(str(told.get_payload()))
    assert f"{REPOSITORY}/blob/v{__version__}/docs/commands.md" in links
    beginning = f"{REPOSITORY}/blob/v{__version__}/"
    assert [link for link in links if not (ROOT / link.removeprefix(beginning)).exists()] == []
    assert f"Source, {REPOSITORY}" in told.get_all("Project-URL", [])


def test_the_source_distribution_builds_the_same_wheel(built: dict[str, Path], tmp_path: Path) -> None:
    with tarfile.open(built[".gz"]) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    assert {"docs", "deploy", "src", "README.md", "LICENSE"} <= {file.name for file in folder.iterdir()}
    subprocess.run([sys.executable, "-m", "hatchling", "build", "--target", "wheel"], cwd=folder, check=True)
    (again,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(built[".whl"]) as first, zipfile.ZipFile(again) as second:
        assert {info.filename: info.CRC for info in first.infolist()} == {
            info.filename: info.CRC for info in second.infolist()
        }


def test_the_wheel_runs_where_there_is_no_repository(built: dict[str, Path], tmp_path: Path) -> None:
    """Its dependencies are the ones that are there already."""
    venv.create(tmp_path / "venv", with_pip=False)
    scripts = tmp_path / "venv/bin"
    packages = next((tmp_path / "venv/lib").glob("python*/site-packages"))
    # A folder that a .pth names is searched, but not its own .pth files, of which one has the repository.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    install = [
        "-m",
        "pip",
        "--python",
        str(scripts / "python"),
        "install",
        "--no-deps",
        "--no-index",
        "--quiet",
    ]
    installed = run(Path(sys.executable), *install, "--ignore-installed", built[".whl"], folder=tmp_path)
    assert installed.returncode == 0, installed.stderr
    where = run(scripts / "python", "-c", "import penstock; print(penstock.__file__)", folder=tmp_path)
    assert where.stdout.strip() == str(packages / "penstock/__init__.py")
    assert run(scripts / "penstock", "--version", folder=tmp_path).stdout == f"penstock {__version__}\n"
    (tmp_path / "wrong.yaml").write_text("pipeline: shop\nsources: []\n")
    checked = run(scripts / "penstock", "check", "wrong.yaml", folder=tmp_path)
    assert checked.returncode == 2
    assert checked.stderr.startswith("error: wrong.yaml:2: sources")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that others can enter: PostgreSQL is run by one where the tests are root's."""
    with tempfile.TemporaryDirectory(prefix="penstock-test-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("silent_java")
def test_the_wheel_and_what_it_asks_for_make_a_demo(built: dict[str, Path], open_folder: Path) -> None:
    """A fresh virtual environment, and an index that has the dependencies."""
    venv.create(open_folder / "venv", with_pip=False)
    scripts = open_folder / "venv/bin"
    uv = Path(sysconfig.get_path("scripts")) / "uv"
    install = ["pip", "install", "--quiet", "--python", str(scripts / "python")]
    install += ["--constraint", str(ROOT / "requirements.lock")]
    if run(uv, *install, "--dry-run", "--no-cache", "numpy", folder=open_folder).returncode:
        pytest.skip("no index answers")
    installed = run(uv, *install, f"penstock[embedded] @ file://{built['.whl']}", folder=open_folder)
    assert installed.returncode == 0, installed.stderr
    shown = run(scripts / "penstock", "demo", "--seconds", "5", folder=open_folder)
    assert shown.returncode == 0, shown.stderr + shown.stdout
    assert str(ROOT) not in shown.stdout + shown.stderr
