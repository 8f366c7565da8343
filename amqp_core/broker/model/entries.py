"""A message in one queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_core.broker.model.messages import NOTHING

if TYPE_CHECKING:
    from amqp_core.broker.model.messages import Message
    from amqp_core.broker.model.queues import Queue

# Small integers and no Enum: they are compared for every message.
READY: Final = 0
HELD: Final = 1
GONE: Final = 2


class Entry:
    """A message in one queue. There is one per waiting message, so it is small.

    Args:
        sequence: its place in the queue's order; it stays the same when the message comes back.
        expires: time from which on it is not delivered; None: never.
    """

    __slots__ = ("expires", "message", "queue", "record", "restored", "returns", "sequence", "state")

    def __init__(self, message: Message, queue: Queue, sequence: int, expires: float | None) -> None:
        self.message = message
        self.queue = queue
        self.sequence = sequence
        self.expires = expires
        self.returns = 0
        """How often it was delivered and came back."""
        self.record = 0
        """Its number in the journal; 0: it does not outlive the process."""
        self.restored = False
        """Whether it has outlived a process, which may have delivered it."""
        self.state = READY
        """READY: it waits. HELD: delivered and not settled. GONE: settled, dropped, or its queue is deleted."""

    def __repr__(self) -> str:
        return f"<entry {self.sequence} of {self.queue.name!r}: {self.message!r}>"

    def forget(self) -> None:
        """Let go of a message that is gone: consumers that browse, and timers, may have the entry for long."""
        self.message = NOTHING

    @property
    def redelivered(self) -> bool:
        """Whether it may have been delivered before."""
        return self.returns > 0 or self.restored
