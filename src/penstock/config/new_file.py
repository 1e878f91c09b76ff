"""The text of a new configuration file, commented: what was answered, and every other key with its default.

No secret is part of it: a password is named by the variable or the file that holds it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.config.key_reference import keys, option_keys
from penstock.config.models import Config
from penstock.model.text import printable

SCHEMA_FILE = "penstock.schema.json"
_SECTIONS = ("batch_control", "copy", "spool", "state", "monitoring", "retry")
"""What most people leave as it is, and some look for."""
_COMMENT = 44
"""Column of a comment behind a value."""
_PLAIN = re.compile(r"[A-Za-z_/][\w./-]*|[A-Za-z_][\w-]*(\.[\w-]+)+")
_NO_TEXT = {"yes", "no", "on", "off", "true", "false", "null", "y", "n"}
"""What YAML takes for something else."""


@dataclass(frozen=True, slots=True)
class NewDestination:
    type: str
    keys: Mapping[str, str]
    """Its own, but for `connection`."""
    connection: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewConfig:
    pipeline: str
    source: str
    connection: Mapping[str, str]
    include: Sequence[str]
    chosen: str
    """Of the tables, in words."""
    exclude: Mapping[str, str]
    """Patterns of tables that cannot be followed, with the reason."""
    destination: NewDestination | None
    described: bool
    """Whether the JSON schema is in the folder of the file."""


def written(new: NewConfig, file: str) -> str:
    """Return the text of the file."""
    return "\n".join([*_head(new, file), *_source(new), *_destinations(new), *_others()]) + "\n"


def _head(new: NewConfig, file: str) -> Iterator[str]:
    if new.described:
        yield f"# yaml-language-server: $schema={SCHEMA_FILE}"
    yield f"# {printable(new.pipeline)}: changes of a PostgreSQL database, delivered by Penstock."
    yield f"#   penstock check {printable(file)}    what keeps it from working, and what to do about it"
    yield f"#   penstock grant {printable(file)}    the SQL for a role with the rights that are needed"
    yield f"#   penstock run {printable(file)}      copies the tables, then follows every change"
    if not new.described:
        yield f"# An editor completes and checks it after: penstock schema > {SCHEMA_FILE}"
        yield f"# and with this line at the top: # yaml-language-server: $schema={SCHEMA_FILE}"
    yield ""
    yield f"pipeline: {_scalar(new.pipeline)}"


def _source(new: NewConfig) -> Iterator[str]:
    yield ""
    yield "sources:"
    yield _with(
        f"  - name: {_scalar(new.source)}", "slot and publication are named after pipeline and source"
    )
    yield "    connection:"
    yield from _connection(new.connection, "      ")
    yield "    tables:"
    included = ", ".join(map(_scalar, new.include))
    yield _with(f"      include: [{included}]", new.chosen)
    if new.exclude:
        yield _with("      exclude:", "these cannot be followed as they are:")
        yield from (_with(f"        - {_scalar(name)}", why) for name, why in new.exclude.items())
    yield from _commented("sources.*.replication", "    ")
    yield from _commented("sources.*.ddl_capture", "    ")
    yield from _commented("sources.*.startup_mode", "    ")


def _connection(keywords: Mapping[str, str], indent: str) -> Iterator[str]:
    comments = {
        "password_env": "the variable that holds the password",
        "password_file": "the file whose first line is the password",
    }
    for keyword, value in keywords.items():
        shown = value if keyword == "port" and value.isdecimal() else _scalar(value)
        yield _with(f"{indent}{keyword}: {shown}", comments.get(keyword, ""))
    if "sslmode" not in keywords and not keywords.get("host", "/").startswith("/"):
        yield _with(f"{indent}# sslmode: verify-full", "so that nobody reads along; any keyword of libpq")


def _destinations(new: NewConfig) -> Iterator[str]:
    yield ""
    destination = new.destination
    if destination is None:
        yield "# Where changes go. Without it there are `penstock tail` and Spark programs of your own."
        yield "# destinations:"
        yield "#   - {name: files, type: files, base_path: files}"
        return
    yield "destinations:"
    yield f"  - name: {_scalar(destination.type)}"
    yield f"    type: {_scalar(destination.type)}"
    yield from (f"    {key}: {_scalar(value)}" for key, value in destination.keys.items())
    if destination.connection:
        yield "    connection:"
        yield from _connection(destination.connection, "      ")
    yield _with("    # tables:", "per table: how it arrives, here with a masked and without another column")
    yield '    #   public.users: {set: {email: "sha2(email, 256)"}, drop: [password_hash]}'
    given = {"connection", "dsn", *destination.keys}
    for path in option_keys(destination.type):
        if len(path) == 3 and path[2] not in given:
            yield from _commented(".".join(map(str, path)), "    ", options=destination.type)


def _others() -> Iterator[str]:
    yield ""
    yield "# What else there is, with its defaults:"
    for section in _SECTIONS:
        yield from _commented(section, "")


def _commented(path: str, indent: str, options: str | None = None) -> Iterator[str]:
    """Yield a key, or a section with those of its keys that have a default, as comments."""
    reference = option_keys(options) if options else keys(Config)
    at = tuple(path.split("."))
    below = [key for key in reference.values() if key.path[:-1] == at and key.default not in ("", "required")]
    key = reference[at]
    if below:
        yield _with(f"{indent}# {at[-1]}:", key.description)
        yield from (
            _with(f"{indent}#   {each.path[-1]}: {_default(each.default)}", each.description)
            for each in below
        )
    elif key.default not in ("", "required"):
        yield _with(f"{indent}# {at[-1]}: {_default(key.default)}", key.description)


def _default(shown: str) -> str:
    value = shown.strip("`")
    return value if re.fullmatch(r"[\d.]+(s)?|true|false", value) else _scalar(value)


def _with(line: str, comment: str) -> str:
    return f"{line:<{_COMMENT}}  # {printable(comment)}" if comment else line


def _scalar(text: str) -> str:
    """Return text as YAML has it, in quotes where it could be taken for something else."""
    plain = _PLAIN.fullmatch(text) and text.lower() not in _NO_TEXT
    return text if plain else json.dumps(text, ensure_ascii=False)
