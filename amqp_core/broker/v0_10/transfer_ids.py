"""Ranges of command ids of transfers, as commands have them, and what is known of these transfers."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

_T = TypeVar("_T")


def ids_among(known: dict[int, _T], ranges: Iterable[tuple[int, int]]) -> list[int]:
    """The ids in ranges that are known; a range may be far greater than what is known."""
    found: list[int] = []
    for low, high in ranges:
        if high - low < len(known):
            found += [each for each in range(low, high + 1) if each in known]
        else:
            found += [each for each in known if low <= each <= high]
    return found


def take_among(known: dict[int, _T], ranges: Iterable[tuple[int, int]]) -> list[tuple[int, _T]]:
    """Remove and return what is known of the ids in ranges."""
    return [(each, known.pop(each)) for each in dict.fromkeys(ids_among(known, ranges))]


def ranges_of(ids: Iterable[int]) -> list[tuple[int, int]]:
    """Inclusive ranges of ids, in their order."""
    ranges: list[tuple[int, int]] = []
    for each in ids:
        if ranges and ranges[-1][1] == each - 1:
            ranges[-1] = ranges[-1][0], each
        else:
            ranges.append((each, each))
    return ranges
