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
    """Return the libpq that psycopg uses: the one it came with, or the system's."""
    packages = Path(psycopg.__file__).parent.parent
    bundled = [
        *packages.glob("psycopg_binary.libs/libpq-*.so*"),
        *packages.glob("psycopg_binary/.dylibs/libpq.*"),
    ]
    library = ctypes.CDLL(str(bundled[0]) if bundled else find_library("pq"))
    if library.PQlibVersion() != pq.version():
        raise ImportError(f"{library._name} is not the libpq that psycopg uses: install psycopg[binary]")
    return library
