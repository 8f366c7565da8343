"""How long a queue may get, and what happens to a message for which there is no room (``x-overflow``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_core.broker.model.memory import RESUMED_AT

if TYPE_CHECKING:
    from amqp_core.broker.model.arguments import QueueArguments

# Twice the limit: what publishers had under way when they were stopped is much less.
_CRITICAL: Final = 2


class Limits:
    """The limits of one queue; it has at most one of the three ways to keep them.

    Attributes:
        drops: the oldest messages make room.
        rejects: a message without room is refused.
        throttles: its publishers are stopped until there is room again.
    """

    __slots__ = ("_count", "_nbytes", "_resume_count", "_resume_nbytes", "drops", "rejects", "throttles")

    def __init__(self, settings: QueueArguments) -> None:
        count, nbytes = settings.max_length, settings.max_bytes
        limited = count is not None or nbytes is not None
        self.drops = limited and settings.overflow == "drop-head"
        self.throttles = limited and settings.overflow == "flow-control"
        self.rejects = limited and not self.drops and not self.throttles
        self._count = float("inf") if count is None else count
        self._nbytes = float("inf") if nbytes is None else nbytes
        self._resume_count = int(count * RESUMED_AT) if count is not None else self._count
        self._resume_nbytes = int(nbytes * RESUMED_AT) if nbytes is not None else self._nbytes
        if settings.resume_bytes is not None:
            self._resume_nbytes = min(settings.resume_bytes, self._nbytes)

    def is_over(self, count: int, nbytes: int) -> bool:
        """Whether so many messages, with so many bytes of bodies, are too much."""
        return count > self._count or nbytes > self._nbytes

    def is_full(self, count: int, nbytes: int) -> bool:
        """Whether there is no room for another message."""
        return count >= self._count or nbytes >= self._nbytes

    def is_relieved(self, count: int, nbytes: int) -> bool:
        """Whether publishers that were stopped may go on."""
        return count <= self._resume_count and nbytes <= self._resume_nbytes

    def is_critical(self, count: int, nbytes: int) -> bool:
        """Whether publishers have sent far too much, although they were stopped."""
        return self.is_over(count // _CRITICAL, nbytes // _CRITICAL)
