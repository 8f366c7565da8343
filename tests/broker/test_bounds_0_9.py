"""The reader of several queues of RabbitMQ holds no more than documented: messages of all sizes, long batches."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.v0_9.subscription import Subscription
from amqp_spark.datasource.credit import SLACK_BYTES
from tests.broker.source_0_9_support import ExactlyOncePlace, Place
from tests.spark.driver import running
from tests.support.process import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from amqp_core.blocks import Block
    from amqp_spark.datasource.receiver import Receiver
    from tests.support.rabbitmq import RabbitMQNode

pytestmark = pytest.mark.broker

BUFFER = 4 << 20
LARGEST = 12_000_000
PER_QUEUE = 30
MB = 1_000_000
HEADERS = 1000
"""More than the frames of a message have besides the body."""


def sizes(chance: random.Random) -> list[int]:
    """Sizes from 200 bytes to 2 MB, as many of each order of magnitude; and two of the largest."""
    usual = [round(200 * 10 ** chance.uniform(0, 4)) for _ in range(PER_QUEUE - 2)]
    return [LARGEST, *usual, LARGEST]


class Held:
    """Notes the most bytes that a receiver holds, with those that wait in its subscriptions to be taken."""

    def __init__(self) -> None:
        self.receiver: Receiver | None = None
        self.most = 0
        self._subscriptions: list[Subscription] = []

    def look(self, subscription: Subscription) -> None:
        """Called when a subscription has received a block."""
        if subscription not in self._subscriptions:
            self._subscriptions.append(subscription)
        waiting = sum(len(block.frames) for each in self._subscriptions[:] for block in each._blocks[:])
        if self.receiver is not None:
            self.most = max(self.most, waiting + self.receiver.held.bytes)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    held, receive = Held(), Subscription.receive_block

    def received(subscription: Subscription, block: Block) -> None:
        receive(subscription, block)
        held.look(subscription)

    monkeypatch.setattr(Subscription, "receive_block", received)
    return held


@pytest.mark.sampled("seed", every=2)
@pytest.mark.parametrize("seed", [1, 2])
def test_held_bytes_stay_within_the_bound_that_the_documents_name(
    rabbitmq: RabbitMQNode, held: Held, seed: int
) -> None:
    """Each batch lasts until no queue has room for more, or all has come."""
    chance = random.Random(seed)
    place = Place(rabbitmq.url("durable"), rabbitmq.username, rabbitmq.password)
    queues = [f"{place.queue}-{number}" for number in range(4)]
    sent = {}
    with closing(place):
        place.declare()
        try:
            for number, queue in enumerate(queues):
                place.declare(queue, x_queue_type=("quorum", "classic")[number % 2])
                sent[queue] = [b"%08d" % at + bytes(size - 8) for at, size in enumerate(sizes(chance))]
                place.publish(sent[queue], queue)
            options: dict[str, Any] = {
                "queue": ",".join(queues),
                "bufferBytes": BUFFER,
                "maxBytesPerTrigger": BUFFER // 2,
            }
            driver = place.driver(available_now=True, **options)
            stream = running(driver.reader)
            assert stream is not None
            receiver = held.receiver = stream._receiver
            found: dict[str, list[bytes]] = defaultdict(list)
            while sum(map(len, found.values())) < 4 * PER_QUEUE:
                for queue, _, body in driver.trigger() or ():
                    found[queue].append(body)
                driver.batches.clear()
                wait_until(
                    lambda: all(
                        each.buffer.received >= PER_QUEUE or not each.flow.has_room() for each in receiver.consumers
                    ),
                    "nothing more may come",
                )
            assert found == sent
            assert BUFFER < held.most <= BUFFER + SLACK_BYTES + LARGEST + HEADERS
            driver.trigger()
            place.stop()
            for queue in queues:
                wait_until(lambda: place.count(queue) == (0, 0), "nothing is left")  # noqa: B023  called at once
        finally:
            place.close(*queues)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("server", "size", "count"),
    [
        ("rabbitmq", MB, 24),
        pytest.param("rabbitmq", LARGEST, 4, marks=pytest.mark.thorough),
        pytest.param("brokerj_0_9", MB, 24, marks=pytest.mark.thorough),
        pytest.param("brokerj_0_9", LARGEST, 4, marks=pytest.mark.thorough),
    ],
)
def test_exactly_once_holds_no_more_although_it_waits_for_answers(
    request: pytest.FixtureRequest, held: Held, tmp_path: Path, server: str, size: int, count: int
) -> None:
    """The answer to a commit comes after everything that the limit of messages allows, and messages become larger.

    What is dropped comes again, from RabbitMQ 4.3 not always in the order of the queue.
    """
    node = request.getfixturevalue(server)
    queue_type = "quorum" if server == "rabbitmq" else None
    place = ExactlyOncePlace(node.url("durable"), node.username, node.password, queue_type)
    place.directory = tmp_path
    queues = [f"{place.queue}-{number}" for number in range(4)]
    sent = {queue: [b"%s %05d" % (queue.encode(), at) for at in range(1000 + count)] for queue in queues}
    with closing(place):
        place.declare()
        try:
            for queue in queues:
                place.declare(queue, **({} if queue_type is None else {"x_delivery_limit": -1}))
                place.publish((body if at < 1000 else body.ljust(size) for at, body in enumerate(sent[queue])), queue)
            options: dict[str, Any] = {"bufferBytes": BUFFER, "maxBytesPerTrigger": BUFFER // 2, "heartbeat": 10}
            driver = place.driver(queue=",".join(queues), **options)
            found: dict[str, list[bytes]] = defaultdict(list)
            while sum(map(len, found.values())) < 4 * (1000 + count):
                for queue, _, body in driver.trigger() or ():
                    found[queue].append(body.rstrip())
                driver.batches.clear()
                stream = running(driver.reader)
                assert stream is not None
                held.receiver = stream._receiver
            assert {queue: sorted(bodies) for queue, bodies in found.items()} == sent
            assert held.most <= BUFFER + SLACK_BYTES + 2 * (size + HEADERS)
            place.stop()
        finally:
            place.close(*queues)


@pytest.mark.thorough
def test_a_large_message_that_waits_for_a_long_batch_is_not_delivered_too_often(rabbitmq: RabbitMQNode) -> None:
    """RabbitMQ closes a connection that is not read for 45 s; each time counts as a delivery of the message."""
    place = Place(rabbitmq.url("durable"), rabbitmq.username, rabbitmq.password, "quorum")
    other = f"{place.queue}-other"
    large = bytes(15_000_000)
    with closing(place):
        place.declare()
        place.declare(other, x_delivery_limit=1)
        try:
            place.publish([large])
            driver = place.driver(queue=f"{place.queue},{other}", bufferBytes=BUFFER, maxBytesPerTrigger=BUFFER // 2)
            driver.trigger_until_rows()
            place.publish([large], other)
            ends = time.monotonic() + 105
            wait_until(lambda: time.monotonic() > ends, "the batch ends", 120)
            driver.until(lambda rows: len(rows) == 2)
            driver.trigger()
            place.stop()
            wait_until(lambda: place.count(other) == (0, 0), "nothing is left")
        finally:
            place.close(other)
