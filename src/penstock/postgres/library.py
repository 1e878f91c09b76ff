"""libpq itself, for what psycopg does not offer."""

from __future__ import annotations

import ctypes
from ctypes.util import find_library
from functools import cache
from pathlib import Path

import psycopg
from psycopg import pq


@cache
def libpq() -> ctypes.CDLL:
    """The one that psycopg uses: it came with it, or is the system's."""
    packages = Path(psycopg.__file__).parent.parent
    found = [
        *packages.glob("psycopg_binary.libs/libpq-*.so*"),
        *packages.glob("psycopg_binary/.dylibs/libpq.*"),
    ]
    library = ctypes.CDLL(str(found[0]) if found else find_library("pq"))
    if library.PQlibVersion() != pq.version():
        raise ImportError(f"{library._name} is not the libpq that psycopg uses: install psycopg[binary]")
    return library
