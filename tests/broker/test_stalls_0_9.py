"""Consumers that get nothing although their queue has messages, and batches longer than ``consumer_timeout``."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from amqp_spark.datasource import drain_detector
from tests.broker.source_0_9_support import Place, drained, numbers
from tests.spark.driver import bodies
from tests.support import wire_0_9 as wire
from tests.support.dial import address, by_way_of
from tests.support.process import wait_until
from tests.support.proxy import FaultProxy
from tests.support.triggers import pattern

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.fixtures import OwnRabbitMQ
    from tests.support.rabbitmq import RabbitMQNode

pytestmark = pytest.mark.broker


@pytest.fixture
def place(rabbitmq: RabbitMQNode) -> Iterator[Place]:
    with closing(Place(rabbitmq.url("durable"), rabbitmq.username, rabbitmq.password, "quorum")) as place:
        yield place


def test_available_now_replaces_a_consumer_that_gets_nothing(
    place: Place, rabbitmq: RabbitMQNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """RabbitMQ has delivered as many messages as the consumer may hold, and they have never arrived."""
    monkeypatch.setattr(drain_detector, "STALLED_SECONDS", 1.0)
    place.declare()
    place.publish(numbers(10))
    method = wire.deliver_method(1, consumer=b"s1", key=place.queue.encode())
    beginning = wire.frame(1, method)[: 7 + 4]
    size = len(wire.delivery(1, numbers(1)[0], consumer=b"s1", key=place.queue.encode(), properties=b"\x10\0\2"))
    with FaultProxy(address(rabbitmq)) as proxy:
        lost = proxy.to_client.drop(4 * size, pattern(beginning))
        url = by_way_of(proxy.port, place.address)
        driver = place.driver(available_now=True, url=url, bufferBytes=8192, maxBytesPerTrigger=4096)
        assert drained(driver) == numbers(10)
        place.stop()
        assert lost.struck.is_set()
    assert caplog.text.count("AMQP_CONSUMER_STALLED] Queue") == 1
    assert f"Queue '{place.queue}' has 6 message(s)" in caplog.text
    assert "ends without them" not in caplog.text
    wait_until(lambda: place.count() == (0, 0), "all are accepted")


def test_available_now_ends_when_a_second_consumer_gets_nothing_either(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another consumer is active alone, and holds as many messages as it may."""
    monkeypatch.setattr(drain_detector, "STALLED_SECONDS", 0.5)
    for name in ("HELD_ELSEWHERE_SECONDS", "HELD_BY_UNKNOWN_SECONDS"):  # RabbitMQ counts active consumers only
        monkeypatch.setattr(drain_detector, name, 0.5)
    place.declare(x_single_active_consumer=True)
    place.publish(numbers(10))
    with place.connect() as other:
        active = other.subscribe(place.queue, max_unsettled=1)
        assert active.take(1)
        assert drained(place.driver(available_now=True)) == []
        text = "9 message(s) that it does not send: a new consumer got none either, or another one is active alone"
        assert text in caplog.text
        assert caplog.text.count("AMQP_CONSUMER_STALLED") == 1
    place.stop()
    assert drained(place.driver(available_now=True)) == numbers(10)


@pytest.mark.thorough
def test_a_batch_may_take_longer_than_the_consumer_timeout_of_the_server(
    own_rabbitmq: OwnRabbitMQ, caplog: pytest.LogCaptureFixture
) -> None:
    node = own_rabbitmq(consumer_timeout_ms=1000)
    with closing(Place(node.url("durable"), node.username, node.password, "quorum")) as place:
        place.declare()
        place.publish(numbers(10))
        driver = place.driver(maxMessagesPerTrigger=4)
        driver.trigger_until_rows()
        wait_until(lambda: "or the broker's consumer_timeout" in caplog.text, "it is noticed", 120)
        node.evaluate("application:set_env(rabbit, consumer_timeout, 600000)")
        driver.until(lambda rows: set(bodies(rows)) == set(numbers(10)))
        driver.trigger()
        place.stop()
        wait_until(lambda: place.count() == (0, 0), "all are accepted")
