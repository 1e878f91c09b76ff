"""The schema for editors: it takes what the loader takes, and knows the mistakes that a schema can know."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as some

from penstock.config import load
from penstock.config.document import safe_load
from penstock.config.json_schema import json_schema
from penstock.config.key_reference import keys, option_keys
from penstock.config.models import Config
from penstock.config.quantities import DURATION, SIZE
from penstock.model.errors import ConfigError
from tests.config import test_load
from tests.config.installed import install
from tests.config.test_destinations import THEIRS
from tests.config.test_load import ENVIRONMENT, SMALLEST, WHOLE

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = [
    *((f"docs/{page.name}", page.read_text()) for page in sorted((ROOT / "docs").glob("*.md"))),
    ("README.md", (ROOT / "README.md").read_text()),
    *(
        (str(path.name), f"```yaml\n{path.read_text()}```")
        for path in sorted((ROOT / "examples").glob("*.y*ml"))
    ),
]
SCHEMA = jsonschema_rs.validator_for(json_schema())


def mistakes(document: Any) -> list[str]:
    """The places where the schema finds one. JSON, unlike YAML, has no dates and no numbers as keys."""
    plain = json.loads(json.dumps(document, default=str))
    return [".".join(map(str, error.instance_path)) for error in SCHEMA.iter_errors(plain)]


def examples() -> list[Any]:
    """Every configuration of the documentation; parts of one are completed."""
    found = []
    for page, text in EXAMPLES:
        for place, block in enumerate(re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)):
            document = yaml.safe_load(block)
            if (
                isinstance(document, dict)
                and document.keys() <= Config.model_json_schema()["properties"].keys()
            ):
                whole = yaml.safe_load(SMALLEST) | document
                found.append(pytest.param(whole, id=f"{page}-{place}"))
    return found


@pytest.mark.parametrize("document", examples())
def test_every_example_fits(document: Any) -> None:
    assert mistakes(document) == []


def test_there_are_examples() -> None:
    assert len(examples()) > 4


@pytest.mark.parametrize("text", [SMALLEST, WHOLE])
def test_what_the_loader_takes_fits(text: str) -> None:
    assert mistakes(yaml.safe_load(text)) == []


BEYOND = (
    "sources[1].name: expected another name",
    "slot_name: expected a slot_name of its own",
    "expected the env",
    "expected a readable file",
    "sources[0].dsn: expected a connection str",
)
"""Mistakes that only the loader finds: what must differ, what must be there, what libpq reads."""


def wrong() -> list[Any]:
    """The mistakes of `test_load` that are YAML, in documents with keys."""
    (mark,) = test_load.test_what_is_wrong_has_its_place.pytestmark  # type: ignore[attr-defined]
    readable = []
    for text, said in mark.args[1]:
        try:
            document = safe_load(text)
        except yaml.YAMLError:
            continue
        if "expected once" not in said:
            readable.append(pytest.param(document, said, id=said[:60]))
    return readable


@pytest.mark.parametrize(("document", "said"), wrong())
def test_a_mistake_that_a_schema_can_know_is_found(document: Any, said: str) -> None:
    assert bool(mistakes(document)) is not any(words in said for words in BEYOND)


def test_mistakes_have_their_places() -> None:
    document = yaml.safe_load("""
pipeline: shop
sources:
  - name: eu
    connection: {host: db, port: many, sslmoode: require}
    startup_mode: sometimes
    table: {include: [public.*]}
destinations:
  - {name: a b, type: files, base_path: /f, compression: {algorithm: zip}, mode: rw}
  - {name: n, type: nats, servers: [], retention: 3 moons, consistency: batch}
  - {name: p, type: postgres, tables: {public.users: {knd: clone}, 'a"b': {}}}
  - {name: q, type: pigeons}
copy: {workers: 0, partition_mb: 3 bushels}
retries: {}
""")
    assert set(mistakes(document)) == {
        "",
        "sources.0",
        "sources.0.connection",
        "sources.0.connection.port",
        "sources.0.startup_mode",
        "destinations.0.name",
        "destinations.0.compression.algorithm",
        "destinations.0.mode",
        "destinations.1",
        "destinations.1.servers",
        "destinations.1.retention",
        "destinations.2",
        "destinations.2.tables",
        "destinations.2.tables.public.users",
        "destinations.3.type",
        "copy.workers",
        "copy.partition_mb",
    }


@pytest.mark.parametrize(
    "destination",
    [
        {"type": "files", "base_path": "s3://b/f", "compression": {"algorithm": "zstd", "level": 19}},
        {"type": "files", "base_path": "/f", "mode": "0640", "group": "staff"},
        {"type": "files", "base_path": "/f", "mode": 0o640, "group": 50},
        {"type": "nats", "servers": "nats://a:4222, b", "retention": "7d", "stream": "CDC-2"},
        {"type": "nats", "servers": ["nats://a:4222"], "retention": 0},
        {"type": "postgres", "connection": {"host": "db", "port": "5432,5433", "connect_timeout": "5"}},
        {"type": "postgres", "dsn": "postgresql://db/x", "connection": {"dbname": 2024, "sslmode": None}},
        {"type": "python", "class": "mine.Mine", "options": {"anything": [1, {"a": None}]}},
    ],
)
def test_every_type_has_its_own_keys(tmp_path: Path, destination: dict[str, Any]) -> None:
    document = yaml.safe_load(SMALLEST) | {"destinations": [{"name": "there", **destination}]}
    assert mistakes(document) == []
    load(test_load.written(tmp_path, yaml.safe_dump(document)), ENVIRONMENT)  # and the loader agrees
    wrong = yaml.safe_load(SMALLEST) | {"destinations": [{"name": "there", **destination, "colour": "red"}]}
    assert mistakes(wrong) == ["destinations.0"]


def test_a_type_of_an_installed_package_has_its_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, THEIRS, "theirs = their_module:TYPE")
    schema = jsonschema_rs.validator_for(json_schema())
    theirs = {"name": "there", "type": "theirs"}
    for more, fits in (({"colour": "red"}, True), ({}, False), ({"colour": "red", "taste": 1}, False)):
        assert schema.is_valid(yaml.safe_load(SMALLEST) | {"destinations": [theirs | more]}) is fits
    assert not SCHEMA.is_valid(yaml.safe_load(SMALLEST) | {"destinations": [theirs | {"colour": "red"}]})


@given(
    amount=some.sampled_from(["0", "1", "2.5", ".5", "007", "1e3", "-1", "", "x", " 3 ", "٣"]),
    unit=some.sampled_from(
        ["", "ms", "s", "S", "min", "M", "d", "MB", "mb", "MiB", " gib", "k", "bushels", "B s"]
    ),
    kind=some.sampled_from(["interval", "max_batch_size_mb"]),
)
def test_quantities_are_what_the_loader_takes(amount: str, unit: str, kind: str) -> None:
    """But for limits in units, which no pattern tells, and digits of other scripts."""
    value = f"{amount}{unit}"
    rule = jsonschema_rs.validator_for(DURATION if kind == "interval" else SIZE)
    try:
        Config.model_validate(
            {"pipeline": "p", "sources": [{"name": "s", "dsn": ""}], "batch_control": {kind: value}}
        )
        taken = True
    except ValueError:
        taken = False
    if amount not in ("0", "٣"):
        assert rule.is_valid(value) is taken


def described(schema: dict[str, Any], path: tuple[str | int, ...], at: dict[str, Any]) -> str:
    """What an editor shows at a key."""
    for part in path:
        while "properties" not in at and part != "*":
            ((reference,),) = [
                [one["$ref"] for one in at.get("allOf", at.get("anyOf", [at])) if "$ref" in one]
            ]
            at = schema["definitions"][reference.rpartition("/")[2]]
        if part == "*":
            at = at.get("items") or next(iter(at["patternProperties"].values()))
        else:
            at = at["properties"][part]
    return str(at["description"])


def test_editors_show_the_descriptions_of_the_reference() -> None:
    schema = json_schema()
    for path, key in keys(Config).items():
        if path[:2] != ("destinations", "*"):
            assert described(schema, path, schema) == key.description
    for type in ("files", "nats", "postgres", "python"):
        variant = schema["definitions"][f"destination-{type}"]
        for path, key in option_keys(type).items():
            assert described(schema, path[2:], variant) == key.description


def test_defaults_are_written_as_people_do(tmp_path: Path) -> None:
    """A default that an editor fills in changes nothing."""
    defaults: dict[str, Any] = {}
    schema = json_schema()
    for section in ("batch_control", "copy", "retry", "spool", "monitoring"):
        (reference,) = schema["properties"][section]["allOf"]
        rules = schema["definitions"][reference["$ref"].rpartition("/")[2]]["properties"]
        defaults[section] = {key: rule["default"] for key, rule in rules.items() if "default" in rule}
    plain = load(test_load.written(tmp_path, SMALLEST), {})
    filled = load(test_load.written(tmp_path, yaml.safe_dump(yaml.safe_load(SMALLEST) | defaults)), {})
    assert filled == plain
    assert defaults["batch_control"] == {
        "interval": "1s",
        "max_batch_rows": 1_000_000,
        "max_batch_size_mb": 500,
    }


def test_what_the_loader_refuses_is_the_authority() -> None:
    """The list above is of mistakes: each is one to the loader."""
    for case in wrong():
        with pytest.raises((ConfigError, ValueError)):
            Config.model_validate(case.values[0], context={"environ": ENVIRONMENT})
