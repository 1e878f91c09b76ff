"""The SQL with which Snowflake loads a table's files: what `penstock snowflake` prints.

Files are loaded as text into tables of their own, then converted: COPY itself knows few functions. Changes
are applied all at once. Each key gets what its last line says; where that leaves a value `_unchanged` it is
the one of the line `_before`: the last one with that key or, if the row had another key, with that. Rows that
the table has already are lines too. Each round of the loop looks twice as far back as the one before.

Snowflake folds names to upper case unless they are quoted: all are, so they are the source's.
"""

# Names cannot be parameters: they are quoted.
# ruff: noqa: S608

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from penstock.destinations.files.change_lines import COLUMNS
from penstock.destinations.files.layout import DDL, STREAMING

MOST_FILES = 1000
"""That one COPY takes by name."""
FORMAT, STAGE = "penstock_csv", "penstock_files"
INTEGRATION = "<storage_integration>"
"""To be replaced by whoever runs the script."""

_TYPES = {
    "smallint": "number(5, 0)",
    "integer": "number(10, 0)",
    "bigint": "number(19, 0)",
    "oid": "number(10, 0)",
    "real": "float",
    "double precision": "float",
    "boolean": "boolean",
    "date": "date",
    "time without time zone": "time(6)",
    "timestamp without time zone": "timestamp_ntz(6)",
    "timestamp with time zone": "timestamp_tz(6)",
    "bytea": "binary",
    "json": "variant",
    "jsonb": "variant",
}
"""What is not here is text, as PostgreSQL prints it."""
_CONVERSIONS = {
    "float": "replace({}, 'Infinity', 'inf')::float",
    "binary": "to_binary(substr({}, 3), 'HEX')",
    "variant": "parse_json({})",
    "timestamp_tz(6)": "to_timestamp_tz({} || ':00')",
}
"""Of text into a type, where a cast does not do: `Infinity`, `\\x00ff`, `…+00` (it is always UTC)."""
_MODIFIER = re.compile(r"\s*\(([\d, -]+)\)")
_LINE_ENDS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class ExportedFile:
    type: str
    path: str
    """Below the base path."""
    end_lsn: str


@dataclass(frozen=True, slots=True)
class Export:
    """A table's newest full copy and what came after it, as the registry has them."""

    described: dict[str, Any]
    """`schema.yml`"""
    table: str
    """As the registry calls it."""
    base: str
    """Where the files are, without secrets."""
    registry: str
    files: tuple[ExportedFile, ...]

    @property
    def is_local(self) -> bool:
        return "://" not in self.base


@dataclass(frozen=True, slots=True)
class SnowflakeColumn:
    name: str
    type: str
    key: bool

    @property
    def quoted(self) -> str:
        return quoted(self.name)

    @property
    def converted(self) -> str:
        if self.type.startswith("varchar"):
            return self.quoted
        return _CONVERSIONS.get(self.type, f"{{}}::{self.type}").format(self.quoted)


def type_of(described: dict[str, Any]) -> str:
    """Return the type in Snowflake for a column of `schema.yml`."""
    type = str(described.get("domain_of") or described["type"])
    modifiers = [int(part) for modifier in _MODIFIER.findall(type) for part in modifier.split(",")]
    plain = _MODIFIER.sub("", type)
    if plain.endswith("[]") or described.get("values"):
        return "varchar"
    if plain == "numeric" and modifiers:
        precision, scale = modifiers[0], modifiers[1] if len(modifiers) > 1 else 0
        return f"number({precision}, {scale})" if 0 <= scale <= precision <= 38 and scale < 38 else "varchar"
    if plain in ("character", "character varying") and modifiers:
        return f"varchar({modifiers[0]})"
    return _TYPES.get(plain, "varchar")


def quoted(*names: str) -> str:
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"


def script(export: Export) -> str:
    return "\n\n".join(_parts(export)) + "\n"


def _parts(export: Export) -> Iterator[str]:
    names = _Names.of(export)
    copy, *later = export.files
    followed = list(takewhile(lambda file: file.type != DDL, later))
    through = followed[-1].end_lsn if followed else copy.end_lsn
    yield _about(export, through)
    yield _once(export, names)
    yield _full_copy(export, names, copy)
    if names.key:
        yield from _load_changes(export, names, [file for file in followed if file.type == STREAMING])
        yield from _apply_changes(names)
    else:
        yield "-- Changes: the table has no key that its rows could be found by. Give it a primary key."
    if len(followed) < len(later):
        changed = _comment(later[len(followed)].path)
        yield f"""\
-- What came after {through} is for a table with other columns: {changed} says which.
-- Have the table copied anew (penstock reload), then run this command again."""


@dataclass(frozen=True, slots=True)
class _Names:
    schema: str
    table: str
    columns: tuple[SnowflakeColumn, ...]

    @classmethod
    def of(cls, export: Export) -> _Names:
        described = export.described
        key = described["metadata"]["key"]
        columns = (
            SnowflakeColumn(column["name"], type_of(column), column["name"] in key)
            for column in described["columns"]
        )
        return cls(described["table"]["schema"], described["table"]["name"], tuple(columns))

    def of_table(self, suffix: str = "") -> str:
        return quoted(self.schema, self.table + suffix)

    @property
    def format(self) -> str:
        """Return the file format for COPY and stages."""
        return f"file_format = (format_name = {literal(quoted(self.schema, FORMAT))})"

    def staged(self, path: str) -> str:
        return literal(f"@{quoted(self.schema, STAGE)}/{path}")

    @property
    def all(self) -> list[str]:
        return [column.quoted for column in self.columns]

    @property
    def key(self) -> list[str]:
        return [column.quoted for column in self.columns if column.key]


def _about(export: Export, through: str) -> str:
    where = (
        "by PUT and an internal stage" if export.is_local else f"by an external stage: fill in {INTEGRATION}"
    )
    table = _comment("'" + export.table.replace("'", "''") + "'")
    copied_at = _comment(str(export.described["metadata"]["snapshot_lsn"]))
    return f"""\
-- {_comment(export.table)} in Snowflake, {where}.
-- The full copy of {copied_at}, and changes through {through}.
-- When all of it has run, tell the registry (PostgreSQL), so that later files are kept until they are read:
--   insert into {export.registry}.consumers (consumer, table_name, last_lsn)
--   values ('snowflake', {table}, '{through}')
--   on conflict (consumer, table_name) do update set last_lsn = excluded.last_lsn, updated_at = now();"""


def _once(export: Export, names: _Names) -> str:
    place = ""
    if not export.is_local:
        url = literal(export.base.rstrip("/") + "/")
        place = f"\n    url = {url}\n    storage_integration = {INTEGRATION}"
    return f"""\
create schema if not exists {quoted(names.schema)};

-- NULL is nothing at all, an empty string is ""; a backslash is one, and so is \\N.
create or replace file format {quoted(names.schema, FORMAT)}
    type = csv compression = auto encoding = 'UTF8' skip_header = 1
    field_delimiter = ',' record_delimiter = '\\n' multi_line = true trim_space = false
    field_optionally_enclosed_by = '"' escape = none escape_unenclosed_field = none
    empty_field_as_null = true null_if = () error_on_column_count_mismatch = true;

create stage if not exists {quoted(names.schema, STAGE)}{place}
    {names.format};"""


def _full_copy(export: Export, names: _Names, copy: ExportedFile) -> str:
    table, staging = names.of_table(), names.of_table("__copy")
    columns = [f"{column.quoted} {column.type}{' not null' * column.key}" for column in names.columns]
    if names.key:
        columns.append(f"primary key ({', '.join(names.key)})")
    return f"""\
-- The full copy, as text and then in its types.
{_put(export, names, [copy])}\
create or replace transient table {staging} (
    {_listed(f"{name} varchar" for name in names.all)}
);
copy into {staging} from {names.staged(copy.path)}
    {names.format} on_error = abort_statement;

create or replace table {table} (
    {_listed(columns)}
);
insert into {table} ({", ".join(names.all)})
select
    {_listed(column.converted for column in names.columns)}
from {staging};
drop table {staging};"""


def _load_changes(export: Export, names: _Names, files: Sequence[ExportedFile]) -> Iterator[str]:
    changes = names.of_table("__changes")
    yield f"""\
-- Changes, as text.
create or replace table {changes} (
    {_listed(f"{name} varchar" for name in (*map(quoted, COLUMNS), *names.all))}
);"""
    for place in range(0, len(files), MOST_FILES):
        some = files[place : place + MOST_FILES]
        yield f"""\
{_put(export, names, some)}\
copy into {changes} from {names.staged("")}
    files = (
        {_listed((literal(file.path) for file in some), indent=8)}
    )
    {names.format} on_error = abort_statement;"""


def _apply_changes(names: _Names) -> Iterator[str]:
    changes, lines, table = names.of_table("__changes"), names.of_table("__lines"), names.of_table()
    key, every = ", ".join(names.key), ", ".join(names.all)
    pair = '(partition by "_commit_lsn", "_seq" order by "_op")'
    truncated = f"""select 1 from {changes} where "_op" = 'T'"""
    yield f"""\
-- Changes in their types and in their order, each with the line that its row was last in.
create or replace temporary table {lines} as
with file as (
    select
        "_op", "_commit_lsn", "_seq"::number as "_seq",
        row_number() over (order by "_commit_lsn", "_seq"::number, "_op") as "_n",
        coalesce(parse_json('[' || substr("_unchanged", 2, length("_unchanged") - 2) || ']')::array,
            array_construct()) as "_kept",
        {_listed((f"{column.converted} as {column.quoted}" for column in names.columns), indent=8)}
    from {changes}
), line as (
    select "_op", "_commit_lsn", "_seq", "_n", "_kept", {every}
    from file where "_n" > (select coalesce(max("_n"), 0) from file where "_op" = 'T')
    union all
    select 'I', null, null, -row_number() over (order by null), array_construct(),
        {", ".join(f"t.{name}" for name in names.all)}
    from {table} t
    where ({key}) in (select {key} from file)
        and not exists ({truncated})
), found as (
    select *, lag("_n") over (partition by {key} order by "_n") as "_same_key" from line
)
select "_op", "_n", "_kept", {every},
    iff("_op" = 'U' and lag("_op") over {pair} = 'D',
        lag("_same_key") over {pair}, "_same_key") as "_before"
from found;"""
    values = [
        f"""iff(array_contains({literal(column.name)}::variant, l."_kept"), b.{column.quoted}, """
        f"""l.{column.quoted}) as {column.quoted}"""
        for column in names.columns
    ]
    loop = f"""
declare
    lost exception (-20001, 'rows that were changed are not there');
    to_find integer;
begin
    loop
        select count(*) into :to_find from {lines}
            where array_size("_kept") > 0 and "_before" is not null;
        if (to_find = 0) then
            break;
        end if;
        create or replace temporary table {lines} as
        select l."_op" as "_op", l."_n" as "_n",
            iff(array_size(l."_kept") > 0, array_intersection(l."_kept", b."_kept"), l."_kept") as "_kept",
            {_listed(values, indent=12)},
            iff(array_size(l."_kept") > 0, b."_before", l."_before") as "_before"
        from {lines} l
        left join {lines} b on b."_n" = l."_before" and array_size(l."_kept") > 0;
    end loop;
    select count(*) into :to_find from {lines} where array_size("_kept") > 0;
    if (to_find > 0) then
        raise lost;
    end if;
end;
"""
    yield f"""\
-- Values that were not sent are those of the line before, or of the one before that.
execute immediate {_block(loop)};"""
    others = [name for name in names.all if name not in names.key]
    update = f"\nwhen matched then update set {', '.join(f'{name} = s.{name}' for name in others)}"
    yield f"""\
-- Each key gets what its last line says.
begin transaction;
delete from {table} where exists ({truncated});
merge into {table} t using (
    select * from {lines} qualify row_number() over (partition by {key} order by "_n" desc) = 1
) s on {" and ".join(f"t.{name} = s.{name}" for name in names.key)}
when matched and s."_op" = 'D' then delete{update if others else ""}
when not matched and s."_op" <> 'D' then insert ({every})
    values ({", ".join(f"s.{name}" for name in names.all)});
delete from {changes};
commit;"""


def _put(export: Export, names: _Names, files: Iterable[ExportedFile]) -> str:
    if not export.is_local:
        return ""
    return "".join(
        f"put {literal(f'file://{export.base}/{file.path}')} "
        f"{names.staged(file.path.rpartition('/')[0] + '/')} auto_compress = false;\n"
        for file in files
    )


def _listed(items: Iterable[str], indent: int = 4) -> str:
    return (",\n" + " " * indent).join(items)


def _block(text: str) -> str:
    """A block of statements as a constant. A name may hold what ends one of the readable kind."""
    return literal(text) if "$$" in text else f"$${text}$$"


def _comment(text: str) -> str:
    """Return the text for a comment: nothing in it ends the line."""
    return _LINE_ENDS.sub(" ", text)
