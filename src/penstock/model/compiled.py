"""Functions that Numba compiles, once on a machine, and the arrays that they work on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit

Bytes = npt.NDArray[np.uint8]
Int8s = npt.NDArray[np.int8]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    return cast(Function, njit(cache=True, nogil=True)(function))
