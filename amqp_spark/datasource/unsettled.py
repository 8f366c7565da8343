"""Flow control without credit: a limit of unsettled messages for each subscription, and pausing the socket.

A subscription keeps its limit for its life (0-9-1 section basic.qos), so each incarnation chooses one: from the queue's
share of the budget and the message sizes that are known by then. Larger messages than expected fill the share before
the limit is reached; then the socket is not read until Spark has committed a batch. A broker that cannot send for long
closes the connection (RabbitMQ after 30 s). So the limit shrinks after such a loss, until all that it allows fits into
the share: then the socket is never paused, and the batch is accepted however long it takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_spark.datasource.flow_control import Room

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqp_core.api import Block, Client, Subscription
    from amqp_spark.datasource.receive_buffer import ReceiveBuffer

HIGHEST: Final = 65_535
"""The largest limit that the protocol knows (0-9-1 section basic.qos). Half of the limit is the largest batch that can
be processed while the other half arrives. A smaller limit makes a server slightly faster (RabbitMQ 4.3), and a query
slower, since each micro-batch costs Spark 0.1 s: 78,000 rows/s with 65,535, 62,000 with 32,768, 40,000 with 16,384."""
FIRST_GUESS_BYTES: Final = 2048
"""Assumed size of a message before the first one arrives."""
LONG_PAUSE_SECONDS: Final = 10.0
"""A connection that was not read for so long, and is lost, may be lost for this reason."""
IDLE_SECONDS: Final = 5.0
"""Longest wait for messages; requests of other threads end the wait."""


class UnsettledFlowControl:
    """See :class:`.FlowControl`. ``settles``: whether messages are settled: otherwise the broker knows no limit, and
    only the socket holds it back."""

    def __init__(self, queue: str, held: ReceiveBuffer, *, settles: bool = True) -> None:
        self.paused = False
        self._buffer = held.buffers[queue]
        self._held = held
        self._queue = queue
        self._lock = held.changed
        self._clock = held.clock
        self._share = held.budget_bytes // len(held.buffers)
        self._settles = settles
        self.most: int | None = None
        self._begin = 0
        """Position at which the session began."""
        self._count = self._bytes = 0
        """Messages seen in all sessions, and their bytes."""
        self._largest = 1
        self._paused_since = 0.0
        self._longest_pause_s = 0.0
        self._filled = 1
        """Number of messages that filled the share when the socket was last paused."""
        self._losses = 0
        """Connections lost after a long pause."""

    def most_unsettled(self, at_most: int | None = None) -> int | None:
        """See :meth:`.FlowControl.most_unsettled`."""
        if not self._settles:
            return None
        fits = self._share // self._largest
        if self._losses == 0:
            typical = 2 * self._bytes // self._count if self._count else FIRST_GUESS_BYTES
            limit = self._share // max(1, typical)
        else:
            limit = fits if self._losses > 1 else max(fits, self._filled // 2)
        self.most = max(1, min(limit, HIGHEST if at_most is None else min(HIGHEST, at_most)))
        return self.most

    def restart(self) -> None:
        """See :meth:`.FlowControl.restart`."""
        self.paused = False
        self._longest_pause_s = 0.0
        with self._lock:
            self._begin = self._buffer.received
            self._held.rooms[self._queue] = Room(self.most, self._share)

    def end(self) -> None:
        """See :meth:`.FlowControl.end`."""
        if self.paused:
            self._resumed()
        if self._longest_pause_s >= LONG_PAUSE_SECONDS:
            self._losses += 1
        self._longest_pause_s = 0.0

    def arrived(self, block: Block) -> None:
        """See :meth:`.FlowControl.arrived`."""
        self._count += len(block.ends)
        self._bytes += len(block.frames)
        self._largest = max(self._largest, block.largest)

    def announce(self, subscription: Subscription) -> None:
        """Nothing is reserved: the limit bounds what may arrive."""

    def take_timeout(self) -> float:
        """See :meth:`.FlowControl.take_timeout`."""
        return IDLE_SECONDS

    def regulate(self, client: Client, _subscription: Subscription, *, left: int, idles: bool) -> None:
        """Stop reading the socket while the queue's share of the budget is used up."""
        with self._lock:
            paused = self._buffer.held_bytes >= self._share and (left > 0 or not self._settles)
        if paused == self.paused:
            return
        client.pause_reading(paused)
        if paused:
            self.paused = True
            self._paused_since = self._clock()
            self._filled = self._unsettled()
        else:
            self._resumed()

    def _resumed(self) -> None:
        self.paused = False
        self._longest_pause_s = max(self._longest_pause_s, self._clock() - self._paused_since)

    def has_room(self) -> bool:
        """See :meth:`.FlowControl.has_room`."""
        return not self.paused and (self.most is None or self._unsettled() < self.most)

    def _unsettled(self) -> int:
        with self._lock:
            return self._buffer.received - max(self._begin, self._buffer.accepted)

    def probe(self, subscription: Subscription) -> Sequence[Block] | None:
        """See :meth:`.FlowControl.probe`."""
        return subscription.take_blocks(0) if self.has_room() else None

    def leave_turn(self) -> None:
        """Nothing is reserved."""
