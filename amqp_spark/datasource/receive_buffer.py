"""Options and receive buffer shared by the consumers of one query."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amqp_spark.datasource.credit import Turns
from amqp_spark.datasource.queue_buffer import QueueBuffer
from amqp_spark.options import AT_MOST_ONCE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from amqp_core.address import ConnectOptions
    from amqp_spark.options import SourceOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """Options of one consumer: the part of the source options that concerns receiving."""

    connect: ConnectOptions
    exclusive: bool = False
    selector: str | None = None
    accept: bool = True
    declare: bool = False
    bind: tuple[tuple[str, str], ...] = ()
    max_attempts: int = 10
    max_delay: float = 30.0

    @classmethod
    def of(cls, options: SourceOptions) -> ConsumerOptions:
        """The part of these options."""
        return cls(
            connect=options.connect_options(),
            exclusive=options.exclusive,
            selector=options.selector,
            accept=options.delivery_guarantee != AT_MOST_ONCE,
            declare=options.declare == "ifMissing",
            bind=options.bind,
            max_attempts=options.retry_max_attempts,
            max_delay=options.retry_max_delay,
        )


class ReceiveBuffer:
    """Transfers held by all consumers of a query, within one byte budget, under one lock.

    ``changed`` is notified of every change.
    """

    def __init__(self, queues: Sequence[str], budget_bytes: int, clock: Callable[[], float]) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.buffers = {queue: QueueBuffer(queue) for queue in queues}
        self.budget_bytes = budget_bytes
        self.clock = clock
        self.stopping = False
        self.last_call = clock()
        """When Spark last called: the backlog is not surveyed while a query makes no calls."""
        self._wanted: tuple[int, int | None] = 0, None
        self.turns = Turns(clock)
        self.wake: dict[str, Callable[[], None]] = {}
        """Wakes the thread of a queue."""
        self.elsewhere: list[Callable[[], int]] = []
        """Functions that return bytes held elsewhere, which count against the budget."""
        self.awaited: dict[str, int] = {}
        """Bytes that may arrive on queues whose threads wait for an answer of the broker: they cannot be paused."""

    def want(self, nbytes: int, messages: int | None = None) -> None:
        """Suppress wake-ups until this many bytes, or messages, wait to be planned: each wake-up slows receiving."""
        self._wanted = nbytes, messages

    def is_enough(self) -> bool:
        """Whether as many bytes or messages as wanted wait to be planned."""
        nbytes, messages = self._wanted
        return self.waiting_bytes >= nbytes or (messages is not None and self.waiting >= messages)

    def enough_bytes(self, max_bytes: int) -> int:
        """Bytes at which a batch of at most ``max_bytes`` need not wait: half of the budget stays free to receive."""
        return max(1, min(max_bytes, self.budget_bytes // 2))

    @property
    def waiting(self) -> int:
        """Messages received over all queues and not planned."""
        return sum(buffer.waiting for buffer in self.buffers.values())

    @property
    def bytes(self) -> int:
        """Bytes held over all queues: received and not accepted, or owned and not finished."""
        return sum(buffer.held_bytes for buffer in self.buffers.values()) + sum(each() for each in self.elsewhere)

    @property
    def waiting_bytes(self) -> int:
        """Bytes received over all queues and not planned."""
        return sum(buffer.waiting_bytes for buffer in self.buffers.values())
