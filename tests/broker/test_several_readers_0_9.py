"""Option ``numReaders`` over brokers of AMQP 0-9-1, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqp_spark.errors import ReaderLost
from tests.broker.several_readers_support import all_rows, processes
from tests.broker.source_0_9_support import PLACES, Place, drained, numbers, requested

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
        place.wait_for_count(0, 0, queue)


def test_a_killed_process_loses_nothing(place: Place) -> None:
    sent = fill(place, 600)
    driver = driver_of(place)
    driver.rows(100)
    processes(driver.reader)[1].kill()
    with pytest.raises(ReaderLost, match="AMQP_READER_LOST"):
        driver.until(lambda _rows: False)
    rows = all_rows(driver)
    place.stop()
    again = driver_of(place, driver)
    rows += again.restart_batch() or []
    while {row[2] for row in rows} != sent:
        rows += again.trigger() or []
