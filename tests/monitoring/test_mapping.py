"""The sources' tables over HTTP: seen by everybody, decided about by whom it may concern."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.model import TableId, TableName
from penstock.model.phases import Phase
from penstock.pipeline.table_states import KIND
from penstock.state.store import Store, TableKey, TableState
from tests.bed import Database
from tests.monitoring.mapped import MARKUP, Deciding, address, deciding, of
from tests.monitoring.test_http import TOKEN

USERS = "public.users"
IMAGE = f'public."{MARKUP}"'
ODD = 'public."a.b ""c"" <i>"'


@pytest.fixture
def http(database: Database, tmp_path: Path) -> Iterator[Deciding]:
    with deciding(database, of(database, tmp_path)) as made:
        yield made


def test_every_table_is_listed_with_what_there_is_to_say(http: Deciding) -> None:
    answer = http.ask("/tables").document
    assert (answer["mapping"], answer["revision"], answer["running"]) == ("database", 0, None)
    assert (answer["total"], answer["matching"], answer["captured"]) == (8, 8, 6)
    tables = {each["table"]: each for each in answer["tables"]}
    assert tables[USERS]["rows"] == 1000
    assert tables[USERS]["bytes"] > 8000
    assert {name: each["state"] for name, each in tables.items()} == {
        USERS: "coming",
        "public.orders": "coming",
        "public.notes": "left out",
        "public.cache": "not captured",
        "public.parts": "coming",
        "public.parts_1": "part",
        IMAGE: "coming",
        ODD: "coming",
    }
    assert "no primary key" in tables["public.notes"]["reason"]
    assert "unlogged" in tables["public.cache"]["reason"]
    assert tables["public.parts_1"]["part_of"] == "public.parts"
    (arrival,) = tables[USERS]["destinations"]
    assert (arrival["target"], arrival["kind"], arrival["phase"]) == ("there.users", "clone", None)
    assert (arrival["set"], arrival["drop"], arrival["takes_target"]) == (["email"], ["password"], True)


def test_no_expression_is_told(http: Deciding) -> None:
    assert b"salt" not in http.ask("/tables").body
    assert b"salt" not in http.put(USERS, {"captured": True}).body


def test_tables_are_found_and_come_in_pages(http: Deciding) -> None:
    assert list(http.tables("search=USER")) == [USERS]
    assert list(http.tables("search=ONERROR")) == [IMAGE]
    assert list(http.tables("captured=false")) == ["public.cache"]
    everything = list(http.tables())
    assert everything == sorted(everything)
    assert [table for n in range(3) for table in http.tables(f"offset={3 * n}&limit=3")] == everything
    for wrong in ("limit=0", "limit=1001", "limit=x", "offset=-1", "captured=maybe", "limit="):
        assert http.ask(f"/tables?{wrong}").code == 400, wrong
    assert len(http.tables("source=source")) == 8
    assert [http.ask(f"/tables?source={name}").code for name in ("nobody", "")] == [404, 404]


def test_a_decision_is_put_down_and_taken_back(http: Deciding) -> None:
    answer = http.put(USERS, {"captured": False})
    assert (answer.code, answer.headers["etag"], answer.document["state"]) == (200, '"1"', "not captured")
    assert "when it is started" in answer.document["takes_effect"]
    placed = http.put("public.orders", {"destinations": {"copy": {"target": "app.o", "kind": "append"}}})
    (arrival,) = placed.document["destinations"]
    assert (arrival["target"], arrival["kind"]) == ("app.o", "append")
    assert placed.document["decided_by"] == "mapping"
    assert placed.document["decision"] == {
        "captured": None,
        "destinations": {"copy": {"target": "app.o", "kind": "append"}},
    }
    assert http.ask(address(USERS)).document["captured"] is False
    back = http.delete(USERS, If_Match='"1"')
    assert (back.code, back.headers["etag"]) == (200, '"0"')
    assert (back.document["captured"], back.document["decided_by"]) == (True, "file")
    assert http.decided() == 1
    assert http.ask(address(USERS)).code == 404, "nothing is decided any more"
    assert http.table(USERS)["revision"] == 0


def test_partitions_go_with_what_they_are_a_part_of(http: Deciding) -> None:
    assert http.put("public.parts", {"captured": False}).document["captured"] is False
    assert {name: http.table(name)["captured"] for name in ("public.parts", "public.parts_1")} == {
        "public.parts": False,
        "public.parts_1": False,
    }
    assert http.put("public.parts_1", {"captured": True}).document["state"] == "coming"
    refused = http.put("public.parts", {"captured": True})
    assert (refused.code, http.table("public.parts_1")["state"]) == (200, "part")


def test_names_of_every_kind_can_be_decided_about(http: Deciding) -> None:
    for table in (IMAGE, ODD):
        assert http.put(table, {"captured": False}).code == 200
        assert http.ask(address(table)).document["captured"] is False
    assert http.put(ODD, {"destinations": {"copy": {"target": '"x.y"."<b>"'}}}).code == 200


def test_of_two_people_the_second_is_told(http: Deciding) -> None:
    seen = f'"{http.table(USERS)["revision"]}"'
    assert http.put(USERS, {"captured": False}, If_Match=seen).code == 200
    late = http.put(USERS, {"captured": True}, If_Match=seen)
    assert (late.code, late.document["error"]["kind"]) == (409, "MappingChanged")
    assert http.delete(USERS, If_Match=seen).code == 409
    assert http.ask(address(USERS)).document["captured"] is False
    assert http.put(USERS, {"captured": True}, If_Match="*").code == 200
    assert http.put(USERS, {"captured": True}, If_Match="W/1").code == 400


@pytest.mark.parametrize(
    ("table", "document", "reason"),
    [
        ("public.notes", {"captured": True}, "cannot be followed: it has no primary key"),
        ("public.cache", {"captured": True}, "cannot be followed: it is unlogged"),
        ("public.parts_1", {"captured": False}, "it is a partition of public.parts"),
        (USERS, {"destinations": {"lake": {"kind": "append"}}}, "no destination is called lake"),
        (
            USERS,
            {"destinations": {"copy": {"target": "there.orders"}}},
            "these arrive at one table, there.or",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(http: Deciding, table: str, document: Any, reason: str) -> None:
    answer = http.put(table, document)
    assert answer.code == 409, answer
    assert reason in answer.document["error"]["reason"]
    assert answer.document["error"]["remedy"]
    assert http.decided() == 0


@pytest.mark.parametrize(
    "document",
    [
        b"{",
        b"\xff",
        [],
        {"capture": True},
        {"captured": "yes"},
        {"destinations": []},
        {"destinations": {"copy": None}},
        {"destinations": {"copy": {"where": "true"}}},
        {"destinations": {"copy": {"target": 1}}},
        {"destinations": {"copy": {"target": ""}}},
        {"destinations": {"copy": {"target": "a.b.c"}}},
        {"destinations": {"copy": {"target": "all*"}}},
        {"destinations": {"copy": {"target": 64 * "ü"}}},
        {"destinations": {"copy": {"kind": "mirror"}}},
    ],
)
def test_what_does_not_read_as_a_decision_is_refused(http: Deciding, document: Any) -> None:
    answer = http.put(USERS, document)
    assert (answer.code, answer.document["error"]["kind"]) == (400, "InvalidMapping")
    assert http.decided() == 0


def test_tables_that_are_not_there_are_told(http: Deciding) -> None:
    for table in ("public.nobody", "pg_catalog.pg_class", "penstock.state_tables"):
        assert http.put(table, {"captured": True}).code == 404
    assert http.ask(address(USERS, "?source=nobody")).code == 404
    assert http.ask(address(USERS), "POST").code == 405
    assert http.ask.send(address(USERS), "PUT", b"{}", {"Content_Type": "text/plain"}).code == 415


def test_a_table_that_is_gone_can_be_forgotten(http: Deciding, database: Database) -> None:
    assert http.put("public.orders", {"captured": True}).code == 200
    database.execute("drop table orders")
    gone = http.ask.until(address("public.orders"), lambda answer: not answer.document["captured"]).document
    assert (gone["state"], "has no such table" in gone["reason"]) == ("not captured", True)
    assert http.delete("public.orders").code == 200
    assert http.ask(address("public.orders")).code == 404


def test_versions_are_not_lost_for_another_kind(http: Deciding, database: Database) -> None:
    [(id,)] = database.query("select 'users'::regclass::oid::int8")
    config = http.http.observer.config
    name, target = TableName("public", "users"), TableName("there", "users")
    state = TableState(
        TableKey("source", "copy", TableId(id)),
        name,
        target,
        Phase.READY,
        datetime.now(UTC),
        detail={KIND: "history"},
    )
    with Store.open(config.state.url.get_secret_value(), config.pipeline, exclusive=True) as store:
        store.put(state)
        refused = http.put(USERS, {"destinations": {"copy": {"kind": "clone", "target": "there.users"}}})
        assert refused.code == 409
        assert "its versions would be lost" in refused.document["error"]["reason"]
        moved = http.put(USERS, {"destinations": {"copy": {"kind": "clone", "target": "there.users_now"}}})
        assert (moved.code, moved.document["state"]) == (200, "changing")
        assert moved.document["takes_effect"].startswith("The pipeline runs")
        store.put(replace(state, detail={KIND: "clone"}))
        assert http.put(USERS, {"destinations": {"copy": {"kind": "append"}}}).code == 200
        assert http.put(USERS, {"captured": False}).document["state"] == "leaving"


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"}],
)
def test_a_page_of_another_site_decides_nothing(http: Deciding, headers: dict[str, str]) -> None:
    assert http.put(USERS, {"captured": False}, **headers).code == 403
    assert http.delete(USERS, **headers).code == 403
    assert http.put(USERS, {"captured": False}, Host="evil.example").code == 421
    assert http.put(USERS, b"x" * (65 << 10)).code == 413
    assert http.decided() == 0


def test_without_the_token_nothing_is_decided(database: Database, tmp_path: Path) -> None:
    file = of(database, tmp_path)
    file.write_text(file.read_text().replace("port: 0", "port: 0\n  token_env: HUSH"))
    with deciding(database, file, environ={"HUSH": TOKEN}) as http:
        assert http.ask("/tables").code == 200
        assert http.put(USERS, {"captured": False}).code == 401
        assert http.put(USERS, {"captured": False}, Authorization=f"Bearer {TOKEN}").code == 200


def test_who_only_looks_decides_nothing(database: Database, tmp_path: Path) -> None:
    with deciding(database, of(database, tmp_path), read_only=True) as http:
        assert http.put(USERS, {"captured": False}).code == 403
        assert http.delete(USERS).code == 403
        assert (http.decided(), len(http.tables())) == (0, 8)


def test_where_the_file_decides_the_tables_are_seen_and_nothing_else(
    database: Database, tmp_path: Path
) -> None:
    with deciding(database, of(database, tmp_path, "file")) as http:
        assert http.ask("/tables").document["mapping"] == "file"
        refused = http.put(USERS, {"captured": False})
        assert (refused.code, refused.document["error"]["kind"]) == (409, "MappingInFile")
        assert http.decided() == 0


def test_a_publication_of_somebody_elses_is_not_altered(database: Database, tmp_path: Path) -> None:
    file = of(database, tmp_path)
    text = file.read_text().replace(
        "- name: source", "- name: source\n  replication: {publication_name: his}"
    )
    file.write_text(text)
    with deciding(database, file) as http:
        database.execute("create publication his for table orders")
        assert http.ask.until("/tables?captured=true", lambda answer: answer.document["captured"] == 1)
        assert list(http.tables("captured=true")) == ["public.orders"]
        refused = http.put(USERS, {"captured": True})
        assert (refused.code, "not Penstock's to alter" in refused.document["error"]["reason"]) == (409, True)


@pytest.mark.slow
def test_ten_thousand_tables_are_there(database: Database, tmp_path: Path) -> None:
    with deciding(database, of(database, tmp_path)) as http:
        made = "create table t%s (id int primary key)"
        for begins in range(1, 10_001, 1000):
            loop = f"for n in {begins}..{begins + 999} loop execute format('{made}', n); end loop"
            database.execute(f"do $$ begin {loop}; end $$")
        http.ask.until("/tables?limit=1", lambda answer: answer.document["total"] == 10_008)
        assert list(http.tables("search=t9999")) == ["public.t9999"]
        assert len(http.tables("limit=1000&offset=9000")) == 1000
