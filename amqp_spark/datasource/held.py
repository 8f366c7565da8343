"""What the links of one query share: their options, and what all of them hold."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amqp_spark.datasource.planning import QueueBuffer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from amqp_core.address import ConnectOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOptions:
    """What one link does; the part of the source options that concerns receiving."""

    connect: ConnectOptions
    exclusive: bool = False
    selector: str | None = None
    accept: bool = True
    declare: bool = False
    bind: tuple[tuple[str, str], ...] = ()
    max_attempts: int = 10
    max_delay: float = 30.0


class Held:
    """What all links of a query hold, within one byte budget, under one lock; ``changed`` tells of every change."""

    def __init__(self, queues: Sequence[str], budget_bytes: int, clock: Callable[[], float]) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.buffers = {queue: QueueBuffer(queue) for queue in queues}
        self.budget_bytes = budget_bytes
        self.clock = clock
        self.stopping = False
        self.last_call = clock()
        """When Spark last asked for something: nobody needs the backlog of a query that is not asking."""
        self.wanted_bytes = 0
        """Who waits for so many bytes is not told of every arrival below: each wake-up is paid for by receiving."""
        self.elsewhere: list[Callable[[], int]] = []
        """What else counts: functions that return bytes."""

    @property
    def bytes(self) -> int:
        """Bytes held over all queues: received and not accepted, or owned and not finished."""
        return sum(buffer.held_bytes for buffer in self.buffers.values()) + sum(each() for each in self.elsewhere)

    @property
    def waiting_bytes(self) -> int:
        """Bytes received over all queues and not planned."""
        return sum(buffer.waiting_bytes for buffer in self.buffers.values())
