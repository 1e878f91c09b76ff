"""Numbers of JSON documents: which of them a binary number holds exactly.

An integer of 64 bits, with or without a sign, is one. Any other number is a double if the shortest decimal
that means this double is that number; no reader then sees another one, whether it prints the double or
reckons with it. That holds for every number of up to 15 digits that is neither huge nor tiny: compiled code
reads those. Of the others, the hard ones, Arrow says which double is nearest and how it is written, for all
of them at once, and the two texts are compared.

Runs on executors.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.text_columns import TextColumn
from penstock.model.compiled import Bytes, Int64s, kernel

Mask = npt.NDArray[np.bool_]

UNSIGNED, NEGATIVE, FLOAT, HARD = range(4)
"""What a number is: an integer, a double, or one that has to be looked at more closely."""

_MINUS, _PLUS, _DOT, _ZERO, _NINE, _E = b"-+.09e"
_LOWER = 0x20
_SURE_DIGITS = 15
_POWERS = 10.0 ** np.arange(23)
"""The powers of 10 that doubles hold exactly: a product or quotient with one is rounded only once."""
_LAST = np.uint64(2**64 // 10)
_LAST_DIGIT = np.uint64(2**64 % 10 - 1)
_TEN, _NONE, _MOST_NEGATIVE = np.uint64(10), np.uint64(0), np.uint64(2**63)
_HUGE_EXPONENT = 10**9


@kernel
def is_number(text: Bytes, first: int, stop: int) -> bool:
    """Whether the text is a number by JSON's grammar."""
    at = first + (first < stop and text[first] == _MINUS)
    end = _after_digits(text, at, stop)
    if end == at or (text[at] == _ZERO and end > at + 1):
        return False
    at = end
    if at < stop and text[at] == _DOT:
        end = _after_digits(text, at + 1, stop)
        if end == at + 1:
            return False
        at = end
    if at < stop and text[at] | _LOWER == _E:
        at += 1
        at += at < stop and (text[at] == _PLUS or text[at] == _MINUS)
        end = _after_digits(text, at, stop)
        if end == at:
            return False
        at = end
    return at == stop


@kernel
def _after_digits(text: Bytes, at: int, stop: int) -> int:
    while at < stop and _ZERO <= text[at] <= _NINE:
        at += 1
    return at


@kernel
def number(text: Bytes, first: int, stop: int) -> tuple[int, int]:
    """What kind of number it is, and the integer that has its bits."""
    negative = text[first] == _MINUS
    mantissa, fits, digits = np.uint64(0), True, 0
    is_integer, decimals, exponent = True, 0, 0
    for at in range(first + negative, stop):
        byte = text[at]
        if byte == _DOT:
            is_integer = False
        elif byte <= _NINE:
            digit = np.uint64(byte - _ZERO)
            fits = fits and bool(mantissa < _LAST or (mantissa == _LAST and digit <= _LAST_DIGIT))
            mantissa = mantissa * _TEN + digit
            digits += bool(digits > 0 or mantissa > _NONE)
            decimals += not is_integer
        else:
            is_integer, exponent = False, _exponent(text, at + 1, stop)
            break
    if is_integer and fits and (mantissa > _NONE or not negative):
        return _integer_bits(mantissa, negative)
    if digits > _SURE_DIGITS or abs(exponent - decimals) >= len(_POWERS):
        return HARD, 0
    return FLOAT, _double_bits(mantissa, exponent - decimals, negative)


@kernel
def _integer_bits(magnitude: np.uint64, negative: bool) -> tuple[int, int]:
    bits = np.int64(magnitude)
    if not negative:
        return UNSIGNED, bits  # type: ignore[return-value]
    if magnitude <= _MOST_NEGATIVE:
        return NEGATIVE, -bits  # type: ignore[return-value]
    return HARD, 0


@kernel
def _double_bits(mantissa: np.uint64, scale: int, negative: bool) -> int:
    value = np.float64(mantissa)
    value = value * _POWERS[scale] if scale >= 0 else value / _POWERS[-scale]
    return np.float64(-value if negative else value).view(np.int64)  # type: ignore[return-value]


@kernel
def _exponent(text: Bytes, at: int, stop: int) -> int:
    """The integer behind the `e`, if it is not absurd."""
    negative = text[at] == _MINUS
    at += negative or text[at] == _PLUS
    value = 0
    for place in range(at, stop):
        value = min(value * 10 + text[place] - _ZERO, _HUGE_EXPONENT)
    return -value if negative else value


def doubles(numbers: pa.StringArray) -> tuple[Int64s, Mask]:
    """Return the bits of the double that is nearest to each, and whether that is the number itself."""
    try:
        nearest = pc.cast(numbers, pa.float64())
    except pa.ArrowInvalid:  # one is beyond all doubles
        nearest = pa.array([float(number) for number in numbers.to_pylist()], pa.float64())
    exact = np.zeros(len(numbers), np.bool_)
    some, others = TextColumn.of(numbers), TextColumn.of(pc.cast(nearest, pa.string()))
    _compare(some.text, some.starts, some.stops, others.text, others.starts, others.stops, exact)
    return np.array(nearest).view(np.int64), exact


@kernel
def _compare(
    some: Bytes, starts: Int64s, stops: Int64s, others: Bytes, begins: Int64s, ends: Int64s, same: Mask
) -> None:
    for row in range(len(same)):
        same[row] = _is_same(some, starts[row], stops[row], others, begins[row], ends[row])


@kernel
def _is_same(text: Bytes, first: int, stop: int, other: Bytes, other_first: int, other_stop: int) -> bool:
    """Whether two texts mean the same number: the same digits, but for zeros at the ends, at the same
    place."""
    here, last, power = _digits(text, first, stop)
    there, other_last, other_power = _digits(other, other_first, other_stop)
    if (text[first] == _MINUS) != (other[other_first] == _MINUS) or power != other_power:
        return False
    while here <= last and there <= other_last:
        if text[here] == _DOT:
            here += 1
        elif other[there] == _DOT:
            there += 1
        elif text[here] != other[there]:
            return False
        else:
            here += 1
            there += 1
    return here > last and there > other_last


@kernel
def _digits(text: Bytes, first: int, stop: int) -> tuple[int, int, int]:
    """The places of the first and the last digit that is not 0, and which power of 10 the first stands for.
    Of zero, and of what has no digits: an empty range."""
    leading, last, point, end = stop, first, stop, stop
    for at in range(first, stop):
        byte = text[at]
        if byte == _DOT:
            point = at
        elif byte > _NINE:
            end = at
            break
        elif byte > _ZERO:
            leading = min(leading, at)
            last = at
    if leading == stop:
        return stop, first - 1, 0
    point = min(point, end)
    power = point - leading - (leading < point)
    return leading, last, power + (_exponent(text, end + 1, stop) if end < stop else 0)
