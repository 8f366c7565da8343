"""Receives messages from a subscription, and repeats calls until they fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from amqp_core.v0_10.messages import messages_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.v0_10.client import Client
    from amqp_core.v0_10.subscription import Subscription

_M = TypeVar("_M")


class Takes(Protocol[_M]):
    """The subscription of either protocol."""

    def take(self, count: int = 1) -> list[_M]:
        """At most so many messages: those that have arrived together."""


def receiving(client: Client, *, credit: int = 1000) -> Subscription:
    """A subscription of the queue ``q`` with credit for this many messages."""
    subscription = client.subscribe("q")
    subscription.grant(credit)
    return subscription


def bodies(subscription: Subscription, count: int) -> list[bytes]:
    """Take this many messages as blocks; return their bodies."""
    found: list[bytes] = []
    while len(found) < count:
        blocks = subscription.take_blocks(10.0)
        assert blocks, f"only {len(found)} of {count} came"
        found += [message.body for block in blocks for message in messages_of(block)]
    return found


def take(subscription: Takes[_M], count: int) -> list[_M]:
    """Take this many messages as objects, in as many rounds as needed."""
    found: list[_M] = []
    while len(found) < count:
        more = subscription.take(count - len(found))
        assert more, f"only {len(found)} of {count} came"
        found += more
    return found


def again(call: Callable[[], object]) -> None:
    """Repeat the call until it raises."""
    while True:
        call()
