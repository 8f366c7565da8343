"""The receiving side of one queue: a connection of its own, driven by one daemon thread, reconnected when it fails.

All calls to the client happen on that thread; other threads change what is held under the lock of :class:`Held` and
wake it. A failure or the back-pressure of one queue so stays with that queue.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from amqp_core.errors import AmqpError, NotFound, ResourceDeleted, ResourceLocked
from amqp_spark import crashpoints
from amqp_spark.backoff import pause_before
from amqp_spark.datasource import opening
from amqp_spark.datasource.ending import QUIET_SECONDS, Ending
from amqp_spark.datasource.planning import add_range

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqp_spark.datasource.broker import Block, Client, Connector, Subscription
    from amqp_spark.datasource.held import Held, LinkOptions
    from amqp_spark.datasource.planning import Settlement

_log = logging.getLogger(__name__)

MAX_CREDIT: Final = 16_384
"""Most transfers under way: a broker that counts uncompleted commands stops at 65,536 (Broker-J halts there)."""
MOST_RANGES: Final = 4096
"""Ranges of ids in one command: qpidd takes commands of one frame only, and a frame of 64 KiB holds twice as many."""
FIRST_GUESS_BYTES: Final = 16_384
"""Size assumed of a transfer before the first one came."""
SURVEY_SECONDS: Final = 10.0
"""Least time between two queries for the backlog: on qpidd each one scans the queue."""
IDLE_SECONDS: Final = 5.0
"""Longest wait for transfers; commands of other threads wake the wait."""
LOCK_RETRY_SECONDS: Final = 0.5
"""Between two attempts to make a new session ours."""
LOCKED_ATTEMPTS: Final = 5
"""How often an exclusive subscription is tried: a consumer that died may still be seen by the broker."""
LASTING_SECONDS: Final = 30.0
"""A session that lived so long, or settled something, was a success: attempts are counted from one again."""


def now() -> float:
    """Seconds that go on while this process, or the machine, is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Owner(Protocol):
    """What exactly-once adds to a link, on its thread; :class:`.owned.ownership.Ownership` does it."""

    def enter(self, client: Client) -> bool:
        """Make a new session ours; False when it cannot be yet: try again on another one."""

    def run(self, *, finish: bool) -> bool:
        """Do what was asked for since the last time; whether there was anything."""

    def left(self) -> None:
        """The session is over."""


class QueueLink:
    """One queue's connection, session and thread."""

    def __init__(
        self, queue: str, options: LinkOptions, held: Held, connector: Connector, owner: Owner | None = None
    ) -> None:
        self.queue = queue
        self.buffer = held.buffers[queue]
        self.error: Exception | None = None
        """Why this link gave up; set once, under the lock."""
        self.bounded = False
        """AvailableNow: take what was there at the start, then ``exhausted``."""
        self.exhausted = False
        self.connected = False
        self.settlements: deque[Settlement] = deque()
        """What the thread has to tell the broker; filled under the lock."""
        self.sync_wanted = 0
        self.sync_done = 0
        self.end_estimate: int | None = None
        """Position that the end of the queue had when the broker was last asked."""
        self.answered = float("-inf")
        """When (:func:`now`) what the broker has answered last was asked: this session was alive then."""
        self.heartbeat_s = 0.0
        """Of the connection: after two of them the broker gives up a silent client."""
        self._options = options
        self._held = held
        self._lock = held.changed
        self._connector = connector
        self._owner = owner
        self._clock = held.clock
        self._client: Client | None = None
        self._thread: threading.Thread | None = None
        self._wakes = 0
        self._largest = FIRST_GUESS_BYTES
        self._paused = False
        self._ending = Ending(queue, selector=options.selector is not None, clock=held.clock)
        self._last_survey = 0.0
        self._survey_call = 0.0
        self._served = False
        """Whether this incarnation got as far as its subscription."""
        self._settled = False
        """Whether this incarnation settled something."""
        self._confirmed = 0
        """Position up to which the broker has completed settlements; what was only sent may come again."""
        self._since = 0.0
        self._warned = False

    def start(self) -> None:
        """Start the thread; it connects."""
        self._thread = threading.Thread(target=self._run, name=f"amqp-receive-{self.queue}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Let the thread look at what was changed under the lock."""
        with self._lock:
            self._wakes += 1
            client = self._client
            self._lock.notify_all()
        if client is not None:
            client.wake()

    def join(self, timeout: float) -> bool:
        """Wait for the thread to end after ``Held.stopping`` was set; whether it did."""
        if self._thread is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # --- the thread

    def _run(self) -> None:
        attempt = 0
        while not self._held.stopping:
            try:
                self._serve()
            except AmqpError as error:
                attempt = 1 if self._lasted() else attempt + 1
                if not self._may_retry(error, attempt):
                    self._fail(error)
                    return
                delay = pause_before(attempt, self._options.max_delay)
                _log.warning(
                    "queue %r: %s; attempt %d of %d to connect again follows in %.1f s",
                    self.queue, error, attempt, self._options.max_attempts, delay,
                )  # fmt: skip
                self._end_incarnation(keep_waiting=not self._options.accept)
                self._wait(delay)
            except Exception as error:  # noqa: BLE001  whatever it is must reach the query, not die with the thread
                self._fail(error)
                return

    def _serve(self) -> None:
        self._served = self._settled = False
        client = self._open()
        if client is None:
            return
        try:
            if self.bounded:
                self._begin_ending(client)
            subscription = opening.subscribe(client, self.queue, self._options)
            self._served = True
            self._since = self._clock()
            _log.info("queue %r: receiving, incarnation %d", self.queue, self.buffer.incarnation)
            with self._lock:
                self.connected = True
                self._paused = False
                self._lock.notify_all()
            while not self._held.stopping:
                self._step(client, subscription)
            self._settle(client)
        finally:
            self._close(client)

    def _open(self) -> Client | None:
        """A client that may receive; None when the query ended before there was one."""
        while not self._held.stopping:
            asked = now()
            client = self._connector(self._options.connect)
            with self._lock:
                self._client = client
            entered = False
            try:
                info = opening.prepare(client, self.queue, self._options)
                if self._owner is None or self._owner.enter(client):
                    if self._owner is not None:  # whoever had the lock until now is nobody to be warned of
                        info = client.query_queue(self.queue)
                    self._warned = self._warned or opening.warn_of_others(self.queue, info)
                    self.answered = asked
                    self.heartbeat_s = client.heartbeat_s
                    entered = True
                    return client
            finally:
                if not entered:
                    self._close(client)
            self._wait(LOCK_RETRY_SECONDS)
        return None

    def _close(self, client: Client) -> None:
        with self._lock:
            self._client = None
            self.connected = False
            self.answered = float("-inf")
            self.exhausted = False  # what is not accepted now comes again
            self._lock.notify_all()
        client.close()

    def _step(self, client: Client, subscription: Subscription) -> None:
        wakes = self._wakes
        self._settle(client)
        self._survey(client)
        self._regulate(client, subscription)
        # A wake-up during one of the calls before may have ended a wait in there: it must not be lost.
        self._store(subscription.take_blocks(self._patience() if wakes == self._wakes else 0))
        if self.bounded and not self.exhausted:
            self._look_for_end(client, subscription)

    def _patience(self) -> float:
        return QUIET_SECONDS / 2 if self.bounded and not self.exhausted else IDLE_SECONDS

    def _settle(self, client: Client) -> None:
        """Tell the broker what Spark has processed. For a session that is gone there is nobody to tell."""
        with self._lock:
            settlements = list(self.settlements)
            self.settlements.clear()
            incarnation, accepted = self.buffer.incarnation, self.buffer.accepted
            wanted = self.sync_wanted
        accept: list[tuple[int, int]] = []
        reject: dict[str, list[tuple[int, int]]] = {}
        for settlement in settlements:
            if settlement.incarnation != incarnation:
                continue
            self._settled = True
            if not self._options.accept:
                continue
            accept.extend(settlement.accept)
            for ids, text in settlement.reject:
                add_range(reject.setdefault(text, []), *ids)
        for text, ranges in reject.items():
            for at in range(0, len(ranges), MOST_RANGES):
                client.reject(ranges[at : at + MOST_RANGES], text=text)
        if accept:
            crashpoints.reached(crashpoints.ACCEPT_UNSENT)
            for at in range(0, len(accept), MOST_RANGES):
                client.accept(accept[at : at + MOST_RANGES])
            crashpoints.reached(crashpoints.ACCEPT_SENT)
        asked = now()
        if self._owner is not None:
            if self._owner.run(finish=wanted != self.sync_done or self._held.stopping):
                self._settled = True
                self.answered = asked
            accepted = self.buffer.accepted
        if wanted != self.sync_done:
            asked = now()
            client.sync()
            self.answered = asked
            crashpoints.reached(crashpoints.ACCEPT_CONFIRMED)
            self._confirmed = accepted
            with self._lock:
                self.sync_done = wanted
                self._lock.notify_all()

    def _store(self, blocks: Sequence[Block]) -> None:
        if not blocks:
            return
        with self._lock:
            first = not self.buffer.waiting
            for block in blocks:
                self.buffer.append(block)
                self._largest = max(block.largest, self._largest // 2)
            crashpoints.reached(crashpoints.RECEIVED_UNPLANNED)
            if first or self._held.waiting_bytes >= self._held.wanted_bytes:
                self._lock.notify_all()
        self._ending.arrived()

    def _regulate(self, client: Client, subscription: Subscription) -> None:
        """Credit from the free part of the budget; at the bound the socket is not read (design: credit)."""
        with self._lock:
            held = self._held.bytes
            received = self.buffer.received
        free = self._held.budget_bytes - held
        paused = free <= 0
        if paused != self._paused:
            client.pause_reading(paused)
            self._paused = paused
        want = min(MAX_CREDIT, max(0, free) // len(self._held.buffers) // self._largest)
        if held == 0:
            want = max(want, 1)  # one message larger than the budget passes, alone
        if self.bounded:
            if self.exhausted:
                want = 0
            elif self._ending.target is not None:
                want = min(want, self._ending.target - received)
        credit = subscription.credit
        if credit < want and credit <= want // 2:
            subscription.grant(want - credit)

    def _survey(self, client: Client) -> None:
        """Ask for the backlog now and then, while somebody wants to know and the socket is read."""
        now = self._clock()
        if self._paused or now - self._last_survey < SURVEY_SECONDS or self._held.last_call <= self._survey_call:
            return
        self._last_survey = now
        self._survey_call = self._held.last_call
        self._ask_end(client)

    def _ask_end(self, client: Client) -> int | None:
        """Ask the broker, and return how many messages are there that this link does not hold; None if not known."""
        info = client.query_queue(self.queue)
        if info is None:
            # Broker-J says nothing to the consumers of a queue that is deleted: it just sends no more.
            raise ResourceDeleted(408, None, f"the queue {self.queue!r} was deleted under the stream", "queue.query")
        self._ending.alone = info.subscriber_count is not None and info.subscriber_count <= 1
        if info.message_count is None:
            return None
        with self._lock:
            held = self.buffer.held_by_session if client.counts_held_messages and self._options.accept else 0
            left = max(0, info.message_count - held)
            self.end_estimate = self.buffer.received + left
        return left

    # --- AvailableNow

    def _begin_ending(self, client: Client) -> None:
        info = client.query_queue(self.queue)
        there = info.message_count if info is not None and info.message_count is not None else 0
        with self._lock:
            confirmed = self._confirmed if self._owner is None else self.buffer.accepted
            target = self._ending.begin(there, received=self.buffer.received, confirmed=confirmed)
            if self._options.selector is None:
                self.end_estimate = target

    def _look_for_end(self, client: Client, subscription: Subscription) -> None:
        if self._ending.reached(self.buffer.received):
            self._exhaust()
            return
        if self._paused or subscription.credit == 0 or not self._ending.wants_flush():
            return
        subscription.flush()
        blocks = subscription.take_blocks(0)
        if blocks:
            self._store(blocks)
        elif self._ending.empty_round(lambda: self._ask_end(client)):
            self._exhaust()

    def _exhaust(self) -> None:
        with self._lock:
            self.exhausted = True
            self._lock.notify_all()

    # --- end of an incarnation

    def _lasted(self) -> bool:
        """Whether the incarnation that ended was of use; else a message that kills every session is tried for ever."""
        return self._settled or (self._served and self._clock() - self._since >= LASTING_SECONDS)

    def _may_retry(self, error: AmqpError, attempt: int) -> bool:
        if isinstance(error, ResourceLocked):
            return attempt <= min(LOCKED_ATTEMPTS, self._options.max_attempts)
        return error.retryable and attempt <= self._options.max_attempts

    def _wait(self, seconds: float) -> None:
        until = self._clock() + seconds
        with self._lock:
            while not self._held.stopping and (left := until - self._clock()) > 0:
                self._lock.wait(left)

    def _end_incarnation(self, *, keep_waiting: bool) -> None:
        if self._owner is not None:
            self._owner.left()
        with self._lock:
            self.buffer.new_incarnation(keep_waiting=keep_waiting)
            self.settlements.clear()
            self._lock.notify_all()

    def _fail(self, error: Exception) -> None:
        # Of a queue that is gone nothing comes a second time: what was received is still given to Spark.
        gone = self._served and isinstance(error, (ResourceDeleted, NotFound))
        self._end_incarnation(keep_waiting=(gone and self._owner is None) or not self._options.accept)
        error.add_note(f"while receiving from queue {self.queue!r}")
        with self._lock:
            self.error = error
            self.sync_done = self.sync_wanted
            self._lock.notify_all()
