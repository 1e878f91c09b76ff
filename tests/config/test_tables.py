from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from penstock.config import TablesConfig
from penstock.model import TableName

USERS = TableName("public", "users")


@pytest.mark.parametrize(
    ("chosen", "table", "expected"),
    [
        ({}, USERS, True),
        ({"include": ["public.*"]}, USERS, True),
        ({"include": ["users"]}, USERS, True),
        ({"include": ["public.Users"]}, USERS, False),
        ({"include": ["*.users"]}, TableName("other", "users"), True),
        ({"include": ["public.*"]}, TableName("public.x", "users"), False),
        ({"include": ["public.a.b"]}, TableName("public", "a.b"), True),
        ({"include": ['"My Schema"."a*b"']}, TableName("My Schema", "a*b"), True),
        ({"include": ['"My Schema"."a*b"']}, TableName("My Schema", "aab"), False),
        ({"include": ['public."say ""hi"""']}, TableName("public", 'say "hi"'), True),
        ({"include": ["public.*"], "exclude": ["public.us*"]}, USERS, False),
        ({"include_schemas": ["public"]}, USERS, True),
        ({"include_schemas": ["other"]}, USERS, False),
        ({"include_schemas": ["other"], "include": ["users"]}, USERS, True),
        ({"exclude_schemas": ["public"]}, USERS, False),
        ({"include": ["*.*"]}, TableName("pg_catalog", "pg_class"), False),
        ({"include": ["information_schema.*"]}, TableName("information_schema", "sql_parts"), False),
        ({"include_schemas": ["cdc_registry"]}, TableName("cdc_registry", "file_log"), False),
        ({"include": ["penstock.progress"]}, TableName("penstock", "progress"), False),
    ],
)
def test_which_tables_are_chosen(chosen: dict[str, Any], table: TableName, expected: bool) -> None:
    assert TablesConfig(**chosen).matches(table) is expected


@pytest.mark.parametrize("pattern", ["", ".", "public.", '"half', 'a"b.c'])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValidationError, match="expected a pattern such as"):
        TablesConfig(include=(pattern,))
