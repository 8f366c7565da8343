"""How large the messages of logs are, as far as it was seen lately."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

RECENT_MESSAGES: Final = 8
"""A mean is taken over so many messages. Fewer vary too much. With more it would follow a change too late, since a
batch may show only two of its messages."""
GUESSED_BYTES: Final = 1024
"""Assumed size of the messages of a log of which none was seen."""


class _Sample(NamedTuple):
    """Messages that were seen together: how many of them count."""

    messages: int
    mean_bytes: float


class MessageSizes:
    """Sizes of the latest messages that were seen, for each log."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[_Sample]] = {}

    def saw(self, log: str, messages: int, nbytes: int) -> None:
        """Record that so many messages of a log have so many bytes together."""
        seen = self._seen.setdefault(log, deque())
        # Of a large chunk only some count: else it would outweigh what is seen after it for long.
        seen.append(_Sample(min(messages, RECENT_MESSAGES), nbytes / messages))
        count = sum(each.messages for each in seen)
        while count - seen[0].messages >= RECENT_MESSAGES:
            count -= seen.popleft().messages

    def mean(self, waiting: Mapping[str, int]) -> int:
        """Mean bytes of a message, of which so many wait in each log."""
        total = sum(waiting.values())
        if not total:
            return GUESSED_BYTES
        return max(1, round(sum(self._mean_of(log) * count for log, count in waiting.items()) / total))

    def _mean_of(self, log: str) -> float:
        seen = self._seen.get(log)
        if not seen:
            return GUESSED_BYTES
        return sum(each.messages * each.mean_bytes for each in seen) / sum(each.messages for each in seen)
