"""The receiver of a query: one consumer per queue, one byte budget, and the plan of each batch.

Runs in the reader process on the driver. Receiving (:mod:`queue_consumer`), planning (:mod:`planner`), the calls of
Spark (:mod:`micro_batch_stream`) and the policies of the delivery guarantees are separate.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from amqp_spark import crashpoints
from amqp_spark.datasource.backlog import BacklogSurvey
from amqp_spark.datasource.planner import plan_batch
from amqp_spark.datasource.queue_consumer import QueueConsumer
from amqp_spark.datasource.receive_buffer import ReceiveBuffer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from amqp_spark.connect import Connector
    from amqp_spark.datasource.owner import Owner
    from amqp_spark.options import SourceOptions

_log = logging.getLogger(__name__)

STOP_SECONDS: Final = 5.0
SYNC_SECONDS: Final = 10.0
BEGIN_SECONDS: Final = 3.0
"""How long the first call of Spark waits for the messages that the broker counted."""
GROWTH_SECONDS: Final = 0.2
"""AvailableNow: a batch is planned when no message arrived for so long, full or not."""
TRICKLE_SECONDS: Final = 2.0
"""AvailableNow: a batch is planned so long after its first message, even if messages keep arriving slowly."""


class Receiver:
    """Holds the transfers received from all queues of a query. Methods may be called from any thread."""

    def __init__(
        self,
        options: SourceOptions,
        connector: Connector,
        *,
        clock: Callable[[], float] = time.monotonic,
        owners: Callable[[str, ReceiveBuffer], Owner] | None = None,
    ) -> None:
        queues = sorted(options.queues)
        self.held = held = ReceiveBuffer(queues, options.buffer_bytes, clock)
        self.consumers = [
            QueueConsumer(queue, options, held, connector, None if owners is None else owners(queue, held))
            for queue in queues
        ]
        self._survey = BacklogSurvey(self.consumers, held, connector)
        self._lock = self.held.changed
        self._clock = clock
        self._turn = 0
        self.started = False

    def start(self, *, bounded: bool = False) -> None:
        """Start receiving, once. ``bounded``: only the messages that are there now (AvailableNow)."""
        if self.started:
            return
        self.started = True
        for consumer in self.consumers:
            consumer.start(bounded=bounded)
        self._survey.start()

    def stop(self) -> None:
        """Close the connections cleanly; messages not accepted go back to their queue."""
        with self._lock:
            self.held.stopping = True
        for consumer in self.consumers:
            consumer.wake()
        deadline = time.monotonic() + STOP_SECONDS
        for consumer in self.consumers:
            if not consumer.join(max(0.0, deadline - time.monotonic())):
                _log.warning("queue %r: the connection did not close within %.0f s", consumer.queue, STOP_SECONDS)
        self._survey.stop(max(0.0, deadline - time.monotonic()))

    def touch(self) -> None:
        """Record a call of Spark."""
        self.held.last_call = self._clock()

    def accept(self, positions: Mapping[str, int]) -> bool:
        """Accept everything below these positions, which Spark has processed; return whether any was new."""
        news = []
        with self._lock:
            for consumer in self.consumers:
                position = positions.get(consumer.queue, 0)
                if position > consumer.buffer.accepted:
                    crashpoints.reached(crashpoints.COMMIT_LOGGED)
                    settlements = consumer.buffer.accept(position)
                    if consumer.error is None:
                        consumer.settlements.extend(settlements)
                    news.append(consumer)
        if news:
            for consumer in self.consumers:  # all of them: they may wait for a part of the budget
                consumer.wake()
        return bool(news)

    def sync(self) -> bool:
        """Wait, for a bounded time, until the broker has completed all settlements; return whether it has.

        A consumer whose connection is gone cannot confirm this, and a new session cannot confirm the commands of a
        previous one.
        """
        with self._lock:
            asked = [consumer.buffer.incarnation for consumer in self.consumers]
            for consumer in self.consumers:
                consumer.sync_wanted += 1
        for consumer in self.consumers:
            consumer.wake()
        deadline = self._clock() + SYNC_SECONDS + max(consumer.sync_silence_timeout_s for consumer in self.consumers)
        with self._lock:
            while any(consumer.sync_done < consumer.sync_wanted and consumer.connected for consumer in self.consumers):
                left = deadline - self._clock()
                if left <= 0:
                    break
                self._lock.wait(left)
            done = all(
                consumer.sync_done >= consumer.sync_wanted and consumer.error is None for consumer in self.consumers
            )
            same = asked == [consumer.buffer.incarnation for consumer in self.consumers]
            return (done and same) or self.held.stopping

    def planned(self) -> dict[str, int]:
        """The end of the planned ranges, per queue."""
        with self._lock:
            return {queue: buffer.planned for queue, buffer in self.held.buffers.items()}

    def expect(self, protocols: Mapping[str, str]) -> None:
        """Before it is started: receive from these queues only over the protocol that the checkpoint has for each."""
        for consumer in self.consumers:
            consumer.expected_protocol = protocols.get(consumer.queue, consumer.expected_protocol)

    def protocol_before(self, queue: str, position: int) -> str | None:
        """See :meth:`.QueueBuffer.protocol_before`."""
        with self._lock:
            return self.held.buffers[queue].protocol_before(position)

    def plan(self, *, max_messages: int | None, max_bytes: int) -> bool:
        """Plan the next batch from the received transfers; return whether there is one."""
        with self._lock:
            self._turn += 1
            buffers = tuple(self.held.buffers.values())
            count = plan_batch(buffers, max_messages=max_messages, max_bytes=max_bytes, turn=self._turn)
        return count > 0

    def waiting(self) -> bool:
        """Whether any received transfer is not planned."""
        return any(buffer.waiting for buffer in self.held.buffers.values())

    def has_enough(self, *, min_messages: int, max_bytes: int) -> bool:
        """Whether ``min_messages`` wait to be planned, or some do and waiting brings no more: the batch has reached
        half of the budget or its own bound in bytes, or a consumer gave up."""
        with self._lock:
            waiting = self.held.waiting
            full = self.held.bytes >= self.held.enough_bytes(max_bytes) or self.held.has_full_queue()
            return waiting >= min_messages or (
                waiting > 0 and (full or any(consumer.error is not None for consumer in self.consumers))
            )

    def wait_for_begin(self, connecting: float, *, max_messages: int | None, max_bytes: int) -> None:
        """Return when there is an error to raise, when all queues have delivered their messages, or with a full batch.

        With an interval trigger, the next call comes an interval later. ``connecting``: most seconds until all queues
        are subscribed; after that it takes a few seconds at most.
        """
        enough_bytes = self.held.enough_bytes(max_bytes)
        with self._lock:
            seen, since = self._received(), self._clock()
            until, subscribed = since + connecting, False
            while self.failure() is None and not self.held.stopping:
                now = self._clock()
                if not subscribed and all(
                    consumer.connected or consumer.error is not None for consumer in self.consumers
                ):
                    until, subscribed = now + BEGIN_SECONDS, True
                if self._received() != seen:
                    seen, since = self._received(), now
                full = self.held.waiting_bytes >= enough_bytes or self.held.has_full_queue()
                if full or all(consumer.caught_up or consumer.error is not None for consumer in self.consumers):
                    return
                if max_messages is not None and self.held.waiting >= max_messages:
                    return
                left = (min(until, since + GROWTH_SECONDS) if self.waiting() else until) - now
                if left <= 0:
                    return
                self._lock.wait(left)

    def wait_for_news(self, seconds: float, *, min_messages: int, max_bytes: int) -> None:
        """Return when there is enough to plan, or an error to raise, or after so many seconds."""
        deadline = self._clock() + seconds
        with self._lock:
            while not self.has_enough(min_messages=min_messages, max_bytes=max_bytes) and self.failure() is None:
                left = deadline - self._clock()
                if left <= 0:
                    return
                self._lock.wait(left)

    def wait_for_batch(self, *, max_messages: int | None, max_bytes: int) -> None:
        """AvailableNow: return when there is enough to plan, no message arrives for a while, or all is taken."""
        # Wait for a whole batch: receiving goes on while Spark works, and a batch costs some 0.1 s of processor time
        # whatever its size; with half batches a drain was 6 % slower. The buffer must have room for the next one, too.
        enough_bytes = self.held.enough_bytes(max_bytes)
        with self._lock:
            seen = self._received()
            since = begun = self._clock()
            while not self.all_taken() and not self.held.stopping:
                if self.held.waiting_bytes >= enough_bytes or self.held.has_full_queue():
                    return
                if max_messages is not None and self.held.waiting >= max_messages:
                    return
                now = self._clock()
                if self._received() != seen:
                    seen, since = self._received(), now
                if not self.waiting():
                    begun = now
                    self._lock.wait()
                    continue
                until = min(since + GROWTH_SECONDS, begun + TRICKLE_SECONDS)
                if now >= until:
                    return
                self.held.want(enough_bytes, max_messages)
                self._lock.wait(until - now)
                self.held.want(0)

    def all_taken(self) -> bool:
        """AvailableNow: whether every queue was read to its end, or failed."""
        return all(consumer.exhausted or consumer.error is not None for consumer in self.consumers)

    def finished(self) -> bool:
        """AvailableNow: whether all messages are received and planned. Also true while the query is being stopped."""
        return (self.all_taken() and not self.waiting()) or self.held.stopping

    def failure(self) -> Exception | None:
        """The error of a consumer that gave up and has no transfers left to plan."""
        for consumer in self.consumers:
            if consumer.error is not None and not consumer.buffer.waiting:
                return consumer.error
        return None

    def raise_failure(self) -> None:
        """Raise :meth:`failure`, if any."""
        failure = self.failure()
        if failure is not None:
            raise failure

    def report(self) -> dict[str, tuple[int, int | None, dict[str, object]]]:
        """Per queue: the received position, the backlog (messages in no batch yet) if known, and the counts."""
        found: dict[str, tuple[int, int | None, dict[str, object]]] = {}
        with self._lock:
            for consumer in self.consumers:
                buffer = consumer.buffer
                end = consumer.end_estimate
                backlog = None if end is None else max(end, buffer.received) - buffer.planned
                found[consumer.queue] = buffer.received, backlog, consumer.counters.report(buffer, self.held)
        return found

    def _received(self) -> int:
        return sum(buffer.received for buffer in self.held.buffers.values())
