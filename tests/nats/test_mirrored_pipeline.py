"""A whole pipeline into NATS, and a mirror of what it publishes, beside the source."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.cli.nats_destination import consumer_access, nats_options
from penstock.config import load
from penstock.consumer import Mirror
from penstock.embedded.nats import NatsServer
from penstock.model.phases import Phase
from tests.bed import Database
from tests.nats.test_pipeline import to_nats
from tests.pipeline.running import configuration, running

SETTINGS = [
    {"delivery": "ids", "compression": "zstd", "encoding": "msgpack"},
    {"delivery": "atomic", "compression": "none", "encoding": "json"},
]


def mirrored(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def names(path: Path, table: str) -> list[str]:
    """The columns of a table of the mirror; none: it has no such table."""
    return [name for (name,) in mirrored(path, f"select name from pragma_table_info('{table}')")]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings["delivery"])
def test_a_mirror_equals_the_source(
    spark: SparkSession, database: Database, nats: NatsServer, tmp_path: Path, settings: dict[str, str]
) -> None:
    database.execute(
        "create table users (id int primary key, name text, doc jsonb, price numeric(10, 2), ok bool)",
        "insert into users select n, 'before ' || n, '{\"a\": 1}', n, true from generate_series(-5, 300) n",
        "create table loose (v text, w int)",
        "alter table loose replica identity full",
        "insert into loose select 'same', null from generate_series(1, 5)",
    )
    file = configuration(tmp_path, database, to_nats(nats, snapshot_chunk_rows=100, **settings))
    path, notes = tmp_path / "mirror.db", list[str]()
    access = consumer_access(nats_options(load(file), None))

    def catch_up() -> None:
        asyncio.run(Mirror(access, path, note=notes.append).run(once=True))

    def equal() -> bool:
        catch_up()
        columns = "id, name, doc::text, price::text, ok::int"
        source = [database.query(f"select {columns} from users order by id")]
        here = [mirrored(path, "select id, name, doc, price, ok from users order by id")]
        source.append(database.query("select v, w from loose order by v, w"))
        here.append(mirrored(path, "select v, w from loose order by v, w nulls last"))
        return repr(here).replace('{"a":', '{"a": ') == repr(source)

    def renamed() -> bool:
        """The name may be told before the row that came with it."""
        catch_up()
        return bool(names(path, "other")) and mirrored(path, "select * from other") == [("n", 1)]

    with running(file, spark) as pipeline, database.connect() as open_one:
        pipeline.until_phase(Phase.READY, "public.users")
        pipeline.until_phase(Phase.READY, "public.loose")
        open_one.execute("begin")
        open_one.execute("insert into users values (-77, 'open', null, null, null)")
        open_one.execute("insert into loose values ('open', 1)")
        catch_up()
        open_one.execute("commit")
        database.execute(
            "update users set id = 5000, name = 'moved' where id = 7",
            "delete from users where id = 0",
            "delete from loose where ctid = (select min(ctid) from loose)",
            "insert into loose values ('same', null), ('other', 2)",
        )
        pipeline.until(equal)
        database.execute(
            "alter table users add more int default 5", "update users set name = 'x' where id = 1"
        )
        pipeline.until(lambda: equal() and "more" in names(path, "users"))
        assert mirrored(path, "select count(*) from users where more = 5") == [(306,)]
        database.execute(
            "truncate loose",
            "alter table loose rename to other",
            "insert into other values ('n', 1)",
        )
        pipeline.until(renamed)
        assert not names(path, "loose")
