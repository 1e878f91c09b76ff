"""The SQL for Snowflake. There is no Snowflake to run it: DuckDB runs it, in its own words."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import duckdb
import pytest

from penstock.destinations.files.change_lines import COLUMNS
from penstock.destinations.files.snowflake import MOST_FILES, Export, ExportedFile, script, type_of

GOLDEN = Path(__file__).parent / "snowflake"

TABLE = "public.users"
FOLDER = "public.users/2026-01-31T12-00-0"


def described(columns: list[dict[str, Any]], key: list[str], name: str = "users") -> dict[str, Any]:
    return {
        "table": {"schema": "public", "name": name, "row_count": 1},
        "columns": columns,
        "metadata": {"snapshot_lsn": "0/10", "key": key},
    }


USERS = described(
    [
        {"name": "id", "type": "integer"},
        {"name": "Name", "type": "character varying(20)"},
        {"name": 'a "b"', "type": "numeric(10,2)"},
        {"name": "it's", "type": "bytea"},
        {"name": "at", "type": "timestamp(3) with time zone"},
        {"name": "about", "type": "text"},
    ],
    ["id"],
)


def export(base: str, *types: str, table: dict[str, Any] = USERS) -> Export:
    names = {"full_reload": "full_reload.csv.gz", "streaming": "streaming.csv.gz", "ddl": "ddl.txt"}
    files = (
        ExportedFile(type, f"{FOLDER}{place}/{names[type]}", f"0/{place + 1}0")
        for place, type in enumerate(types)
    )
    return Export(table, TABLE, base, "cdc_registry", tuple(files))


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("local", export("/data/files", "full_reload", "streaming", "streaming")),
        ("s3", export("s3://bucket/files", "full_reload", "streaming", "ddl", "streaming")),
        (
            "without_a_key",
            export("/data/files", "full_reload", "streaming", table=described(USERS["columns"], [])),
        ),
    ],
)
def test_the_script_is_what_it_was(name: str, given: Export) -> None:
    """To renew them: remove the files, run this, and look at what changed."""
    golden = GOLDEN / f"{name}.sql"
    if not golden.exists():
        golden.write_text(script(given))
        pytest.fail(f"{golden.name} was not there: it was written")
    assert script(given) == golden.read_text()


@pytest.mark.parametrize(
    ("type", "expected"),
    [
        ("smallint", "number(5, 0)"),
        ("bigint", "number(19, 0)"),
        ("numeric", "varchar"),
        ("numeric(38,0)", "number(38, 0)"),
        ("numeric(38,37)", "number(38, 37)"),
        ("numeric(39,2)", "varchar"),
        ("numeric(5,-2)", "varchar"),
        ("numeric(2,5)", "varchar"),
        ("real", "float"),
        ("character(3)", "varchar(3)"),
        ("character varying", "varchar"),
        ("timestamp(3) without time zone", "timestamp_ntz(6)"),
        ("timestamp with time zone", "timestamp_tz(6)"),
        ("time(0) without time zone", "time(6)"),
        ("time with time zone", "varchar"),
        ("interval", "varchar"),
        ("jsonb", "variant"),
        ("integer[]", "varchar"),
        ("numeric(10,2)[]", "varchar"),
        ("uuid", "varchar"),
        ('"char"', "varchar"),
        ("bit(3)", "varchar"),
        ("int4range", "varchar"),
    ],
)
def test_types(type: str, expected: str) -> None:
    assert type_of({"name": "c", "type": type}) == expected


def test_a_domain_is_its_base_type_and_an_enum_is_text() -> None:
    assert type_of({"name": "c", "type": "app.price", "domain_of": "numeric(8,2)"}) == "number(8, 2)"
    assert type_of({"name": "c", "type": "mood", "values": ["sad"]}) == "varchar"


@pytest.mark.parametrize(
    "name", ["plain", 'a "b"', "it's", "back\\slash", "new\nline", "ünï", "select", "$1"]
)
def test_odd_names_are_quoted_wherever_they_stand(name: str) -> None:
    columns = [{"name": name, "type": "text"}, {"name": "other", "type": "text"}]
    made = script(export("/it's/here", "full_reload", "streaming", table=described(columns, [name], name)))
    quoted = '"' + name.replace('"', '""') + '"'
    assert len(statements(made)) > 10
    for verb in ("create or replace table", "insert into", "merge into"):
        (found,) = [one for one in statements(made) if one.startswith(f'{verb} "public".{quoted} ')]
        assert found.count(quoted) >= 3


def test_a_copy_names_no_more_files_than_it_may() -> None:
    made = script(export("/data", "full_reload", *["streaming"] * (MOST_FILES + 1)))
    loads = [one for one in statements(made) if one.startswith("copy into") and "files = (" in one]
    assert [one.count("/streaming.csv.gz") for one in loads] == [MOST_FILES, 1]


_TOKEN = re.compile(
    r"""--[^\n]*\n|\$\$.*?\$\$|"(?:[^"]|"")*"|'(?:[^'\\]|\\.)*'|;|[^;"'$-]+|[$-]""", re.DOTALL
)


def statements(text: str) -> list[str]:
    """Cut at semicolons, without comments. Fails where a quote is not closed or a parenthesis lonely."""
    found, made, depth = [], "", 0
    tokens = _TOKEN.findall(text)
    assert "".join(tokens) == text
    for token in tokens:
        if token == ";":
            assert depth == 0, made
            found.append(made.strip())
            made = ""
        elif not token.startswith("--"):
            made += token
            if token[0] not in "\"'$":
                depth += token.count("(") - token.count(")")
    assert not made.strip(), made
    return found


# What it does


def in_duckdb(statement: str) -> str:
    """A statement of Snowflake's in the words of DuckDB."""
    for pattern, other in (
        (r"array_contains\(('(?:[^'\\]|\\.)*')::variant, (l\.\"_kept\")\)", r"list_contains(\2, \1)"),
        (r"\\'", "''"),
        (r"parse_json\((.*?)\)::array", r"(\1)::varchar[]"),
        (r"array_construct\(\)", "[]::varchar[]"),
        (r"\barray_size\(", "len("),
        (r"\barray_intersection\(", "list_intersect("),
        (r"\biff\(", "if("),
        (r"\bto_binary\((.*?), 'HEX'\)", r"unhex(\1)"),
        (r"\bto_timestamp_tz\((.*?)\)", r"(\1)::timestamptz"),
        (r"\btimestamp_tz\(6\)", "timestamptz"),
        (r"\bbinary\b", "blob"),
        (r"\bnumber\(", "decimal("),
        (r"::number\b", "::bigint"),
        (r"\b(temporary|transient) ", ""),
    ):
        statement = re.sub(pattern, other, statement, flags=re.DOTALL)
    return statement


class Snowflake:
    """It runs a script; files are below `base`."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.duck = duckdb.connect()
        self.duck.execute("set timezone = 'UTC'")

    def run(self, text: str) -> None:
        for statement in statements(text):
            if statement.startswith("copy into"):
                self._load(statement)
            elif statement.startswith("execute immediate"):
                self._loop(statement)
            elif not statement.startswith(("put ", "create stage", "create or replace file format")):
                self.duck.execute(in_duckdb(statement))

    def _load(self, statement: str) -> None:
        table = statement.removeprefix("copy into ").partition(" from ")[0]
        for path in re.findall(r"[\w.-]+/[\w.-]+/\w+\.csv\.gz", statement):
            options = "header = true, all_varchar = true, allow_quoted_nulls = false, delim = ','"
            self.duck.execute(f"insert into {table} from read_csv(?, {options})", [str(self.base / path)])

    def _loop(self, statement: str) -> None:
        """The statements of the loop's body, as often as the loop would run them."""
        count = re.search(r"(select count\(\*\)) into :to_find (from .*?);", statement, re.DOTALL)
        body = re.search(r"end if;\s*(create or replace .*?);\s*end loop", statement, re.DOTALL)
        assert count is not None
        assert body is not None
        rounds = 0
        while self.duck.execute(in_duckdb(f"{count[1]} {count[2]}")).fetchall() != [(0,)]:
            self.duck.execute(in_duckdb(body[1]))
            rounds += 1
            assert rounds < 10

    def rows(self) -> list[tuple[Any, ...]]:
        return self.duck.execute("select * from public.users order by 1").fetchall()


def write(base: Path, place: int, *lines: str) -> None:
    """The file of a batch: the first is the full copy."""
    names = [column["name"] for column in USERS["columns"]]
    columns = names if place == 0 else [*COLUMNS, *names]
    header = ",".join('"' + name.replace('"', '""') + '"' if '"' in name else name for name in columns)
    folder = base / f"{FOLDER}{place}"
    folder.mkdir(parents=True)
    file = folder / ("streaming.csv.gz" if place else "full_reload.csv.gz")
    file.write_bytes(gzip.compress("\n".join([header, *lines, ""]).encode()))


def change(op: str, lsn: int, seq: int, unchanged: str, values: str) -> str:
    return f"{op},00000000/{lsn:08X},00000000/00000001,{seq},7,2026-01-31 12:00:00+00,{unchanged},{values}"


KEPT = '"{""about"",""it\'s""}"'


def test_changes_become_what_the_source_has(tmp_path: Path) -> None:
    time = "2026-01-31 12:00:00.123+00"
    write(
        tmp_path,
        0,
        f'1,"",1.50,\\x00ff,{time},long 1',
        '2,,,,,""',
        "3,x,,,,long 3",
        "4,y,,\\x04,,long 4",
        "5,gone,,,,",
    )
    write(
        tmp_path,
        1,
        change("U", 10, 0, KEPT, f"1,Ann,2.00,,{time},"),
        change("D", 11, 0, "", "3,,,,,"),
        change("U", 11, 0, KEPT, "30,moved,,,,"),
        change("U", 12, 0, KEPT, "30,again,,,,"),
        change("I", 13, 9, "", "3,new,,,,new 3"),
        change("D", 13, 10, "", "30,,,,,"),
        change("U", 13, 10, KEPT, '31,"q "" , n",,,,'),
    )
    write(
        tmp_path,
        2,
        change("D", 14, 0, "", "4,,,,,"),
        change("U", 14, 0, KEPT, "-1,swap,,,,"),
        change("D", 14, 1, "", "1,,,,,"),
        change("U", 14, 1, KEPT, f"4,swap,2.00,,{time},"),
        change("D", 14, 2, "", "-1,,,,,"),
        change("U", 14, 2, KEPT, '1,"",,,,'),
        change("D", 15, 0, "", "5,,,,,"),
        change("I", 16, 0, "", "6,in,,,,"),
        change("D", 16, 1, "", "6,,,,,"),
    )
    flake = Snowflake(tmp_path)
    flake.run(script(export(str(tmp_path), "full_reload", "streaming", "streaming")))
    assert [(row[0], row[1], row[3], row[5]) for row in flake.rows()] == [
        (1, "", b"\x04", "long 4"),
        (2, None, None, ""),
        (3, "new", None, "new 3"),
        (4, "swap", b"\x00\xff", "long 1"),
        (31, 'q " , n', None, "long 3"),
    ]
    assert flake.rows()[3][4].isoformat() == "2026-01-31T12:00:00.123000+00:00"


def test_a_truncate_leaves_what_came_after_it(tmp_path: Path) -> None:
    write(tmp_path, 0, "1,a,,,,long 1", "2,b,,,,long 2")
    write(
        tmp_path,
        1,
        change("U", 10, 0, KEPT, "1,c,,,,"),
        change("T", 11, 0, "", ",,,,,"),
        change("I", 11, 1, "", "2,new,,,,long"),
        change("D", 12, 0, "", "2,,,,,"),
        change("U", 12, 0, KEPT, "3,moved,,,,"),
    )
    flake = Snowflake(tmp_path)
    flake.run(script(export(str(tmp_path), "full_reload", "streaming")))
    assert [(row[0], row[1], row[5]) for row in flake.rows()] == [(3, "moved", "long")]


def test_a_chain_of_changes_takes_few_rounds(tmp_path: Path) -> None:
    write(tmp_path, 0, "0,a,,,,long")
    moves = [
        line
        for place in range(100)
        for line in (
            change("D", 10 + place, 0, "", f"{place},,,,,"),
            change("U", 10 + place, 0, KEPT, f"{place + 1},x,,,,"),
        )
    ]
    write(tmp_path, 1, *moves)
    flake = Snowflake(tmp_path)
    flake.run(script(export(str(tmp_path), "full_reload", "streaming")))
    assert [(row[0], row[1], row[5]) for row in flake.rows()] == [(100, "x", "long")]
