"""``minMessagesPerTrigger`` and ``maxTriggerDelay``: a batch waits for messages, and for ever for none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqp_core.errors import ResourceDeleted
from tests.spark.driver import Driver, bodies, running
from tests.spark.reader_support import numbers

if TYPE_CHECKING:
    from tests.spark.reader_support import Readers
    from tests.support.fake_broker import FakeBroker


def received(fake: FakeBroker, driver: Driver, count: int) -> None:
    """Wait until the receiver, and not only its client, has so many messages."""
    run = running(driver.reader)
    assert run is not None
    fake.wait(lambda: run._receiver._received() == count)


def test_a_batch_waits_for_so_many_messages(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(9))
    driver = Driver(readers(minMessagesPerTrigger=10))
    assert driver.trigger() is None
    received(fake, driver, 9)
    assert [driver.trigger() for _ in range(5)] == [None] * 5
    fake.publish("q", *numbers(3, 9))
    received(fake, driver, 12)
    assert bodies(driver.trigger() or []) == numbers(12)
    assert driver.trigger() is None


def test_messages_after_one_that_is_larger_than_the_buffer_come_together(fake: FakeBroker, readers: Readers) -> None:
    """After the large message the source asks for one more of any size; when that one is small, it asks for many."""
    driver = Driver(readers(minMessagesPerTrigger=10, bufferBytes="1m", maxBytesPerTrigger="1m"))
    fake.publish("q", b"x" * (6 << 20))
    assert len(driver.trigger_until_rows()) == 1
    fake.publish("q", *numbers(200))
    assert len(driver.trigger_until_rows()) >= 10


def test_messages_of_all_queues_count(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(4))
    driver = Driver(readers("q,r", minMessagesPerTrigger=6))
    assert driver.trigger() is None
    received(fake, driver, 4)
    assert driver.trigger() is None
    fake.publish("r", *numbers(2))
    received(fake, driver, 6)
    assert len(driver.trigger() or []) == 6


def test_a_batch_does_not_wait_longer_than_the_delay(fake: FakeBroker, readers: Readers) -> None:
    driver = Driver(readers(minMessagesPerTrigger=1000, maxTriggerDelay="1ms"))
    fake.publish("q", *numbers(3))
    assert bodies(driver.rows(3)) == numbers(3)
    assert driver.trigger() is None, "nothing is no batch, however long it takes"


@pytest.mark.parametrize("bounds", [{"bufferBytes": "64k"}, {"maxBytesPerTrigger": "32k", "bufferBytes": "1m"}])
def test_a_batch_does_not_wait_for_more_than_there_is_room_for(
    fake: FakeBroker, readers: Readers, bounds: dict[str, str]
) -> None:
    sent = [b"%06d" % number + b"x" * 1000 for number in range(200)]
    fake.publish("q", *sent)
    driver = Driver(readers(minMessagesPerTrigger=1000, **bounds))
    assert bodies(driver.rows(120))[:120] == sent[:120]


def test_a_batch_does_not_wait_for_more_after_the_last_message(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(3))
    driver = Driver(readers(minMessagesPerTrigger=1000))
    assert driver.trigger() is None
    received(fake, driver, 3)
    fake.cut(ResourceDeleted(408, None, "the queue was deleted", "message.subscribe"))
    assert bodies(driver.rows(3)) == numbers(3)


def test_available_now_does_not_wait(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(3))
    driver = Driver(readers(minMessagesPerTrigger=1000), available_now=True)
    assert bodies(driver.trigger() or []) == numbers(3)
    assert driver.trigger() is None


def test_a_batch_that_was_offered_is_offered_again_however_small_it_is(fake: FakeBroker, readers: Readers) -> None:
    driver = Driver(readers(minMessagesPerTrigger=10))
    assert driver.trigger() is None
    fake.publish("q", *numbers(10))
    received(fake, driver, 10)
    end = driver.latest()
    assert end != driver.start
    assert driver.latest() == end
