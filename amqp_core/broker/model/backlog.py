"""The messages of a queue that wait, in order: by priority, then by sequence number."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from amqp_core.broker.model.entries import Entry


LOWEST: Final = "amqp_core.lowest-priority"
"""The argument of queues of 0-10 with less than ten priorities: so many are taken off the priority of each message.

For the Qpid brokers, 4 is the priority of a message that names none. So n levels are the n around it, while
``x-max-priority`` of RabbitMQ keeps the lowest ones apart.
"""


def _sequence(entry: Entry) -> int:
    return entry.sequence


class Backlog:
    """Waiting entries; those of one priority are a deque in the order of their sequence numbers.

    Appending and taking the head is fast, and so is putting back what was the head; in the middle it takes time in
    proportion to the length (a memory move, fast).

    Args:
        max_priority: priorities above it count as it; 0: all are equal.
        lowest: is taken off priorities before; what is below it counts as it.
    """

    __slots__ = ("_highest_first", "_levels", "_lowest", "_max_priority", "count", "nbytes")

    def __init__(self, max_priority: int, lowest: int = 0) -> None:
        self._max_priority = max_priority
        self._lowest = lowest
        self._levels: dict[int, deque[Entry]] = {0: deque()}
        self._highest_first = [self._levels[0]]
        self.count = 0
        self.nbytes = 0
        """Sum of the bodies."""

    def __iter__(self) -> Iterator[Entry]:
        for level in self._highest_first:
            yield from level

    def priority_of(self, entry: Entry) -> int:
        """Priority of an entry in this queue."""
        return min(max(entry.message.priority - self._lowest, 0), self._max_priority)

    def place(self, entry: Entry) -> tuple[int, int]:
        """Where an entry stands: what comes before it has a smaller place."""
        return -self.priority_of(entry), entry.sequence

    def append(self, entry: Entry) -> None:
        """Add the newest entry."""
        self._level(entry).append(entry)
        self.count += 1
        self.nbytes += len(entry.message.body)

    def insert(self, entry: Entry) -> None:
        """Add an entry at its place."""
        level = self._level(entry)
        if not level or level[0].sequence > entry.sequence:
            level.appendleft(entry)
        else:
            level.insert(bisect_left(level, entry.sequence, key=_sequence), entry)
        self.count += 1
        self.nbytes += len(entry.message.body)

    def head(self) -> Entry:
        """The next entry; there is one."""
        for level in self._highest_first:
            if level:
                return level[0]
        raise IndexError("no message waits")

    def pop(self) -> Entry:
        """Remove and return the next entry; there is one."""
        return self._pop_first(self._highest_first)

    def pop_least(self) -> Entry:
        """Remove and return the oldest entry of the lowest priority; there is one."""
        return self._pop_first(reversed(self._highest_first))

    def remove(self, entry: Entry) -> None:
        """Remove an entry that is there."""
        level = self._level(entry)
        del level[bisect_left(level, entry.sequence, key=_sequence)]
        self.count -= 1
        self.nbytes -= len(entry.message.body)

    def keep(self, wanted: Callable[[Entry], bool]) -> None:
        """Remove all entries that are not wanted, in one pass."""
        for level in self._highest_first:
            kept = [entry for entry in level if wanted(entry)]
            if len(kept) < len(level):
                self.count -= len(level) - len(kept)
                level.clear()
                level.extend(kept)
        self.nbytes = sum(len(entry.message.body) for entry in self)

    def clear(self) -> None:
        """Remove all entries."""
        for level in self._highest_first:
            level.clear()
        self.count = self.nbytes = 0

    def behind(self, seen: dict[int, int]) -> Entry | None:
        """The first entry whose sequence number is above the one in ``seen`` for its priority."""
        if not self.count:
            return None
        for priority in sorted(self._levels, reverse=True):
            level = self._levels[priority]
            last = seen.get(priority, 0)
            if level and level[-1].sequence > last:
                return level[bisect_right(level, last, key=_sequence)]
        return None

    def all_behind(self, seen: dict[int, int]) -> Iterator[Entry]:
        """What ``behind`` finds and all that follows; meanwhile the backlog must not change."""
        for priority in sorted(self._levels, reverse=True):
            level = self._levels[priority]
            last = seen.get(priority, 0)
            if level and level[-1].sequence > last:
                yield from islice(level, bisect_right(level, last, key=_sequence), None)

    def _pop_first(self, levels: Iterator[deque[Entry]] | list[deque[Entry]]) -> Entry:
        for level in levels:
            if level:
                entry = level.popleft()
                self.count -= 1
                self.nbytes -= len(entry.message.body)
                return entry
        raise IndexError("no message waits")

    def _level(self, entry: Entry) -> deque[Entry]:
        if not self._max_priority:
            return self._highest_first[0]
        priority = self.priority_of(entry)
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = deque()
            self._highest_first = [self._levels[each] for each in sorted(self._levels, reverse=True)]
        return level
