"""The documentation's SQL runs on a real server, and is taken back.

Each block runs in the database that it is for, where pipelines have made what they make. What a server
refuses in a transaction (`alter system`) runs by itself: the server is the tests' own.
"""

from __future__ import annotations

import re

import pytest
from psycopg import sql

from penstock.destinations import sql_ledger
from penstock.destinations.files.registry import Registry
from penstock.embedded.postgres import PostgresServer
from penstock.postgres.connection import connect
from tests.docs.blocks import Block, of_language
from tests.docs.shop import Shop, prepare

VARIABLE = re.compile(r"(?<![:\w]):(\w+)")
VARIABLES = {"last": "0/0"}
"""What a reader fills in, by the name that psql knows it by."""

IN_SHOP = """
    create table events (id int);
    create publication dbz_publication for all tables;
"""
IN_WAREHOUSE = """
    create table orders (
        id bigint, kvsz_start timestamptz, kvsz_end timestamptz, kvsz_deleted boolean
    );
"""
OF_WAREHOUSE = {"destination-postgres.md"}


@pytest.fixture(scope="module")
def databases(shop_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """The databases `shop` and `dw`, with what pipelines have made there."""
    prepare(shop_server)
    shop = Shop(shop_server, tmp_path_factory.mktemp("sql"))
    shop.source.execute(IN_SHOP)
    shop.source.query("select pg_create_logical_replication_slot('debezium', 'pgoutput')")
    shop.warehouse.execute(IN_WAREHOUSE)
    with connect(shop.source.dsn) as source, connect(shop.warehouse.dsn) as warehouse:
        Registry("cdc_registry", "shop", "lake").create(source)
        sql_ledger.create(warehouse)
    return shop


@pytest.mark.parametrize("block", of_language("sql"), ids=str)
def test_sql_runs(block: Block, databases: Shop) -> None:
    database = databases.warehouse if block.page.name in OF_WAREHOUSE else databases.source
    text = VARIABLE.sub(lambda found: sql.Literal(VARIABLES[found[1]]).as_string(), block.text)
    with database.connect() as connection:
        if text.startswith("alter system"):
            connection.execute(text.encode())
            return
        with connection.transaction(force_rollback=True):
            connection.execute(text.encode())
