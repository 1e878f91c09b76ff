"""A pipeline of a superuser's, and an ordinary role that does what it can: it gets its own tables refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.model import TableName
from penstock.model.phases import Phase
from tests.bed import Database
from tests.files.test_files import to_files
from tests.pipeline.running import configuration, difference, running, to_postgres
from tests.security.attacker import Attacker
from tests.security.test_sessions import TRAPS

VICTIMS = [TableName("public", "users"), TableName("public", "mails")]

# In its own schema and in `public`, while the pipeline runs and before it starts again.
ATTACKS = (
    "create table public.nothing ()",
    "create table public.keyless (id int)",
    "create table public.deferred (id int primary key deferrable)",
    "create table mine.wide (id int primary key, " + ", ".join(f"c{n} text" for n in range(500)) + ")",
    "create domain mine.checked as int check (mine.trap('the check of a domain') is not null)",
    "create table mine.typed (id int primary key, d mine.checked default 7, e mine.checked[] default '{7}')",
    "create table mine.parted (id int primary key) partition by range (id)",
    "create table mine.part partition of mine.parted for values from (0) to (10)",
    "create view public.watching as select mine.trap('view') from pg_catalog.pg_class",
    "create temp view pg_class as select c.*, mine.trap('pg_class') from pg_catalog.pg_class c",
    "create temp view pg_publication as select p.*, mine.trap('p') from pg_catalog.pg_publication p",
    "create table mine.triggered (id int primary key)",
    "create trigger t before insert on mine.triggered for each row execute function mine.trap()",
    "insert into mine.triggered values (1)",
    "insert into mine.typed (id) values (1)",
    "insert into mine.wide (id) values (1)",
    "insert into mine.parted values (1)",
    "comment on table mine.typed is 'CDC_RELOAD: [[[['",
    "alter table mine.typed add column f mine.checked default 8",
    "alter table mine.typed alter d type text using mine.trap('using')",
    "truncate mine.triggered",
    "drop table mine.wide",
    "alter table mine.parted rename to renamed",
    "select pg_catalog.pg_logical_emit_message(true, 'penstock', 'not ours')",
    "create domain mine.deep0 as int",
    """do $$ begin for i in 1 .. 1100 loop
        execute pg_catalog.format('create domain mine.deep%s as mine.deep%s', i, i - 1);
    end loop; end $$""",
    "create table mine.nested (id int primary key, v mine.deep1100)",
    "insert into mine.nested values (1, 1)",
    "create table mine.nameless (id int primary key) partition by range (id)",
    "create table mine.without partition of mine.nameless for values from (0) to (10)",
    "alter table mine.without replica identity nothing",
    *(f"create table mine.locked{n} (id int primary key, check (id > 0))" for n in range(10)),
)


@contextmanager
def locks(attacker: Attacker) -> Iterator[None]:
    """Tables of its own that nobody else gets, the whole time, and one that comes and goes."""
    over = threading.Event()

    def come_and_go() -> None:
        with attacker.connect(attacker.source) as connection:
            while not over.wait(0.001):
                connection.execute("create table public.passing (id int primary key, check (id > 0))")
                connection.execute("drop table public.passing")

    with ThreadPoolExecutor() as pool, attacker.connect(attacker.source) as connection:
        connection.execute("begin")
        for n in range(10):
            connection.execute(f"lock table mine.locked{n} in access exclusive mode".encode())
        done = pool.submit(come_and_go)
        try:
            yield
        finally:
            over.set()
        done.result()


def test_nobody_gets_anything_but_its_own_table_refused(
    spark: SparkSession, source: Database, destination: Database, attacker: Attacker, tmp_path: Path
) -> None:
    source.execute(
        "create table users (id int primary key, name text)",
        "create table mails (id int primary key, mail text)",
        "insert into users select i, 'name ' || i from generate_series(1, 100) i",
        "insert into mails select i, 'mail ' || i from generate_series(1, 100) i",
    )
    attacker.execute(TRAPS)
    with attacker.connect(destination) as connection:
        connection.execute("create table public.keyless (id int)")
    sources = [{"name": "source", "dsn": source.dsn, "tables": {"exclude": ["mine.caught"]}}]
    config = configuration(tmp_path, source, to_files(tmp_path), to_postgres(destination), sources=sources)
    victims = [str(name) for name in VICTIMS]
    for start in (1, 2):
        before = locks(attacker) if start == 2 else nullcontext()
        with before, ExitStack() as meanwhile, running(config, spark) as pipeline:
            pipeline.until_phase(Phase.READY, *victims)
            if start == 1:
                with attacker.connect(source) as connection:
                    for attack in ATTACKS:
                        connection.execute(attack.encode())
                meanwhile.enter_context(locks(attacker))
            source.execute(
                f"update users set name = name || '!' where id % 2 = {start % 2}",
                f"insert into mails values (10{start}, 'new')",
                f"delete from users where id = {start}",
                f"alter table mails add column c{start} int default {start}",
            )
            pipeline.until_equal(source, destination, lambda: VICTIMS)
            pipeline.until(lambda: "mine.typed" in pipeline.tables())
            pipeline.until_phase(Phase.READY, *victims)
    assert not attacker.caught(source)
    assert not attacker.caught(destination)
    assert difference(source, destination, VICTIMS) == ""
