"""How fast a query reads its logs, and how far it is behind."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SECONDS: Final = 10.0
"""Time over which rates are taken."""


class Pace:
    """Offsets of the latest batches, with their times."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._batches: deque[tuple[float, Mapping[str, int]]] = deque()
        self._begins: Mapping[str, int] = {}

    def begun(self, begins: Mapping[str, int]) -> None:
        """Record where the next batch begins."""
        self._begins = begins

    def planned(self, ends: Mapping[str, int]) -> None:
        """Record a batch by the offsets at which it ends."""
        now = self._clock()
        self._batches.append((now, ends))
        while len(self._batches) > 2 and self._batches[1][0] < now - SECONDS:
            self._batches.popleft()

    def rates(self) -> dict[str, float]:
        """Per log, messages per second from the first of these batches to now."""
        if len(self._batches) < 2:
            return {}
        (since, first), (_, last) = self._batches[0], self._batches[-1]
        seconds = max(1e-3, self._clock() - since)
        return {log: round(max(0, end - first.get(log, end)) / seconds, 1) for log, end in last.items()}

    def lag(self, log: str, end: int) -> int:
        """How many messages of a log that ends there are in no batch yet."""
        planned = self._batches[-1][1] if self._batches else self._begins
        return max(0, end - planned.get(log, end))
