"""The configuration file: what it accepts, and how it says what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from penstock.config import Config, load
from penstock.config.models import default_slot_name
from penstock.model.errors import ConfigError

SMALLEST = """
pipeline: shop
sources:
  - name: eu
    dsn: postgresql://cdc@db/shop
"""

# As in SURFACE.md, every key.
WHOLE = """
pipeline: shop
sources:
  - name: eu
    connection:
      host: db.example.com
      port: 5432
      database: shop
      username: cdc
      password_env: SHOP_PASSWORD
      sslmode: require
    replication:
      slot_name: slot_of_shop
      publication_name: Publication of shop
      create_publication: true
      on_slot_lost: resync
      streaming: false
      heartbeat: 1m
      failover: true
    tables:
      include: ["public.*", "analytics.events"]
      exclude: ["public.tmp_*"]
      include_schemas: [public]
      exclude_schemas: []
      require_primary_key: true
    ddl_capture: on
    startup_mode: force_reload
destinations:
  - name: warehouse
    type: postgres
    dsn: postgresql://writer:hush@warehouse/app
    consistency: batch
    batch_control: {interval: 5m}
    tables:
      public.users:
        target: app.users
        kind: history
        where: "country <> 'XX'"
        set: {email: "sha2(email, 256)"}
        drop: [password_hash]
batch_control: {interval: 200ms, max_batch_rows: 1000, max_batch_size_mb: 64 MiB}
copy: {workers: 8, partition_mb: 32}
spool: {path: spool, ack: spool}
state: {url: "postgresql://penstock:hush@db/state"}
spark: {master: "local[2]", conf: {spark.sql.shuffle.partitions: 4, spark.ui.enabled: false}}
monitoring: {host: 0.0.0.0, port: 0, token_env: TOKEN}
retry: {initial: 2, max: 1h, attempts: 3}
"""

ENVIRONMENT = {"SHOP_PASSWORD": "hush", "TOKEN": "hush too"}


def written(folder: Path, text: str) -> Path:
    path = folder / "shop.yml"
    path.write_text(text)
    return path


def wrong(folder: Path, text: str, environ: dict[str, str] = ENVIRONMENT) -> list[str]:
    """The lines of the error, without the folder."""
    with pytest.raises(ConfigError) as caught:
        load(written(folder, text), environ)
    assert "hush" not in str(caught.value)
    assert caught.value.__cause__ is None
    return str(caught.value).removesuffix(".").replace(f"{folder}/", "").split("\n")


def test_the_smallest_file_has_defaults_for_the_rest(tmp_path: Path) -> None:
    config = load(written(tmp_path, SMALLEST), {})
    assert config.source().slot_name == "penstock_shop_eu"
    assert config.source("eu").publication_name == "penstock_shop_eu"
    assert config.batch_control.interval == 1
    assert config.batch_control.max_batch_bytes == 500_000_000
    assert config.initial_copy.partition_bytes == 64_000_000
    assert config.spool.path == Path(".penstock/spool")


def test_every_key_is_read(tmp_path: Path) -> None:
    config = load(written(tmp_path, WHOLE), ENVIRONMENT)
    source, (warehouse,) = config.source(), config.destinations
    assert source.slot_name == "slot_of_shop"
    assert source.publication_name == "Publication of shop"
    assert source.replication.heartbeat == 60
    assert source.ddl_capture == "on"
    assert warehouse.options == {"dsn": "postgresql://writer:hush@warehouse/app", "consistency": "batch"}
    assert warehouse.batch_control is not None
    assert warehouse.batch_control.interval == 300
    assert warehouse.tables["public.users"].set == {"email": "sha2(email, 256)"}
    assert config.batch_control.interval == pytest.approx(0.2)
    assert config.batch_control.max_batch_bytes == 64 * 2**20
    assert config.spark.conf == {"spark.sql.shuffle.partitions": "4", "spark.ui.enabled": "false"}
    assert config.monitoring.token == "hush too"
    assert (config.retry.initial, config.retry.max) == (2, 3600)


def test_the_connection_has_every_keyword_and_the_secret(tmp_path: Path) -> None:
    config = load(written(tmp_path, WHOLE), ENVIRONMENT)
    assert conninfo_to_dict(config.source().conninfo()) == {
        "host": "db.example.com",
        "port": "5432",
        "dbname": "shop",
        "user": "cdc",
        "password": "hush",
        "sslmode": "require",
        "fallback_application_name": "penstock",
    }


def test_no_representation_shows_a_secret(tmp_path: Path) -> None:
    text = WHOLE.replace("sslmode: require", "sslpassword: hush") + "\n"
    text = text.replace("    connection:", "    dsn: postgresql://x:hush@y/z\n    connection:")
    config = load(written(tmp_path, text), ENVIRONMENT)
    shown = [repr(config), str(config), repr(config.source().connection), str(config.destinations[0])]
    assert not any("hush" in one for one in shown)


def test_a_password_may_come_from_a_file_or_stand_in_the_dsn(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hu sh'\\\nnot this\n")
    file = SMALLEST.rstrip() + f"\n    connection: {{password_file: {tmp_path}/secret}}\n"
    assert conninfo_to_dict(load(written(tmp_path, file), {}).source().conninfo())["password"] == "hu sh'\\"
    inside = SMALLEST.replace("cdc@db", "cdc:p%40ss@db")
    assert conninfo_to_dict(load(written(tmp_path, inside), {}).source().conninfo())["password"] == "p@ss"


def test_everything_wrong_is_said_at_once_with_its_line(tmp_path: Path) -> None:
    text = """
pipeline: shop
sources:
  - name: eu
    connection:
      host: db
      port: many
      password_env: NOT_SET
    startup_mode: sometimes
    table:
      include: [public.*]
  - connection: {host: db, sslmoode: require}
destinations:
  - name: a b
    type: files
    tables:
      public.users: {knd: clone}
copy: {workers: none, partition_mb: 3 bushels}
retries: {}
"""
    assert wrong(tmp_path, text) == [
        "shop.yml:7: sources[0].connection.port: expected a port number",
        "shop.yml:9: sources[0].startup_mode: expected 'auto', 'force_reload' or 'streaming_only', "
        "found 'sometimes'",
        "shop.yml:10: sources[0].table: is not a key here; `tables` is",
        "shop.yml:12: sources[1].connection.sslmoode: expected a keyword of libpq, or password_env, "
        "password_file; did you mean sslmode?",
        "shop.yml:12: sources[1].name: is missing; expected the source's name, and the `sid` of its rows "
        "where sources meet",
        "shop.yml:14: destinations[0].name: expected a name of letters, digits, _, - and ., found 'a b'",
        "shop.yml:17: destinations[0].tables.public.users.knd: is not a key here; `kind` is",
        "shop.yml:18: copy.workers: expected a valid integer, found 'none'",
        "shop.yml:18: copy.partition_mb: expected a size such as 500MB or 64 MiB, found '3 bushels'",
        "shop.yml:19: retries: is not a key here; `retry` is",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "shop.yml:1: expected keys such as `pipeline:` and `sources:`"),
        ("# nothing", "shop.yml:1: expected keys such as `pipeline:` and `sources:`"),
        ("- a", "shop.yml:1: expected keys such as `pipeline:` and `sources:`"),
        ("pipeline: x\nsources: [", "shop.yml:2: expected YAML: expected the node content"),
        ("pipeline: x\n\tsources: 1", "shop.yml:2: expected YAML: found character '\\t'"),
        ("pipeline: !!python/object:x y", "shop.yml:1: expected YAML: could not determine a constructor"),
        ("pipeline: x\x00", "shop.yml:1: expected YAML"),
        (SMALLEST + "spool: &a\n  path: *a", "shop.yml:7: expected YAML: an alias to something"),
        (SMALLEST + "pipeline: y\n", "shop.yml:6: pipeline: expected once, it stands here a second time"),
        (SMALLEST.replace("shop\n", "no\n", 1), "shop.yml:2: pipeline: expected a valid string, found False"),
        (SMALLEST + "spool:\n", "shop.yml:6: spool: expected keys below it"),
        (SMALLEST + "spool: [a]\n", "shop.yml:6: spool: expected keys below it"),
        ("pipeline: x\nsources: []", "shop.yml:2: sources: expected at least one source"),
        ("pipeline: x\nsources: {}", "shop.yml:2: sources: expected a list"),
        ("pipeline: x\nsources:\n  - name: y", "shop.yml:3: sources[0]: expected `connection` or `dsn`"),
        (SMALLEST + "  - {name: eu, dsn: host=x}\n", "shop.yml:6: sources[1].name: expected another name"),
        (SMALLEST + "  - {name: EU, dsn: host=x}\n", "shop.yml:6: sources[1].name: expected another name"),
        (
            SMALLEST
            + "  - {name: us, dsn: 'postgresql://cdc@db/shop', replication: {slot_name: penstock_shop_eu}}\n",
            "shop.yml:6: sources[1].replication.slot_name: expected a slot_name of its own",
        ),
        (
            SMALLEST + "    replication: {slot_name: Shop}\n",
            "shop.yml:6: sources[0].replication.slot_name: expected lower-case letters",
        ),
        (
            SMALLEST + "    connection: {client_encoding: LATIN1}\n",
            "shop.yml:6: sources[0].connection.client_encoding: is set by Penstock",
        ),
        (
            SMALLEST + "    connection: {user: a, username: b}\n",
            "shop.yml:6: sources[0].connection.user: expected either username or user",
        ),
        (
            SMALLEST + "    connection: {password: hush, password_env: SHOP_PASSWORD}\n",
            "shop.yml:6: sources[0].connection.password_env: expected only one of",
        ),
        (
            SMALLEST + "    connection:\n      password_env: MISSING\n",
            "shop.yml:7: sources[0].connection.password_env: expected the environment variable MISSING",
        ),
        (
            SMALLEST + "    connection:\n      password_file: /not/there\n",
            "shop.yml:7: sources[0].connection.password_file: expected a readable file, /not/there: No such",
        ),
        (
            SMALLEST.replace("cdc@db", "cdc:hush/hush@db:hush"),
            "shop.yml:5: sources[0].dsn: expected a connection string such as",
        ),
        (
            SMALLEST.replace("cdc@db", "cdc:hu@hush@db"),
            "shop.yml:5: sources[0].dsn: expected a connection str",
        ),
        (
            SMALLEST.replace("cdc@db", "cdc:12/hush@db"),
            "shop.yml:5: sources[0].dsn: expected a connection str",
        ),
        (SMALLEST.replace("cdc@db", "cdc:1%h@db"), "shop.yml:5: sources[0].dsn: expected a connection str"),
        (SMALLEST.replace("dsn: p", "dsn: [p]"), "shop.yml:5: "),
        (
            SMALLEST + "monitoring: {token_env: MISSING}\n",
            "shop.yml:6: monitoring.token_env: expected the env",
        ),
        (SMALLEST + "state: {url: {hush: 1}}\n", "shop.yml:6: state.url: expected a valid string"),
    ],
)
def test_what_is_wrong_has_its_place(tmp_path: Path, text: str, said: str) -> None:
    (line,) = wrong(tmp_path, text)
    assert line.startswith(said)


def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yml: expected a configuration file: No such file"):
        load(tmp_path / "none.yml")
    with pytest.raises(ConfigError, match="expected a configuration file: Is a directory"):
        load(tmp_path)
    (tmp_path / "latin.yml").write_bytes("pipeline: é".encode("latin-1"))
    with pytest.raises(ConfigError, match="expected text in UTF-8, byte 10 is not"):
        load(tmp_path / "latin.yml")


def test_anchors_and_merges_work(tmp_path: Path) -> None:
    text = """
pipeline: shop
sources:
  - &eu
    name: eu
    dsn: postgresql://cdc@db/shop
  - <<: *eu
    name: us
    startup_mode: never
"""
    (line,) = wrong(tmp_path, text)
    assert line.startswith("shop.yml:9: sources[1].startup_mode")


@pytest.mark.parametrize(
    ("pipeline", "source", "slot"),
    [
        ("Shop-1", "EU.west", "penstock_shop_1_eu_west"),
        ("größe", "ö", "penstock_gr__e__"),
        ("a" * 40, "b" * 40, "penstock_" + "a" * 40 + "_bbbb_"),
    ],
)
def test_a_default_slot_name_is_one_that_postgres_allows(
    tmp_path: Path, pipeline: str, source: str, slot: str
) -> None:
    text = SMALLEST.replace("shop\n", f"{pipeline}\n", 1).replace("eu", source, 1)
    found = load(written(tmp_path, text), {}).source().slot_name
    assert found.startswith(slot)
    assert len(found) <= 63


def test_names_that_come_to_the_same_have_slots_of_their_own() -> None:
    """Two pipelines on one server would otherwise take each other's changes."""
    pairs = [("a", "b_c"), ("a_b", "c"), ("a.b", "c"), ("a-b", "c"), ("A_b", "c"), ("a_b", "C"), ("ä_b", "c")]
    names = {default_slot_name(*pair) for pair in pairs}
    assert len(names) == len(pairs)
    assert default_slot_name("shop", "eu") == "penstock_shop_eu"


def test_long_names_that_differ_at_the_end_keep_apart(tmp_path: Path) -> None:
    text = (
        SMALLEST.replace("eu", "e" * 60, 1) + f"  - {{name: {'e' * 61}, dsn: 'postgresql://cdc@db/shop'}}\n"
    )
    one, two = load(written(tmp_path, text), {}).sources
    assert one.slot_name != two.slot_name


def test_a_source_is_asked_for_by_name(tmp_path: Path) -> None:
    config = load(written(tmp_path, SMALLEST + "  - {name: us, dsn: host=x}\n"), {})
    assert config.source("us").name == "us"
    for name in (None, "asia"):
        with pytest.raises(ConfigError, match="the source must be one of eu, us"):
            config.source(name)


def test_the_example_in_the_documentation_loads(tmp_path: Path) -> None:
    page = Path(__file__, "../../../docs/configuration.md").resolve().read_text()
    example = page.split("```yaml\n")[1].split("```")[0]
    assert isinstance(load(written(tmp_path, example), ENVIRONMENT), Config)
