"""`penstock tail`: changes as they happen, for people and for jq.

Where a pipeline captures already, its spool is followed, without taking part. Otherwise a temporary slot
and a temporary spool are used: nothing is left on the server, and nothing that a pipeline would need later
is consumed. Either way only what commits from now on is shown.

SIGTERM and SIGHUP end it as Ctrl-C does: what was made for it is removed first.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from penstock.cli.arguments import ConfigFile, table_names
from penstock.cli.ending import Ending

SHOWN = 60
"""Characters of a value that people are shown; JSON has all of it."""
COLOURS = {"insert": "green", "update": "yellow", "delete": "red", "truncate": "magenta", "message": "cyan"}


def tail(
    config: ConfigFile,
    table: Annotated[
        str | None,
        typer.Option(help="Only this table (a glob such as public.order*).", autocompletion=table_names),
    ] = None,
    source: Annotated[str | None, typer.Option(help="The source, where there are several.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for each change.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after so many changes.")] = None,
) -> None:
    """Print changes as they happen, until Ctrl-C.

    Example: penstock tail shop.yaml --table 'public.*' --json | jq .after
    """
    from penstock.capture.launch import spec_of
    from penstock.config import load
    from penstock.state.mapping_records import mapped

    loaded = mapped(load(config))
    spec = spec_of(loaded, loaded.source(source))
    show = _as_json if as_json else _for_people(Console(soft_wrap=True, highlight=False))
    notices = Console(stderr=True, highlight=False)
    with Ending() as ending, _captured(spec, loaded.source(source), notices, ending) as (spool, check):
        left = limit
        for change in _follow(spool, check):
            name = str(change.table.name) if change.table else ""
            if table and not fnmatchcase(name, table if "." in table else f"public.{table}"):
                continue
            show(_describe(change, name))
            if left is not None:
                left -= 1
                if not left:
                    return


@contextmanager
def _captured(spec: Any, source: Any, notices: Console, ending: Ending) -> Iterator[tuple[Path, Any]]:
    """A spool that is being captured into, and a function that raises what ended the capture."""
    from penstock.capture.launch import CaptureProcess
    from penstock.capture.temporary_publication import temporary_name, temporary_publication
    from penstock.spool.writer import is_captured

    if is_captured(spec.spool):
        notices.print(f"[dim]following the running capture of {spec.source}; Ctrl-C ends[/]")
        yield spec.spool, lambda: None
        return
    name = temporary_name()
    with temporary_publication(source, name) as publication, ExitStack() as stack:
        with ending.held():
            own = replace(
                spec,
                slot=name,
                publication=publication,
                spool=Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-tail-"))),
                consumers=(),
                ack="spool",
                temporary_slot=True,
                heartbeat=0,
                interval=0.02,
            )
            process = stack.enter_context(closing(CaptureProcess(own)))
        process.wait_until_captured()
        notices.print(f"[dim]changes of {spec.source} from now on, by a temporary slot; Ctrl-C ends[/]")
        yield own.spool, process.check


def _follow(spool: Path, check: Any) -> Iterator[Any]:
    from penstock.model.errors import PositionGone
    from penstock.spool.changes import changes
    from penstock.spool.manifest import Manifest

    with closing(Manifest.open(spool)) as manifest:
        position = manifest.position
        while True:
            try:
                reached = manifest.next_position(position)
                if reached > position:
                    yield from changes(manifest, position, reached)
                    position = reached
                    continue
            except (PositionGone, FileNotFoundError):  # every consumer was quicker than we are
                position = manifest.retired
                continue
            check()
            time.sleep(0.02)


def _describe(change: Any, table: str) -> dict[str, Any]:
    described: dict[str, Any] = {
        "table": table or None,
        "op": change.op.name.lower(),
        "commit_lsn": str(change.commit_lsn),
        "lsn": str(change.lsn),
        "seq": change.seq,
        "xid": change.xid,
        "committed_at": change.committed_at.isoformat(timespec="microseconds"),
    }
    if change.table is None:
        prefix, kind, content = change.after
        return described | {"prefix": prefix, "transactional": kind == "transactional", "content": content}
    if described["op"] == "truncate":
        return described | {"options": list(change.after or ())}
    return described | {
        "before_kind": change.before_kind.name.lower(),
        "before": change.before_map(),
        "after": change.after_map(),
        "unchanged": [change.table.column_names[place] for place in change.unchanged],
    }


def _as_json(change: dict[str, Any]) -> None:
    from penstock.model.text import as_json

    print(as_json(change), flush=True)


def _for_people(console: Console) -> Any:
    from penstock.model.text import printable

    def show(change: dict[str, Any]) -> None:
        line = Text(f"{change['committed_at'][11:23]} {change['commit_lsn']:>12} ", style="dim")
        line.append(f"{change['op']:<8} ", style=COLOURS[change["op"]])
        line.append(printable(f"{change['table'] or change.get('prefix', '')} "), style="bold")
        line.append(printable(_values(change)))
        console.print(line)
        sys.stdout.flush()

    return show


def _values(change: dict[str, Any]) -> str:
    match change["op"]:
        case "message":
            return str(change["content"])
        case "truncate":
            return ", ".join(change["options"])
        case "delete":
            return _pairs(change["before"] or {})
    before, after = change["before"] or {}, change["after"] or {}
    if change["before_kind"] == "full":
        changed = {key: value for key, value in after.items() if before.get(key) != value}
        return f"{_pairs({k: v for k, v in before.items() if k not in changed})} → {_pairs(changed)}"
    moved = f"{_pairs(before)} → " if before else ""
    kept = f" ({', '.join(change['unchanged'])} unchanged)" if change["unchanged"] else ""
    return moved + _pairs(after) + kept


def _pairs(values: dict[str, str | None]) -> str:
    return " ".join(f"{name}={_short(value)}" for name, value in values.items())


def _short(value: str | None) -> str:
    if value is None:
        return "NULL"
    line = value.replace("\n", "⏎")
    return line if len(line) <= SHOWN else f"{line[:SHOWN]}… ({len(value)})"
