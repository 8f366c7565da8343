"""How many accepts a transaction has follows the time that the broker takes for one."""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING

import pytest

from amqp_spark.datasource import planner
from amqp_spark.datasource.planner import FIRST_ACCEPTS, MOST_ACCEPTS, CommitPace
from tests.spark.driver import Driver
from tests.spark.reader_support import numbers

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.spark.transactional_state_support import Consumers
    from tests.support.fake_broker import FakeBroker


def linear_store(accepts: int) -> float:
    """Seconds of qpidd's linear store: 25 k 0.5 s, 50 k 1.8 s, 100 k 7.2 s, 300 k 58 s."""
    return 0.05 + 7e-10 * accepts**2


def broker_j(accepts: int) -> float:
    return 0.01 + 2e-6 * accepts


def limits(seconds: Callable[[int], float], count: int, noise: float = 0.0, seed: int = 7) -> list[int]:
    commit_pace, chance = CommitPace(), random.Random(seed)
    found = []
    for _ in range(count):
        commit_pace.committed(commit_pace.limit, seconds(commit_pace.limit) * (1 + chance.random() * noise))
        found.append(commit_pace.limit)
    return found


def test_it_begins_with_25000() -> None:
    assert CommitPace().limit == FIRST_ACCEPTS == 25_000


def test_it_grows_while_an_accept_costs_the_same() -> None:
    found = limits(broker_j, 10)
    assert found[:3] == [50_000, 100_000, 200_000]
    assert found[-1] == MOST_ACCEPTS


@pytest.mark.parametrize("noise", [0.2, 0.5])
def test_it_grows_although_times_vary(noise: float) -> None:
    assert max(limits(broker_j, 60, noise)) >= 800_000


def test_it_stays_small_where_time_is_quadratic() -> None:
    found = limits(linear_store, 300)
    assert max(found) <= 50_000
    assert sum(limit > FIRST_ACCEPTS for limit in found) < 30, "the bound is tried again, but ever less often"


@pytest.mark.parametrize("seed", range(20))
def test_it_stays_small_where_time_is_quadratic_although_times_vary(seed: int) -> None:
    found = limits(linear_store, 300, 0.2, seed)
    assert max(found) <= 100_000
    assert sum(limit > FIRST_ACCEPTS for limit in found) < 60


def test_a_first_transaction_of_an_idle_broker_does_not_keep_it_small() -> None:
    """Times of a Broker-J that has both cores of its machine for the first transaction, and not for the next ones."""
    commit_pace = CommitPace()
    commit_pace.committed(25_000, 0.048)
    for seconds in (0.192, 0.115, 0.160, 0.377, 0.431, 0.526, 0.178, 0.333):
        commit_pace.committed(commit_pace.limit, seconds)
    assert commit_pace.limit >= 800_000


def test_it_grows_back_where_half_as_many_accepts_cost_as_much_each() -> None:
    """The broker became busy with something else: each accept takes eight times as long, however many there are."""
    commit_pace = CommitPace()
    while commit_pace.limit < 400_000:
        commit_pace.committed(commit_pace.limit, broker_j(commit_pace.limit))
    found = []
    for _ in range(40):
        commit_pace.committed(commit_pace.limit, 8 * broker_j(commit_pace.limit))
        found.append(commit_pace.limit)
    assert min(found) < 400_000, "one cannot know it at once"
    assert min(found[-10:]) >= 400_000


def test_it_shrinks_when_a_broker_becomes_slow() -> None:
    commit_pace = CommitPace()
    while commit_pace.limit < 1_000_000:
        commit_pace.committed(commit_pace.limit, broker_j(commit_pace.limit))
    reached = commit_pace.limit
    for _ in range(12):
        commit_pace.committed(commit_pace.limit, linear_store(commit_pace.limit))
    assert commit_pace.limit < reached / 8


def test_small_transactions_say_nothing() -> None:
    commit_pace = CommitPace()
    for _ in range(100):
        commit_pace.committed(10, 1.0)
        commit_pace.committed(10, 0.001)
    assert commit_pace.limit == FIRST_ACCEPTS


def test_the_first_batch_is_no_larger_than_the_first_transaction(fake: FakeBroker, consumers: Consumers) -> None:
    fake.block_messages = 5000
    fake.publish("q", *numbers(FIRST_ACCEPTS + 5000))
    driver = Driver(consumers(bufferBytes="64m"), available_now=True)
    while sum(map(len, driver.batches)) < FIRST_ACCEPTS + 5000:
        driver.trigger()
    assert max(map(len, driver.batches)) <= FIRST_ACCEPTS


def test_a_batch_that_was_asked_to_be_larger_is(fake: FakeBroker, consumers: Consumers) -> None:
    fake.block_messages = 5000
    fake.publish("q", *numbers(FIRST_ACCEPTS + 5000))
    driver = Driver(consumers(minMessagesPerTrigger=FIRST_ACCEPTS + 5000))
    assert len(driver.rows(1)) == FIRST_ACCEPTS + 5000


def test_several_queues_share_one_transaction_bound_that_moves(
    fake: FakeBroker, consumers: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is one of a batch over all queues, and so is what is measured against it."""
    monkeypatch.setattr(planner, "FIRST_ACCEPTS", 40)
    names = ("q", "r", "s", "t")
    for name in names:
        fake.queues.setdefault(name, deque())
        fake.held_elsewhere[name] = fake.consumers[name] = 0
        fake.publish(name, *numbers(200))
    driver = Driver(consumers(",".join(names)), available_now=True)
    rows = 0
    while rows < 800:
        rows += len(driver.trigger() or [])
    assert len(driver.batches[0]) <= 40
    assert max(map(len, driver.batches)) > 40
