"""Reloads of tables as the pipeline drives them: see `pipeline/reload.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.destinations.files import copies
from penstock.destinations.files.books import Books
from penstock.destinations.files.options import ReloadOptions
from penstock.destinations.files.reloads import Reloads
from penstock.destinations.files.storage import Storage
from penstock.destinations.protocol import Reload


class FilesReloading:
    """A `Reloading`."""

    def __init__(self, books: Mapping[str, Books], storage: Storage, options: ReloadOptions) -> None:
        self.at_once = options.max_concurrent
        self._strategy = options.delta_strategy
        self._books = books
        self._storage = storage

    def log(self, books: Books) -> Reloads:
        return Reloads(books.registry, self._strategy)

    def unfinished(self, source: str) -> Sequence[Reload]:
        books = self._books[source]
        with books.transaction() as connection:
            return self.log(books).open(connection)

    def begin(self, source: str, reload: Reload) -> None:
        """Of somebody else's copy there is nothing to be made: it is as good as finished."""
        books = self._books[source]
        with books.transaction() as connection:
            self.log(books).begin(connection, reload)
            if reload.external:
                copies.abandon(connection, books.stream, reload.table, self._storage)
                copies.begin(connection, books.stream, reload.table, reload.export_id.hex, "")
                copies.finish(connection, reload.export_id.hex, None)

    def complete(self, source: str, reload: Reload) -> None:
        books = self._books[source]
        with books.transaction() as connection:
            self.log(books).complete(connection, reload)
