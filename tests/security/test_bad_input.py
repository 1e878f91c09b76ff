"""Input that no operator means: it is refused at once, with its place and what was expected."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import yaml

import penstock
from penstock.config import load
from penstock.destinations.files.options import FilesOptions
from penstock.embedded.postgres import PostgresServer, _remedy
from penstock.model.errors import ConfigError, DatabaseMissing, ServerMissing
from penstock.postgres.connection import connect
from tests.bed import Database, fresh_database
from tests.pipeline.running import configuration, to_postgres

SMALLEST = "pipeline: shop\nsources: [{name: eu, dsn: 'postgresql://cdc@db/shop'}]\n"
FILES = SMALLEST + "destinations:\n- {name: f, type: files, base_path: x, "


def refused(folder: Path, text: str | bytes, environ: dict[str, str] | None = None) -> str:
    file = folder / "shop.yml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    begun = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        load(file, environ or {})
    assert time.monotonic() - begun < 60  # not a claim of speed: a bomb would take hours
    return str(caught.value).replace(f"{folder}/", "")


NUMBERS = {
    "batch_control": {
        "interval": "from 0 to 30d",
        "max_batch_rows": "less than or equal to 1000000000",
        "max_batch_size_mb": "from 0 to 1TB",
    },
    "copy": {
        "workers": "less than or equal to 1000",
        "partition_mb": "from 0 to 1TB",
        "batch_rows": "less than or equal to 10000000",
    },
    "monitoring": {"port": "less than or equal to 65535"},
    "retry": {
        "initial": "from 0 to 30d",
        "max": "from 0 to 30d",
        "attempts": "less than or equal to 1000000",
    },
}


@pytest.mark.parametrize(("section", "key"), [(s, key) for s, keys in NUMBERS.items() for key in keys])
def test_every_number_has_its_limits(tmp_path: Path, section: str, key: str) -> None:
    for written in ("yes", "no", ".inf", "-.inf", ".nan", "-1", "1.5x", "[1]", "2024-01-01", "''"):
        said = refused(tmp_path, SMALLEST + f"{section}: {{{key}: {written}}}\n")
        assert said.startswith(f"shop.yml:3: {section}.{key}: expected "), (written, said)
    for written in (str(10**24), "9" * 400, "0x" + "f" * 9000, "1e300"):
        said = refused(tmp_path, SMALLEST + f"{section}: {{{key}: {written}}}\n")
        assert said.startswith(f"shop.yml:3: {section}.{key}: expected "), (written, said)
    for written in (str(10**24), "9" * 400):
        assert NUMBERS[section][key] in refused(tmp_path, SMALLEST + f"{section}: {{{key}: {written}}}\n")


@pytest.mark.parametrize(
    "written",
    [
        *(f"file_registry: {{cleanup_after_days: {number}}}" for number in ("yes", ".inf", ".nan", "1e9")),
        *(f"reload_coordination: {{max_concurrent: {number}}}" for number in ("yes", "10e23", "1e24")),
        *(f"compression: {{full_level: {number}}}" for number in ("yes", "0", ".inf", "99")),
        *(f"compression: {{level: {number}}}" for number in ("yes", "0", ".inf", "99")),
    ],
)
def test_so_has_every_number_of_a_destination(tmp_path: Path, written: str) -> None:
    assert refused(tmp_path, f"{FILES}{written}}}\n").startswith("shop.yml:4: destinations[0].")


@pytest.mark.parametrize(
    "written",
    [
        "port: yes",
        "port: .inf",
        "connect_timeout: yes",
        "connect_timeout: .inf",
        "connect_timeout: 3000000000",
        "keepalives_idle: -1",
        "tcp_user_timeout: 10000000000000000000000000",
    ],
)
def test_and_every_one_of_a_connection(tmp_path: Path, written: str) -> None:
    text = f"pipeline: shop\nsources:\n- name: eu\n  connection: {{host: db, {written}}}\n"
    key = written.partition(":")[0]
    assert refused(tmp_path, text).startswith(f"shop.yml:4: sources[0].connection.{key}: expected ")


def test_what_is_text_in_the_environment_is_a_number_all_the_same(tmp_path: Path) -> None:
    file = tmp_path / "shop.yml"
    file.write_text(FILES + "file_registry: {cleanup_after_days: 0.5}}\n")
    given = {"MAX_EXPORT_WORKERS": "8", "PENSTOCK_RETRY__ATTEMPTS": "0", "STREAMING_BATCH_INTERVAL": "5"}
    given["PENSTOCK_DESTINATIONS__0__STRICT"] = "false"
    config = load(file, given)
    assert (config.initial_copy.workers, config.retry.attempts, config.batch_control.interval) == (8, 0, 5)
    assert not config.destinations[0].strict
    for text in ("yes", "1e24", "inf", "9" * 5000):
        said = refused(tmp_path, SMALLEST, {"MAX_EXPORT_WORKERS": text})
        assert said.startswith("environment variable MAX_EXPORT_WORKERS: copy.workers: expected ")


def bomb(lines: int, each: int = 9) -> str:
    """Each line stands for nine times the one before."""
    first = f"x0: &x0 [{', '.join(['lol'] * each)}]\n"
    return first + "".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * each)}]\n" for n in range(1, lines))


MERGED = "m0: &m0 {a: 1, b: 2}\n" + "".join(
    f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 9)}]}}\n" for n in range(1, 12)
)
CHAINED = "c0: &c0 [x]\n" + "".join(f"c{n}: &c{n} [*c{n - 1}]\n" for n in range(1, 3000))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (bomb(12), "shop.yml:7: expected YAML: at most 20000 values"),
        (MERGED, "shop.yml:7: expected YAML: at most 20000 values"),
        (CHAINED, "shop.yml:52: expected YAML: at most 50 levels"),
        ("x: " + "[" * 100_000, "shop.yml:3: expected YAML: at most 50 levels"),
        ("x: " + "{a: " * 5000 + "1" + "}" * 5000, "shop.yml:3: expected YAML: at most 50 levels"),
        ("\n".join(f"{' ' * n}a:" for n in range(1200)), "expected YAML: at most 50 levels"),
        ("spool: &a {path: *a}\n", "shop.yml:3: expected YAML: an alias to something that it is not part of"),
        ("spool: &a [*a, *a]\n", "shop.yml:3: expected YAML: an alias to something that it is not part of"),
        ("copy: {workers: " + "9" * 5000 + "}\n", "shop.yml:3: expected YAML: Exceeds the limit"),
        ("spool: {path: 2024-99-99}\n", "shop.yml:3: expected YAML: month must be in 1..12"),
        ("spool: {path: 9999-12-31 23:59:59-24:00}\n", "shop.yml:3: "),
        ("# " + "x" * 1_000_000, "shop.yml: expected a file of at most 1 MB"),
        ("x: [" + "lol, " * 150_000 + "]", "shop.yml:3: expected YAML: at most 20000 values"),
    ],
    ids=range(13),
)
def test_a_document_that_costs_more_than_reading_it_is_refused_with_its_line(
    tmp_path: Path, text: str, said: str
) -> None:
    found = refused(tmp_path, SMALLEST + text)
    assert said in found
    assert found.startswith("shop.yml")


def test_a_bomb_in_the_environment_is_refused_as_well(tmp_path: Path) -> None:
    flow = "{" + bomb(12).strip().replace("\n", ", ") + "}"
    assert "SPARK__CONF" in refused(tmp_path, SMALLEST, {"PENSTOCK_SPARK__CONF": flow})


def test_no_end_of_mistakes_is_told_in_few_lines(tmp_path: Path) -> None:
    said = refused(tmp_path, SMALLEST + "".join(f"k{n}: 1\n" for n in range(5000))).splitlines()
    assert len(said) == 101
    assert said[-1].startswith("and 4900 more")


def test_honest_anchors_and_merge_keys_work(tmp_path: Path) -> None:
    file = tmp_path / "shop.yml"
    file.write_text(
        SMALLEST.replace("[{", "\n- &eu {").replace("'}]", "', connection: &c {sslmode: require}}\n")
        + "- {<<: *eu, name: us, connection: {<<: *c, host: other}}\n"
        + "destinations:\n- {name: f, type: files, base_path: x, folder_pattern: &p "
        "'{source}/{schema}/{table}/{timestamp}', "
        "tables: {a: &rule {drop: [secret]}, b: *rule, c: {<<: *rule, where: 'true'}}}\n"
    )
    config = load(file, {})
    assert config.source("us").connection is not None
    assert [rules.drop for rules in config.destinations[0].tables.values()] == [("secret",)] * 3


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("postgresql", "; did you mean postgres?"),
        ("Files", "; did you mean files?"),
        ("carrier_pigeon", "."),
    ],
)
def test_an_unknown_type_of_destination_is_told_with_its_line(
    tmp_path: Path, written: str, said: str
) -> None:
    text = SMALLEST + f"destinations:\n- name: d\n  type: {written}\n"
    expected = f"expected one of files, nats, postgres, python, found {written!r}{said}"
    assert refused(tmp_path, text).strip() == f"shop.yml:5: destinations[0].type: {expected}"


# Shapes that nobody expects, and secrets in the wrong place


@pytest.mark.parametrize(
    ("written", "environ", "said"),
    [
        ("destinations:\n  - files\n", {}, "shop.yml:4: destinations[0]: expected keys below it"),
        ("destinations:\n  -\n", {}, "shop.yml:4: destinations[0]: expected keys below it"),
        ("", {"PENSTOCK_DESTINATIONS__0": "x"}, "DESTINATIONS__0: destinations[0]: expected keys below it"),
        ("", {"PENSTOCK_DESTINATIONS": "[null]"}, "DESTINATIONS: destinations[0]: expected keys below it"),
        ("? [a]\n: b\n", {}, "shop.yml:3: expected YAML: a key of one value"),
        ("spool:\n  ? {a: b}\n  : c\n", {}, "shop.yml:4: expected YAML: below `spool` a key of one value"),
        ("", {"PENSTOCK_SPOOL": "{[a]: b}"}, "variable PENSTOCK_SPOOL: spool: expected keys below it"),
    ],
)
def test_what_has_another_shape_is_refused_with_its_place(
    tmp_path: Path, written: str, environ: dict[str, str], said: str
) -> None:
    assert said in refused(tmp_path, SMALLEST + written, environ)


@pytest.mark.parametrize(
    "written", ["yes", str(10**20), "4294967295", "'4294967295'", "-1", "'-1'", "[a]", "''", "1.5", "'１２'"]
)
def test_a_group_is_a_name_or_a_number_of_the_system(tmp_path: Path, written: str) -> None:
    said = refused(tmp_path, f"{FILES}group: {written}}}\n")
    wanted = "expected the name of a group, or its number from 0 to 4294967294"
    assert said.startswith(f"shop.yml:4: destinations[0].group: {wanted}"), said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("written", ["staff", "'100'", "0", "4294967294", "null"])
def test_and_such_a_group_is_taken(tmp_path: Path, written: str) -> None:
    file = tmp_path / "shop.yml"
    file.write_text(f"{FILES}group: {written}}}\n")
    given = load(file, {}).destinations[0].settings(FilesOptions).group
    assert given == yaml.safe_load(written)


def test_a_mode_is_told_in_octal(tmp_path: Path) -> None:
    assert "found 0777 (decimal 511)" in refused(tmp_path, f"{FILES}mode: 0777}}\n")
    assert "found 1200 (decimal 640)" in refused(tmp_path, f"{FILES}mode: 640}}\n")


CONNECTED = "pipeline: shop\nsources:\n- name: eu\n  connection: {host: db, "


@pytest.mark.parametrize(
    ("text", "environ"),
    [
        (f"{FILES}credentials: 'hunter2'}}\n", {}),
        (f"{FILES}file_registry: 'hunter2'}}\n", {}),
        (SMALLEST + "destinations: [{name: p, type: python, class: a.B, options: 'hunter2'}]\n", {}),
        (SMALLEST + "destinations: [{name: p, type: postgres, connection: 'hunter2'}]\n", {}),
        (SMALLEST + "destinations: [hunter2]\n", {}),
        (SMALLEST + "spark: {conf: hunter2}\n", {}),
        (SMALLEST, {"PENSTOCK_STATE": "hunter2"}),
        (SMALLEST, {"PENSTOCK_SOURCES": "hunter2"}),
        (SMALLEST, {"PENSTOCK_SOURCES__0__CONNECTION": "hunter2"}),
        (SMALLEST, {"PENSTOCK_SOURCES__0__TABLES": "hunter2"}),
        (SMALLEST, {"PENSTOCK_DESTINATIONS": "[hunter2"}),
        (CONNECTED + "port: hunter2}\n", {}),
        (CONNECTED + "password_env: 'hunter2!'}\n", {}),
        (CONNECTED + "password_env: hunter2" + "x" * 60 + "}\n", {}),
        (f"{FILES}credentials: {{access_key_env: 'hunter2/+', secret_key_env: X}}}}\n", {}),
        (SMALLEST + "monitoring: {port: hunter2}\n", {}),
        (SMALLEST + "monitoring: {token_env: 'hunter2='}\n", {}),
    ],
)
def test_no_secret_in_the_wrong_place_is_repeated(tmp_path: Path, text: str, environ: dict[str, str]) -> None:
    said = refused(tmp_path, text, environ)
    assert "expected" in said
    assert "hunter2" not in said


def test_a_missing_variable_is_named_if_it_is_a_name(tmp_path: Path) -> None:
    said = refused(tmp_path, CONNECTED + "password_env: SHOP_PASSWORD}\n")
    assert "expected the environment variable SHOP_PASSWORD to be set" in said
    said = refused(tmp_path, CONNECTED + "password_env: 'p w'}\n")
    assert "expected the variable that `password_env` names to be set" in said


# A read-only installation, and no home

UNPRIVILEGED = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
"""For root, what everybody else has anyway: permissions hold."""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The package where nothing can be written."""
    place = tmp_path / "installed"
    shutil.copytree(
        Path(penstock.__file__).parent, place / "penstock", ignore=shutil.ignore_patterns("__py*")
    )
    (place / "tiny.py").write_text(
        "from penstock.model.compiled import kernel\n@kernel\ndef twice(n):\n    return 2 * n\n"
    )
    for path in (place, *place.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    return place


def as_stranger(installed: Path, *arguments: str, temporary: Path) -> subprocess.CompletedProcess[str]:
    """Run Python as a user without rights or a home."""
    return subprocess.run(
        [*UNPRIVILEGED, sys.executable, *arguments],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(installed / "no" / "home"),
            "PYTHONPATH": str(installed),
            "TMPDIR": str(temporary),
        },
        cwd=temporary,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_what_is_compiled_is_kept_where_it_can_be(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    done = as_stranger(installed, "-c", "import tiny; print(tiny.twice(21))", temporary=tmp_path / "tmp")
    assert (done.stdout, done.stderr) == ("42\n", "")
    kept = tmp_path / "tmp" / f"penstock-{os.geteuid()}"
    assert list(kept.glob("numba/*/tiny.*.nbi"))
    assert kept.stat().st_mode & 0o777 == (kept / "numba").stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_a_read_only_installation_without_a_home_runs_a_pipeline(
    installed: Path, database: Database, server: PostgresServer, tmp_path: Path
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    database.execute("create table t (id int primary key, v text)", "insert into t values (1, 'one')")
    for there in fresh_database(server):
        file = configuration(tmp_path, database, to_postgres(there), spool={"path": str(temporary / "spool")})
        main = "from penstock.cli import main; main()"
        done = as_stranger(installed, "-c", main, "run", str(file), "--once", temporary=temporary)
        assert done.returncode == 0, done.stderr
        assert there.query("select * from t") == [(1, "one")]
    assert "cannot" not in done.stderr
    assert list(temporary.glob(f"penstock-{os.geteuid()}/numba/*/*.nbi"))


@pytest.mark.parametrize("planted", ["open to all", "a link"])
def test_nothing_is_run_that_somebody_else_may_have_put_there(
    installed: Path, tmp_path: Path, planted: str
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    folder, theirs = temporary / f"penstock-{os.geteuid()}", tmp_path / "theirs"
    theirs.mkdir()
    if planted == "a link":
        folder.symlink_to(theirs)
    else:
        folder.mkdir()
        folder.chmod(0o777)
    done = as_stranger(installed, "-c", "import tiny; print(tiny.twice(21))", temporary=temporary)
    assert (done.returncode, done.stdout) == (0, "42\n")
    assert "is not ours alone" in done.stderr
    assert "NUMBA_CACHE_DIR" in done.stderr
    assert list(theirs.iterdir()) == []
    assert [path.name for path in folder.iterdir()] == []


# A database that is not there


def test_a_wrong_name_of_a_database_has_a_remedy_of_its_own(server: PostgresServer, tmp_path: Path) -> None:
    nowhere = server.dsn("nowhere at all")
    with pytest.raises(DatabaseMissing) as caught:
        connect(nowhere)
    assert not caught.value.retry
    document = {
        "pipeline": "shop",
        "sources": [{"name": "eu", "dsn": nowhere}],
        "destinations": [{"name": "d", "type": "postgres", "dsn": nowhere}],
        "state": {"url": server.url("nowhere")},
    }
    file = tmp_path / "shop.yml"
    file.write_text(yaml.safe_dump(document))
    command = [sys.executable, "-c", "from penstock.cli import main; main()", "check", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    missing = [one for one in told if "does not exist" in one["detail"]]
    assert [next(iter(one)) for one in missing] == ["source", "destination", "state"], told
    assert all("not about the password" in one["remedy"] for one in missing), missing


def test_a_server_that_does_not_start_is_not_told_to_be_installed(server: PostgresServer) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-test-", dir="/tmp") as folder:
        Path(folder).chmod(0o711)
        refusing = PostgresServer(Path(folder) / "pg", server.bin, {"wal_level": "nonsense"})
        try:
            with pytest.raises(ServerMissing, match="nonsense") as caught:
                refusing.start()
        finally:
            refusing.remove()
    assert caught.value.remedy == "PostgreSQL is installed: mend what it names, and start again"
    nameless = "initdb failed: could not look up effective user ID 4711: user does not exist"
    assert "/etc/passwd" in _remedy(nameless)
