"""Every command of the documentation is given, in a terminal and beside real servers, or a test that gives it
has its name here."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator

import pytest
import yaml

from penstock.embedded.nats import NatsServer
from penstock.embedded.postgres import PostgresServer, bundled_bin
from tests.bed import started_server
from tests.cli.terminal import Terminal
from tests.docs.blocks import ROOT, Block, lines, of_language, on_page
from tests.docs.reader import Following, Reader, answer, interrupt_after
from tests.docs.shop import Shop, prepare

ELSEWHERE = {
    r"make demo|penstock demo": "tests/demo/test_demo.py::test_the_demo_of_a_pipeline_proves_source",
    r"make test|PENSTOCK_TEST_PG_PAIR=": ".ci/run::make test",
    r"PENSTOCK_TEST_PG_BINS=": "tests/test_bed.py::test_further_servers_are_named_by_their_folders",
    r"make lint": ".ci/run::ruff check",
    r"make types": ".ci/run::mypy",
    r"make slow": ".ci/run::make slow",
    r"make docs": "tests/docs/test_site.py::test_every_page_is_there",
    r"make bench|.*python -m bench": "tests/bench/test_bench.py::test_every_benchmark_of_the_pipeline_runs",
    r"pip ": "tests/deploy/test_wheel.py::test_the_wheel_and_what_it_asks_for_make_a_demo",
    r"docker ": "tests/deploy/test_image.py::test_a_container_is_healthy",
    r"kubectl ": "tests/deploy/test_documented.py::test_kubectl_makes_what_the_manifests_are",
    r"helm ": "tests/deploy/test_documented.py::test_helm_installs_the_chart",
    r"npm |.*node ": "tests/consumer/test_javascript.py::test_the_example_equals_the_table",
    r"psql .*ALTER_REPLICATION_SLOT": "tests/docs/test_moving.py::test_a_slot_is_made_one_for_failover",
    r"penstock grant .*--provider \w+$": "tests/docs/test_moving.py::test_the_rights_are_printed",
    # Variables for a configuration, and no command.
    r"PENSTOCK_S\w+=(\S+|'.*')$": "tests/docs/test_shell.py::test_commands_can_be_given",
}
PAGES_ELSEWHERE = {"quickstart.md": "tests/docs/test_quickstart.py::test_the_quick_start_leads_to_a_copy"}
SYSTEMD = "tests/deploy/test_documented.py::test_the_unit_is_put_where_systemd_finds_it"
OF_A_DBA = ("managed-servers.md", "security.md")
OF_A_DESTINATION = "writing-a-destination.md"

ENDED_BY_CTRL_C = {
    r"penstock run (?!.*--once)": "Ctrl-C stops it in good order",
    r"penstock status .*--watch": r"\d ready",
    r"penstock serve": r"http://127.0.0.1:\d+/",
    r"penstock mirror": "rows are loaded",
    r"penstock tail": '"total": |public.users',
}
URL_OF_THE_SHOP = "postgresql://cdc@127.0.0.1:{port}/shop"


def _given_elsewhere(block: Block, line: str) -> str | None:
    if "/opt/penstock" in block.text:
        return SYSTEMD
    if block.page.name in PAGES_ELSEWHERE:
        return PAGES_ELSEWHERE[block.page.name]
    return next((test for pattern, test in ELSEWHERE.items() if re.match(pattern, line)), None)


LINES = [(block, line) for block in of_language("console", "sh") for line in lines(block)]
GIVEN_HERE: dict[Block, list[str]] = {}
for _block, _line in LINES:
    if _given_elsewhere(_block, _line) is None:
        GIVEN_HERE.setdefault(_block, []).append(_line)
BESIDE_A_PIPELINE = [
    block for block in GIVEN_HERE if block.page.name not in (*OF_A_DBA, OF_A_DESTINATION)
]  # fmt: skip


def test_what_is_given_elsewhere_is_given_there() -> None:
    used = {test for block, line in LINES if (test := _given_elsewhere(block, line))}
    assert used == {*ELSEWHERE.values(), *PAGES_ELSEWHERE.values(), SYSTEMD}
    for file, _, text in (test.partition("::") for test in used):
        assert text in (ROOT / file).read_text(), file


@pytest.fixture(scope="module")
def own_shop_server() -> Iterator[PostgresServer]:
    server = started_server(bundled_bin())
    yield server
    server.remove()


@pytest.fixture(scope="module")
def following(
    own_shop_server: PostgresServer, shared_nats: NatsServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Following]:
    prepare(own_shop_server)
    shop = Shop(own_shop_server, tmp_path_factory.mktemp("reader"))
    shop.allow()
    shop.source.execute("create role reader login superuser")
    reader = Following(shop, shared_nats)
    with reader.changes():
        yield reader
    reader.stop()


@pytest.mark.slow
@pytest.mark.usefixtures("silent_java")
@pytest.mark.parametrize("block", BESIDE_A_PIPELINE, ids=str)
def test_commands_do_what_they_are_for(block: Block, following: Following) -> None:
    for line in GIVEN_HERE[block]:
        if "| jq " in line and shutil.which("jq") is None:
            pytest.skip("there is no jq (Debian: jq)")
        following.start()
        for pattern, prepared in PREPARED.items():
            if re.search(pattern, line):
                prepared(following)
        act = _acting(line, following)
        # A file that is written anew is not the one that the pipeline has.
        shown = following.give(line.replace("penstock init", 'cd "$(mktemp -d)" && penstock init'), act)
        assert shown.strip() or re.search("[>]|^sed|sqlite|^python", line), line


def _acting(line: str, following: Following) -> Callable[[Terminal], None] | None:
    """What a person does beside a command; None: looks at it."""
    if re.match(r"penstock init shop.yaml$", line):
        return answer({"Host, or connection string": URL_OF_THE_SHOP.format(port=following.shop.server.port)})
    return next(
        (interrupt_after(words) for start, words in ENDED_BY_CTRL_C.items() if re.match(start, line)), None
    )


def _stop_a_table(following: Following) -> None:
    """Its next change does not fit; then the cause is mended."""
    of_warehouse = ("warehouse", "public.orders")
    target = following.tables()[of_warehouse]["target"]
    following.shop.warehouse.execute(f"alter table {target} add constraint small check (total < 0) not valid")
    following.until(lambda: following.tables()[of_warehouse]["phase"] == "errored")
    following.shop.warehouse.execute(f"alter table {target} drop constraint small")


def _pause(following: Following) -> None:
    following.give("penstock pause shop.yaml public.orders")
    following.until(lambda: following.tables()["warehouse", "public.orders"]["phase"] == "paused")


PREPARED: dict[str, Callable[[Following], None]] = {
    r"penstock run ": Following.stop,
    r"penstock retry|select\(.error\)": _stop_a_table,
    r"penstock resume": _pause,
}


@pytest.mark.slow
@pytest.mark.parametrize("block", [block for block in GIVEN_HERE if block.page.name in OF_A_DBA], ids=str)
def test_a_dba_runs_what_grant_prints(block: Block, shop: Shop) -> None:
    shop.source.execute("create role admin login superuser", "create role rds_replication nologin")
    reader = Reader(shop)
    (configuration,) = on_page("quickstart.md", "yaml")
    reader.configure(yaml.safe_load(configuration.text))
    for line in GIVEN_HERE[block]:
        reader.give(line)
    rights = "select has_table_privilege('cdc', 'public.orders', 'select')"
    assert shop.source.query(rights) == [(True,)]


@pytest.mark.slow
@pytest.mark.usefixtures("silent_java")
@pytest.mark.parametrize(
    "block", [block for block in GIVEN_HERE if block.page.name == OF_A_DESTINATION], ids=str
)
def test_a_destination_of_ones_own_is_checked_and_run(block: Block, shop: Shop) -> None:
    shop.allow()
    reader = Reader(shop)
    program, _ = on_page(OF_A_DESTINATION, "python")
    (configuration,) = on_page(OF_A_DESTINATION, "yaml")
    shop.save(program, "sqlite_tables.py")
    reader.configure(yaml.safe_load(configuration.text))
    shown = [reader.give(line) for line in GIVEN_HERE[block]]
    assert "failure" not in shown[0]
    assert (shop.folder / "shop.db").exists()
