"""Serial numbers and sets of command ids (0-10 section session: sequence-no is a 32-bit serial number, RFC 1982).

Inside this library a command id is a plain ``int`` that never wraps; only on the wire it is taken modulo 2**32.
``unwrap`` finds the unbounded id of a wire number, given an id near it. So only this module does the arithmetic of
wrapping.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING

from amqp_core.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MODULUS = 1 << 32
_HALF = 1 << 31
_LONGEST_RUN = 1024


def wrap(command_id: int) -> int:
    """Return the 32-bit wire number of ``command_id``."""
    return command_id & 0xFFFFFFFF


def unwrap(wire: int, near: int) -> int:
    """Return the id nearest to ``near`` whose wire number is ``wire``; never negative."""
    value = near + ((wire - near + _HALF) & 0xFFFFFFFF) - _HALF
    return value if value >= 0 else value + MODULUS


def wire_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Convert inclusive ranges of unbounded ids to ranges of wire numbers (a range may cross the wrap)."""
    return [(low & 0xFFFFFFFF, high & 0xFFFFFFFF) for low, high in ranges]


def unwrap_ranges(ranges: Iterable[tuple[int, int]], near: int) -> list[tuple[int, int]]:
    """Convert inclusive wire ranges to unbounded ones near the id ``near``; the width is the serial distance.

    Raises:
        ProtocolError: a range ends before it begins: read as one that crosses the wrap it has nearly every id.
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
    """A set of ints kept as disjoint, inclusive ranges. Not thread-safe.

    Completion arrives in cumulative sets, which must be merged, not replaced; sets of millions of ids usually are a few
    ranges. If a peer causes many ranges, adding one is still cheap, in any order.
    """

    __slots__ = ("_count", "_highs", "_lows")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._lows = _Sorted()
        self._highs: dict[int, int] = {}  # by the low bound
        self._count = 0
        for low, high in ranges:
            self.add(low, high)

    def add(self, low: int, high: int) -> None:
        """Add every id from ``low`` to ``high``, both included."""
        if low > high:
            return
        nearest = self._lows.floor(high + 1)
        if nearest is None or self._highs[nearest] < low - 1:  # no range overlaps or touches
            self._insert(low, high)
            return
        if nearest <= low:  # one does
            end = self._highs[nearest]
            if high > end:
                self._highs[nearest] = high
                self._count += high - end
            return
        before = self._lows.floor(nearest - 1)
        if before is None or self._highs[before] < low - 1:  # one does, and it begins above
            end = self._highs.pop(nearest)
            self._lows.lower(nearest, low)
            self._highs[low] = max(high, end)
            self._count += nearest - low + max(0, high - end)
            return
        for start, end in self._touching(low - 1, high + 1):
            low, high = min(low, start), max(high, end)
            self._remove(start)
        self._insert(low, high)

    def discard(self, low: int, high: int) -> None:
        """Remove every id from ``low`` to ``high``, both included."""
        for start, end in self._touching(low, high):
            self._remove(start)
            if start < low:
                self._insert(start, low - 1)
            if end > high:
                self._insert(high + 1, end)

    def covers(self, low: int, high: int) -> bool:
        """Whether every id from ``low`` to ``high`` is in the set."""
        if low > high:
            return True
        start = self._lows.floor(low)
        return start is not None and high <= self._highs[start]

    def within(self, low: int, high: int) -> list[tuple[int, int]]:
        """Return the inclusive ranges of the ids of the set from ``low`` to ``high``, in ascending order."""
        return [(max(low, start), min(high, end)) for start, end in self._touching(low, high)]

    def lowest(self) -> int | None:
        """Return the smallest id of the set; ``None`` if it is empty."""
        return self._lows.first()

    def highest(self) -> int | None:
        """Return the greatest id of the set; ``None`` if it is empty."""
        last = self._lows.last()
        return None if last is None else self._highs[last]

    def ranges(self) -> list[tuple[int, int]]:
        """Return the inclusive ranges in ascending order."""
        return [(low, self._highs[low]) for low in self._lows]

    def count(self) -> int:
        """Return the number of ids in the set."""
        return self._count

    def _touching(self, low: int, high: int) -> list[tuple[int, int]]:
        """The ranges that contain an id from ``low`` to ``high``, uncut and in ascending order."""
        if low > high:
            return []
        first = self._lows.floor(low)
        lows = self._lows.between(low if first is None or self._highs[first] < low else first, high)
        return [(start, self._highs[start]) for start in lows]

    def _insert(self, low: int, high: int) -> None:
        self._lows.add(low)
        self._highs[low] = high
        self._count += high - low + 1

    def _remove(self, low: int) -> None:
        self._lows.remove(low)
        self._count -= self._highs.pop(low) - low + 1

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int) and self.covers(value, value)

    def __bool__(self) -> bool:
        return bool(self._highs)

    def __iter__(self) -> Iterator[int]:
        for low, high in self.ranges():
            yield from range(low, high + 1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RangeSet) and self._highs == other._highs

    __hash__ = None  # type: ignore[assignment]  # a mutable set has no hash; object's annotation says otherwise

    def __repr__(self) -> str:
        return f"RangeSet({self.ranges()})"


class _Sorted:
    """Distinct ints in ascending order, in runs of bounded length: an insert into one long list would move it."""

    __slots__ = ("_firsts", "_runs")

    def __init__(self) -> None:
        self._runs: list[list[int]] = []
        self._firsts: list[int] = []  # of each run

    def add(self, value: int) -> None:
        """Add ``value``, which must not be present."""
        if not self._runs:
            self._runs.append([value])
            self._firsts.append(value)
            return
        index = max(0, bisect_right(self._firsts, value) - 1)
        run = self._runs[index]
        insort(run, value)
        self._firsts[index] = run[0]
        if len(run) > _LONGEST_RUN:
            half = _LONGEST_RUN // 2
            self._runs[index : index + 1] = [run[:half], run[half:]]
            self._firsts.insert(index + 1, run[half])

    def lower(self, value: int, to: int) -> None:
        """Replace ``value`` by a smaller int that is still greater than its predecessor."""
        index = bisect_right(self._firsts, value) - 1
        run = self._runs[index]
        run[bisect_left(run, value)] = to
        self._firsts[index] = run[0]

    def remove(self, value: int) -> None:
        """Remove ``value``, which must be present."""
        index = bisect_right(self._firsts, value) - 1
        run = self._runs[index]
        del run[bisect_left(run, value)]
        if run:
            self._firsts[index] = run[0]
        else:
            del self._runs[index], self._firsts[index]

    def floor(self, value: int) -> int | None:
        """The greatest int that is not above ``value``; ``None`` if there is none."""
        index = bisect_right(self._firsts, value) - 1
        if index < 0:
            return None
        run = self._runs[index]
        return run[bisect_right(run, value) - 1]

    def between(self, low: int, high: int) -> list[int]:
        """The ints from ``low`` to ``high``, both included."""
        found: list[int] = []
        for index in range(max(0, bisect_right(self._firsts, low) - 1), bisect_right(self._firsts, high)):
            run = self._runs[index]
            found += run[bisect_left(run, low) : bisect_right(run, high)]
        return found

    def first(self) -> int | None:
        """The smallest int; ``None`` if empty."""
        return self._firsts[0] if self._firsts else None

    def last(self) -> int | None:
        """The greatest int; ``None`` if empty."""
        return self._runs[-1][-1] if self._runs else None

    def __iter__(self) -> Iterator[int]:
        for run in self._runs:
            yield from run
