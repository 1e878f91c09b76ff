"""From a configuration to a running capture: the publication made ready, the process started.

A capture runs in a process of its own, started by whoever needs it (the pipeline, a Spark query, `tail`)
and ending with it. Where another process captures into the spool already, there is nothing to start.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import psycopg

from penstock.capture.spec import CaptureSpec
from penstock.capture.spool_identity import own
from penstock.config import Config, SourceConfig
from penstock.model import children, private
from penstock.model.errors import CaptureKilled, PenstockError, from_dict
from penstock.postgres import publication
from penstock.postgres.connection import Connection, connect, explain, wait_briefly
from penstock.postgres.refusals import Refusals
from penstock.postgres.selection import Selection, select
from penstock.spool import room
from penstock.spool.identity import spool_exists
from penstock.spool.writer import is_captured

LOG = "capture.log"
STOP = 60.0
"""Seconds that a capture may take to stop in good order; killed it loses nothing either."""


def spec_of(config: Config, source: SourceConfig) -> CaptureSpec:
    replication = source.replication
    return CaptureSpec(
        source=source.name,
        conninfo=source.conninfo(),
        slot=source.slot_name,
        publication=source.publication_name,
        spool=spool_of(config, source),
        former_spool=config.spool.path / source.name,
        consumers=tuple(destination.name for destination in config.destinations),
        ack=config.spool.ack,
        streaming=replication.streaming,
        failover=replication.failover,
        heartbeat=replication.heartbeat,
        withheld=tuple(sorted(config.withheld)),
        retry_initial=config.retry.initial,
        retry_max=config.retry.max,
    )


def spool_of(config: Config, source: SourceConfig) -> Path:
    """Return the spool's path, in the pipeline's own folder: no two pipelines share a spool."""
    return folder_of(config) / source.name


def folder_of(config: Config) -> Path:
    """Return the folder of the pipeline's spools and of its Spark's log."""
    return config.spool.path / config.pipeline


def prepare(source: SourceConfig) -> list[str]:
    """Bring the publication in step with the configured tables; return what was done and left out."""
    try:
        with connect(source.conninfo()) as connection:
            wait_briefly(connection)
            return adjust(connection, source, select(connection, source))
    except psycopg.Error as error:
        raise explain(error) from None


def adjust(
    connection: Connection, source: SourceConfig, selection: Selection, refusals: Refusals | None = None
) -> list[str]:
    """Do the same while a pipeline runs. One table that cannot be followed stops no other; one that lost
    its key is taken out: published, it would refuse its updates."""
    create, existing = source.replication.create_publication, selection.seen.publication
    refusals = refusals or Refusals()
    done: list[str] = []
    if create and existing is not None and (done := publication.complete(connection, existing, refusals)):
        selection = select(connection, source)  # what can be followed hangs on what is published
    done += publication.ensure(
        connection, source.publication_name, selection.wanted, create=create, refusals=refusals
    )
    return [*dict.fromkeys(done), *selection.left_out()] if create else done


class CaptureProcess:
    """A capture running as a child. It ends when this is closed, or when this process does."""

    def __init__(self, spec: CaptureSpec) -> None:
        self._spec = spec
        with room.explained(spec.spool):
            private.folder(spec.spool)
            log_file = open(spec.spool / LOG, "ab", opener=private.opener)  # noqa: SIM115
        with log_file as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "penstock.capture"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=children.environment(spec.withheld),
                start_new_session=True,  # Ctrl-C is for us: the capture ends when we close its input
            )
        assert self._child.stdin is not None
        self._child.stdin.write(spec.to_json() + "\n")
        self._child.stdin.flush()

    @property
    def pid(self) -> int:
        return self._child.pid

    def has_begun(self) -> bool:
        """Whether the spool is there to be read; raises what keeps the capture from starting."""
        if spool_exists(self._spec.spool) and is_captured(self._spec.spool):
            return True
        self.check()
        return False

    def wait_until_captured(self, seconds: float = 120) -> None:
        until = time.monotonic() + seconds
        while not self.has_begun():
            if time.monotonic() > until:
                raise PenstockError("capture did not start", file=self._spec.spool / LOG)
            time.sleep(0.02)

    def check(self) -> None:
        """Raise what ended the capture, if it has ended."""
        if self._child.poll() is None:
            return
        assert self._child.stdout is not None
        output = self._child.stdout.read().strip()
        if output:
            raise from_dict(json.loads(output.splitlines()[-1]))
        if self._child.returncode < 0:
            raise CaptureKilled(f"capture was killed by signal {-self._child.returncode}")
        raise PenstockError(
            f"capture ended with status {self._child.returncode}",
            file=self._spec.spool / LOG,
            remedy="Its log says why",
        )

    def kill(self) -> None:
        self._child.kill()
        self.close()

    def close(self) -> None:
        """Stop in good order: what was received is written first, if that does not take too long."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        try:
            self._child.wait(STOP)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()


_started: dict[Path, CaptureProcess] = {}


def ensure(spec: CaptureSpec, source: SourceConfig) -> None:
    """See to it that somebody captures into this spool, for as long as this process lives.

    Returns when there is a spool to read; raises what ended our own capture, or keeps it from beginning.
    Once there is a spool, a source that cannot be reached is waited for.
    """
    ours = _started.get(spec.spool)
    if ours is None and not is_captured(spec.spool):
        try:
            own(spec)
            prepare(source)
        except PenstockError as error:
            if not error.retry or not spool_exists(spec.spool):
                raise
            return
        ours = _started[spec.spool] = CaptureProcess(spec)
    if ours is not None:
        ours.check()
        if not spool_exists(spec.spool):
            ours.wait_until_captured()
