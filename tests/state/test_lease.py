from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.model.errors import StateInUse, StateUnreachable
from penstock.model.phases import Phase
from penstock.state import Store
from tests.bed import Database
from tests.state.conftest import url_of
from tests.state.made import KEY, plain, state


@contextmanager
def holding(url: str, pipeline: str = "shop") -> Iterator[subprocess.Popen[str]]:
    """Another process that has the lease."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.state.holder", url, pipeline],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        yield child
    finally:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            assert pipe is not None
            pipe.close()


def lose_lease(database: Database) -> None:
    """As a firewall or an administrator does: the connection that holds the lock is cut."""
    cut = database.query(
        "select pg_terminate_backend(pid, 5000) from pg_locks where locktype = 'advisory' and granted"
    )
    assert cut == [(True,)]


def test_the_second_is_refused_and_told_who_holds_the_state_until_the_first_is_killed(url: str) -> None:
    with holding(url) as first:
        with pytest.raises(StateInUse) as refused:
            Store.open(url, "shop", exclusive=True)
        said = str(refused.value)
        assert re.search(
            rf"process {first.pid} on {socket.gethostname()}, since 20\d\d-\d\d-\d\d \d\d:", said
        )
        assert "Stop the other one" in said
        assert not refused.value.retry

        Store.open(url, "bank", exclusive=True).close()
        Store.open(url, "shop", exclusive=False).close()

        first.send_signal(signal.SIGKILL)
        first.wait()
        Store.open(url, "shop", exclusive=True).close()


def test_a_state_given_back_is_free_at_once(url: str) -> None:
    with holding(url) as first:
        assert first.stdin is not None
        first.stdin.close()
        assert first.wait() == 0
        with Store.open(url, "shop", exclusive=True) as store:
            store.check()
            with pytest.raises(StateInUse, match=f"process {os.getpid()} on"):
                Store.open(url, "shop", exclusive=True)
            store.check()
            store.put(state())


def test_a_lease_whose_connection_was_cut_is_taken_again(database: Database) -> None:
    url = url_of(database)
    with Store.open(url, "shop", exclusive=True) as store:
        lose_lease(database)
        store.check()
        with pytest.raises(StateInUse, match=f"process {os.getpid()} on"):
            Store.open(url, "shop", exclusive=True)
        store.put(state())


def test_who_lost_the_lease_to_another_writes_nothing_more(database: Database) -> None:
    url = url_of(database)
    with Store.open(url, "shop", exclusive=True) as store:
        store.put(state(), "before")
        lose_lease(database)
        with holding(url) as other:
            with pytest.raises(StateInUse, match=f"process {other.pid} on"):
                store.put(state(Phase.READY), "after")
            with pytest.raises(StateInUse, match=f"process {other.pid} on"):
                store.check()
            assert store.tables()[0].phase is Phase.INIT
        # The other is gone, but may have changed what we remember.
        with pytest.raises(StateInUse, match=f"process {other.pid} on"):
            store.check()
        assert [change.why for change in store.history(KEY)] == ["before"]
    with Store.open(url, "shop", exclusive=True) as store:
        assert [plain(found) for found in store.tables()] == [plain(state())]


def test_a_store_goes_on_when_its_server_has_restarted(own_database: Database) -> None:
    url, server = url_of(own_database), own_database.server
    with Store.open(url, "shop", exclusive=True) as store:
        store.put(state())
        server.stop("immediate")
        with pytest.raises(StateUnreachable) as failed:
            store.check()
        assert failed.value.retry
        with pytest.raises(StateUnreachable):
            store.put(state(Phase.READY))
        assert store.tables()[0].phase is Phase.INIT

        server.start()
        store.check()
        store.put(state(Phase.READY), "after")
        with Store.open(url, "shop", exclusive=False) as reader:
            assert [(c.phase, c.why) for c in reader.history(KEY)] == [
                (Phase.INIT, ""),
                (Phase.READY, "after"),
            ]
        with pytest.raises(StateInUse):
            Store.open(url, "shop", exclusive=True)


def test_a_store_is_closed_without_a_word_when_its_server_is_gone(own_database: Database) -> None:
    store = Store.open(url_of(own_database), "shop", exclusive=True)
    own_database.server.stop("immediate")
    store.close()
