"""Where messages go that a queue has given up: rejected, expired, too many, or too often returned."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from amqp_core.broker.model.errors import Refused
from amqp_core.broker.model.messages import Copies, Death, Message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from amqp_core.broker.model.messages import DeathReason
    from amqp_core.broker.model.queues import Queue


ALTERNATE: Final = "amqp_core.alternate-exchange"
"""The argument of queues of 0-10 that have an alternate exchange, which is their dead-letter exchange, too.

To it goes also what is in a queue when that is deleted (0-10 rule alternate-exchange of queue.declare). With a plain
dead-letter exchange such messages are dropped, as on RabbitMQ.
"""


MOST_COPIES: Final = 4096
"""Copies that dead-letter exchanges make of one message until somebody rejects one of them.

Where the full queues of an exchange have it as their dead-letter exchange, a message goes through them in every order:
ten make millions of copies. No queue has a message twice in a row then, so it is no circle that ``is_cycle`` would end.
"""


class DeadLetters:
    """Messages on their way from the queue where they died to the next.

    They are collected while a queue changes and passed on by ``drain`` afterwards: a queue would else be entered again
    in the middle of its own change, once per queue of a chain.

    Args:
        route: the queues of a message; raises Refused where there is no exchange.
    """

    __slots__ = ("_route", "_waiting")

    def __init__(self, route: Callable[[Message], Sequence[Queue]]) -> None:
        self._route = route
        self._waiting: deque[Message] = deque()

    def add(self, message: Message, queue: Queue, reason: DeathReason, now: float) -> None:
        """A message has died in a queue; it is dropped unless the queue has a dead-letter exchange."""
        exchange = queue.settings.dead_letter_exchange
        if exchange is None:
            return
        key = queue.settings.dead_letter_routing_key
        key = message.routing_key if key is None else key
        self._waiting.append(dead_letter(message, queue.name, reason, exchange=exchange, key=key, now=now))

    def drain(self, now: float) -> None:
        """Pass on what has died, and what dies of that.

        A missing exchange, a cycle, or too many copies end a message, silently.
        """
        while self._waiting:
            message = self._waiting.popleft()
            copies = message.copies
            assert copies is not None
            if copies.count > MOST_COPIES:
                continue
            try:
                queues = self._route(message)
            except Refused:
                continue
            queues = [queue for queue in queues if not is_cycle(queue.name, message.deaths)]
            copies.count += max(len(queues) - 1, 0)
            for queue in queues:
                queue.put(message, now)


def dead_letter(message: Message, queue: str, reason: DeathReason, *, exchange: str, key: str, now: float) -> Message:
    """The message as it is published to the dead-letter exchange: with one more death, and without ttl."""
    if message.copies is None:
        message.copies = Copies()
    death = Death(queue, reason, message.exchange, (message.routing_key,), 1, now)
    others = []
    for each in message.deaths:
        if each.queue == queue and each.reason == reason:
            death = replace(each, count=each.count + 1)
        else:
            others.append(each)
    return Message(
        message.wire,
        exchange,
        key,
        message.header,
        message.body,
        persistent=message.persistent,
        priority=message.priority,
        deaths=(death, *others),
        copies=Copies() if reason == "rejected" else message.copies,
    )


def is_cycle(queue: str, deaths: tuple[Death, ...]) -> bool:
    """Whether a message comes back to a queue where it died, and no consumer has rejected it since.

    Such a message would go round for ever, and no consumer would get it. RabbitMQ drops it, too.
    """
    for death in deaths:
        if death.reason == "rejected":
            return False
        if death.queue == queue:
            return True
    return False
