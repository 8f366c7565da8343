"""The reader of several queues of RabbitMQ holds no more than documented: messages of all sizes, long batches."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from amqp_spark.datasource.credit import SLACK_BYTES
from tests.broker.source_0_9_support import Place
from tests.support.process import wait_until

if TYPE_CHECKING:
    from amqp_spark.datasource.queue_consumer import QueueConsumer
    from tests.support.rabbitmq import RabbitMQNode

pytestmark = pytest.mark.broker

BUFFER = 4 << 20
LARGEST = 12_000_000
PER_QUEUE = 30
HEADERS = 1000
"""More than the frames of a message have besides the body."""


def sizes(chance: random.Random) -> list[int]:
    """Sizes from 200 bytes to 2 MB, as many of each order of magnitude; and two of the largest."""
    usual = [round(200 * 10 ** chance.uniform(0, 4)) for _ in range(PER_QUEUE - 2)]
    return [LARGEST, *usual, LARGEST]


@pytest.mark.parametrize("seed", [1, 2])
def test_held_bytes_stay_within_the_bound_that_the_documents_name(rabbitmq: RabbitMQNode, seed: int) -> None:
    """Each batch lasts until no queue has room for more, or all has come."""
    chance = random.Random(seed)
    place = Place(rabbitmq.url("durable"), rabbitmq.username, rabbitmq.password)
    queues = [f"{place.queue}-{number}" for number in range(4)]
    sent = {}
    most = 0
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
            stream = driver.reader._stream
            assert stream is not None
            receiver = stream._receiver

            def watch(consumer: QueueConsumer) -> None:
                store = consumer._store

                def measured(blocks: object) -> None:
                    nonlocal most
                    store(blocks)  # type: ignore[arg-type]
                    most = max(most, receiver.held.bytes)

                consumer._store = measured  # type: ignore[method-assign]

            for consumer in receiver.consumers:
                watch(consumer)
            found: dict[str, list[bytes]] = defaultdict(list)
            while sum(map(len, found.values())) < 4 * PER_QUEUE:
                for queue, _, body in driver.trigger() or ():
                    found[queue].append(body)
                driver.batches.clear()
                wait_until(
                    lambda: all(
                        each.buffer.received >= PER_QUEUE or not each._flow.has_room() for each in receiver.consumers
                    ),
                    "nothing more may come",
                )
            assert found == sent
            assert BUFFER < most <= BUFFER + SLACK_BYTES + LARGEST + HEADERS
            driver.trigger()
            place.stop()
            for queue in queues:
                wait_until(lambda: place.count(queue) == (0, 0), "nothing is left")  # noqa: B023  called at once
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
