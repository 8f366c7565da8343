"""When a consumer that gets nothing is replaced, on brokers that count or send otherwise than RabbitMQ does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqp_core.errors import ChannelClosed, DeliveryTimedOut, PreconditionFailed
from amqp_spark.datasource import consumer_watch, drain_detector, unsettled
from tests.spark.driver import Driver, bodies, running
from tests.spark.reader_support import numbers
from tests.support.clock import Clock
from tests.support.fake_broker import FakeBroker

if TYPE_CHECKING:
    from amqp_core.errors import AmqpError
    from tests.spark.reader_support import Readers

KEPT = "a new consumer got no more than this one"


@pytest.fixture
def fake() -> FakeBroker:
    return FakeBroker(protocol="0-9-1")


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the times after which the source counts a queue again and replaces a stalled consumer."""
    monkeypatch.setattr(drain_detector, "SETTLING_SECONDS", 0.1)
    monkeypatch.setattr("amqp_spark.datasource.available_now.SETTLING_SECONDS", 0.1)
    monkeypatch.setattr(drain_detector, "STALLED_SECONDS", 0.2)
    monkeypatch.setattr(drain_detector, "_LONGEST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(consumer_watch, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(consumer_watch, "CERTAIN_SECONDS", 0.02)
    monkeypatch.setattr(unsettled, "IDLE_SECONDS", 0.02)


def replaces(watch: consumer_watch.ConsumerWatch, clock: Clock, left: int, held: int) -> bool:
    """Whether a silent session is replaced after some counts that say the same."""
    for _ in range(2):
        clock.now += consumer_watch.LONGEST_QUIET_SECONDS
        assert watch.is_due()
        if watch.is_stalled(left, held=held):
            watch.restart()
            return True
    return False


def lasts(fake: FakeBroker, counts: int = 12) -> None:
    """Spark works on a batch while the queue is counted so many times."""
    queries = fake.queries
    fake.wait(lambda: fake.queries >= queries + counts)


def test_a_count_of_no_more_than_is_held_proves_nothing_before_another_has_shown_that_it_does() -> None:
    clock = Clock()
    watch = consumer_watch.ConsumerWatch("q", clock)
    assert not replaces(watch, clock, left=10, held=10)
    assert replaces(watch, clock, left=11, held=10)
    assert not replaces(watch, clock, left=0, held=1)
    assert replaces(watch, clock, left=11, held=11), "what is held is not counted"


def test_a_consumer_that_holds_no_more_than_one_that_was_replaced_is_kept() -> None:
    clock = Clock()
    watch = consumer_watch.ConsumerWatch("q", clock)
    assert replaces(watch, clock, left=100, held=5)
    assert not replaces(watch, clock, left=100, held=5)
    assert not replaces(watch, clock, left=100, held=4)
    assert replaces(watch, clock, left=100, held=0), "nothing would come without another session"
    assert replaces(watch, clock, left=100, held=6), "the session before was of use"
    assert not replaces(watch, clock, left=100, held=6)


def test_a_broker_that_counts_what_the_consumer_holds(fake: FakeBroker, readers: Readers) -> None:
    fake.counts_all = True
    fake.publish("q", *numbers(10))
    driver = Driver(readers())
    assert bodies(driver.trigger_until_rows()) == numbers(10)
    lasts(fake)
    fake.publish("q", b"more")
    assert bodies(driver.rows(11)) == [*numbers(10), b"more"]
    assert len(fake.subscriptions) == 1


def test_a_broker_that_counts_what_the_consumer_holds_and_a_consumer_that_gets_nothing(
    fake: FakeBroker, readers: Readers
) -> None:
    fake.counts_all = True
    fake.publish("q", *numbers(10))
    driver = Driver(readers())
    assert bodies(driver.trigger_until_rows()) == numbers(10)
    with fake.changed:
        fake.stalls["q"] = 1
        fake.publish("q", b"more")
    driver.until(lambda rows: b"more" in bodies(rows))
    assert len(fake.subscriptions) == 2


def test_a_broker_that_sends_fewer_messages_than_the_consumer_may_hold(
    fake: FakeBroker, readers: Readers, caplog: pytest.LogCaptureFixture
) -> None:
    """Each batch lasts longer than the silence after which a consumer is suspected."""
    fake.cap = 5
    fake.publish("q", *numbers(30))
    driver = Driver(readers())
    for _ in range(8):
        if {body for batch in driver.batches for body in bodies(batch)} == set(numbers(30)):
            break
        driver.trigger_until_rows()
        lasts(fake)
    assert len(fake.subscriptions) == 2
    assert caplog.text.count(KEPT) == 1
    found = [body for batch in driver.batches for body in bodies(batch)]
    assert len(found) <= 35, "those that the replaced consumer held may come twice"


def test_available_now_on_a_broker_that_sends_fewer_messages_than_the_consumer_may_hold(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(drain_detector, "HELD_BY_UNKNOWN_SECONDS", 0.3)
    fake.cap = 5
    fake.publish("q", *numbers(30))
    driver = Driver(readers(), available_now=True)
    while driver.trigger() is not None:
        if fake.depth("q") > 5:
            lasts(fake)
    assert [body for batch in driver.batches for body in bodies(batch)] == numbers(30)
    assert len(fake.subscriptions) == 1
    assert "ends without them" not in caplog.text


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (DeliveryTimedOut(406, None, "consumer timeout"), False),
        (ChannelClosed(320, None, "forced"), True),
        (PreconditionFailed(406, None, "no"), True),
    ],
)
def test_delivery_timeouts_shorter_than_a_batch_are_no_failures(
    fake: FakeBroker, readers: Readers, error: AmqpError, *, ends: bool
) -> None:
    fake.publish("q", *numbers(3))
    reader = readers(retry__maxAttempts=3, retry__maxDelay="0.01")
    driver = Driver(reader)
    driver.trigger_until_rows()
    stream = running(reader)
    assert stream is not None
    (consumer,) = stream._receiver.consumers
    for number in range(2, 12):
        fake.cut(error)
        fake.wait(lambda: consumer.error is not None or (bool(fake.live) and fake.held() == 3))
        if consumer.error is not None:
            break
        assert len(fake.subscriptions) == number
    assert (consumer.error is error) is ends
    if not ends:
        driver.until(lambda rows: len(rows) == 6)
