"""The reader holds at most bufferBytes when messages become larger than those before, and on a slow link."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

import pytest

from amqp_core import Message
from amqp_spark.connect import connect as connector
from amqp_spark.datasource import backlog
from amqp_spark.datasource.stream_reader import AmqpStreamReader
from amqp_spark.options import SourceOptions
from tests.spark.driver import Driver, running
from tests.spark.reader_support import BodyPlan
from tests.support.dial import address, by_way_of
from tests.support.slowlink import SlowLink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from amqp_spark.arrow.decode import ColumnPlan
    from tests.support.fixtures import Broker, Connect

    Reading = Callable[..., AmqpStreamReader]

pytestmark = [pytest.mark.broker]

BUFFER = 8_000_000
LARGE = 1_000_000
BEYOND = LARGE + 100_000 + (16 << 20)
"""Bytes that may be held beyond bufferBytes: one message, and those under way while a call waits for its answer."""


@pytest.fixture
def reading(broker: Broker, queue: str, tmp_path: Path) -> Iterator[Reading]:
    """Makes readers of the queue, without Spark, with a buffer of 8 MB."""
    made: list[AmqpStreamReader] = []

    def make(guarantee: str, **options: Any) -> AmqpStreamReader:
        given = {
            "url": broker.url(),
            "username": broker.username,
            "password": broker.password,
            "queue": queue,
            "bufferBytes": BUFFER,
            "maxBytesPerTrigger": BUFFER // 2,
            "deliveryGuarantee": guarantee,
        }
        if guarantee == "exactly-once":
            given |= {"consumerId": queue, "spoolLocation": str(tmp_path / "spool")}
        plan = cast("ColumnPlan", BodyPlan())
        made.append(AmqpStreamReader(SourceOptions.parse(given | options), plan, connector=connector))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


def fill(connect: Connect, queue: str, small: int, large: int) -> None:
    client = connect()
    for _ in range(small):
        client.publish(Message(body=b"s" * 200), routing_key=queue)
    for number in range(large):
        client.publish(Message(body=b"%06d" % number * (LARGE // 6)), routing_key=queue)
        if number % 8 == 7:
            client.confirm()
    client.confirm()


def most_held(driver: Driver, count: int) -> int:
    """Read so many rows; return the most bytes that were held at any time."""
    most = 0
    ended = threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(0.001):
            run = running(driver.reader)
            if run is not None:
                most = max(most, run._receiver.held.bytes)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        rows = 0
        while rows < count:
            rows += len(driver.trigger() or ())
            driver.batches.clear()
    finally:
        ended.set()
        watcher.join()
    assert rows == count
    return most


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_what_is_held_is_bounded_when_messages_become_larger(
    reading: Reading, connect: Connect, queue: str, guarantee: str
) -> None:
    fill(connect, queue, 5000, 120)
    driver = Driver(reading(guarantee))
    assert most_held(driver, 5120) <= BUFFER + BEYOND


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_what_is_held_is_bounded_on_a_slow_link(
    reading: Reading, broker: Broker, connect: Connect, queue: str, guarantee: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 MB/s, and short heartbeats: neither a question nor a commit waits behind more than is allowed."""
    monkeypatch.setattr(backlog, "SURVEY_SECONDS", 0.5)
    fill(connect, queue, 2000, 60)
    with SlowLink(address(broker), 20e6) as link:
        driver = Driver(reading(guarantee, url=by_way_of(link.port, broker.url()), heartbeat=2))
        assert most_held(driver, 2060) <= BUFFER + BEYOND
        driver.reader.stop()


def test_a_message_larger_than_the_buffer_passes_alone_and_small_ones_follow(
    reading: Reading, connect: Connect, queue: str
) -> None:
    client = connect()
    sizes = [100, 3_000_000, 100, 3_000_000, 3_000_000, *[100] * 50]
    for size in sizes:
        client.publish(Message(body=b"x" * size), routing_key=queue)
    client.confirm()
    driver = Driver(reading("at-least-once", bufferBytes=1_000_000, maxBytesPerTrigger=1_000_000))
    assert [len(row[2]) for row in driver.rows(len(sizes))] == sizes
