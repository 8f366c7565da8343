"""Option ``numReaders`` over brokers of AMQP 0-9-1, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
import pytest

from amqp_spark.datasource.divided_stream import DividedStream
from amqp_spark.errors import ReaderLost
from tests.broker.source_0_9_support import PLACES, Place, drained, numbers, requested
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.spark.driver import Driver

pytestmark = [pytest.mark.broker]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with requested(request) as found:
        second = second_of(found)
        found.declare(second)
        yield found
        found.close(second)


def second_of(place: Place) -> str:
    return f"{place.queue}-second"


def fill(place: Place, count: int) -> set[bytes]:
    """Publish to both queues."""
    sent = numbers(count)
    place.publish(sent[: count // 3])
    place.publish(sent[count // 3 :], second_of(place))
    return set(sent)


def driver_of(place: Place, checkpoint: Driver | None = None, *, available_now: bool = False) -> Driver:
    queue = f"{place.queue},{second_of(place)}"
    return place.driver(checkpoint, available_now=available_now, queue=queue, numReaders=2, maxMessagesPerTrigger=100)


def test_available_now_takes_each_message_once(place: Place) -> None:
    sent = fill(place, 900)
    found = drained(driver_of(place, available_now=True))
    assert len(found) == 900
    assert set(found) == sent
    place.stop()
    for queue in (place.queue, second_of(place)):
        wait_until(lambda queue=queue: place.count(queue) == (0, 0), "the queue is empty")  # type: ignore[misc]


def test_a_killed_process_loses_nothing(place: Place) -> None:
    sent = fill(place, 600)
    driver = driver_of(place)
    driver.rows(100)
    stream = driver.reader._stream
    assert isinstance(stream, DividedStream)
    psutil.Process(stream._readers[1]._process.pid).kill()
    with pytest.raises(ReaderLost, match="AMQP_READER_LOST"):
        driver.until(lambda _rows: False)
    rows = [row for batch in driver.batches for row in batch]
    place.stop()
    again = driver_of(place, driver)
    rows += again.restart_batch() or []
    while {row[2] for row in rows} != sent:
        rows += again.trigger() or []
