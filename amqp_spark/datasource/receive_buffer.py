"""What the consumers of one query share: their options, and what all of them hold."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amqp_spark.datasource.credit import Turns
from amqp_spark.datasource.queue_buffer import QueueBuffer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from amqp_core.address import ConnectOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """What one consumer does; the part of the source options that concerns receiving."""

    connect: ConnectOptions
    exclusive: bool = False
    selector: str | None = None
    accept: bool = True
    declare: bool = False
    bind: tuple[tuple[str, str], ...] = ()
    max_attempts: int = 10
    max_delay: float = 30.0


class ReceiveBuffer:
    """What all consumers of a query hold, within one byte budget, under one lock; ``changed`` tells of every change."""

    def __init__(self, queues: Sequence[str], budget_bytes: int, clock: Callable[[], float]) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.buffers = {queue: QueueBuffer(queue) for queue in queues}
        self.budget_bytes = budget_bytes
        self.clock = clock
        self.stopping = False
        self.last_call = clock()
        """When Spark last asked for something: nobody needs the backlog of a query that is not asking."""
        self._wanted: tuple[int, int | None] = 0, None
        self.turns = Turns(clock)
        self.wake: dict[str, Callable[[], None]] = {}
        """Wakes the thread of a queue."""
        self.elsewhere: list[Callable[[], int]] = []
        """What else counts: functions that return bytes."""
        self.awaited: dict[str, int] = {}
        """Bytes that may come to queues whose threads wait for an answer of the broker: they cannot be paused."""

    def want(self, nbytes: int, messages: int | None = None) -> None:
        """Suppress wake-ups until so many bytes, or messages, wait to be planned: each wake-up slows receiving down."""
        self._wanted = nbytes, messages

    def is_enough(self) -> bool:
        """Whether as much waits to be planned as was wanted."""
        nbytes, messages = self._wanted
        return self.waiting_bytes >= nbytes or (messages is not None and self.waiting >= messages)

    def enough_bytes(self, max_bytes: int) -> int:
        """Bytes at which a batch of at most ``max_bytes`` need not wait: a half of the budget leaves room to go on."""
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
