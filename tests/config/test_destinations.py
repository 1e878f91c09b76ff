"""The keys of each type of destination: checked while the file is read, and documented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from penstock.config import destination_types, load
from penstock.config.destination_types import BUILT_IN
from penstock.config.key_reference import option_keys, option_tables
from penstock.destinations.files.options import FilesOptions
from penstock.destinations.plugin import type_of
from penstock.destinations.postgres.options import PostgresOptions
from penstock.destinations.python.plugin import PythonOptions
from penstock.model.errors import ConfigError
from tests.config.installed import install

PAGE = Path(__file__, "../../../docs/configuration.md").resolve().read_text()

THEIRS = """
from penstock.config.destination_options import Options

class TheirOptions(Options):
    colour: str

class TheirType:
    options = TheirOptions

    def make(self, config, destination):
        return f"a target in {destination.settings(TheirOptions).colour}"

TYPE = TheirType()
"""
SHOP = """
pipeline: shop
sources: [{name: eu, dsn: "postgresql://cdc@db/shop"}]
destinations:
"""


def written(folder: Path, destinations: str) -> Path:
    path = folder / "shop.yml"
    path.write_text(SHOP + destinations)
    return path


def test_a_postgres_destination_has_defaults_and_its_secret(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "  - {name: w, type: postgres, schema: Odd One, connection: {host: h, password_env: SECRET}}",
    )
    config = load(path, {"SECRET": "hush"})
    options = config.destinations[0].settings(PostgresOptions)
    assert (options.schema_name, options.create_tables) == ("Odd One", True)
    assert (options.source_column, options.consistency) == ("sid", "batch")
    assert conninfo_to_dict(options.conninfo())["password"] == "hush"
    assert "hush" not in f"{config!r} {options!r} {options}"


def test_a_type_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = "theirs = their_module:TYPE", "broken = no_such_module:TYPE", "files = their_module:TYPE"
    install(tmp_path / "installed", monkeypatch, THEIRS, *entries)
    config = load(written(tmp_path, "  - {name: t, type: theirs, colour: red}"))
    made: object = type_of(config.destinations[0]).make(config, config.destinations[0])
    assert made == "a target in red"
    assert destination_types.load("files").options is FilesOptions, "ours cannot be replaced"
    wrong = {
        "{name: t, type: theirs, shade: 1}": "destinations[0].shade",
        "{name: t, type: broken}": "the type broken of destination cannot be loaded: No module named",
        "{name: t, type: their}": "expected one of broken, files, nats, postgres, python, theirs, found",
    }
    for given, said in wrong.items():
        with pytest.raises(ConfigError, match=re.escape(said)):
            load(written(tmp_path, f"  - {given}"))


def test_a_python_destination_has_a_class_and_its_options(tmp_path: Path) -> None:
    path = written(tmp_path, "  - {name: mine, type: python, class: my.module.Mine, options: {a: [1]}}")
    options = load(path, {}).destinations[0].settings(PythonOptions)
    assert (options.class_name, options.options) == ("my.module.Mine", {"a": [1]})


def test_every_mistake_is_told_with_its_line_and_key(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """\
  - name: w
    type: postgres
    dsn: postgresql://u:hush@h/d
    shema: app
    consistency: none
    connection: {hots: h}
    tabels: {}
  - {name: v, type: postgres}
  - name: p
    type: python
    class: Mine
  - {name: q, type: python}
  - {name: f, type: files, whatever: 1, tables: {'public.a"b': {target: 'x."y'}}}
""",
    )
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert str(caught.value).removesuffix(".").replace(f"{tmp_path}/", "").split("\n") == [
        "shop.yml:10: destinations[0].connection.hots: expected a keyword of libpq, or password_env, "
        "password_file; did you mean host?",
        "shop.yml:9: destinations[0].consistency: expected 'batch' or 'table', found 'none'",
        "shop.yml:8: destinations[0].shema: is not a key here; `schema` is",
        "shop.yml:11: destinations[0].tabels: is not a key here; `tables` is",
        "shop.yml:12: destinations[1]: expected `connection` or `dsn`",
        "shop.yml:15: destinations[2].class: expected a class with its module, such as "
        "my_module.MyDestination, found 'Mine'",
        "shop.yml:16: destinations[3].class: is missing; expected the class, with its module: "
        "`my_module.MyDestination`",
        'shop.yml:17: destinations[4].tables.public.a"b: expected a pattern such as public.* or '
        '"My Schema"."my.table", found \'public.a"b\'',
        'shop.yml:17: destinations[4].tables.public.a"b.target: expected a pattern such as public.* or '
        '"My Schema"."my.table", found \'x."y\'',
    ]


@pytest.mark.parametrize("type", BUILT_IN)
def test_every_key_is_documented(type: str) -> None:
    assert [str(key) for key in option_keys(type).values() if not key.description] == []
    assert option_tables()[type] in PAGE, "bring docs/configuration.md in step: python -m penstock.config"
