"""Flow control without credit: a limit of unsettled messages for each subscription, and pausing the socket.

A subscription keeps its limit for its life (0-9-1 section basic.qos), so each incarnation chooses one: from the queue's
share of the budget and the message sizes that are known by then. Larger messages than expected fill the share before
the limit is reached; then the socket is not read until Spark has committed a batch. A broker that cannot send for long
closes the connection (RabbitMQ after 30 s). So the limit shrinks after such a loss, until all that it allows fits into
the share: then the socket is never paused, and the batch is accepted however long it takes.

A message that is larger than the rest of its queue's share needs a turn: of all queues, one at a time receives such a
message, and only while the others hold little more than their shares. So one message at most exceeds the budget. Where
the wait for a turn has cost a connection, the next session begins with its turn: each lost one counts as a delivery,
and a quorum queue drops a message that was delivered too often.
"""

from __future__ import annotations

import math
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
EXCESS_BYTES: Final = 4 << 20
"""Bytes by which queues may together exceed their shares while another one receives a large message. Each exceeds its
share by what one read brings, however small its messages are."""
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
        self._keeps_turn_until = -math.inf
        """Until when the session keeps a turn although no large message has begun to arrive."""

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

    def before_session(self) -> None:
        """See :meth:`.FlowControl.before_session`."""
        if not self._losses or self._largest <= self._share or len(self._held.buffers) == 1:
            return
        with self._lock:
            while not self._held.stopping and not self._has_turn():
                self._lock.wait(IDLE_SECONDS)
        self._keeps_turn_until = math.inf

    def restart(self) -> None:
        """See :meth:`.FlowControl.restart`."""
        self.paused = False
        self._longest_pause_s = 0.0
        if self._keeps_turn_until == math.inf:
            self._keeps_turn_until = self._clock() + IDLE_SECONDS
        with self._lock:
            self._begin = self._buffer.received
            self._held.rooms[self._queue] = Room(self.most, self._share)

    def end(self) -> None:
        """See :meth:`.FlowControl.end`."""
        self._leave_turn()
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
        self._keeps_turn_until = -math.inf

    def announce(self, subscription: Subscription) -> None:
        """Nothing is reserved: the limit bounds what may arrive."""

    def take_timeout(self) -> float:
        """See :meth:`.FlowControl.take_timeout`."""
        return IDLE_SECONDS

    def regulate(self, client: Client, _subscription: Subscription, *, left: int, idles: bool) -> None:
        """Stop reading the socket while the share of the queue is used up, or its next message waits for its turn."""
        keeps = left > 0 or not self._settles
        under_way = client.under_way_bytes
        with self._lock:
            held = self._buffer.held_bytes
            paused = keeps and held >= self._share
            needs_turn = not paused and under_way > 0 and held + under_way > self._share
            if needs_turn:
                self._largest = max(self._largest, under_way)
                paused = not self._has_turn()
        if not needs_turn and self._clock() >= self._keeps_turn_until:
            self._leave_turn()
        if paused == self.paused:
            return
        client.pause_reading(paused)
        if paused:
            self.paused = True
            self._paused_since = self._clock()
            self._filled = self._unsettled()
        else:
            self._resumed()

    def _has_turn(self) -> bool:
        """Take a turn, or wait in line for it; return whether a message of any size may be received now."""
        if self._held.turns.take(self._queue) != self._queue:
            return False
        others = (each for each in self._held.buffers.values() if each is not self._buffer)
        return sum(max(0, each.held_bytes - self._share) for each in others) <= EXCESS_BYTES

    def _leave_turn(self) -> None:
        self._keeps_turn_until = -math.inf
        with self._lock:
            following = self._held.turns.leave(self._queue)
        if following is not None:
            self._held.wake[following]()

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
        """A probe takes no turn; a message under way keeps the one that it has."""
