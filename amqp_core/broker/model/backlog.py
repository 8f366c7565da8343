"""The messages of a queue that wait, in order: by priority, then by sequence number."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final

from amqp_core.broker.model.entries import GONE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqp_core.broker.model.entries import Entry


LOWEST: Final = "amqp_core.lowest-priority"
"""The argument of queues of 0-10 with less than ten priorities: so many are taken off the priority of each message.

For the Qpid brokers, 4 is the priority of a message that names none. So n levels are the n around it, while
``x-max-priority`` of RabbitMQ keeps the lowest ones apart.
"""


_MOST_GONE: Final = 64


def _sequence(entry: Entry) -> int:
    return entry.sequence


class Backlog:
    """Waiting entries; those of one priority are a deque in the order of their sequence numbers.

    Appending and taking the head is fast, and so is putting back what was the head; in the middle it takes time in
    proportion to the length (a memory move, fast). What expires in the middle stays there, and is passed over, until so
    much of that is there that one pass removes it all.

    Args:
        max_priority: priorities above it count as it; 0: all are equal.
        lowest: is taken off priorities before; what is below it counts as it.
    """

    __slots__ = ("_gone", "_highest_first", "_levels", "_lowest", "_max_priority", "count", "nbytes")

    def __init__(self, max_priority: int, lowest: int = 0) -> None:
        self._max_priority = max_priority
        self._lowest = lowest
        self._gone = 0
        """How many are still in the deques of those that were dropped."""
        self._levels: dict[int, deque[Entry]] = {0: deque()}
        self._highest_first = [self._levels[0]]
        self.count = 0
        self.nbytes = 0
        """Sum of the bodies."""

    def __iter__(self) -> Iterator[Entry]:
        for level in self._highest_first:
            for entry in level:
                if entry.state != GONE:
                    yield entry

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
            if self._gone:
                self._pass_over(level)
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

    def drop(self, entry: Entry) -> None:
        """Remove an entry that is there, and gone for good, wherever it is: in the same time however many wait."""
        self.count -= 1
        self.nbytes -= len(entry.message.body)
        self._gone += 1
        if self._gone > _MOST_GONE + self.count // 4:
            self._gone = 0
            for level in self._highest_first:
                kept = [each for each in level if each.state != GONE]
                level.clear()
                level.extend(kept)

    def clear(self) -> None:
        """Remove all entries."""
        for level in self._highest_first:
            level.clear()
        self.count = self.nbytes = self._gone = 0

    def behind(self, seen: dict[int, int]) -> Entry | None:
        """The first entry whose sequence number is above the one in ``seen`` for its priority.

        What it passes over, which is gone, is in ``seen`` afterwards.
        """
        if not self.count:
            return None
        for priority in sorted(self._levels, reverse=True):
            level = self._levels[priority]
            last = seen.get(priority, 0)
            if level and level[-1].sequence > last:
                for entry in islice(level, bisect_right(level, last, key=_sequence), None):
                    if entry.state != GONE:
                        return entry
                    seen[priority] = entry.sequence
        return None

    def all_behind(self, seen: dict[int, int]) -> Iterator[Entry]:
        """What ``behind`` finds and all that follows; meanwhile the backlog must not change."""
        for priority in sorted(self._levels, reverse=True):
            level = self._levels[priority]
            last = seen.get(priority, 0)
            if level and level[-1].sequence > last:
                for entry in islice(level, bisect_right(level, last, key=_sequence), None):
                    if entry.state != GONE:
                        yield entry

    def _pop_first(self, levels: Iterator[deque[Entry]] | list[deque[Entry]]) -> Entry:
        for level in levels:
            if self._gone:
                self._pass_over(level)
            if level:
                entry = level.popleft()
                self.count -= 1
                self.nbytes -= len(entry.message.body)
                return entry
        raise IndexError("no message waits")

    def _pass_over(self, level: deque[Entry]) -> None:
        """Remove what is gone at the head of a level."""
        while level and level[0].state == GONE:
            level.popleft()
            self._gone -= 1

    def _level(self, entry: Entry) -> deque[Entry]:
        if not self._max_priority:
            return self._highest_first[0]
        priority = self.priority_of(entry)
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = deque()
            self._highest_first = [self._levels[each] for each in sorted(self._levels, reverse=True)]
        return level
