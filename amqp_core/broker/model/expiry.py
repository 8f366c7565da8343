"""When waiting messages of a queue expire."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from amqp_core.broker.model.entries import READY

if TYPE_CHECKING:
    from amqp_core.broker.model.entries import Entry

_SLACK = 64


class Expiries:
    """Entries that have an end, the earliest first. Those that have left the queue are removed at times."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Entry]] = []

    def add(self, entry: Entry, waiting: int) -> None:
        """Add an entry; ``waiting`` is the number of all entries that wait in the queue."""
        if entry.expires is None:
            return
        heapq.heappush(self._heap, (entry.expires, entry.sequence, entry))
        if len(self._heap) > 2 * waiting + _SLACK:
            unique = {
                each.sequence: (expires, number, each) for expires, number, each in self._heap if each.state == READY
            }
            self._heap = sorted(unique.values())

    def due(self, now: float) -> list[Entry]:
        """Remove and return the waiting entries whose time has come, each once, in the order of the queue."""
        found: dict[int, Entry] = {}
        while self._heap and self._heap[0][0] <= now:
            _, sequence, entry = heapq.heappop(self._heap)
            if entry.state == READY:
                found[sequence] = entry
        return [found[sequence] for sequence in sorted(found)]

    def next(self) -> float | None:
        """When the next waiting entry expires."""
        while self._heap and self._heap[0][2].state != READY:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
