"""Functions that Numba compiles, once on a machine, and the arrays that they work on.

Numba keeps what it compiled beside the source, or in the user's cache. Where neither can be written (a
read-only installation, a user without a home) it would refuse to compile at all: then a folder with other
temporary files takes their place, if it is ours alone, since what is in it is run. Otherwise each process
compiles anew. So does one that finds there what it cannot read: written by an earlier version, of whose
classes one has moved, or cut off with the power.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import config, njit
from numba.core.caching import FunctionCache

from penstock.model import private

Bytes = npt.NDArray[np.uint8]
Int8s = npt.NDArray[np.int8]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    try:
        return _compiled(function, keep=True)
    except RuntimeError:  # no place for the cache, most likely; any other error is raised again below
        pass
    folder = own_folder()
    if folder is None:
        return _compiled(function, keep=False)
    settings = cast(Any, config)
    before, settings.CACHE_DIR = settings.CACHE_DIR, str(folder)  # for this function: others may not be ours
    try:
        return _compiled(function, keep=True)
    finally:
        settings.CACHE_DIR = before


def _compiled(function: Function, *, keep: bool) -> Function:
    compiled = cast(Any, njit(nogil=True)(function))
    if keep:
        compiled._cache = cast(Any, _Cache)(function)
    return cast(Function, compiled)


class _Cache(FunctionCache):
    """Numba's own, which fails where its files do not read."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except Exception:  # unpickling raises anything; any other error is raised again in compiling
            self.flush()  # type: ignore[no-untyped-call]
            return None


@cache
def own_folder() -> Path | None:
    """Make a folder for what is compiled, with other temporary files; None if it cannot be ours alone."""
    base = Path(tempfile.gettempdir(), f"penstock-{os.geteuid()}")
    if private.claim(base) and private.claim(base / "numba"):
        return base / "numba"
    why = f"{base} cannot be made, or is not ours alone: each process compiles its functions anew, a minute"
    print(f"penstock: {why}. Set NUMBA_CACHE_DIR to a folder of your own", file=sys.stderr)
    return None
