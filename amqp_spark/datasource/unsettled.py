"""Flow control without credit: a limit of unsettled messages for each subscription, and pausing the socket.

A subscription keeps its limit for its life (0-9-1 section basic.qos), so each incarnation chooses one: from the queue's
share of the budget, the message sizes that are known by then, and the size of batches. Larger messages than expected
fill the share before the limit is reached; then the socket is not read until Spark has committed a batch. A broker that
cannot send for long closes the connection (RabbitMQ after 30 s). So the limit shrinks after such a loss, until all that
it allows fits into the share: then the socket is never paused, and the batch is accepted however long it takes. After a
time in which no batch has taken long, the next session has the usual limit again.

A message that is larger than the rest of its queue's share needs a turn: of all queues, one at a time receives such a
message, and only while the others hold little more than their shares. So one message at most exceeds the budget. Where
the wait for a turn has cost a connection, the next session begins with its turn: each lost one counts as a delivery,
and a quorum queue drops a message that was delivered too often.

With exactly-once the broker has to answer for each batch, and the answer comes after all that was sent before, which is
read although the share is used up. So a part of the share stays free for that. A session that knows no sizes begins
with a small limit, and subscribes again on the same channel when it has seen some messages: what has arrived stays
unsettled there, in its order. So it does when a smaller limit is no longer needed; without exactly-once it does not,
since another consumer may become the active one of the queue meanwhile. If more comes, all of it is dropped, and
so is what comes later; the session goes on, since others may wait for its answers, until there is room, or its turn has
come. Then it is replaced by one with a smaller limit, to which everything comes again. If no other queue waits, the
message that follows a large one is kept, since the limit cannot be smaller than one: then two exceed the budget.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from amqp_spark.datasource.flow_control import Room

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from amqp_core.api import Block, Client, Subscription
    from amqp_spark.datasource.receive_buffer import ReceiveBuffer

HIGHEST: Final = 65_535
"""The largest limit that the protocol knows (0-9-1 section basic.qos). Half of the limit is the largest batch that can
be processed while the other half arrives. A smaller limit makes a server slightly faster (RabbitMQ 4.3), and a query
slower, since each micro-batch costs Spark 0.1 s: 78,000 rows/s with 65,535, 62,000 with 32,768, 40,000 with 16,384."""
FIRST_GUESS_BYTES: Final = 2048
"""Assumed size of a message before the first one arrives."""
LOOK_BYTES: Final = 256 << 10
"""The same where a small limit is chosen first, and another one when sizes are known."""
LEAST_LOOK: Final = 16
"""The smallest of these limits."""
LONG_PAUSE_SECONDS: Final = 10.0
"""A connection that was not read for so long, and is lost, may be lost for this reason."""
RECENT_SECONDS: Final = 60.0
"""It is not, if that was longer ago."""
CALM_SECONDS: Final = 600.0
"""A smaller limit ends when for so long no message was dropped, and neither the socket nor what the limit allows has
waited long for Spark to commit a batch."""
EXCESS_BYTES: Final = 4 << 20
"""Bytes by which queues may together exceed their shares while another one receives a large message. Each exceeds its
share by what one read brings, however small its messages are."""
ANSWER_BYTES: Final = 8 << 20
"""Bytes by which a queue may exceed its share with what comes before an answer of the broker, if the others do not;
together at most ``EXCESS_BYTES`` more."""
MOST_READ_BYTES: Final = 1 << 20
"""Most bytes of one read; those of all queues together are no more than ``EXCESS_BYTES``, if that leaves enough. Each
read has a cost of its own: with a quarter of these bytes a reader takes a fifth more processor time per message."""
USUAL_READ_BYTES: Final = 256 << 10
"""The same where the budget is small."""
_READS_IN_SHARE: Final = 16
"""A read larger than usual is at most this part of a queue's share."""
LEAST_READ_BYTES: Final = 16 << 10
"""Smaller reads cost much processor time."""
IDLE_SECONDS: Final = 5.0
"""Longest wait for messages; requests of other threads end the wait."""


def read_bytes(queues: int, budget_bytes: int) -> int:
    """Bytes of one read of each of so many queues that share a budget."""
    fitting = max(USUAL_READ_BYTES, budget_bytes // queues // _READS_IN_SHARE)
    return max(LEAST_READ_BYTES, min(MOST_READ_BYTES, fitting, EXCESS_BYTES // queues))


class UnsettledFlowControl:
    """See :class:`.FlowControl`. ``settles``: whether messages are settled: otherwise the broker knows no limit, and
    only the socket holds it back; ``owns``: whether they are settled before Spark has processed them, and answers of
    the broker are waited for; ``dropped`` gets what is not kept before an answer."""

    def __init__(
        self,
        queue: str,
        held: ReceiveBuffer,
        *,
        settles: bool = True,
        owns: bool = False,
        dropped: Callable[[Block], None] | None = None,
    ) -> None:
        self.paused = False
        self._buffer = held.buffers[queue]
        self._held = held
        self._queue = queue
        self._lock = held.changed
        self._clock = held.clock
        self._share = held.budget_bytes // len(held.buffers)
        self._settles = settles
        self._owns = owns
        self._dropped = dropped
        self._keeps = True
        """Whether messages that arrive are kept, so that they need room."""
        self._reserve = 0
        """Bytes of the share that stay free for what comes before an answer."""
        self._let_in: int | None = None
        """Position of a message under way that is received to its end, since it has a turn."""
        self._let_in_bytes = 0
        self._is_deaf = self._begins_anew = False
        """Whether all that comes is dropped, and whether the next session follows for this reason."""
        self.most: int | None = None
        self._at_most = HIGHEST
        self._chosen_with = 0
        """Number of messages that had been seen when the limit was chosen."""
        self._begin = 0
        """Position at which the session began."""
        self._count = self._bytes = 0
        """Messages seen in all sessions, and their bytes."""
        self._expected = 0, 0
        """Messages that another process has received, and their bytes."""
        self._largest = 1
        self._paused_since = 0.0
        self._long_pause_at = -math.inf
        """When the session last ended a long pause."""
        self._calm_since = math.inf
        """When the session began, or last had a reason for a smaller limit; infinite between sessions."""
        self._full_at, self._full_since = -1, 0.0
        """Position up to which messages were accepted when all that the limit allows was here, and since when."""
        self._filled = 1
        """Number of messages that filled the share when the socket was last paused."""
        self._losses = 0
        """Connections lost after a long pause, or replaced since messages were dropped."""
        self._keeps_turn_until = -math.inf
        """Until when the session keeps a turn although no large message has begun to arrive."""

    def expect(self, count: int, nbytes: int) -> None:
        """See :meth:`.FlowControl.expect`."""
        self._expected = count, nbytes

    def most_unsettled(self, at_most: int | None = None, *, looks: bool = True) -> int | None:
        """See :meth:`.FlowControl.most_unsettled`."""
        if not self._settles:
            return None
        if self._is_calm():
            self._forget_losses()
        self._at_most = HIGHEST if at_most is None else min(HIGHEST, at_most)
        look = max(LEAST_LOOK, self._share // LOOK_BYTES)
        self._chosen_with = self._count
        if looks and self._owns and not self._losses and self._count < look // 2:
            limit = min(look, self._limit(self._count, self._bytes))
        else:
            limit = self._limit(*self._seen())
        self.most = max(1, limit)
        with self._lock:
            self._reserve_room()
        return self.most

    def _limit(self, count: int, nbytes: int) -> int:
        """The limit where messages are like ``count`` of ``nbytes``."""
        # What is owned takes the other half: see _reserve_room.
        fits = (self._share // 2 if self._owns else self._share) // self._largest
        if self._losses == 0:
            limit = self._share // max(1, 2 * nbytes // count if count else FIRST_GUESS_BYTES)
        else:
            limit = fits if self._losses > 1 else max(fits, self._filled // 2)
        return min(limit, self._at_most)

    def _seen(self) -> tuple[int, int]:
        """Messages that are known, and their bytes: those of another process until there are others."""
        return (self._count, self._bytes) if self._count else self._expected

    def may_raise_limit(self) -> bool:
        """See :meth:`.FlowControl.may_raise_limit`."""
        if not self._owns or self._is_deaf or self.paused or self.most is None:
            return False
        if self._losses:
            return self._is_calm()
        if self._count < max(self.most // 2, 2 * self._chosen_with + 1):
            return False
        # Few follow: each limit behind the second one is at least twice the one before.
        higher = self._limit(self._count, self._bytes)
        return higher >= 2 * self.most or (higher > self.most and not self._chosen_with)

    def _is_calm(self) -> bool:
        """Whether what has made the limit smaller was long ago."""
        return self._losses > 0 and self._clock() - self._calm_since >= CALM_SECONDS

    def _forget_losses(self) -> None:
        self._losses = 0
        self._largest = max(1, self._bytes // self._count) if self._count else 1

    def before_session(self, is_asked: Callable[[], bool]) -> None:
        """See :meth:`.FlowControl.before_session`."""
        if not self._losses or self._largest <= self._share or len(self._held.buffers) == 1:
            return
        with self._lock:
            while not self._held.stopping and not self._has_turn():
                if is_asked():  # what others hold may become free only then
                    return
                self._lock.wait(IDLE_SECONDS)
        self._keeps_turn_until = math.inf

    def restart(self) -> None:
        """See :meth:`.FlowControl.restart`."""
        self.paused = False
        self._long_pause_at, self._calm_since = -math.inf, self._clock()
        if self._keeps_turn_until == math.inf:
            self._keeps_turn_until = self._clock() + IDLE_SECONDS
        self._let_in = None
        with self._lock:
            self._begin = self._buffer.received
            self._reserve_room()

    def end(self) -> None:
        """See :meth:`.FlowControl.end`."""
        self._let_in = None
        if not self._begins_anew:
            self._leave_turn()
        if self.paused:
            self._resumed()
        if self._clock() - self._long_pause_at <= RECENT_SECONDS:
            self._losses += 1
        elif not self._is_deaf and self._is_calm():
            self._forget_losses()
        self._is_deaf = self._begins_anew = False
        self._long_pause_at, self._calm_since = -math.inf, math.inf

    def arrived(self, block: Block) -> None:
        """See :meth:`.FlowControl.arrived`."""
        self._count += len(block.ends)
        self._bytes += len(block.frames)
        self._largest = max(self._largest, block.largest)
        self._keeps_turn_until = -math.inf
        if self._let_in is not None and self._buffer.received > self._let_in:
            self._let_in = None
        if self._owns:
            self._reserve_room()

    def _reserve_room(self) -> None:
        """Reserve room for as many messages as may be sent before an answer: the limit of unsettled ones."""
        count, nbytes = self._seen()
        if self._owns and self.most is not None and count:
            self._reserve = min(self._share // 2, self.most * nbytes // count)
        self._held.rooms[self._queue] = Room(self.most, self._share - self._reserve)

    def announce(self, subscription: Subscription) -> None:
        """See :meth:`.FlowControl.announce`. Where nothing is settled all is kept: it would not come again."""
        if self._settles:
            subscription.bound(self._admits, self._dropped)

    def _admits(self, count: int, nbytes: int, under_way: int) -> bool:
        """Whether what has come before an answer is kept: ``count`` messages of ``nbytes``, and one that is under way.

        A large one among them has a turn, and needs no room.
        """
        if not self._keeps:
            return True
        with self._lock:
            position = self._buffer.received + count
            if under_way and self._let_in == position:
                return True
            held = self._held.bytes_of(self._queue)
            # One message may fill the share, or more, and be accepted before the next one has come.
            usual = self._share if self._largest <= self._share // 2 else max(self._share, held)
            came = nbytes - (self._let_in_bytes if self._let_in is not None else 0)
            excess = held + came + under_way - usual
            if excess > 0 and excess + sum(min(each, EXCESS_BYTES) for each in self._excesses()) > ANSWER_BYTES:
                self._largest = max(self._largest, under_way or nbytes // count)
                if not under_way or self._let_in is not None or not self._has_turn():
                    return False
                self._let_in, self._let_in_bytes = position, under_way
            self._held.awaited[self._queue] = nbytes + under_way
            return True

    def may_begin_anew(self) -> bool:
        """See :meth:`.FlowControl.may_begin_anew`."""
        if not self._is_deaf:
            self._is_deaf = True
            self._losses += 1
            self._filled = max(1, self._unsettled())
        with self._lock:
            has_room = self._held.bytes_of(self._queue) < self._share - self._reserve
            self._begins_anew = has_room and (self._largest <= self._share or self._has_turn())
            return self._begins_anew

    def take_timeout(self) -> float:
        """See :meth:`.FlowControl.take_timeout`."""
        return IDLE_SECONDS

    def regulate(self, client: Client, _subscription: Subscription, *, left: int, idles: bool) -> None:
        """Stop reading the socket while the share of the queue is used up, or its next message waits for its turn."""
        self._keeps = left > 0 or not self._settles
        if self._losses:
            self._look_for_wait()
        under_way = client.under_way_bytes
        with self._lock:
            self._held.awaited.pop(self._queue, None)
            held = self._held.bytes_of(self._queue)
            needs_turn = under_way > 0 and self._let_in == self._buffer.received
            paused = not needs_turn and self._keeps and held >= self._share - self._reserve
            if not (needs_turn or paused or self._is_deaf) and under_way > 0 and held + under_way > self._share:
                needs_turn = True
                self._largest = max(self._largest, under_way)
                paused = not self._has_turn()
                if not paused:
                    self._let_in, self._let_in_bytes = self._buffer.received, under_way
            if self._is_deaf:  # what comes needs no room, and a turn is for the next session
                needs_turn, paused = True, False
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

    def _look_for_wait(self) -> None:
        """Take note if all that the limit allows waits for long: with more, the socket would have to wait."""
        now = self._clock()
        with self._lock:
            accepted = self._buffer.accepted
        if self.most is None or self._unsettled() < self.most or accepted != self._full_at:
            self._full_at, self._full_since = accepted, now
        elif now - self._full_since >= LONG_PAUSE_SECONDS:
            self._calm_since = now

    def _has_turn(self) -> bool:
        """Take a turn, or wait in line for it; return whether a message of any size may be received now."""
        return self._held.turns.take(self._queue) == self._queue and sum(self._excesses()) <= EXCESS_BYTES

    def _excesses(self) -> Iterator[int]:
        """Bytes by which the others exceed their shares."""
        for queue in self._held.buffers:
            held = self._held.bytes_of(queue) + self._held.awaited.get(queue, 0)
            if queue != self._queue and held > self._share:
                yield held - self._share

    def _leave_turn(self) -> None:
        self._keeps_turn_until = -math.inf
        with self._lock:
            following = self._held.turns.leave(self._queue)
        if following is not None:
            self._held.wake[following]()

    def _resumed(self) -> None:
        self.paused = False
        now = self._clock()
        if now - self._paused_since >= LONG_PAUSE_SECONDS:
            self._long_pause_at = self._calm_since = now

    def has_room(self) -> bool:
        """See :meth:`.FlowControl.has_room`."""
        return not self.paused and not self._is_deaf and (self.most is None or self._unsettled() < self.most)

    def _unsettled(self) -> int:
        with self._lock:
            return self._buffer.received - max(self._begin, self._buffer.accepted)

    def probe(self, subscription: Subscription) -> Sequence[Block] | None:
        """See :meth:`.FlowControl.probe`."""
        return subscription.take_blocks(0) if self.has_room() else None

    def leave_turn(self) -> None:
        """A probe takes no turn; a message under way keeps the one that it has."""
