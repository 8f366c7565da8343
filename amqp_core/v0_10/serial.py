"""Serial numbers and sets of command ids (0-10 section session: sequence-no is a 32-bit serial number, RFC 1982).

Inside this library a command id is a plain ``int`` that never wraps; only on the wire it is taken modulo 2**32.
``unwrap`` finds the unbounded id that a wire number means, given an id near it. So the arithmetic of wrapping is
done in this module and nowhere else.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from amqp_core.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MODULUS = 1 << 32
_HALF = 1 << 31


def wrap(command_id: int) -> int:
    """Return the 32-bit number that stands for ``command_id`` on the wire."""
    return command_id & 0xFFFFFFFF


def unwrap(wire: int, near: int) -> int:
    """Return the id nearest to ``near`` whose wire number is ``wire``; never negative."""
    value = near + ((wire - near + _HALF) & 0xFFFFFFFF) - _HALF
    return value if value >= 0 else value + MODULUS


def wire_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Turn inclusive ranges of unbounded ids into ranges of wire numbers (a range may run through the wrap)."""
    return [(low & 0xFFFFFFFF, high & 0xFFFFFFFF) for low, high in ranges]


def unwrap_ranges(ranges: Iterable[tuple[int, int]], near: int) -> list[tuple[int, int]]:
    """Turn inclusive wire ranges into unbounded ones; the width of a range is its serial distance.

    Raises:
        ProtocolError: a range that ends before it begins. Taken for one that runs through the wrap, it would name
            nearly every id there is.
    """
    result = []
    for low, high in ranges:
        width = (high - low) & 0xFFFFFFFF
        if width >= _HALF:
            raise ProtocolError(f"a range of command ids from {low} to {high} ends before it begins")
        first = unwrap(low, near)
        result.append((first, first + width))
    return result


class RangeSet:
    """A set of ints kept as sorted, disjoint, inclusive ranges.

    Completion arrives in cumulative sets that must be united, never replaced; sets of millions of ids stay a
    handful of ranges.
    """

    __slots__ = ("_highs", "_lows")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._lows: list[int] = []
        self._highs: list[int] = []
        for low, high in ranges:
            self.add(low, high)

    def add(self, low: int, high: int) -> None:
        """Add every id from ``low`` to ``high``, both included."""
        if low > high:
            return
        # ranges that overlap or touch [low, high] are those with high' >= low - 1 and low' <= high + 1
        first = bisect_left(self._highs, low - 1)
        last = bisect_right(self._lows, high + 1)
        if first < last:
            low = min(low, self._lows[first])
            high = max(high, self._highs[last - 1])
        self._lows[first:last] = [low]
        self._highs[first:last] = [high]

    def discard(self, low: int, high: int) -> None:
        """Remove every id from ``low`` to ``high``, both included."""
        if low > high:
            return
        first = bisect_left(self._highs, low)
        last = bisect_right(self._lows, high)
        if first >= last:
            return
        lows: list[int] = []
        highs: list[int] = []
        if self._lows[first] < low:
            lows.append(self._lows[first])
            highs.append(low - 1)
        if self._highs[last - 1] > high:
            lows.append(high + 1)
            highs.append(self._highs[last - 1])
        self._lows[first:last] = lows
        self._highs[first:last] = highs

    def covers(self, low: int, high: int) -> bool:
        """Whether every id from ``low`` to ``high`` is in the set."""
        if low > high:
            return True
        index = bisect_left(self._highs, low)
        return index < len(self._lows) and self._lows[index] <= low and high <= self._highs[index]

    def within(self, low: int, high: int) -> list[tuple[int, int]]:
        """Return the inclusive ranges of what is in the set and from ``low`` to ``high``, in ascending order."""
        first = bisect_left(self._highs, low)
        last = bisect_right(self._lows, high)
        pairs = zip(self._lows[first:last], self._highs[first:last], strict=True)
        return [(max(low, start), min(high, end)) for start, end in pairs]

    def highest(self) -> int | None:
        """Return the greatest id of the set; ``None`` if it is empty."""
        return self._highs[-1] if self._highs else None

    def ranges(self) -> list[tuple[int, int]]:
        """Return the inclusive ranges in ascending order."""
        return list(zip(self._lows, self._highs, strict=True))

    def count(self) -> int:
        """Return how many ids are in the set."""
        return sum(self._highs) - sum(self._lows) + len(self._lows)

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int) and self.covers(value, value)

    def __bool__(self) -> bool:
        return bool(self._lows)

    def __iter__(self) -> Iterator[int]:
        for low, high in zip(self._lows, self._highs, strict=True):
            yield from range(low, high + 1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RangeSet) and self._lows == other._lows and self._highs == other._highs

    __hash__ = None  # type: ignore[assignment]  # a mutable set has no hash; object's annotation says otherwise

    def __repr__(self) -> str:
        return f"RangeSet({self.ranges()})"
