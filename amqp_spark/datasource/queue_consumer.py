"""The receiving side of one queue: a separate connection, driven by one daemon thread, reconnected when it fails.

All calls to the client happen on that thread. Other threads change the buffers under the lock of
:class:`ReceiveBuffer` and wake it. A failure or back-pressure of one queue does not affect the other queues.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from amqp_core.errors import AmqpError, NotFound, ResourceDeleted
from amqp_spark import crashpoints
from amqp_spark.datasource import consumer_setup
from amqp_spark.datasource.available_now import AvailableNow
from amqp_spark.datasource.consumer_setup import Retries
from amqp_spark.datasource.consumer_watch import ConsumerWatch, DeliveryCountWatch
from amqp_spark.datasource.counters import QueueCounters
from amqp_spark.datasource.credit import CreditFlowControl
from amqp_spark.datasource.dense_flow import DenseFlow
from amqp_spark.datasource.drain_detector import QUIET_SECONDS
from amqp_spark.datasource.incarnation import Incarnation
from amqp_spark.datasource.settling import Settler
from amqp_spark.datasource.unsettled import USUAL_READ_BYTES, UnsettledFlowControl, read_bytes
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import ConsumerStalled, OffsetError
from amqp_spark.host_order import HostOrder
from amqp_spark.offsets import is_other_protocol
from amqp_spark.retry import LOCK_RETRY_SECONDS
from amqp_spark.timeouts import accept_timeout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqp_core.address import ConnectOptions
    from amqp_core.api import Block, Client, QueueInfo, Subscription
    from amqp_spark.connect import Connector
    from amqp_spark.datasource.flow_control import FlowControl
    from amqp_spark.datasource.owner import Owner
    from amqp_spark.datasource.receive_buffer import ReceiveBuffer, Settlement
    from amqp_spark.options import SourceOptions

_log = logging.getLogger(__name__)

BATCHES_HELD: Final = 2
"""A session without credit holds the messages of so many batches of ``maxMessagesPerTrigger``: one is processed, and
the next one waits."""


def now() -> float:
    """Seconds of a clock that also counts while this process, or the machine, is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class QueueConsumer:
    """One queue's connection, session and thread."""

    expected_protocol: str | None = None
    """That in the checkpoint, which the first session must have; set before :meth:`start`."""

    def __init__(
        self, queue: str, options: SourceOptions, held: ReceiveBuffer, connector: Connector, owner: Owner | None = None
    ) -> None:
        self.queue = queue
        self.buffer = held.buffers[queue]
        self.counters = QueueCounters()
        self.error: Exception | None = None
        """The error for which this consumer gave up; set once, under the lock."""
        self.connected = False
        self.settlements: deque[Settlement] = deque()
        """Settlements that the thread has to send; filled under the lock."""
        self.sync_wanted = self.sync_done = 0
        self.end_estimate: int | None = None
        """Position of the end of the queue when the broker was last asked."""
        self.answered = float("-inf")
        """Time (:func:`now`) of the last request that the broker has answered: this session was alive then."""
        self.heartbeat_s = 0.0
        """Heartbeat interval of the connection: after two of them the broker gives up a silent client."""
        self.has_credit = True
        """Whether the protocol of the session has credit; this decides on the kind of ``flow``."""
        self.flow: FlowControl = CreditFlowControl(queue, held)
        self._options = options
        self._held = held
        self._lock = held.changed
        self._connector = connector
        self._owner = owner
        self._clock = held.clock
        self._client: Client | None = None
        self._hosts = HostOrder()
        self._thread = threading.Thread(target=self._run, name=f"amqp-receive-{queue}", daemon=True)
        self._wakes = 0
        self._protocol = "0-10"
        self._available_now = AvailableNow(self, options, held, connector)
        self._looks_deleted = self._is_counted = False
        """Whether the queue may be gone, and whether the broker has counted this consumer of it."""
        self._settler = Settler(self.counters, accepts=options.accepts)
        self._others: int | None = None
        """Consumers that the queue had before the first incarnation."""
        self._subscribed = False
        """Whether the broker may know of a consumer of an earlier incarnation."""
        self._life = Incarnation()
        self._retries = Retries(queue, options, held.clock)
        self._watch, self._counts = ConsumerWatch(queue, held.clock), DeliveryCountWatch(queue, held.clock)
        self._closed_in_order = self._was_lost = False
        """Whether the broker has answered when the session before was closed, so that it keeps nothing of that one; and
        whether it may keep one, for which no time is set yet."""
        self._keeps_until = float("-inf")
        """Until when the broker may keep lost sessions."""
        self._dense = DenseFlow(held.clock)
        self._dying_s = 0.0
        """Seconds for which the broker may keep a lost session of this consumer."""
        self._confirmed = 0
        """Position up to which the broker has completed settlements; transfers beyond it may be redelivered."""

        held.wake[queue] = self.wake

    @property
    def beside_options(self) -> ConnectOptions:
        """Options for another connection to the host of this one: another host may be another broker. Any thread."""
        return self._hosts.only_current(self._options.connect_options())

    @property
    def caught_up(self) -> bool:
        """Whether it is subscribed and has received as many messages as the broker counted before."""
        return self.connected and self.buffer.received - self._life.begun_at >= self._life.there

    @property
    def exhausted(self) -> bool:
        """AvailableNow: whether all messages that were there at the start are received."""
        return self._available_now.exhausted

    def start(self, *, bounded: bool = False) -> None:
        """Start the thread; it connects. ``bounded``: receive only the messages that are there now (AvailableNow)."""
        self._available_now.bounded = bounded
        self._thread.start()

    def wake(self) -> None:
        """Wake the thread so that it handles changes made under the lock."""
        with self._lock:
            self._wakes += 1
            client = self._client
            self._lock.notify_all()
        if client is not None:
            client.wake()

    @property
    def sync_silence_timeout_s(self) -> float:
        """Seconds that the broker may need for the accepts that it has not confirmed."""
        return accept_timeout(self.buffer.accepted - self._confirmed)

    def surveyed(self, info: QueueInfo | None, *, counts_held: bool) -> None:
        """Record the answer to a queue query on another connection; ``None``: there is no such queue."""
        if info is None:
            # it may be another broker, after a redirection, so this session asks again
            self._looks_deleted = True
            self.wake()
            return
        # behind its end RabbitMQ counts each message as a consumer that the session got alone (Client.pass_barrier)
        if self._owner is not None and self.connected and not self._available_now.ending:
            self._owner.surveyed(info.subscriber_count)
        if self.connected and self._lacks_us(info, counts_held=counts_held):
            self._looks_deleted = True
            self.wake()
        if info.message_count is not None:
            with self._lock:
                self.estimate(info.message_count, counts_held=counts_held)

    def _lacks_us(self, info: QueueInfo, *, counts_held: bool) -> bool:
        """Whether the queue has no consumer, although it had this one: it was deleted and made again.

        Broker-J says nothing then, and counts what consumers hold; RabbitMQ says so, and counts none now and then.
        """
        self._is_counted = self._is_counted or bool(info.subscriber_count)
        return counts_held and self._is_counted and info.subscriber_count == 0 and not self._available_now.ending

    def join(self, timeout: float) -> bool:
        """Wait for the thread to end after ``ReceiveBuffer.stopping`` was set; return whether it ended."""
        if self._thread.ident is None:  # never started
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # --- the thread

    def _run(self) -> None:
        while not self._held.stopping:
            try:
                self._serve()
            except AmqpError as error:
                if not isinstance(error, ConsumerStalled):
                    self._hosts.lost()
                now = self._clock()
                worked = self._life.worked(error, received=self.buffer.received, now=now)
                delay = self._retries.pause_after(
                    error,
                    worked=worked,
                    lasted=self._life.lasted(now),
                    dying_s=self._dying_s,
                    restarts=not self.has_credit and not self._life.served,
                )
                if delay is None:
                    self._fail(error)
                    return
                in_order = isinstance(error, ConsumerStalled) and self._closed_in_order
                self._was_lost = self._was_lost or (self._subscribed and not in_order)
                self._end_incarnation(keep_waiting=not self._options.accepts)
                self._wait(delay)
            except Exception as error:  # noqa: BLE001  every error must reach the query
                self._fail(error)
                return

    def _serve(self) -> None:
        self._life = Incarnation()
        self.flow.before_session(self._waits_for_broker)
        client = self._open()
        if client is None:
            return
        try:
            if self._available_now.bounded:
                self._note_came_again()  # in the session before
                confirmed = self._confirmed if self._owner is None else None
                self._available_now.begin(client, confirmed=confirmed, lost_for=self._kept_seconds())
            others, self._subscribed = None if self._subscribed else self._others, True
            subscription = self._subscribe(client, others)
            self._life.served = True
            self._retries.subscribed()
            self._life.since = self._clock()
            self._life.begun_at = self.buffer.received
            incarnation, moved = self.buffer.incarnation, self._hosts.moved()
            level = logging.WARNING if moved else logging.INFO
            text = "queue %r: receiving from %s, incarnation %d%s"
            _log.log(level, text, self.queue, client.peer, incarnation, moved)
            self.flow.restart()
            self._watch.restart()
            self._counts.restart()
            with self._lock:
                self.connected = True
                self._lock.notify_all()
            try:
                while not self._held.stopping:
                    self._step(client, subscription)
                    if self.flow.may_raise_limit() and not (self._available_now.ending or self._is_in_doubt()):
                        subscription = self._subscribe_again(client, subscription)
            except ResourceDeleted as error:
                consumer_setup.raise_if_cancelled(client, self.queue, error)
                raise
            self._settle(client)
        finally:
            self._close(client)

    def _kept_seconds(self) -> float:
        """Seconds from now on for which the broker may keep what lost sessions held: not only the one before."""
        if self._was_lost:
            self._was_lost, self._keeps_until = False, self._clock() + self._dying_s
        return max(0.0, self._keeps_until - self._clock())

    def _subscribe(self, client: Client, others: int | None = None) -> Subscription:
        at_most = _least(self._available_now.most_unsettled(self._life.there), self._most_held)
        if self._owner is not None:
            self.flow.expect(*self._owner.owned)
        # Messages in doubt are withheld until others have come behind them, however many that takes.
        most = self.flow.most_unsettled(at_most, looks=not self._is_in_doubt())
        if self._owner is not None:
            most = self._owner.most_unsettled(most)
        return consumer_setup.subscribe(client, self.queue, self._options, max_unsettled=most, others=others)

    @property
    def _most_held(self) -> int | None:
        """Most messages that a session holds without credit, where small batches may take long; None: no bound.

        Each session that the broker ends meanwhile returns them, and a queue drops what it gets back too often. With
        exactly-once there is no bound: while the queue has messages that no session holds, the barrier of each batch
        returns one of them, which then comes out of its order.
        """
        most = self._options.max_messages_per_trigger
        return None if most is None or self._owner is not None else BATCHES_HELD * most

    def _subscribe_again(self, client: Client, subscription: Subscription) -> Subscription:
        """Replace a subscription by one with another limit. What has arrived stays unsettled, and is settled later."""
        self.flow.announce(subscription)
        subscription.cancel()
        if subscription.overflowed:  # only another session gets what was dropped
            return subscription
        self.store(subscription.take_arrived())
        return self._subscribe(client)

    def _open(self) -> Client | None:
        """Return a client that may receive; None if the query ended before."""
        is_missing = False
        while not self._held.stopping:
            asked = now()
            client = self._hosts.connect(self._connector, self._options.connect_options())
            with self._lock:
                self._client = client
            self._dying_s = consumer_setup.dying_seconds(client)
            entered = False
            try:
                self._check_protocol(client)
                info = consumer_setup.prepare(client, self.queue, self._options, is_missing=is_missing)
                if self._owner is None or self._owner.enter(client, declared=info is None):
                    if self._owner is not None:  # do not warn of the previous holder of the lock
                        info = client.query_queue(self.queue)
                    self._choose_flow(client)
                    if not self._subscribed:  # later the broker may still count the previous session
                        self._others = None if info is None else info.subscriber_count
                        if self.has_credit or not self._options.exclusive:
                            consumer_setup.warn_of_others(self.queue, info)
                    self._life.there = 0 if info is None else info.message_count or 0
                    self.answered = asked
                    self.heartbeat_s = self._settler.heartbeat_s = client.heartbeat_s
                    if info is not None:
                        self.surveyed(info, counts_held=client.capabilities.counts_held_messages)
                    entered = True
                    return client
            except consumer_setup.AskedInVain as error:
                _log.info(
                    "queue %r: the broker answers by closing the connection, so it is declared: %s", self.queue, error
                )
                is_missing = True
            finally:
                if not entered:
                    self._close(client)
            self._wait(LOCK_RETRY_SECONDS)
        return None

    def _check_protocol(self, client: Client) -> None:
        """Refuse a checkpoint of the other protocol. Only on the first session: with ``auto`` another host of the list
        may speak another one."""
        found = self.expected_protocol
        if found is not None and is_other_protocol(found, client.protocol):
            raise OffsetError(
                SparkCondition.CHECKPOINT_OF_OTHER_PROTOCOL(queue=self.queue, found=found, protocol=client.protocol)
            )
        self.expected_protocol = None

    def _choose_flow(self, client: Client) -> None:
        """Take the kind of flow control that the protocol has; it keeps what earlier sessions have learned."""
        self._protocol = client.protocol
        credit = client.capabilities.credit
        nbytes = read_bytes(len(self._held.buffers), self._held.budget_bytes)
        # Where credit bounds what may come, many queues need no smaller reads.
        client.read_at_most(max(nbytes, USUAL_READ_BYTES) if credit else nbytes)
        if credit == self.has_credit:
            return
        self.has_credit = credit
        if credit:
            self.flow = CreditFlowControl(self.queue, self._held)
        else:
            self.flow = UnsettledFlowControl(
                self.queue,
                self._held,
                settles=self._options.accepts,
                owns=self._owner is not None,
                dropped=None if self._owner is None else self._owner.overlooked,
            )

    def _close(self, client: Client) -> None:
        with self._lock:
            self._client = None
            self._held.awaited.pop(self.queue, None)
            self.connected = False
            self.answered = float("-inf")
            self._available_now.exhausted = False  # messages that are not accepted now are redelivered
            self._lock.notify_all()
        self._closed_in_order = client.close()

    def _step(self, client: Client, subscription: Subscription) -> None:
        wakes = self._wakes
        if self._waits_for_broker() and not self._is_in_doubt():
            self.flow.announce(subscription)
        self._settle(client)
        if self._looks_deleted:
            self._looks_deleted = False
            self.ask_end(client)
        if subscription.overflowed and self.flow.may_begin_anew():
            raise ConsumerStalled(SparkCondition.BUFFER_OVERFLOWED(queue=self.queue))
        self.store(subscription.take_arrived())  # these bytes count when credit is granted
        left = 0 if self._owner is not None and self._owner.withheld else self._available_now.left_to_take()
        self.flow.regulate(client, subscription, left=left, idles=not self._available_now.bounded)
        self.counters.credit = subscription.credit
        self._life.asked = True
        # A wake-up during one of the previous calls may have ended a wait inside it: it must not be lost.
        timeout = self._take_timeout() if wakes == self._wakes else 0
        blocks = subscription.take_blocks(timeout, begun=True)
        self.store(blocks)
        if blocks and subscription.credit > sum(len(block.ends) for block in blocks):  # else renew it first
            self._let_gather(blocks, wakes)
        if self._is_in_doubt():
            return
        if self._available_now.is_looking:
            stalled = self._available_now.look_for_end(client, subscription)
            if stalled and self._watch.may_help(stalled, held=self._unsettled()):
                raise ConsumerStalled(SparkCondition.CONSUMER_STALLED(queue=self.queue, count=stalled))
        elif not self.has_credit and not self.exhausted:
            self._look_for_stall(client)

    def _let_gather(self, blocks: Sequence[Block], wakes: int) -> None:
        """Wait a moment before the next round if messages come densely, unless a request of another thread has come
        since there were so many ``wakes``."""
        pause = self._dense.pause_after(sum(len(block.frames) for block in blocks))
        if pause:
            with self._lock:
                if wakes == self._wakes and not self._held.stopping:
                    self._lock.wait(pause)

    def _look_for_stall(self, client: Client) -> None:
        if not self.flow.has_room() or client.under_way_bytes:
            self._watch.restart()
        elif self._watch.is_due() and not client.capabilities.counts_held_messages:
            left = self.ask_end(client)
            if self._watch.is_stalled(left, held=self._unsettled()):
                raise ConsumerStalled(SparkCondition.CONSUMER_STALLED(queue=self.queue, count=left))

    def _unsettled(self) -> int:
        """Number of messages that the broker holds for this session."""
        with self._lock:
            return self.buffer.held_by_session if self._options.accepts else 0

    def _waits_for_broker(self) -> bool:
        """Whether a request of another thread needs an answer of the broker."""
        with self._lock:
            return self._is_asked() or self._looks_deleted or self.sync_wanted != self.sync_done

    def _is_asked(self) -> bool:
        return self._owner is not None and self._owner.is_asked()

    def _is_in_doubt(self) -> bool:
        return self._owner is not None and self._owner.in_doubt

    def _take_timeout(self) -> float:
        if self._available_now.is_looking or self._is_in_doubt():
            return QUIET_SECONDS / 2
        return self.flow.take_timeout()

    def _note_came_again(self) -> None:
        if self._owner is not None:
            self._available_now.came_again(*self._owner.take_again())

    def _settle(self, client: Client) -> None:
        """Send the settlements of transfers that Spark has processed; drop those of a session that is gone."""
        with self._lock:
            settlements = list(self.settlements)
            self.settlements.clear()
            incarnation, accepted = self.buffer.incarnation, self.buffer.accepted
            wanted = self.sync_wanted
        if self._settler.settle(client, settlements, incarnation):
            self._life.settled = True
        asked = now()
        if self._owner is not None:
            if self._owner.run(finish=wanted != self.sync_done or self._held.stopping):
                self._life.settled = True
                self.answered = asked
            self._note_came_again()
            accepted = self.buffer.accepted
        if wanted != self.sync_done:
            asked = now()
            client.sync(silence_timeout_s=self.sync_silence_timeout_s)
            self.answered = asked
            crashpoints.reached(crashpoints.ACCEPT_CONFIRMED)
            self._confirmed = accepted
            with self._lock:
                self.sync_done = wanted
                self._lock.notify_all()

    def store(self, blocks: Sequence[Block]) -> None:
        """Put transfers that have arrived into the buffer."""
        if blocks and self._owner is not None:
            blocks = self._owner.sift(blocks)
        if not blocks:
            return
        again = self._client is not None and self._client.first_is_redelivered(blocks[0])
        if self._client is not None and self._owner is None:  # with exactly-once another session follows
            self._available_now.look_for_returned(self._client, blocks)
        with self._lock:
            first = not self.buffer.waiting
            for block in blocks:
                self.buffer.append(block, self._protocol)
                self.flow.arrived(block)
            self.counters.arrived(blocks, self.buffer.received, self._clock(), again=again)
            self._available_now.cut_off()
            crashpoints.reached(crashpoints.RECEIVED_UNPLANNED)
            if first or self._held.is_enough():
                self._lock.notify_all()
        self._available_now.arrived()
        self._watch.arrived()
        if self._client is not None:
            self._counts.arrived(self._client, blocks[0])

    def ask_end(self, client: Client, subscription: Subscription | None = None) -> int | None:
        """Ask the broker for the number of messages that this consumer does not hold; None if not known.

        ``subscription``: what has arrived before the answer is stored, so that it counts as received.
        """
        info = client.query_queue(self.queue)
        if subscription is not None:
            self.store(subscription.take_arrived())
        if info is None or self._lacks_us(info, counts_held=client.capabilities.counts_held_messages):
            # Broker-J does not notify the consumers of a deleted queue: it just stops sending.
            raise ResourceDeleted(408, None, SparkCondition.QUEUE_DELETED(queue=self.queue), "queue.query")
        self._available_now.surveyed(info.subscriber_count)
        if info.message_count is None:
            return None
        with self._lock:
            return self.estimate(info.message_count, counts_held=client.capabilities.counts_held_messages)

    def estimate(self, message_count: int, *, counts_held: bool) -> int:
        """Record the end position of the queue; return the number of messages that this consumer does not hold."""
        held = self.buffer.held_by_session if counts_held and self._options.accepts else 0
        left = max(0, message_count - held)
        self.end_estimate = self.buffer.received + left
        return left

    # --- end of an incarnation

    def _wait(self, seconds: float) -> None:
        until = self._clock() + seconds
        with self._lock:
            while not self._held.stopping and (left := until - self._clock()) > 0:
                self._lock.wait(left)

    def _end_incarnation(self, *, keep_waiting: bool) -> None:
        if self._owner is not None:
            self._owner.left()
        self.flow.end()
        with self._lock:
            if self._life.served:
                self.counters.session_ended(self.buffer, repeats=not keep_waiting and self._owner is None)
            self.buffer.new_incarnation(keep_waiting=keep_waiting)
            self.settlements.clear()
            self._lock.notify_all()

    def _fail(self, error: Exception) -> None:
        # A deleted queue redelivers nothing: the transfers already received are still given to Spark.
        gone = self._life.served and isinstance(error, (ResourceDeleted, NotFound))
        self._end_incarnation(keep_waiting=(gone and self._owner is None) or not self._options.accepts)
        error.add_note(f"while receiving from queue {self.queue!r}")
        with self._lock:
            self.error = error
            self.sync_done = self.sync_wanted
            self._lock.notify_all()


def _least(*bounds: int | None) -> int | None:
    """The least of those bounds that there are."""
    return min((each for each in bounds if each is not None), default=None)
