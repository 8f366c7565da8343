"""A connection that is lost on this side only: the broker still sees the session, its consumer and what it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqp_spark.datasource import consumer_setup
from tests.spark.driver import Driver, bodies
from tests.spark.reader_support import Readers, numbers

if TYPE_CHECKING:
    from tests.spark.driver import Row
    from tests.spark.transactional_state_support import Consumers
    from tests.support.fake_broker import FakeBroker

COUNT = 300


def after_flushes(fake: FakeBroker, count: int) -> None:
    """The broker gives up lost sessions when it has been asked so often in vain whether there is more."""
    left = [count]

    def bury(name: str) -> None:
        if name == "flush" and fake.ghosts:
            left[0] -= 1
            if not left[0]:
                fake.bury()

    fake.on_command = bury


def lose_state(fake: FakeBroker) -> None:
    """The broker gives the locks and the state messages of lost sessions to others before the rest."""
    fake.locks.clear()
    for ghost in fake.ghosts:
        fake.requeue(ghost, [each for each, (queue, _) in ghost.held.items() if queue in fake.states])


def drained(driver: Driver) -> list[Row]:
    while driver.trigger() is not None:
        pass
    return [row for batch in driver.batches for row in batch]


def lost_after_one_batch(fake: FakeBroker, driver: Driver) -> None:
    driver.trigger()
    fake.wait(lambda: fake.held() == COUNT)
    fake.cut_one_sided()


@pytest.mark.parametrize("counts_held", [True, False])
@pytest.mark.parametrize("selector", [None, "symbol = 'A'"])
def test_available_now_waits_for_what_a_lost_session_holds(
    fake: FakeBroker, readers: Readers, caplog: pytest.LogCaptureFixture, counts_held: bool, selector: str | None
) -> None:
    fake.counts_held = counts_held
    fake.publish("q", *numbers(COUNT))
    after_flushes(fake, 4)
    driver = Driver(
        readers(maxMessagesPerTrigger=50, **({} if selector is None else {"selector": selector})), available_now=True
    )
    lost_after_one_batch(fake, driver)
    assert set(bodies(drained(driver))) == set(numbers(COUNT))
    assert fake.depth("q") == 0
    assert fake.ghosts == []
    assert "ends without them" not in caplog.text


def test_available_now_waits_for_a_part_that_comes_later_than_the_rest(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.counts_held = False
    monkeypatch.setattr(consumer_setup, "DYING_SECONDS", 1e6)
    published = [body + bytes(1000) for body in numbers(COUNT)]
    fake.publish("q", *published)
    after_flushes(fake, 4)
    driver = Driver(readers(bufferBytes=100_000, maxBytesPerTrigger=10_000), available_now=True)
    driver.trigger()
    fake.wait(lambda: 20 < fake.held() < COUNT)
    fake.cut_one_sided()
    assert set(bodies(drained(driver))) == set(published)
    assert fake.depth("q") == 0


@pytest.mark.parametrize("counts_held", [True, False])
def test_available_now_ends_with_a_warning_when_a_lost_session_keeps_what_it_holds(
    fake: FakeBroker,
    readers: Readers,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    counts_held: bool,
) -> None:
    fake.counts_held = counts_held
    fake.heartbeat_s = 0.1
    monkeypatch.setattr(consumer_setup, "DYING_SECONDS", 0.4)
    monkeypatch.setattr("amqp_spark.datasource.drain_detector.HELD_ELSEWHERE_SECONDS", 0.2)
    fake.publish("q", *numbers(COUNT))
    driver = Driver(readers(), available_now=True)
    lost_after_one_batch(fake, driver)
    drained(driver)
    assert f"up to {COUNT} message(s) that the session before may have held" in caplog.text


@pytest.mark.usefixtures("whole_batches")
def test_available_now_ends_at_once_after_a_reconnect_when_the_broker_knows_no_other_consumer(
    fake: FakeBroker, readers: Readers
) -> None:
    fake.counts_held = False
    fake.heartbeat_s = 1e6
    fake.publish("q", *numbers(COUNT))
    driver = Driver(readers(maxMessagesPerTrigger=50), available_now=True)
    driver.trigger()
    driver.latest()
    fake.wait(lambda: len(fake.accepted) == 50)  # the broker has not confirmed that
    fake.cut()
    drained(driver)
    assert fake.depth("q") == 0
    assert sorted(fake.accepted) == numbers(COUNT)


@pytest.mark.usefixtures("whole_batches")
def test_available_now_reads_nothing_newer_instead_of_what_was_accepted(fake: FakeBroker, readers: Readers) -> None:
    fake.counts_held = False
    fake.publish("q", *numbers(COUNT))
    after_flushes(fake, 1)
    driver = Driver(readers(maxMessagesPerTrigger=100), available_now=True)
    driver.trigger()
    driver.latest()
    fake.wait(lambda: len(fake.accepted) == 100 and fake.held() == COUNT - 100)
    fake.cut_one_sided()
    rows = drained(driver)
    assert len(rows) <= COUNT + 200
    assert fake.depth("q") == 0


@pytest.mark.parametrize("locks_end_first", [False, True])
@pytest.mark.parametrize("counts_held", [True, False])
def test_exactly_once_available_now_waits_for_what_a_lost_session_holds(
    fake: FakeBroker, consumers: Consumers, counts_held: bool, locks_end_first: bool
) -> None:
    fake.counts_held = counts_held
    fake.publish("q", *numbers(COUNT))
    driver = Driver(consumers(maxMessagesPerTrigger=50), available_now=True)
    driver.trigger()
    after_flushes(fake, 4)
    seen = fake.on_command

    def free(name: str) -> None:
        if name == "lock" and fake.ghosts:
            if locks_end_first:
                lose_state(fake)
            else:
                fake.bury()
        seen(name)

    fake.on_command = free
    fake.cut_one_sided()
    assert sorted(bodies(drained(driver))) == numbers(COUNT)
    assert fake.depth("q") == 0
