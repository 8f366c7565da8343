"""RabbitMQ takes no more connections or channels of a user: source and sink wait until it does, and say why."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest

from tests.broker.sink_0_9_support import Place as SinkPlace
from tests.broker.sink_0_9_support import rows
from tests.broker.source_0_9_support import Place, numbers
from tests.spark.driver import bodies
from tests.support.dial_0_9 import dial_0_9
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.rabbitmq import RabbitMQNode

pytestmark = pytest.mark.broker

USER = "trader"
REFUSED = r"AMQP_CONNECTION_LIMIT_REACHED] The broker takes no more connections: 530 "


@pytest.fixture
def node(rabbitmq: RabbitMQNode, limits: dict[str, int]) -> Iterator[RabbitMQNode]:
    """A node where a user has limits."""
    rabbitmq.limit_user(USER, **limits)
    yield rabbitmq
    rabbitmq.limit_user(USER)


def login(node: RabbitMQNode) -> dict[str, Any]:
    credentials = {"username": USER, "password": node.config.users[USER]}
    return credentials | {"connectTimeout": 1, "retry__maxAttempts": 100, "retry__maxDelay": 0.2}


@pytest.mark.parametrize("limits", [{"max_connections": 1}, {"max_channels": 2}], ids=str)
def test_source(node: RabbitMQNode, caplog: pytest.LogCaptureFixture) -> None:
    with closing(Place(node.url("durable"), node.username, node.password, "classic")) as place:
        place.declare()
        place.publish(numbers(100))
        with dial_0_9(node, "durable", username=USER, password=node.config.users[USER]) as other:
            other.query_queue(place.queue)  # on a channel
            driver = place.driver(**login(node))
            driver.trigger()
            wait_until(lambda: REFUSED in caplog.text, "the source to be refused")
        assert bodies(driver.rows(100)) == numbers(100)
        driver.trigger()
        place.stop()
        wait_until(lambda: place.count() == (0, 0), "all are accepted")


@pytest.mark.parametrize("limits", [{"max_connections": 1}, {"max_channels": 1}], ids=str)
def test_sink(node: RabbitMQNode, caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as stack:
        place = SinkPlace(node, "classic", stack)
        queue = place.queue()
        given = login(node)
        other = stack.enter_context(dial_0_9(node, username=given["username"], password=given["password"]))
        other.query_queue(queue)  # on a channel
        found: list[Any] = []
        task = threading.Thread(target=lambda: found.append(place.run([rows(10)], routingKey=queue, **given)))
        task.start()
        try:
            wait_until(lambda: REFUSED in caplog.text, "the sink to be refused")
        finally:
            other.close()
            task.join(60)
        assert [statistics.messages for statistics in found] == [10]
        assert place.bodies(queue, 10) == list(range(10))
