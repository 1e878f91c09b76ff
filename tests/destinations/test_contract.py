"""What every destination keeps to, whichever it is: built in, a class of a user's, a type of another package.

A destination is put through it with a `Place`: how it is configured, and how its rows are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.config import load
from penstock.destinations.plugin import type_of
from penstock.destinations.protocol import Target
from penstock.destinations.schema_change import SchemaChange
from penstock.model import TableId, TableSchema
from penstock.model.errors import DestinationWentBack, OldRowUnsent, ValueRefused
from tests.bed import Database, fresh_database
from tests.changes.made import START, USERS, table
from tests.config.installed import install
from tests.destinations.given import Given
from tests.destinations.model import KEYED, WHOLE, Model
from tests.destinations.places import InFiles, InMemory, InNats, InPostgres, Place
from tests.pipeline.running import configuration

IN_NATS = ("nats", "nats, atomically")
WITH_POSITION = ("postgres", "postgres, table by table", "files", *IN_NATS)
PLACES = (*WITH_POSITION, "python", "of another package")

THEIRS = """
from penstock.config.destination_options import Options
from penstock.destinations.memory import Memory
from penstock.destinations.python.target import CustomTarget

class TheirOptions(Options):
    options: dict[str, str]

class TheirType:
    options = TheirOptions

    def make(self, config, destination):
        return CustomTarget(destination.name, Memory(**destination.settings(TheirOptions).options))

TYPE = TheirType()
"""


@pytest.fixture
def elsewhere(database: Database) -> Iterator[Database]:
    """Where a consumer of files rebuilds the tables."""
    yield from fresh_database(database.server)


@pytest.fixture(params=PLACES)
def place(
    request: pytest.FixtureRequest,
    database: Database,
    elsewhere: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Place:
    match request.param:
        case "postgres":
            return InPostgres(database, "app")
        case "postgres, table by table":
            return InPostgres(database, "app", consistency="table")
        case "files":
            return InFiles(tmp_path / "files", database, elsewhere)
        case "nats":
            return InNats(request.getfixturevalue("nats"), "ids", "msgpack")
        case "nats, atomically":
            return InNats(request.getfixturevalue("nats"), "atomic", "json")
        case "python":
            return InMemory(tmp_path.name)
        case _:
            install(tmp_path / "installed", monkeypatch, THEIRS, "theirs = their_module:TYPE")
            return InMemory(tmp_path.name, type="theirs")


class Contract:
    """A destination, given changes that are made by hand, and copies of tables of a database."""

    def __init__(
        self, spark: SparkSession, given: Given, place: Place, source: Database, folder: Path
    ) -> None:
        self._spark = spark
        self.given = given
        self.place = place
        self.source = source
        self._config = load(
            configuration(
                folder,
                source,
                {"name": "place"} | place.settings,
                sources=[{"name": "eu", "dsn": source.dsn}],
            )
        )
        self.target = self.opened()
        self.target.begin("eu", START)

    def opened(self) -> Target:
        """Open the destination, as a start of the pipeline does."""
        (destination,) = self._config.destinations
        target = type_of(destination).make(self._config, destination)
        target.open(self._spark)
        target.position("eu")
        return target

    def restart(self) -> None:
        self.target.close()
        if self.target.traits.keeps_position:
            self.target = self.opened()

    def make(self, table: TableSchema, *rows: str) -> TableSchema:
        """Make the table at the source; it is told there apart by its number."""
        quoted = ['"{}"'.format(name.replace('"', '""')) for name in (table.name.name, *table.column_names)]
        types = [(column.type.oid, column.type.modifier) for column in table.columns]
        declared = [self.source.query("select format_type(%s, %s)", *type)[0][0] for type in types]
        columns = [f"{name} {type}" for name, type in zip(quoted[1:], declared, strict=True)]
        self.source.execute(f"create table public.{quoted[0]} ({', '.join(columns)})")
        self.source.execute(*(f"insert into public.{quoted[0]} {row}" for row in rows))
        [(oid,)] = self.source.query("select oid from pg_class where relname = %s", table.name.name)
        made = replace(table, id=TableId(oid))
        self.given.deliver(made)
        self.target.expect("eu", {made.id: made.name})
        return made

    def arrived(self, table: TableSchema) -> TableSchema:
        """Make the table at the source, and copy it, empty as it is."""
        made = self.make(table)
        self.copy(made)
        return made

    def copy(self, table: TableSchema, id: str = "first") -> None:
        """Copy the table as it is at the source, and hand the copy over, with nothing since."""
        given, at = self.given, self.given.start
        self.make_copy(table, id)
        self.target.hand_over(id, given.changes(table.id, at, at), at)

    def make_copy(self, table: TableSchema, id: str) -> None:
        self.given.copy(self.target, self.source, table.id, id)
        self.place.copied(id, table, self.source)


@pytest.fixture
def contract(
    spark: SparkSession, given: Given, place: Place, database: Database, tmp_path: Path
) -> Iterator[Contract]:
    made = Contract(spark, given, place, database, tmp_path / "pipeline")
    yield made
    made.target.close()


@pytest.mark.parametrize("seed", [1, 2])
def test_it_holds_what_the_source_does_after_every_batch(contract: Contract, seed: int) -> None:
    """Inserts, updates of keys and of values that are not sent, deletes, truncates, with and without a key;
    some batches come twice, and some twice with a start in between."""
    keyed, whole = contract.arrived(KEYED), contract.arrived(WHOLE)
    given, model = contract.given, Model(contract.given.spool, seed, keyed, whole)
    for _ in range(6):
        for _ in range(model.chance.randrange(1, 4)):
            end = model.transaction(model.chance.randrange(1, 12))
        batch = given.batch(end)
        assert contract.target.write(batch) == []
        if model.chance.random() < 0.5:
            if model.chance.random() < 0.5:
                contract.restart()
            assert contract.target.write(batch) == []
        given.start = end
        assert contract.place.rows(keyed) == Counter(model.rows.values())
        assert contract.place.rows(whole) == model.bag
        if contract.target.traits.keeps_position:
            assert contract.target.position("eu") == end


def test_a_copy_is_handed_over_with_the_changes_since(contract: Contract) -> None:
    users = contract.make(USERS, "select n, 'name ' || n, n / 4.0 from generate_series(1, 300) n")
    given, target = contract.given, contract.target
    contract.make_copy(users, "abandoned")
    contract.make_copy(users, "first")
    given.spool.update(users, ("1", "changed", None)).delete(users, ("2", None, None))
    end = given.spool.insert(users, ("301", "new\tone", "1.50")).commit()
    target.begin("eu", end)
    changes = given.changes(users.id, given.start, end)
    target.hand_over("first", changes, end)
    target.hand_over("first", changes, end)  # its answer was lost
    contract.source.execute(
        "update users set name = 'changed', score = null where id = 1",
        "delete from users where id = 2",
        "insert into users values (301, E'new\\tone', 1.5)",
    )
    expected = Counter(contract.source.query("select id::text, name, score::text from public.users"))
    assert contract.place.rows(users) == expected
    if target.traits.keeps_tables:
        recorded = target.recorded("eu")[users.id]
        assert (recorded.copy, recorded.position, recorded.error) == ("first", None, None)
    target.forget("eu", users.id)
    assert users.id not in target.recorded("eu")


def test_schema_changes_are_carried_out_between_the_rows_of_before_and_after(contract: Contract) -> None:
    first = contract.arrived(table(1, "public.users", {"id": "int4", "a": "text", "gone": "text"}))
    given = contract.given
    given.spool.insert(first, ("1", "one", "x"), ("2", "two", "y")).commit()
    second = table(first.id, "public.users", {"id": "int4", "a": "text", "new": "int4"}, 2)
    given.evolve(second, SchemaChange(added=((second.columns[2], None),), dropped=("gone",)))
    given.spool.update(second, ("2", "TWO", "7")).insert(second, ("3", None, "8"))
    batch = given.batch(given.spool.commit())
    assert contract.target.write(batch) == []
    assert contract.target.write(batch) == []
    assert contract.place.rows(second) == Counter([("1", "one", None), ("2", "TWO", "7"), ("3", None, "8")])
    if contract.target.traits.keeps_tables:
        assert contract.target.recorded("eu")[first.id].version == 2


def test_a_value_that_cannot_be_read_stops_its_table_alone_until_it_is_copied_anew(
    contract: Contract,
) -> None:
    users = contract.arrived(table(1, "public.users", {"id": "int4", "name": "text"}))
    other = contract.arrived(table(2, "public.others", {"id": "int4", "name": "text"}))
    given, target = contract.given, contract.target
    given.spool.insert(users, ("1", "\0")).insert(other, ("1", "fine"))
    end = given.spool.commit()
    for _ in range(2):
        ((stopped, error),) = target.write(given.batch(end))
        assert (stopped, type(error)) == (users.id, ValueRefused)
    assert contract.place.rows(other) == Counter([("1", "fine")])
    assert contract.place.rows(users) == Counter()
    if target.traits.keeps_tables:
        recorded = target.recorded("eu")
        assert recorded[users.id].position == given.start
        assert type(recorded[users.id].error) is ValueRefused
        assert recorded[other.id].position is None
    given.start = end
    contract.source.execute("insert into users values (1, 'mended')")
    contract.copy(users, "second")
    given.spool.insert(users, ("2", "goes on"))
    assert given.write(target, given.spool.commit()) == []
    assert contract.place.rows(users) == Counter([("1", "mended"), ("2", "goes on")])


@pytest.mark.parametrize("is_delete", [False, True], ids=["update", "delete"])
def test_a_change_that_does_not_tell_its_row_stops_its_table_alone(
    contract: Contract, is_delete: bool
) -> None:
    log = contract.arrived(table(1, "public.log", {"id": "int4", "note": "text"}, key=()))
    other = contract.arrived(table(2, "public.others", {"id": "int4", "name": "text"}))
    given, target = contract.given, contract.target
    given.spool.insert(log, ("1", "a"), ("2", "b"))
    assert given.write(target, given.spool.commit()) == []
    if is_delete:
        given.spool.delete(log, ("1", None))
    else:
        given.spool.update(log, ("1", "changed"))
    end = given.spool.insert(other, ("1", "fine")).commit()
    for _ in range(2):
        ((stopped, error),) = target.write(given.batch(end))
        assert (stopped, type(error), str(error.where["table"])) == (log.id, OldRowUnsent, "public.log")
    assert contract.place.rows(log) == Counter([("1", "a"), ("2", "b")])
    assert contract.place.rows(other) == Counter([("1", "fine")])


@pytest.mark.parametrize("place", WITH_POSITION, indirect=True)
def test_what_begins_beyond_its_position_is_not_taken(contract: Contract) -> None:
    """It was restored from a backup, perhaps: a gap is never written over."""
    assert contract.target.traits.keeps_position
    users = contract.arrived(table(1, "public.users", {"id": "int4", "name": "text"}))
    missed = contract.given.spool.insert(users, ("1", "missed")).commit()
    end = contract.given.spool.insert(users, ("2", "seen")).commit()
    with pytest.raises(DestinationWentBack):
        contract.target.write(contract.given.batch(end, missed))
    assert contract.target.write(contract.given.batch(end)) == []
    assert contract.place.rows(users) == Counter([("1", "missed"), ("2", "seen")])
