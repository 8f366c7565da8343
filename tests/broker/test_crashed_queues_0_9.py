"""The process of a queue in RabbitMQ dies, and its supervisor starts it again: the reader goes on, nothing is lost."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from amqp_spark.datasource import consumer_watch, unsettled
from tests.broker.source_0_9_support import Place, numbers
from tests.spark.driver import bodies
from tests.support.process import wait_until
from tests.support.rabbitmq import binary

if TYPE_CHECKING:
    from tests.support.rabbitmq import RabbitMQNode

pytestmark = pytest.mark.broker


def crash(node: RabbitMQNode, place: Place) -> None:
    """Kill the process of a queue, or the local replica of a quorum queue."""
    name = f"rabbit_misc:r({binary('durable')}, queue, {binary(place.queue)})"
    process = "case amqqueue:get_pid(Q) of {Name, _} -> whereis(Name); Pid -> Pid end"
    node.evaluate(f"{{ok, Q}} = rabbit_amqqueue:lookup({name}), exit({process}, kill)")


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_the_source_goes_on(rabbitmq: RabbitMQNode, monkeypatch: pytest.MonkeyPatch, queue_type: str) -> None:
    monkeypatch.setattr(consumer_watch, "QUIET_SECONDS", 0.5)
    monkeypatch.setattr(consumer_watch, "CERTAIN_SECONDS", 0.2)
    monkeypatch.setattr(unsettled, "IDLE_SECONDS", 0.1)
    with closing(Place(rabbitmq.url("durable"), rabbitmq.username, rabbitmq.password, queue_type)) as place:
        place.declare()
        place.publish(numbers(300))
        driver = place.driver(maxMessagesPerTrigger=100)
        assert bodies(driver.rows(100)) == numbers(100)
        for crashes in (1, 2):
            crash(rabbitmq, place)
            place.publish(numbers(100, 200 + 100 * crashes))
            driver.until(lambda rows: set(bodies(rows)) == set(numbers(300 + 100 * crashes)))  # noqa: B023  at once
        driver.trigger()
        place.stop()
        wait_until(lambda: place.count() == (0, 0), "all are accepted")
