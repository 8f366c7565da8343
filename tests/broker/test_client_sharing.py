"""Several subscriptions on one session: every transfer reaches its own, whatever order they come in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqp_core.v0_10.messages import Message, messages_of
from amqp_core.v0_10.spec import DeliveryProperties
from tests.support.choice import all_cases

if TYPE_CHECKING:
    from amqp_core.v0_10.client import Client
    from amqp_core.v0_10.subscription import Subscription
    from tests.support.fixtures import Connect

pytestmark = pytest.mark.broker


def fill(client: Client, queue: str, begin: int, end: int) -> None:
    for number in range(begin, end):
        client.publish(Message(b"%d" % number, DeliveryProperties(routing_key=queue)))
    client.confirm()


def numbers(subscription: Subscription, count: int) -> list[tuple[int, int | None]]:
    """Bodies and command ids of the next transfers."""
    found: list[tuple[int, int | None]] = []
    while len(found) < count:
        blocks = subscription.take_blocks(10)
        assert blocks, f"{len(found)} of {count} transfers came"
        found += [(int(message.body), message.command_id) for block in blocks for message in messages_of(block)]
    return found


def test_transfers_reach_their_own_subscription(connect: Connect, queue: str) -> None:
    client = connect()
    other = f"{queue}.other"
    client.declare_queue(other, exclusive=True, auto_delete=True)
    fill(client, queue, 0, 3000)
    fill(client, other, 3000, 6000)
    first, second = client.subscribe(queue), client.subscribe(other)
    for _ in range(30):  # small grants in turn, so that both come mixed
        first.grant(100)
        second.grant(100)
    one, two = numbers(first, 3000), numbers(second, 3000)
    assert [number for number, _ in one] == list(range(3000))
    assert [number for number, _ in two] == list(range(3000, 6000))
    ids = [command_id for _, command_id in one + two]
    assert len(set(ids)) == 6000
    assert None not in ids
    client.accept(sorted((each, each) for each in ids if each is not None), sync=True)


def test_one_more_transfer_among_many_others(connect: Connect, queue: str) -> None:
    client = connect()
    other = f"{queue}.other"
    client.declare_queue(other, exclusive=True, auto_delete=True)
    fill(client, queue, 0, 2000)
    fill(client, other, 7, 8)
    many, one = client.subscribe(queue), client.subscribe(other)
    many.grant(1000)
    one.grant(1)
    many.grant(1000)
    found = one.take_one(timeout=10)
    assert found is not None
    assert found.body == b"7"
    rest = numbers(many, 2000)
    assert [number for number, _ in rest] == list(range(2000))
    assert found.command_id not in {command_id for _, command_id in rest}
    assert one.take_one(timeout=0.0) is None


def test_one_is_taken_although_reading_is_paused(connect: Connect, queue: str) -> None:
    client = connect()
    subscription = client.subscribe(queue)
    client.pause_reading(True)
    fill(connect(), queue, 5, 6)
    assert subscription.take_blocks(0.0) == []
    subscription.grant(1)
    found = subscription.take_one(timeout=10)
    assert found is not None
    assert found.body == b"5"


def test_no_competing_consumer_is_forgotten(connect: Connect, queue: str) -> None:
    """Broker-J now and then gives nothing to a consumer that subscribes while messages come."""
    publisher = connect(heartbeat=0)
    for _ in range(100 if all_cases() else 30):
        one, other = connect(heartbeat=0), connect(heartbeat=0)
        competing = other.subscribe(queue)
        competing.grant(2)
        subscription = one.subscribe(queue)
        subscription.grant(1)
        fill(publisher, queue, 0, 4)
        assert subscription.take(1, timeout=20)
        one.close()
        other.close()
        publisher.purge_queue(queue)
