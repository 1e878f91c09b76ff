"""Which numbers (`attnum`) the columns of a row had, of which the stream tells only the names, in order.

Between what is known and now columns were dropped, renamed and added, and the row may be of any time in
between. Numbers are given in order and never again. So of all numbers that there were

- one that is there before and now is a column of the row;
- one that was there before and is gone may be one;
- one that came since is one only if all before it that are still there are columns of the row, too;
- one that came since and is gone may be one.

A column whose mark stayed had its name all the while: it has no other in the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.pipeline.table_facts import Facts


def possible(names: Sequence[str], detail: Mapping[str, Any], now: Facts) -> list[int] | None:
    """Return the numbers of columns with these names, at some time between `detail` (`Facts.detail`) and now.
    None if there are none, or if there is more than one possibility."""
    before, live = set(detail["numbers"].values()), set(now.numbers.values())
    numbers = sorted(before | set(range(highest(detail) + 1, now.highest + 1)))
    if not live <= set(numbers):
        return None  # a column that had been there was published only since
    fixed, width = _fixed_names(detail, now), len(names)

    def fits(number: int, place: int) -> bool:
        return place < width and fixed.get(number, names[place]) == names[place]

    # ways[i][place]: in how many ways numbers[i:] can have the names from this place on; 2 stands for more.
    ways = [[0] * (width + 2) for _ in range(len(numbers) + 1)]
    ways[-1][width] = 1
    for i in reversed(range(len(numbers))):
        for place in range(width + 1):
            with_it = ways[i + 1][place + 1] if fits(numbers[i], place) else 0
            without = ways[i + 1][place]
            if numbers[i] in live:  # nor can there be any after one that was yet to come
                without = 1 if place == width and numbers[i] not in before else 0
            ways[i][place] = min(2, with_it + without)
    if ways[0][0] != 1:
        return None
    chosen: list[int] = []
    for i, number in enumerate(numbers):
        if fits(number, len(chosen)) and ways[i + 1][len(chosen) + 1]:
            chosen.append(number)
    return chosen


def highest(detail: Mapping[str, Any]) -> int:
    """Return the highest number that a column had. What an earlier version of ours remembered lacks it: then
    later ones may seem to have come and gone, which only makes more possible."""
    numbers: Mapping[str, int] = detail["numbers"]
    return int(detail.get("highest", max(numbers.values(), default=0)))


def _fixed_names(detail: Mapping[str, Any], now: Facts) -> dict[int, str]:
    marks = detail.get("marks", {})
    return {
        number: name
        for name, number in detail["numbers"].items()
        if number in now.marks and marks.get(str(number)) == now.marks[number]
    }
