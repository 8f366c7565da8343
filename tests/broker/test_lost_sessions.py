"""A connection that is lost on this side only: the broker sees session and consumer until it misses heartbeats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from amqp_spark.connect import connect as connector
from amqp_spark.datasource.stream_reader import AmqpStreamReader
from amqp_spark.options import SourceOptions
from tests.broker.stream_support import depth, numbers, publish, subscribers
from tests.spark.driver import Driver, bodies
from tests.spark.reader_support import BodyPlan
from tests.spark.transactional_state_support import slow_to_return
from tests.support.dial import address, by_way_of
from tests.support.process import wait_until
from tests.support.proxy import FaultProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from amqp_spark.arrow.decode import ColumnPlan
    from tests.support.fixtures import Broker, Connect

    Reading = Callable[..., AmqpStreamReader]

pytestmark = [pytest.mark.broker]

COUNT = 1000
HEARTBEAT = 5
"""Two of them are longer than a consumer is waited for that is known to live."""


@pytest.fixture
def proxy(broker: Broker) -> Iterator[FaultProxy]:
    with FaultProxy(address(broker)) as proxy:
        yield proxy


@pytest.fixture
def reading(broker: Broker, proxy: FaultProxy, queue: str) -> Iterator[Reading]:
    """Makes readers of the queue, without Spark, that connect through the proxy."""
    made: list[AmqpStreamReader] = []

    def make(**options: Any) -> AmqpStreamReader:
        given = {
            "url": by_way_of(proxy.port, broker.url()),
            "username": broker.username,
            "password": broker.password,
            "queue": queue,
            "heartbeat": HEARTBEAT,
            "retry.maxDelay": "0.5",
        } | options
        plan = cast("ColumnPlan", BodyPlan())
        made.append(AmqpStreamReader(SourceOptions.parse(given), plan, connector=connector))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


def test_available_now_waits_for_what_a_lost_session_holds(
    proxy: FaultProxy,
    reading: Reading,
    connect: Connect,
    queue: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = connect(heartbeat=0)
    publish(client, queue, numbers(COUNT))
    driver = Driver(reading(maxMessagesPerTrigger=300), available_now=True)
    driver.trigger()
    wait_until(lambda: (driver.reader.reportLatestOffset() or {})[queue]["position"] == COUNT, "all is held")
    may_return = slow_to_return(monkeypatch)
    proxy.to_client.cut(how="one-sided")
    assert subscribers(client, queue) == 1
    may_return.set()
    while driver.trigger() is not None:
        pass
    assert set(bodies([row for batch in driver.batches for row in batch])) == set(numbers(COUNT))
    assert depth(client, queue) == 0
    assert "ends without them" not in caplog.text
