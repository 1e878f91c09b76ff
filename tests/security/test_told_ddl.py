"""Schema changes are told without the commands' text where a rule hides anything: it may stand there."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.config.destinations import DestinationConfig
from penstock.destinations.protocol import Delivery, Run, TableChanges
from penstock.model import Column, ColumnType, Lsn, ReplicaIdentity, TableId, TableName, TableSchema
from penstock.model.ddl import DdlEvent
from penstock.model.phases import Phase
from penstock.pipeline.table_states import Tables
from penstock.spool.identity import Identity
from penstock.spool.manifest import Manifest
from penstock.state.store import Store, TableKey, TableState

USERS, ORDERS, RENAMED, UNKNOWN = map(TableId, (1, 2, 3, 4))
NAMES = {USERS: "users", ORDERS: "orders", RENAMED: "before"}


def test_a_command_has_its_text_only_where_nothing_of_its_table_is_hidden(tmp_path: Path) -> None:
    now, key = datetime.now(UTC), [Column("id", ColumnType(23, "int4"), key=True)]
    after = TableSchema(RENAMED, 2, TableName("public", "after"), ReplicaIdentity.DEFAULT, tuple(key))
    changes = TableChanges((Run(Delivery("source", after, after.name), ()),), Lsn(1))
    events = [DdlEvent(Lsn(1), now, "A TAG", table, "a text") for table in (*NAMES, UNKNOWN, None)]
    with (
        Store.open(f"sqlite:///{tmp_path}/state.db", "test", exclusive=True) as store,
        closing(Manifest.create(tmp_path / "spool", Identity("1", "d", "slot"), Lsn(1))) as manifest,
    ):
        for table, called in NAMES.items():
            name = TableName("public", called)
            store.put(TableState(TableKey("source", "mine", table), name, name, Phase.READY, now))

        def texts(tables: dict[str, Any]) -> set[TableId | None]:
            given = {"name": "mine", "type": "python", "class": "a.B", "tables": tables}
            found = Tables(store, manifest, "source", DestinationConfig.model_validate(given)).tellable(
                events, [changes]
            )
            assert [(event.tag, event.table) for event in found] == [
                ("A TAG", event.table) for event in events
            ]
            return {event.table for event in found if event.command}

        everything = {*NAMES, UNKNOWN, None}
        assert texts({}) == texts({"users": {"kind": "append"}}) == everything
        assert texts({"users": {"drop": ["a"]}}) == {ORDERS, RENAMED}
        assert texts({"public.users": {"where": "id > 1"}, "*.*": {}}) == {ORDERS, RENAMED}
        assert texts({"public.u*": {"set": {"a": "1"}}}) == {ORDERS, RENAMED}
        assert texts({"before": {"drop": ["a"]}}) == texts({"after": {"drop": ["a"]}}) == {USERS, ORDERS}
        assert texts({"*.*": {"drop": ["a"]}}) == set()
