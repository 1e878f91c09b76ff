"""A source with tables of every kind, and a pipeline's HTTP server beside it that may decide about them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from penstock.config import load
from penstock.state.store import Store
from tests.bed import Database
from tests.monitoring.asking import Answer, Served, served
from tests.pipeline.running import configuration, to_postgres

MARKUP = "<img src=x onerror=document.title=1>"

TABLES = (
    "create table users (id int primary key, email text, password text)",
    "insert into users select n, 'a', 'b' from generate_series(1, 1000) n",
    "analyze users",
    "create table orders (id int primary key)",
    "create table notes (t text)",
    "create unlogged table cache (id int primary key)",
    "create table parts (id int primary key) partition by range (id)",
    "create table parts_1 partition of parts for values from (0) to (10)",
    f'create table "{MARKUP}" (id int primary key)',
    'create table "a.b ""c"" <i>" (id int primary key)',
)


def of(source: Database, folder: Path, mapping: str = "database", **more: Any) -> Path:
    rules = {"public.users": {"set": {"email": "sha2(concat(email, 'salt'), 256)"}, "drop": ["password"]}}
    return configuration(
        folder,
        source,
        to_postgres(source, schema="there", tables=rules),
        mapping=mapping,
        monitoring={"port": 0},
        **more,
    )


class Deciding:
    def __init__(self, http: Served, store: Store) -> None:
        self.http = http
        self.ask = http.ask
        self.store = store

    def tables(self, query: str = "") -> dict[str, dict[str, Any]]:
        answer = self.ask(f"/tables?{query}")
        assert answer.code == 200, answer
        return {each["table"]: each for each in answer.document["tables"]}

    def table(self, name: str) -> dict[str, Any]:
        return self.tables("limit=1000")[name]

    def put(self, table: str, document: Any, **headers: str) -> Answer:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        return self.ask.send(address(table), "PUT", body, {"Content_Type": "application/json", **headers})

    def delete(self, table: str, **headers: str) -> Answer:
        return self.ask(address(table), "DELETE", **headers)

    def decided(self) -> int:
        return len(self.store.mapping.read().decisions)


def address(table: str, query: str = "") -> str:
    return f"/tables/{quote(table, safe='')}/mapping{query}"


@contextmanager
def deciding(
    source: Database, file: Path, *, read_only: bool = False, environ: Mapping[str, str] | None = None
) -> Iterator[Deciding]:
    source.execute(*TABLES)
    config = load(file, environ or {})
    with (
        Store.open(config.state.url.get_secret_value(), config.pipeline, exclusive=False) as store,
        served(config, read_only=read_only) as http,
    ):
        yield Deciding(http, store)
