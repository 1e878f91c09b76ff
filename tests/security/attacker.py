"""An ordinary role: it may log in, create in the database and in `public`, and owns the schema `mine`.

Whatever it gets run with somebody else's rights leaves a trace: `TRAP` records who ran it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from tests.bed import Database

TRAP = """
create table mine.caught (who text, how text);
grant all on mine.caught to public;
grant usage on schema mine to public;
create function mine.trap(how text) returns text language plpgsql as $$
begin
    insert into mine.caught values (current_user, how);
    return how;
end $$;
create function mine.trap() returns trigger language plpgsql as $$
begin
    insert into mine.caught values (current_user, 'trigger on ' || tg_table_name);
    return new;
end $$;
"""


@dataclass(frozen=True, slots=True)
class Attacker:
    role: str
    source: Database
    destination: Database

    def enter(self) -> None:
        for database in self._one_a_server():
            database.execute(f"create role {self.role} login")
        for database in (self.source, self.destination):
            database.execute(
                f"grant create on database {database.name} to {self.role}",
                f"grant create, usage on schema public to {self.role}",
                f"create schema mine authorization {self.role}",
            )
            with self.connect(database) as connection:
                connection.execute(TRAP.encode())

    def leave(self) -> None:
        for database in (self.source, self.destination):
            database.execute(f"drop owned by {self.role} cascade")
        for database in self._one_a_server():
            database.execute(f"drop role {self.role}")

    def _one_a_server(self) -> list[Database]:
        same = self.source.server is self.destination.server
        return [self.source] if same else [self.source, self.destination]

    def connect(self, database: Database) -> psycopg.Connection[Any]:
        # Of the server's own users it knows no password: it is let in without one, as the role has none.
        return psycopg.connect(make_conninfo(database.dsn, user=self.role), autocommit=True)

    def execute(self, *statements: str) -> None:
        """At the source, in one session."""
        with self.connect(self.source) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def caught(self, database: Database | None = None) -> set[tuple[str, str]]:
        """Who ran the attacker's code, but itself."""
        rows = (database or self.source).query("select distinct who, how from mine.caught")
        return {(who, how) for who, how in rows if who != self.role}
