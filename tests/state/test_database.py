from __future__ import annotations

import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import sqlalchemy

from penstock.model.errors import (
    ConfigError,
    PenstockError,
    StateDenied,
    StateUnreachable,
    WrongState,
)
from penstock.state import Store
from penstock.state.database import Database as StateDatabase
from penstock.state.tables import formats, metadata
from tests.bed import Database
from tests.state.conftest import url_of
from tests.state.made import KEY, state


def refused(url: str) -> PenstockError:
    """What opening says; nothing in it, traceback included, tells the secret."""
    with pytest.raises(PenstockError) as caught:
        Store.open(url, "shop", exclusive=True)
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value.where)
    assert "hush" not in shown
    assert "[SQL" not in shown
    return caught.value


def test_a_wrong_password_and_a_missing_right_are_told_without_the_password(own_database: Database) -> None:
    server = own_database.server
    own_database.execute("create role keeper login password 'right'")
    rules = server.data / "pg_hba.conf"
    rules.write_text("host all keeper 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
    server.stop()
    server.start()
    at = f"127.0.0.1:{server.port}/{own_database.name}"

    wrong = refused(f"postgresql://keeper:hush%40%2Fhush@{at}")
    assert isinstance(wrong, StateDenied)
    assert 'password authentication failed for user "keeper"' in wrong.reason
    assert not wrong.retry

    not_allowed = refused(f"postgresql://keeper:right@{at}")
    assert isinstance(not_allowed, StateDenied)
    assert "permission denied" in not_allowed.reason


def test_what_is_stored_does_not_go_back_with_a_crash_whatever_the_database_has_set(
    database: Database,
) -> None:
    database.execute(f'alter database "{database.name}" set synchronous_commit to off')
    store = StateDatabase.open(url_of(database))
    with store.writing() as connection:
        assert connection.exec_driver_sql("show synchronous_commit").scalar_one() == "local"
    store.close()


def test_a_server_that_is_not_there_is_tried_again(database: Database) -> None:
    error = refused(f"postgresql://keeper:hush@127.0.0.1:1/{database.name}?password=hush")
    assert isinstance(error, StateUnreachable)
    assert error.retry
    assert "Connection refused" in error.reason
    assert error.where == {"store": f"127.0.0.1/{database.name}"}


@pytest.mark.parametrize(
    "url",
    [
        "hush",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///state.db?hush=1",
        "mysql://keeper:hush@host/db",
        "postgresql://keeper:hu@sh/hush@host/db",
        "postgresql://keeper:hush@host:nonsense/db",
        "postgresql://host/db?hush=1",
    ],
)
def test_a_url_that_is_none_is_an_error_of_the_configuration(url: str) -> None:
    error = refused(url)
    assert isinstance(error, ConfigError)
    assert "state.url" in str(error)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error = refused(f"sqlite:///{tmp_path}/file/state.db")
    assert isinstance(error, StateUnreachable)
    assert error.where == {"store": f"{tmp_path}/file/state.db"}


def test_a_folder_in_the_place_of_the_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "state.db").mkdir()
    assert refused(f"sqlite:///{tmp_path}/state.db").reason == "it is a folder"


def test_a_file_that_is_no_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"something of the user's" * 100)
    assert isinstance(refused(f"sqlite:///{tmp_path}/state.db"), WrongState)
    assert (tmp_path / "state.db").read_bytes() == b"something of the user's" * 100


def test_a_store_of_another_format_is_refused_by_everybody(url: str) -> None:
    Store.open(url, "shop", exclusive=True).close()
    database = StateDatabase.open(url)
    with database.writing() as connection:
        connection.execute(sqlalchemy.update(formats).values(format=999))
    database.close()
    for exclusive in (True, False):
        with pytest.raises(WrongState, match="format 999") as caught:
            Store.open(url, "shop", exclusive=exclusive)
        assert not caught.value.retry


def test_a_reader_of_a_store_that_is_there_needs_no_right_to_write(database: Database) -> None:
    with Store.open(url_of(database), "shop", exclusive=True) as store:
        store.put(state())
    database.execute(
        "create role looker login",
        "grant usage on schema penstock to looker",
        "grant select on all tables in schema penstock to looker",
    )
    try:
        with Store.open(url_of(database).replace("postgres:", "looker:"), "shop", exclusive=False) as reader:
            assert [found.key for found in reader.tables()] == [KEY]
            with pytest.raises(StateDenied):
                reader.request("retry", {})
    finally:
        database.execute("drop owned by looker", "drop role looker")


def test_a_store_shares_its_database_with_a_destination_that_has_tables_of_its_own(
    database: Database,
) -> None:
    database.execute(
        "create schema penstock",
        "create table penstock.tables (own int)",
        "create view penstock.progress as select 1",
    )
    with Store.open(url_of(database), "shop", exclusive=True) as store:
        store.put(state())
    made = database.query(
        "select tablename from pg_tables where schemaname = 'penstock' and tablename <> 'tables'"
    )
    assert {name for (name,) in made} == {table.name for table in metadata.sorted_tables}
    assert all(name.startswith("state_") for (name,) in made)


def test_many_that_open_a_new_store_at_once_make_it_once(url: str) -> None:
    opening = "from penstock.state import Store; Store.open(*sys.argv[1:], exclusive=True).close()"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", f"import sys; {opening}", url, f"pipeline{number}"],
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    assert [child.communicate()[1] for child in children] == [""] * 4
    assert [child.returncode for child in children] == [0] * 4
