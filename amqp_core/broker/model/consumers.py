"""Consumers of a queue, and whose turn it is."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from amqp_core.broker.model.effort import EACH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from amqp_core.broker.model.entries import Entry
    from amqp_core.broker.model.messages import Message
    from amqp_core.broker.model.queues import Queue


class Receiver(Protocol):
    """Where a consumer's messages go: implemented by adapters, one per consumer."""

    def has_room(self, size: int) -> bool:
        """Whether a message of ``size`` bytes may be delivered; asked before each delivery.

        After a False the queue does not ask again until ``Queue.ready()`` is called.
        """

    def deliver(self, entry: Entry) -> None:
        """Take a message. It must not call back into the model, and must not raise.

        If the message cannot be sent, the receiver holds it, and has no room from then on: see ``Consumer.holds``.
        """

    def cancelled(self) -> None:
        """The queue was deleted. It must not call back into the model."""


class Consumer:
    """Someone who gets a queue's messages.

    Args:
        no_ack: what it gets is settled.
        browse: it only looks: what it gets stays in the queue and is not its own to settle.
        priority: messages go to the consumers of the highest priority that have room.
        selector: which messages it gets; None: all. It must not raise.
        weight: how long the selector takes, as a multiple of what a simple one takes.
    """

    __slots__ = (
        "active",
        "browse",
        "exclusive",
        "no_ack",
        "owner",
        "priority",
        "queue",
        "receiver",
        "selector",
        "weight",
    )

    def __init__(
        self,
        queue: Queue,
        receiver: Receiver,
        owner: object,
        *,
        exclusive: bool = False,
        no_ack: bool = False,
        browse: bool = False,
        priority: int = 0,
        selector: Callable[[Message], bool] | None = None,
        weight: int = 1,
    ) -> None:
        self.queue = queue
        self.receiver = receiver
        self.owner = owner
        self.exclusive = exclusive
        self.no_ack = no_ack
        self.browse = browse
        self.priority = priority
        self.active = True
        """False when it was cancelled or its queue deleted."""
        self.selector = selector
        self.weight = weight

    @property
    def walks(self) -> bool:
        """Whether it looks for its messages itself; else it takes its turns at the head of the queue."""
        return self.browse or self.selector is not None

    def wants(self, message: Message) -> bool:
        """Whether it gets such messages."""
        return self.selector is None or self.selector(message)

    def holds(self) -> None:
        """The message that the receiver has got now is not settled, and has to be released: it cannot be sent."""
        self.no_ack = False

    def effort(self, message: Message) -> int:
        """How long it takes to find out whether it gets a message: see ``Effort``."""
        return (EACH + len(message.header)) * self.weight


class Turns:
    """Round robin among the consumers with the highest priority that have room.

    Args:
        single: only one consumer gets messages until it is cancelled; then the one with the highest priority does that
            came first.
    """

    __slots__ = ("_by_priority", "_groups", "_single", "_turn")

    def __init__(self, *, single: bool) -> None:
        self._by_priority: dict[int, deque[Consumer]] = {}
        self._groups: list[deque[Consumer]] = []
        self._single = single
        self._turn: Consumer | None = None
        """With ``single``: the one that gets messages."""

    def __bool__(self) -> bool:
        return bool(self._groups)

    def __iter__(self) -> Iterator[Consumer]:
        for group in self._groups:
            yield from group

    @property
    def active(self) -> list[Consumer]:
        """Those that get messages."""
        if self._single:
            return [] if self._turn is None else [self._turn]
        return list(self)

    def add(self, consumer: Consumer) -> None:
        """Add a consumer."""
        self._by_priority.setdefault(consumer.priority, deque()).append(consumer)
        self._regroup()

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer that is there."""
        self._by_priority[consumer.priority].remove(consumer)
        if consumer is self._turn:
            self._turn = None
        self._regroup()

    def next_with_room(self, size: int) -> Consumer | None:
        """The consumer whose turn it is to get a message of ``size`` bytes."""
        if self._single:
            turn = self._turn
            return turn if turn is not None and turn.receiver.has_room(size) else None
        for group in self._groups:
            for _ in range(len(group)):
                consumer = group[0]
                group.rotate(-1)
                if consumer.receiver.has_room(size):
                    return consumer
        return None

    def _regroup(self) -> None:
        self._by_priority = {priority: group for priority, group in self._by_priority.items() if group}
        self._groups = [self._by_priority[priority] for priority in sorted(self._by_priority, reverse=True)]
        if self._single and self._turn is None and self._groups:
            self._turn = self._groups[0][0]
