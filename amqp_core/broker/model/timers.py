"""Queues in which something has an end by time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqp_core.broker.model.queues import Queue


class Timers:
    """The queues with messages that expire, or that expire themselves: no other is looked at when time goes on."""

    __slots__ = ("_queues", "has_new")

    def __init__(self) -> None:
        self.has_new = False
        """Whether something may expire earlier than ``next`` said."""
        self._queues: dict[Queue, None] = {}

    def add(self, queue: Queue) -> None:
        """Something in a queue has an end."""
        self._queues[queue] = None
        self.has_new = True

    def remove(self, queue: Queue) -> None:
        """A queue is deleted."""
        self._queues.pop(queue, None)

    def expire(self, now: float) -> list[Queue]:
        """Give up the messages that are over; return the queues that are to be deleted."""
        over = []
        for queue in list(self._queues):
            end = queue.unused_until()
            if end is not None and end <= now:
                over.append(queue)
            else:
                queue.expire(now)
        return over

    def next(self) -> float | None:
        """When the next message or queue expires."""
        self.has_new = False
        times = []
        for queue in list(self._queues):
            time = queue.next_expiry()
            if time is not None:
                times.append(time)
            elif queue.settings.expires is None:
                del self._queues[queue]
        return min(times, default=None)
