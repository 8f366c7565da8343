"""A virtual host: everything that a client of the broker can ask for, in terms of no protocol."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amqp_core.broker.model import arguments as queue_arguments
from amqp_core.broker.model.branches import Branches, have_room
from amqp_core.broker.model.clock import LatestTime
from amqp_core.broker.model.dead_letters import DeadLetters
from amqp_core.broker.model.declarations import (
    existing_exchange,
    existing_queue,
    new_exchange,
    predeclared_exchanges,
    require_application_name,
)
from amqp_core.broker.model.effort import Effort
from amqp_core.broker.model.errors import Refusal, Refused
from amqp_core.broker.model.exchanges import Binding, Exchange
from amqp_core.broker.model.memory import Memory
from amqp_core.broker.model.queues import Consumer, Entry, Queue, Receiver
from amqp_core.broker.model.timers import Timers
from amqp_core.broker.model.topology import Topology
from amqp_core.broker.model.walks import MOST_SELECTORS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from amqp_core.broker.model.journal import Journal
    from amqp_core.broker.model.memory import Restraint
    from amqp_core.broker.model.messages import Message


@dataclass(frozen=True, slots=True)
class Published:
    """What became of a message.

    Args:
        queues: how many queues took it.
        rejected: whether a full queue refused it (overflow ``reject-publish``).
        restraints: what has no room for more: the publisher has to stop until none of them ``holds``.
    """

    queues: int
    rejected: bool
    restraints: tuple[Restraint, ...] = ()


# One object per message would be a quarter of the cost of a publish.
_TAKEN = tuple(Published(count, rejected=False) for count in range(64))


class VirtualHost:
    """Exchanges, queues and bindings, and the messages in them.

    ``owner`` is whoever exclusive queues belong to (a connection), compared by identity. ``now`` is the time in
    seconds, of any clock, the same one for all calls; calls without it use the latest of the calls before.

    A call may deliver messages, and call ``cancelled`` of receivers whose queue was deleted. A call that raises has
    changed nothing.

    Args:
        memory: counts the messages of all virtual hosts of the broker; by default there is no limit.
    """

    def __init__(self, name: str, memory: Memory | None = None) -> None:
        self.name = name
        self.memory = Memory() if memory is None else memory
        self._topology = Topology()
        self._clock = LatestTime()
        self._dead_letters = DeadLetters(self._topology.route)
        self._timers = Timers()
        self.effort = Effort()
        """Of selectors: whoever lets clients take turns begins a turn of it, too."""
        self.branches = Branches(self)
        for exchange in predeclared_exchanges():
            self._topology.add_exchange(exchange)

    def __repr__(self) -> str:
        return f"<virtual host {self.name!r}>"

    @property
    def journal(self) -> Journal | None:
        """Takes note of what is durable; None: nothing outlives the process."""
        return self._topology.journal

    def keep(self, journal: Journal) -> None:
        """From now on, let a journal take note of what is durable; of what is there already it knows."""
        self._topology.journal = journal
        for queue in self.queues.values():
            if queue.is_kept:
                queue.journal = journal

    def trim(self, *, now: float) -> None:
        """Let queues drop what is above their limits: what consumers held when the process ended waits again."""
        now = self._clock.advance(now)
        for queue in self.queues.values():
            queue.trim(now)
        self._dead_letters.drain(now)

    @property
    def queues(self) -> Mapping[str, Queue]:
        """Queues by name."""
        return self._topology.queues

    @property
    def next_expiry(self) -> float | None:
        """When ``expire`` is to be called: look again after calls that may have made it earlier."""
        times = [time for time in (self._timers.next(), self.branches.next_expiry()) if time is not None]
        return min(times, default=None)

    @property
    def has_new_expiry(self) -> bool:
        """Whether something may expire earlier than ``expire`` or ``next_expiry`` said last."""
        return self._timers.has_new or self.branches.has_new_expiry

    @property
    def exchanges(self) -> Mapping[str, Exchange]:
        """Exchanges by name; the default exchange is ``""``."""
        return self._topology.exchanges

    def declare_exchange(
        self,
        name: str,
        kind: str,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        passive: bool = False,
        alternate: str | None = None,
        arguments: Mapping[str, object] | None = None,
    ) -> Exchange:
        """Make an exchange, or return the one that is there.

        Args:
            passive: it must be there; nothing else counts.
            alternate: also as argument ``alternate-exchange``.

        Raises:
            Refused: NOT_FOUND (passive), ACCESS_REFUSED (the default exchange, a reserved name), NOT_IMPLEMENTED
                (unknown type), PRECONDITION_FAILED (other properties, or an invalid argument).
        """
        if passive:
            return self._topology.exchange(name)
        exchange = new_exchange(
            name,
            kind,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            alternate=alternate,
            arguments=arguments,
        )
        if name in self.exchanges:
            return existing_exchange(self.exchanges[name], exchange)
        require_application_name("exchange", name)
        self._topology.add_exchange(exchange)
        return exchange

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Delete an exchange and its bindings.

        Raises:
            Refused: NOT_FOUND, ACCESS_REFUSED (predeclared), IN_USE (``if_unused``, and something is bound to it).
        """
        exchange = self._topology.exchange(name)
        if exchange.predeclared:
            raise Refused(Refusal.ACCESS_REFUSED, f"Exchange '{name}' is predeclared and cannot be deleted")
        if if_unused and exchange.bindings:
            raise Refused(Refusal.IN_USE, f"Exchange '{name}' is in use: {len(exchange.bindings)} bindings")
        self._topology.remove_exchange(exchange)

    def declare_queue(
        self,
        name: str,
        *,
        owner: object,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        passive: bool = False,
        outlives_owner: bool = False,
        arguments: Mapping[str, object] | None = None,
        now: float = 0.0,
    ) -> Queue:
        """Make a queue, or return the one that is there. An empty name: the queue gets a new one.

        Args:
            outlives_owner: an exclusive queue stays when its owner is gone, and is shared then.

        Raises:
            Refused: NOT_FOUND (passive), RESOURCE_LOCKED (exclusive of another owner), ACCESS_REFUSED (reserved
                name), NOT_IMPLEMENTED (a stream), PRECONDITION_FAILED (other properties, or an invalid argument).
        """
        now = self._clock.advance(now)
        if passive or (name and name in self.queues):
            queue = self.queue(name, owner)
            if not passive:
                settings = queue_arguments.parse(name, arguments or {})
                existing_queue(queue, settings, durable=durable, exclusive=exclusive, auto_delete=auto_delete)
            queue.touch(now)
            return queue
        require_application_name("queue", name)
        return self._make_queue(
            name or f"amq.gen-{secrets.token_urlsafe(16)}",
            now,
            durable=durable,
            exclusive=owner if exclusive else None,
            auto_delete=auto_delete,
            outlives_owner=outlives_owner,
            arguments=arguments or {},
        )

    def queue(self, name: str, owner: object) -> Queue:
        """The queue of that name.

        Raises:
            Refused: NOT_FOUND, RESOURCE_LOCKED (exclusive of another owner).
        """
        queue = self._topology.queue(name)
        if queue.exclusive is not None and queue.exclusive is not owner:
            raise Refused(Refusal.RESOURCE_LOCKED, f"Queue '{name}' is exclusive to another connection")
        return queue

    def claim_queue(self, name: str, owner: object) -> None:
        """Make a queue exclusive that exists, as its owner had it that is gone; it outlives the new owner, too.

        Raises:
            Refused: as ``queue``; RESOURCE_LOCKED (the queue has consumers).
        """
        queue = self.queue(name, owner)
        if queue.exclusive is owner:
            return
        if queue.consumer_count:
            raise Refused(Refusal.RESOURCE_LOCKED, f"Queue '{name}' exists, is shared, and has consumers")
        queue.exclusive = owner
        queue.outlives_owner = True  # it was not in a queue that is restored

    def delete_queue(self, name: str, *, owner: object, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue, its bindings and its messages; return how many were ready.

        With an alternate exchange of 0-10, its messages go there: those that wait now, and those that are held when
        they are released or rejected.

        Raises:
            Refused: as ``queue``; IN_USE (it has consumers), PRECONDITION_FAILED (it is not empty).
        """
        queue = self.queue(name, owner)
        if if_unused and queue.consumer_count:
            raise Refused(Refusal.IN_USE, f"Queue '{name}' is in use: {queue.consumer_count} consumers")
        if if_empty and queue.message_count:
            text = f"Queue '{name}' is not empty: {queue.message_count} messages are ready"
            raise Refused(Refusal.PRECONDITION_FAILED, text)
        return self._delete(queue)

    def purge_queue(self, name: str, *, owner: object) -> int:
        """Drop what is ready in a queue, without dead-lettering; return how many there were.

        Raises:
            Refused: as ``queue``.
        """
        return self.queue(name, owner).purge()

    def bind_queue(
        self, queue: str, exchange: str, key: str, *, owner: object, arguments: Mapping[str, object] | None = None
    ) -> None:
        """Bind a queue; binding it twice is the same as once.

        Raises:
            Refused: as ``queue``; NOT_FOUND (exchange), ACCESS_REFUSED (the default exchange), PRECONDITION_FAILED
                (an argument that a headers exchange cannot use).
        """
        destination = self.queue(queue, owner)
        self._topology.add_binding(Binding(self._bindable(exchange), destination, key, arguments))

    def unbind_queue(
        self, queue: str, exchange: str, key: str, *, owner: object, arguments: Mapping[str, object] | None = None
    ) -> None:
        """Remove a binding; it need not be there. Refused as ``bind_queue``."""
        destination = self.queue(queue, owner)
        self._topology.remove_binding(Binding(self._bindable(exchange), destination, key, arguments))

    def bind_exchange(
        self, destination: str, source: str, key: str, *, arguments: Mapping[str, object] | None = None
    ) -> None:
        """Let ``source`` pass messages on to ``destination``; circles are allowed.

        Raises:
            Refused: NOT_FOUND, ACCESS_REFUSED (the default exchange), PRECONDITION_FAILED (an argument).
        """
        self._topology.add_binding(Binding(self._bindable(source), self._bindable(destination), key, arguments))

    def unbind_exchange(
        self, destination: str, source: str, key: str, *, arguments: Mapping[str, object] | None = None
    ) -> None:
        """Remove a binding; it need not be there. Refused as ``bind_exchange``."""
        self._topology.remove_binding(Binding(self._bindable(source), self._bindable(destination), key, arguments))

    def restore_exchange(
        self,
        name: str,
        kind: str,
        *,
        auto_delete: bool,
        internal: bool,
        alternate: str | None,
        arguments: Mapping[str, object],
    ) -> Exchange:
        """Bring back a durable exchange that has outlived a process."""
        exchange = Exchange(
            name,
            kind,
            durable=True,
            auto_delete=auto_delete,
            internal=internal,
            alternate=alternate,
            arguments=arguments,
        )
        self._topology.add_exchange(exchange)
        return exchange

    def restore_queue(
        self, name: str, *, auto_delete: bool, arguments: Mapping[str, object], now: float, deleted: bool = False
    ) -> Queue:
        """Bring back a queue that has outlived a process; if it was exclusive, its owner is gone.

        Args:
            deleted: the queue was deleted while consumers held messages of it. It has no name any more. Messages that
                are released go to its alternate exchange.
        """
        return self._make_queue(
            name,
            self._clock.advance(now),
            durable=True,
            exclusive=None,
            auto_delete=auto_delete,
            outlives_owner=False,
            arguments=arguments,
            deleted=deleted,
        )

    def restore_binding(
        self, source: str, destination: Queue | Exchange, key: str, arguments: Mapping[str, object]
    ) -> Binding:
        """Bring back a binding that has outlived a process."""
        binding = Binding(self._topology.exchange(source), destination, key, arguments)
        self._topology.add_binding(binding)
        return binding

    def publish(self, message: Message, *, now: float) -> Published:
        """Put a message into the queues that it is routed to.

        Raises:
            Refused: NOT_FOUND (no such exchange), ACCESS_REFUSED (an internal one).
        """
        now = self._clock.advance(now)
        self.check_target(message.exchange)
        taken = 0
        rejected = False
        restraints: list[Restraint] = []
        for queue in self._topology.route(message):
            if queue.put(message, now):
                taken += 1
                if queue.choked and queue.holds:
                    restraints.append(queue)
            else:
                rejected = True
        self._dead_letters.drain(now)
        memory = self.memory
        if memory.queued.nbytes > memory.enough and memory.holds:
            restraints.append(memory)
        if not rejected and not restraints and taken < len(_TAKEN):
            return _TAKEN[taken]
        return Published(taken, rejected, tuple(restraints))

    def has_room(self, published: Iterable[tuple[Message, Sequence[Queue]]]) -> bool:
        """Whether no queue would reject one of these messages, which are to go there together."""
        return have_room(published)

    def admit(self, message: Message, queues: Iterable[Queue], now: float) -> None:
        """Put a message into queues, whatever their limits; those that were deleted are passed over."""
        now = self._clock.advance(now)
        for queue in queues:
            if not queue.deleted:
                queue.admit(message, now)
        self._dead_letters.drain(now)

    def check_target(self, exchange: str) -> None:
        """Check that clients may publish to an exchange, as ``publish`` does.

        Raises:
            Refused: NOT_FOUND (no such exchange), ACCESS_REFUSED (an internal one).
        """
        if self._topology.exchange(exchange).internal:
            raise Refused(Refusal.ACCESS_REFUSED, f"Exchange '{exchange}' is internal")

    def route(self, message: Message) -> list[Queue]:
        """The queues that ``publish`` would put a message into, also by way of an internal exchange.

        Raises:
            Refused: NOT_FOUND (no such exchange).
        """
        return list(self._topology.route(message))

    def consume(
        self,
        queue: str,
        receiver: Receiver,
        *,
        owner: object,
        exclusive: bool = False,
        no_ack: bool = False,
        browse: bool = False,
        priority: int = 0,
        selector: Callable[[Message], bool] | None = None,
        weight: int = 1,
        now: float = 0.0,
    ) -> Consumer:
        """Add a consumer. It gets nothing before the caller calls ``consumer.queue.ready()``.

        Args:
            exclusive: nobody else may consume from the queue meanwhile.
            browse: it sees every waiting message once, in order, and takes none; what somebody else holds when its
                turn comes it does not see. It must not settle what it gets, unless ``acquire`` gave it.
            selector: which messages it gets, in order; the others stay for others. It must not raise. Consumers with
                a selector are asked before those without, and the priority counts among them.
            weight: how long the selector takes, as a multiple of what a simple one takes.

        Raises:
            Refused: as ``queue``; ACCESS_REFUSED (there is an exclusive consumer, or any consumer if this one wants
                to be exclusive); NOT_IMPLEMENTED (a selector, and the queue has a single active consumer);
                RESOURCE_LIMIT (a selector, and so many have one that their search takes too long).
        """
        self._clock.advance(now)
        place = self.queue(queue, owner)
        others = place.consumers
        if others and (exclusive or any(other.exclusive for other in others)):
            raise Refused(Refusal.ACCESS_REFUSED, f"Queue '{queue}' has a consumer, and one of them is exclusive")
        if selector is not None and not browse and place.settings.single_active_consumer:
            text = f"Queue '{queue}' has a single active consumer, which gets all messages: a selector is not possible"
            raise Refused(Refusal.NOT_IMPLEMENTED, text)
        if selector is not None and sum(other.selector is not None for other in others) >= MOST_SELECTORS:
            text = f"Queue '{queue}' has {MOST_SELECTORS} consumers with a selector, the most possible: use more queues"
            raise Refused(Refusal.RESOURCE_LIMIT, text)
        consumer = Consumer(
            place,
            receiver,
            owner,
            exclusive=exclusive,
            no_ack=no_ack,
            browse=browse,
            priority=priority,
            selector=selector,
            weight=weight,
        )
        place.attach(consumer)
        return consumer

    def cancel(self, consumer: Consumer, *, now: float | None = None) -> None:
        """Remove a consumer, once; an auto-delete queue goes with its last one. What it holds stays unsettled."""
        if not consumer.active:
            return
        now = self._clock.advance(now)
        queue = consumer.queue
        queue.detach(consumer)
        if queue.auto_delete and not queue.consumer_count:
            self._delete(queue)
        else:
            queue.ready(now)  # another may be the active one now

    def get(self, queue: str, *, owner: object, now: float = 0.0) -> Entry | None:
        """Take the next message of a queue, without a consumer.

        Raises:
            Refused: as ``queue``; RESOURCE_LOCKED (a quorum queue with a single active consumer, as on RabbitMQ).
        """
        now = self._clock.advance(now)
        place = self.queue(queue, owner)
        if place.settings.single_active_consumer and place.settings.queue_type == "quorum":
            raise Refused(Refusal.RESOURCE_LOCKED, f"Queue '{queue}' gives messages to its single active consumer only")
        entry = place.take(now)
        self._dead_letters.drain(now)
        return entry

    def acquire(self, entries: Iterable[Entry], *, now: float | None = None) -> list[Entry]:
        """Hold messages that a browsing consumer has got; return those that nobody else has taken."""
        now = self._clock.advance(now)
        acquired = [entry for entry in entries if entry.queue.acquire(entry, now)]
        self._dead_letters.drain(now)
        return acquired

    def accept(self, entries: Iterable[Entry]) -> None:
        """Settle messages: they are done. What is not held is passed over, here as in ``release`` and ``reject``."""
        for entry in entries:
            if entry.queue.settle(entry):
                entry.forget()

    def release(self, entries: Iterable[Entry], *, delivered: bool = True, now: float | None = None) -> None:
        """Put messages back to their places in their queues, and deliver them again.

        Args:
            delivered: a consumer may have seen them: they are redelivered then, and count for ``x-delivery-limit``.
        """
        now = self._clock.advance(now)
        by_queue: dict[Queue, list[Entry]] = {}
        for entry in entries:
            by_queue.setdefault(entry.queue, []).append(entry)
        for queue, its in by_queue.items():
            queue.take_back(its, now, delivered=delivered)
        self._dead_letters.drain(now)

    def reject(self, entries: Iterable[Entry], *, now: float) -> None:
        """Settle messages as not wanted: they go to their queue's dead-letter exchange, if it has one."""
        now = self._clock.advance(now)
        for entry in entries:
            entry.queue.reject(entry, now)
        self._dead_letters.drain(now)

    def close(self, owner: object, *, now: float) -> None:
        """An owner is gone: delete its exclusive queues, or share those that outlive it.

        The caller has cancelled its consumers before.
        """
        self._clock.advance(now)
        for queue in [queue for queue in self.queues.values() if queue.exclusive is not None]:
            if queue.exclusive is not owner:
                continue
            if queue.outlives_owner:
                queue.exclusive = None
            else:
                self._delete(queue)

    def expire(self, now: float) -> float | None:
        """Do what is due by time: messages and unused queues expire. Return when to call again; None: nothing is."""
        now = self._clock.advance(now)
        self.branches.expire(now)
        for queue in self._timers.expire(now):
            self._delete(queue)
        self._dead_letters.drain(now)
        return self.next_expiry

    def _make_queue(
        self,
        name: str,
        now: float,
        *,
        durable: bool,
        exclusive: object | None,
        auto_delete: bool,
        outlives_owner: bool,
        arguments: Mapping[str, object],
        deleted: bool = False,
    ) -> Queue:
        queue = Queue(
            name,
            queue_arguments.parse(name, arguments),
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
            arguments=arguments,
            clock=self._clock,
            memory=self.memory,
            dead_letters=self._dead_letters,
            effort=self.effort,
            on_timer=self._timers.add,
            outlives_owner=outlives_owner,
        )
        queue.deleted = deleted
        if not deleted:
            self._topology.add_queue(queue)
            queue.touch(now)
        return queue

    def _delete(self, queue: Queue) -> int:
        """Remove a queue from everywhere; then what was in it may go to its alternate exchange."""
        self._timers.remove(queue)
        self._topology.remove_queue(queue)
        count = queue.delete()
        self._dead_letters.drain(self._clock.now)
        return count

    def _bindable(self, exchange: str) -> Exchange:
        """The exchange of that name, which is not the default one."""
        if not exchange:
            raise Refused(Refusal.ACCESS_REFUSED, "The default exchange can be neither bound nor unbound")
        return self._topology.exchange(exchange)
