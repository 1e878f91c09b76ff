"""A workload that makes PostgreSQL send every message it has, and the messages it sent.

`python -m tests.capture.workload BIN_DIR…` records them for each server into `recordings/`.
"""

from __future__ import annotations

import gzip
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.bed import Database, fresh_database, started_server
from tests.capture.decoding import wrapped

RECORDINGS = Path(__file__).parent / "recordings"

TABLES = [
    "create type mood as enum ('sad', 'happy')",
    "create table plain (id int primary key, name text, feel mood)",
    'create table "Odd "" ü" (id int primary key)',
    "create table whole (id int primary key, big text); alter table whole replica identity full",
    "alter table whole alter big set storage external",
    "create table coded (id int, code text not null unique, x text)",
    "alter table coded replica identity using index coded_code_key",
    "create table nameless (id int, x text); alter table nameless replica identity nothing",
    "create table listed (id int primary key, shown text, secret text)",
    "create table picky (id int, k int, big text, unique (id, k))",
    "alter table picky alter id set not null, alter k set not null, alter big set storage external",
    "alter table picky replica identity using index picky_id_k_key",
    "create table parted (id int primary key, x text) partition by range (id)",
    "create table parted_low partition of parted for values from (0) to (100)",
    "create table parted_high partition of parted for values from (100) to (200)",
    "create table streamed (id int primary key, x text)",
    "create table columnless ()",
    "create publication p with (publish_via_partition_root = true)",
    'alter publication p add table plain, "Odd "" ü", whole, coded, nameless, parted, streamed, columnless',
    "select pg_replication_origin_create('upstream')",
    "select pg_create_logical_replication_slot('s', 'pgoutput')",
]

RESTRICTED = "alter publication p add table listed (id, shown), picky where (k > 10)"
BEFORE_15 = "alter publication p add table listed, picky"

CHANGES = [
    "insert into plain values (1, 'Änn', 'happy'), (2, null, 'sad'), (3, '', null)",
    "update plain set name = 'Bob' where id = 2; update plain set id = 30 where id = 3",
    'delete from plain where id = 1; insert into "Odd "" ü" values (1)',
    "insert into whole values (1, repeat('big', 1000)), (2, 'small')",
    "update whole set id = 10 where id = 1; update whole set big = null where id = 2",
    "delete from whole",
    "insert into coded values (1, 'a', 'x')",
    "update coded set code = 'b'; update coded set x = null; delete from coded",
    "insert into nameless values (1, null)",
    "insert into listed values (1, 'shown', 'secret')",
    "update listed set secret = 'other', shown = 'still'",
    "insert into picky values (1, 5, repeat('y', 3000)), (2, 20, repeat('z', 3000))",
    "update picky set k = 30 where id = 2",
    "update picky set k = 11 where id = 1; update picky set k = 1 where id = 2; delete from picky",
    "insert into parted values (1, 'low'), (101, 'high')",
    "update parted set id = 102 where id = 1",
    "insert into columnless default values",
    "truncate plain, listed restart identity cascade",
    "select pg_logical_emit_message(true, 'note', 'in'), pg_logical_emit_message(false, 'note', 'out')",
    "alter table plain add age int default 7",
    "insert into plain values (4, 'Cid', 'sad', 9)",
    "alter table plain rename name to called; alter table plain drop feel",
    "insert into plain values (5, 'Dee', 1)",
    """begin;
       insert into streamed select n, 'kept' from generate_series(1, 500) n;
       savepoint a;
       insert into streamed select n, 'undone' from generate_series(501, 1000) n;
       rollback to a;
       savepoint b;
       update streamed set x = 'changed' where id <= 250;
       release b;
       savepoint c;
       alter table streamed add undone text;
       insert into streamed select n, 'undone', 'too' from generate_series(1001, 1500) n;
       rollback to c;
       insert into streamed select n, 'kept' from generate_series(2001, 2400) n;
       delete from streamed where id <= 10;
     commit""",
    """begin;
       insert into streamed select n, 'rolled back' from generate_series(5001, 5600) n;
     rollback""",
    """begin;
       select pg_replication_origin_session_setup('upstream');
       select pg_replication_origin_xact_setup('0/1', now());
       insert into plain values (6, 'Eve', 2);
     commit""",
    "insert into streamed values (9000, 'last')",
]


def restricts(database: Database) -> bool:
    """Whether this server has column lists and row filters."""
    return database.query("show server_version_num") >= [("150000",)]


def peek(database: Database) -> list[bytes]:
    """Run the workload; returns the messages that the server sends of it, as they come over the wire."""
    database.execute(*TABLES, RESTRICTED if restricts(database) else BEFORE_15)
    database.execute(*CHANGES)
    with database.connect() as connection:
        connection.execute("set logical_decoding_work_mem = '64kB'")
        sent = connection.execute(
            """select lsn::text, data from pg_logical_slot_peek_binary_changes('s', null, null,
                 'proto_version', '2', 'publication_names', 'p', 'messages', 'true', 'streaming', 'on')"""
        ).fetchall()
    return [wrapped(lsn, data) for lsn, data in sent]


def recorded(path: Path) -> Iterator[bytes]:
    data, at = gzip.decompress(path.read_bytes()), 0
    while at < len(data):
        (size,) = struct.unpack_from("!I", data, at)
        yield data[at + 4 : at + 4 + size]
        at += 4 + size


def record(bin_dir: Path) -> None:
    server = started_server(bin_dir)
    try:
        for database in fresh_database(server):
            version = database.query("show server_version")[0][0].split(".")[0]
            packed = b"".join(struct.pack("!I", len(each)) + each for each in peek(database))
            RECORDINGS.mkdir(exist_ok=True)
            (RECORDINGS / f"postgresql-{version}.gz").write_bytes(gzip.compress(packed, mtime=0))
    finally:
        server.remove()


if __name__ == "__main__":
    for given in sys.argv[1:]:
        record(Path(given))
