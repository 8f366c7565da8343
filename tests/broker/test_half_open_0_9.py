"""RabbitMQ vanishes without FIN or reset, or is frozen: heartbeats end the connection, nothing is lost."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest

from tests.broker.sink_0_9_support import Place as SinkPlace
from tests.broker.sink_0_9_support import rows
from tests.broker.source_0_9_support import Place, numbers
from tests.spark.driver import bodies
from tests.support.dial import address, by_way_of
from tests.support.process import wait_until
from tests.support.proxy import FaultProxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from tests.broker.sink_0_9_support import Kind
    from tests.support.rabbitmq import RabbitMQNode

pytestmark = pytest.mark.broker


@pytest.fixture
def proxy(rabbitmq: RabbitMQNode) -> Iterator[FaultProxy]:
    with FaultProxy(address(rabbitmq), record=False) as proxy:
        yield proxy


def vanish(proxy: FaultProxy, *, hears: bool = False) -> None:
    """Nothing more comes over the present connections, and nothing arrives unless the broker still ``hears``; new
    connections work."""
    for lane in (proxy.to_client,) if hears else (proxy.to_client, proxy.to_broker):
        lane.stall(times=None)
    proxy.clear()


@pytest.mark.sampled("queue_type", every=2)
@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_the_source_goes_on_with_another_connection(
    rabbitmq: RabbitMQNode, proxy: FaultProxy, caplog: pytest.LogCaptureFixture, queue_type: str
) -> None:
    with closing(Place(rabbitmq.url("durable"), rabbitmq.username, rabbitmq.password, queue_type)) as place:
        place.declare()
        place.publish(numbers(300))
        driver = place.driver(url=by_way_of(proxy.port, place.address), heartbeat=1, maxMessagesPerTrigger=100)
        assert bodies(driver.rows(100)) == numbers(100)
        vanish(proxy)
        place.publish(numbers(100, 300))
        wait_until(lambda: "silent for two heartbeat intervals" in caplog.text, "the loss is noticed", 60)
        driver.until(lambda found: set(bodies(found)) == set(numbers(400)))
        driver.trigger()
        place.stop()
        wait_until(lambda: place.count() == (0, 0), "all are accepted, and no consumer is left", 60)


@pytest.mark.sampled("hears", every=2)
@pytest.mark.parametrize("hears", [True, False])
def test_the_sink_sends_again_what_is_not_confirmed(rabbitmq: RabbitMQNode, proxy: FaultProxy, *, hears: bool) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(100)
        vanish(proxy, hears=hears)
        yield rows(100, 100)

    with ExitStack() as stack:
        place = SinkPlace(rabbitmq, "classic", stack)  # its count is never late
        queue = place.queue()
        url = by_way_of(proxy.port, rabbitmq.url())
        # a busy machine must not lose a second connection
        statistics = place.run(batches(), routingKey=queue, url=url, heartbeat=2)
        assert (statistics.messages, statistics.retries) == (200, 1)
        assert 100 <= statistics.resent <= 200
        count = place.count(queue)
        assert 200 + hears <= count <= 200 + statistics.resent
        assert set(place.bodies(queue, count)) == set(range(200))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [pytest.param("classic", marks=pytest.mark.thorough), "quorum"])
def test_a_task_of_the_sink_goes_on_with_a_node_that_was_frozen(rabbitmq_private: RabbitMQNode, kind: Kind) -> None:
    node = rabbitmq_private

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(100)
        node.pause()
        yield rows(100, 100)

    with ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy(address(node), record=False))
        place = SinkPlace(node, kind, stack)
        queue = place.queue()

        def resume() -> None:
            try:
                proxy.wait_for_connections(3, 60)  # the first was given up, and another one was not answered
            finally:
                node.resume()

        thread = threading.Thread(target=resume)
        thread.start()
        limits: dict[str, Any] = {"heartbeat": 1, "connectTimeout": 1, "retry__maxAttempts": 100}
        statistics = place.run(batches(), routingKey=queue, url=by_way_of(proxy.port, node.url()), **limits)
        thread.join()
        assert statistics.messages == 200
        assert 100 <= statistics.resent <= 200
        subscription = place.client.subscribe(queue)
        found: set[int] = set()
        while found != set(range(200)):
            more = subscription.take(1000, timeout=30)
            assert more, f"only {sorted(found)} came"
            found.update(int(message.body) for message in more)
