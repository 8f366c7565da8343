"""Ranges of command ids of transfers, as commands have them, and what is known of these transfers."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, TypeVar

from amqp_core.sequence_numbers import RangeSet

if TYPE_CHECKING:
    from collections.abc import Iterable

_T = TypeVar("_T")


def ids_among(known: dict[int, _T], ranges: Iterable[tuple[int, int]]) -> list[int]:
    """The ids in ranges that are known, each once.

    A range may be far greater than what is known, and ranges may overlap: neither makes it take longer.
    """
    bounds = list(ranges)
    if len(bounds) > 1:
        bounds = RangeSet(bounds).ranges()
    if sum(high - low + 1 for low, high in bounds) <= len(known):
        return [each for low, high in bounds for each in range(low, high + 1) if each in known]
    if len(bounds) == 1:
        low, high = bounds[0]
        return [each for each in known if low <= each <= high]
    lows = [low for low, _ in bounds]
    return [each for each in known if (index := bisect_right(lows, each)) and each <= bounds[index - 1][1]]


def take_among(known: dict[int, _T], ranges: Iterable[tuple[int, int]]) -> list[tuple[int, _T]]:
    """Remove and return what is known of the ids in ranges."""
    return [(each, known.pop(each)) for each in ids_among(known, ranges)]


def ranges_of(ids: Iterable[int]) -> list[tuple[int, int]]:
    """Inclusive ranges of ids, in their order."""
    ranges: list[tuple[int, int]] = []
    for each in ids:
        if ranges and ranges[-1][1] == each - 1:
            ranges[-1] = ranges[-1][0], each
        else:
            ranges.append((each, each))
    return ranges
