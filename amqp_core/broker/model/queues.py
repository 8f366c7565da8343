"""A queue: the messages that wait, the number that is held, and the consumer that gets the next one.

While messages wait, their head has been offered to every consumer that could take it: it is offered again only when
the head changes or a consumer says that it has room (``Queue.ready``). So a publish to a queue that nobody empties
does not ask its consumers.

Consumers that browse or select walk through the messages on their own, and are asked first. A queue without any of
them does nothing for them. Where selectors take long, the walks go on in the next turn (see ``Effort``), and what they
have not looked at has to wait for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_core.broker.model.backlog import LOWEST, Backlog
from amqp_core.broker.model.consumers import Consumer, Receiver, Turns
from amqp_core.broker.model.dead_letters import ALTERNATE
from amqp_core.broker.model.entries import GONE, HELD, READY, Entry
from amqp_core.broker.model.expiry import Expiries
from amqp_core.broker.model.limits import Limits
from amqp_core.broker.model.memory import ENTRY_BYTES
from amqp_core.broker.model.walks import Walks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from amqp_core.broker.model.arguments import QueueArguments
    from amqp_core.broker.model.clock import LatestTime
    from amqp_core.broker.model.dead_letters import DeadLetters
    from amqp_core.broker.model.effort import Effort
    from amqp_core.broker.model.exchanges import Binding
    from amqp_core.broker.model.journal import Journal
    from amqp_core.broker.model.memory import Memory
    from amqp_core.broker.model.messages import DeathReason, Message

__all__ = ["Consumer", "Entry", "Queue", "Receiver"]


class Queue:
    """A queue of a virtual host, which makes and changes it; for everyone else: properties and ``ready``.

    Args:
        exclusive: its owner if it is exclusive, else None.
        settings: what ``arguments`` mean.
        clock: gives the time to calls that have none.
        memory: where its messages are counted.
        dead_letters: takes the messages that die here. Who calls a method with ``now`` calls ``drain`` afterwards.
        effort: what its consumers share with those of other queues.
        on_timer: called when something in the queue gets an end by time.
        outlives_owner: an exclusive queue stays when its owner is gone.
    """

    __slots__ = (
        "_backlog",
        "_clock",
        "_dead_letters",
        "_expiries",
        "_limits",
        "_on_timer",
        "_queued",
        "_sequence",
        "_special",
        "_turns",
        "_unused_since",
        "_walks",
        "arguments",
        "auto_delete",
        "choked",
        "consumer_count",
        "deleted",
        "durable",
        "exclusive",
        "incoming",
        "journal",
        "name",
        "outlives_owner",
        "passes_on",
        "settings",
        "unsettled_count",
    )

    def __init__(
        self,
        name: str,
        settings: QueueArguments,
        *,
        durable: bool,
        exclusive: object | None,
        auto_delete: bool,
        arguments: Mapping[str, object],
        clock: LatestTime,
        memory: Memory,
        dead_letters: DeadLetters,
        effort: Effort,
        on_timer: Callable[[Queue], None],
        outlives_owner: bool = False,
    ) -> None:
        self.name = name
        self.durable = durable
        self.exclusive = exclusive
        self.auto_delete = auto_delete
        self.outlives_owner = outlives_owner
        self.journal: Journal | None = None
        """Notes the persistent messages of a queue that is kept."""
        self.arguments = dict(arguments)
        self.settings = settings
        self.incoming: dict[Binding, None] = {}
        """Bindings to this queue."""
        self.unsettled_count = 0
        """Messages that are delivered and not settled."""
        self.consumer_count = 0
        self.deleted = False
        self.choked = False
        """Whether it was full, and is one whose publishers are stopped: see ``holds``."""
        self._clock = clock
        self._queued = memory.queued
        self._dead_letters = dead_letters
        self.passes_on = ALTERNATE in self.arguments
        """Whether what is in it when it is deleted goes to its dead-letter exchange."""
        self._on_timer = on_timer
        self._unused_since = clock.now
        self._sequence = 0
        lowest = arguments.get(LOWEST)
        self._backlog = Backlog(settings.max_priority or 0, lowest if isinstance(lowest, int) else 0)
        self._turns = Turns(single=settings.single_active_consumer)
        self._walks = Walks(self._backlog, self._take_out, effort)
        self._expiries = Expiries()
        self._limits = limits = Limits(settings)
        self._special = limits.drops or limits.throttles or settings.max_priority is not None
        """Whether a message that has been put has consequences for others."""

    def __repr__(self) -> str:
        return f"<queue {self.name!r}: {self.message_count} ready, {self.unsettled_count} unsettled>"

    @property
    def is_kept(self) -> bool:
        """Whether the queue outlives the process, if there is a store."""
        return self.durable and (self.exclusive is None or self.outlives_owner)

    @property
    def message_count(self) -> int:
        """Messages that wait for a consumer."""
        return self._backlog.count

    @property
    def holds(self) -> bool:
        """Whether its publishers have to wait (``x-overflow=flow-control``)."""
        backlog = self._backlog
        if self.choked and (self.deleted or self._limits.is_relieved(backlog.count, backlog.nbytes)):
            self.choked = False
        return self.choked

    @property
    def is_critical(self) -> bool:
        """Whether it is far longer than it may be."""
        return self._limits.is_critical(self._backlog.count, self._backlog.nbytes)

    @property
    def reason(self) -> str:
        """Why publishers have to wait, for people."""
        return f"queue '{self.name}' is full"

    @property
    def consumers(self) -> list[Consumer]:
        """Its consumers; those that browse or select are last."""
        return [*self._turns, *(walk.consumer for walk in self._walks.places)]

    @property
    def takers(self) -> list[Consumer]:
        """Consumers that would take a new message at once if they have room for it and want it."""
        searching = [walk.consumer for walk in self._walks.places if not walk.consumer.browse]
        return searching if self._backlog.count else [*self._turns.active, *searching]

    @property
    def is_searched(self) -> bool:
        """Whether selectors have not looked at all messages yet: consumers may get more without being ``ready``."""
        return self._walks.is_unfinished

    def has_room_for(self, messages: Sequence[Message]) -> bool:
        """Whether the queue would take all of them."""
        nbytes = sum(len(message.body) for message in messages)
        return not self._limits.rejects or not self._limits.is_over(
            self._backlog.count + len(messages), self._backlog.nbytes + nbytes
        )

    def ready(self, now: float | None = None) -> None:
        """A receiver has room again: deliver what is possible. Without ``now``: at the latest time known."""
        now = self._clock.advance(now)
        self._offer(now)
        self._dead_letters.drain(now)

    def put(self, message: Message, now: float) -> bool:
        """Deliver a new message or let it wait; False: the queue is full and refuses it."""
        settings = self.settings
        if self._limits.rejects and self._has_no_room(message, now):
            if settings.overflow == "reject-publish-dlx":
                self._dead_letters.add(message, self, "maxlen", now)
            return False
        self.admit(message, now)
        return True

    def admit(self, message: Message, now: float) -> None:
        """Deliver a new message or let it wait, even if the queue is full."""
        settings = self.settings
        expires = None
        if settings.ttl is not None or message.ttl_ms is not None:
            expires = now + _smaller(settings.ttl, message.ttl_ms)
        self._sequence = sequence = self._sequence + 1
        entry = Entry(message, self, sequence, expires)
        queued = self._queued
        if message.pool is not queued:
            queued.take(message)
        queued.nbytes += ENTRY_BYTES
        if self.journal is not None and message.persistent:
            self.journal.message_added(entry)
        if not self._backlog.count and not self._walks.places:
            consumer = self._turns.next_with_room(message.size)
            if consumer is not None:
                self._hand_over(entry, consumer)
                return
        self._backlog.append(entry)
        if expires is not None or self._special or self._walks.places:
            self._after_append(entry, now)

    def restore(
        self, message: Message, *, sequence: int, expires: float | None, returns: int, record: int, held: bool
    ) -> Entry:
        """Put back a message that has outlived a process; the caller does so in the order of their ``sequence``.

        Args:
            held: a prepared branch holds it.
        """
        entry = Entry(message, self, sequence, expires)
        entry.returns, entry.record, entry.restored = returns, record, True
        self._queued.take(message)
        self._queued.nbytes += ENTRY_BYTES
        self._sequence = sequence
        if held:
            self._hold(entry)
            return entry
        self._backlog.append(entry)
        if expires is not None:
            self._expiries.add(entry, self._backlog.count)
            self._on_timer(self)
        return entry

    def take(self, now: float) -> Entry | None:
        """Remove the next message and hold it."""
        self._unused_since = now
        self._drop_expired_head(now)
        if not self._backlog.count:
            return None
        entry = self._backlog.pop()
        self._hold(entry)
        self._offer(now)
        return entry

    def acquire(self, entry: Entry, now: float) -> bool:
        """Hold a message that a browsing consumer has got; False: it waits no more."""
        if entry.state != READY or (entry.expires is not None and entry.expires <= now):
            return False
        self._backlog.remove(entry)
        self._hold(entry)
        self._offer(now)
        return True

    def settle(self, entry: Entry) -> bool:
        """A held message leaves the queue for good; False: it is not held."""
        if entry.state != HELD:
            return False
        self._end(entry)
        self.unsettled_count -= 1
        if self.deleted and not self.unsettled_count and self.journal is not None:
            self.journal.queue_left(self)
        return True

    def reject(self, entry: Entry, now: float) -> None:
        """A held message leaves the queue as a dead letter."""
        if not self.settle(entry):
            return
        self._bury(entry, now)
        entry.forget()

    def take_back(self, entries: Iterable[Entry], now: float, *, delivered: bool) -> None:
        """Held messages come back to their places. ``delivered``: a consumer may have seen them."""
        if self.deleted:
            for entry in sorted(entries, key=_sequence):
                self.reject(entry, now)
            return
        limit = self.settings.delivery_limit
        over: list[Entry] = []
        # The last first: each is then put before what is there, which is the fast case.
        for entry in sorted(entries, key=_sequence, reverse=True):
            if entry.state != HELD:
                continue
            self.unsettled_count -= 1
            entry.returns += delivered
            if delivered and entry.record and self.journal is not None:
                self.journal.message_returned(entry)
            if limit is not None and entry.returns > limit:
                self._end(entry)
                over.append(entry)
                continue
            entry.state = READY
            self._backlog.insert(entry)
            if entry.expires is not None:
                self._expiries.add(entry, self._backlog.count)
                self._on_timer(self)
            self._walks.came_back(entry)
        for entry in reversed(over):  # dead letters keep the order of their queue
            self._dead_letters.add(entry.message, self, "delivery_limit", now)
            entry.forget()
        self._offer(now)
        self.trim(now)

    def purge(self) -> int:
        """Drop what waits; return how many there were."""
        count = self._backlog.count
        for entry in self._backlog:
            self._end(entry)
            entry.forget()
        self._backlog.clear()
        return count

    def attach(self, consumer: Consumer) -> None:
        """Add a consumer. Nothing is delivered before ``ready``."""
        if consumer.walks:
            self._walks.add(consumer)
        else:
            self._turns.add(consumer)
        self.consumer_count += 1

    def detach(self, consumer: Consumer) -> None:
        """Remove a consumer that is there; the next may be active for it."""
        consumer.active = False
        if consumer.walks:
            self._walks.remove(consumer)
        else:
            self._turns.remove(consumer)
        self.consumer_count -= 1
        self.touch(self._clock.now)

    def touch(self, now: float) -> None:
        """The queue is in use now (``x-expires``)."""
        self._unused_since = max(now, self._unused_since)
        if self.settings.expires is not None and not self.deleted:
            self._on_timer(self)

    def delete(self) -> int:
        """The queue is gone: tell its consumers. Return how many messages waited.

        The caller calls ``drain`` of the dead letters afterwards.
        """
        self.deleted = True
        for entry in self._backlog:
            self._bury(entry, self._clock.now)
        count = self.purge()
        for consumer in self.consumers:
            self.detach(consumer)
            consumer.receiver.cancelled()
        return count

    def expire(self, now: float) -> None:
        """Give up the messages whose time is over."""
        due = self._expiries.due(now)
        if not due:
            return
        for entry in due:
            self._die(entry, "expired", now)
            self._backlog.drop(entry)
            entry.forget()
        self._offer(now)

    def unused_until(self) -> float | None:
        """When the queue is to be deleted unless somebody uses it, by ``x-expires``."""
        if self.settings.expires is None or self.consumer_count:
            return None
        return self._unused_since + self.settings.expires

    def next_expiry(self) -> float | None:
        """When the next message, or the queue, expires."""
        times = [time for time in (self._expiries.next(), self.unused_until()) if time is not None]
        return min(times, default=None)

    def _offer(self, now: float) -> None:
        """Deliver what waits while a consumer has room."""
        walks = self._walks
        if walks.places:
            walks.go_on(now)
        while self._dispatch(now) and walks.places:
            walks.go_on(now)  # one may have waited for room for what has gone now

    def _dispatch(self, now: float) -> bool:
        """Deliver from the head while a consumer has room; return whether anything has gone."""
        backlog, turns = self._backlog, self._turns
        gone = False
        awaited = self._walks.place() if turns else None  # no one else would wait, and it takes time with many walks
        while backlog.count:
            entry = backlog.head()
            if awaited is not None and backlog.place(entry) >= awaited:
                break
            if entry.expires is not None and entry.expires <= now:
                self._drop_expired_head(now)
                gone = True
                continue
            consumer = turns.next_with_room(entry.message.size)
            if consumer is None:
                break
            backlog.pop()
            self._hand_over(entry, consumer)
            gone = True
        return gone

    def _after_append(self, entry: Entry, now: float) -> None:
        """Do what a new message at the end of the backlog makes necessary: browse, deliver, expire, keep the limits."""
        if entry.expires is not None:
            self._expiries.add(entry, self._backlog.count)
            self._on_timer(self)
        self._walks.go_on(now, fresh=entry)
        if entry.state != READY:
            return
        if self._backlog.head() is entry and self._walks.place() is None:
            consumer = self._turns.next_with_room(entry.message.size)
            if consumer is not None:
                self._backlog.pop()
                self._hand_over(entry, consumer)
                return
        if entry.expires is not None and entry.expires <= now:
            self.expire(now)
        self.trim(now)
        if self._limits.throttles and self._limits.is_full(self._backlog.count, self._backlog.nbytes):
            self.choked = True

    def _take_out(self, entry: Entry, consumer: Consumer) -> None:
        """Give an entry to a consumer, wherever it is."""
        self._backlog.remove(entry)
        self._hand_over(entry, consumer)

    def _hand_over(self, entry: Entry, consumer: Consumer) -> None:
        no_ack = consumer.no_ack
        if not no_ack:
            self._hold(entry)
        consumer.receiver.deliver(entry)
        if not no_ack:
            return
        if consumer.no_ack:
            self._end(entry)
            entry.forget()
        else:  # it cannot be sent
            self._hold(entry)

    def _end(self, entry: Entry) -> None:
        """The message leaves the queue for good."""
        entry.state = GONE
        self._queued.nbytes -= ENTRY_BYTES
        if entry.record and self.journal is not None:
            self.journal.message_removed(entry)

    def _hold(self, entry: Entry) -> None:
        entry.state = HELD
        self.unsettled_count += 1

    def _drop_expired_head(self, now: float) -> None:
        backlog = self._backlog
        while backlog.count:
            expires = backlog.head().expires
            if expires is None or expires > now:
                return
            entry = backlog.pop()
            self._die(entry, "expired", now)
            entry.forget()

    def trim(self, now: float) -> None:
        """Drop the oldest of the lowest priority until the queue keeps its limits, if that is how it keeps them."""
        if not self._limits.drops:
            return
        trimmed = False
        while self._backlog.count and self._limits.is_over(self._backlog.count, self._backlog.nbytes):
            entry = self._backlog.pop_least()
            self._die(entry, "maxlen", now)
            entry.forget()
            trimmed = True
        if trimmed:
            self._offer(now)

    def _has_no_room(self, message: Message, now: float) -> bool:
        """Whether one more message is too much; those whose time is over make room for it."""
        backlog, size = self._backlog, len(message.body)
        if not self._limits.is_over(backlog.count + 1, backlog.nbytes + size):
            return False
        self.expire(now)
        return self._limits.is_over(backlog.count + 1, backlog.nbytes + size)

    def _bury(self, entry: Entry, now: float) -> None:
        """Send a rejected message to the dead-letter exchange; of a deleted queue, only to an alternate exchange."""
        if not self.deleted or self.passes_on:
            self._dead_letters.add(entry.message, self, "rejected", now)

    def _die(self, entry: Entry, reason: DeathReason, now: float) -> None:
        self._end(entry)
        self._dead_letters.add(entry.message, self, reason, now)


def _smaller(ttl: float | None, ttl_ms: int | None) -> float:
    """Seconds that a message may wait by its queue's ttl and its own; one of them is set."""
    if ttl_ms is None:
        return ttl or 0.0
    return ttl_ms / 1000 if ttl is None else min(ttl, ttl_ms / 1000)


def _sequence(entry: Entry) -> int:
    return entry.sequence
