"""Type oids, resolved from the catalog."""

from __future__ import annotations

import pytest

from penstock.model import ColumnType, TypeKind
from penstock.model.errors import ConnectionFailed
from penstock.postgres.connection import Connection, connect
from penstock.postgres.types import TypeCatalog
from tests.bed import Database


@pytest.fixture
def typed(database: Database) -> Database:
    database.execute(
        """
        create type mood as enum ('sad', 'fine');
        create type pair as (a int, b mood);
        create type "Weird ""Name" as range (subtype = float8);
        create domain price as numeric(12, 2);
        create domain positive_price as price check (value > 0);
        create domain tags as varchar(20)[];
        create table t (
            i int, v varchar(10), n numeric(8, 3), va varchar(10)[], m mood, ma mood[], c pair, ca pair[],
            r int4range, ra int4range[], mr int4multirange, w "Weird ""Name",
            p positive_price, pa positive_price[], tg tags, vec int2vector, ts timestamp(3)
        )
        """
    )
    return database


def columns(database: Database) -> dict[str, tuple[int, int]]:
    rows = database.query(
        "select attname, atttypid, atttypmod from pg_attribute where attrelid = 't'::regclass and attnum > 0"
    )
    return {name: (oid, modifier) for name, oid, modifier in rows}


def chain(found: ColumnType | None) -> list[tuple[str, str, int]]:
    """The type and what is inside it: name, kind, modifier."""
    return [(found.name, found.kind.value, found.modifier), *chain(found.inner)] if found else []


def test_every_kind_of_type_is_told_apart(typed: Database) -> None:
    types = TypeCatalog(lambda: connect(typed.dsn))
    found = {name: chain(types.resolve(*given)) for name, given in columns(typed).items()}
    numeric_12_2 = (12 << 16 | 2) + 4
    assert found == {
        "i": [("int4", "base", -1)],
        "v": [("varchar", "base", 14)],
        "n": [("numeric", "base", (8 << 16 | 3) + 4)],
        "va": [("_varchar", "array", 14), ("varchar", "base", 14)],
        "m": [("mood", "enum", -1)],
        "ma": [("_mood", "array", -1), ("mood", "enum", -1)],
        "c": [("pair", "composite", -1)],
        "ca": [("_pair", "array", -1), ("pair", "composite", -1)],
        "r": [("int4range", "range", -1)],
        "ra": [("_int4range", "array", -1), ("int4range", "range", -1)],
        "mr": [("int4multirange", "multirange", -1)],
        "w": [('Weird "Name', "range", -1)],
        "p": [
            ("positive_price", "domain", -1),
            ("price", "domain", -1),
            ("numeric", "base", numeric_12_2),
        ],
        "pa": [
            ("_positive_price", "array", -1),
            ("positive_price", "domain", -1),
            ("price", "domain", -1),
            ("numeric", "base", numeric_12_2),
        ],
        "tg": [("tags", "domain", -1), ("_varchar", "array", 24), ("varchar", "base", 24)],
        "vec": [("int2vector", "base", -1)],
        "ts": [("timestamp", "base", 3)],
    }
    types.close()


def test_a_dropped_type_is_unknown(typed: Database) -> None:
    types = TypeCatalog(lambda: connect(typed.dsn))
    assert types.resolve(999_999_999, 7) == ColumnType(999_999_999, "unknown", 7, TypeKind.UNKNOWN)
    types.close()


def test_it_connects_when_asked_remembers_and_comes_back(typed: Database) -> None:
    opened: list[Connection] = []

    def opening() -> Connection:
        opened.append(connect(typed.dsn))
        return opened[-1]

    types = TypeCatalog(opening)
    assert opened == []
    assert types.resolve(23, -1).name == "int4"
    typed.query("select pg_terminate_backend(%s)", opened[0].info.backend_pid)
    assert types.resolve(23, -1).name == "int4"
    assert len(opened) == 1
    assert types.resolve(25, -1).name == "text"
    assert len(opened) == 2
    types.close()


def test_a_server_that_stays_away_is_an_error(own_database: Database) -> None:
    types = TypeCatalog(lambda: connect(own_database.dsn))
    types.resolve(23, -1)
    own_database.server.stop("immediate")
    with pytest.raises(ConnectionFailed):
        types.resolve(25, -1)


def test_too_deep_a_nest_of_domains_is_text(database: Database) -> None:
    """Whoever may create types may create such a one."""
    with database.connect() as maker, maker.transaction():
        maker.execute("create domain d0 as varchar(7)")
        for number in range(1, 1100):
            maker.execute(f"create domain d{number} as d{number - 1}".encode())
    oids = dict(database.query("select typname, oid from pg_type where typname in ('d9', '_d9', 'd1099')"))
    types = TypeCatalog(lambda: connect(database.dsn))
    assert types.resolve(oids["d9"]).base == ColumnType(1043, "varchar", 11)
    inner = types.resolve(oids["_d9"]).inner
    assert inner == types.resolve(oids["d9"])
    deep = oids["d1099"]
    assert types.resolve(deep) == ColumnType(deep, "unknown", -1, TypeKind.UNKNOWN)
    types.close()
