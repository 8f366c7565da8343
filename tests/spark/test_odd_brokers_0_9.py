"""The source over brokers of 0-9-1 with other habits than RabbitMQ's: nothing lost, and no more duplicates than due."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest

from amqp_core.errors import NotFound, PreconditionFailed, ResourceLimitExceeded
from amqp_core.v0_9 import spec
from amqp_spark.connect import connect
from amqp_spark.datasource import consumer_watch, drain_detector, unsettled
from amqp_spark.datasource.stream_reader import AmqpStreamReader
from amqp_spark.options import SourceOptions
from tests.broker.source_0_9_support import MessagePlan
from tests.spark.driver import Driver, bodies
from tests.spark.reader_support import numbers
from tests.support.choice import examples
from tests.support.odd_broker_0_9 import Fault, Habits, OddBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqp_spark.arrow.decode import ColumnPlan


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the times after which the source counts a queue again and replaces a stalled consumer."""
    monkeypatch.setattr(drain_detector, "SETTLING_SECONDS", 0.1)
    monkeypatch.setattr("amqp_spark.datasource.available_now.SETTLING_SECONDS", 0.1)
    monkeypatch.setattr(drain_detector, "STALLED_SECONDS", 0.2)
    monkeypatch.setattr(consumer_watch, "QUIET_SECONDS", 0.1)
    monkeypatch.setattr(consumer_watch, "CERTAIN_SECONDS", 0.05)
    monkeypatch.setattr(consumer_watch, "LONGEST_QUIET_SECONDS", 0.2)
    monkeypatch.setattr(unsettled, "IDLE_SECONDS", 0.02)
    monkeypatch.setattr("amqp_spark.datasource.queue_consumer.LOCK_RETRY_SECONDS", 0.01)


@contextmanager
def reading(broker: OddBroker, *, available_now: bool = False, **options: Any) -> Iterator[Driver]:
    """A query over the queue."""
    given = {
        "url": f"amqp://127.0.0.1:{broker.port}",
        "protocol": "0-9-1",
        "queue": "q",
        "retry.maxDelay": "0.02",
    } | {key.replace("__", "."): str(value) for key, value in options.items()}
    reader = AmqpStreamReader(SourceOptions.parse(given), cast("ColumnPlan", MessagePlan()), connector=connect)
    try:
        yield Driver(reader, available_now=available_now)
    finally:
        reader.stop()


def distinct(driver: Driver) -> set[bytes]:
    """The bodies of all batches."""
    return {body for batch in driver.batches for body in bodies(batch)}


CLOSED: list[Fault] = [("channel", 404, spec.QueueDeclare)]
CLOSED += [("connection", 404, kind) for kind in (spec.QueueDeclare, None)]


@pytest.mark.parametrize("missing", CLOSED, ids=["channel", "connection", "connection, no method"])
def test_a_missing_queue_is_declared_whatever_the_answer_ends(missing: Fault) -> None:
    with OddBroker(Habits(missing=missing), random.Random(1)) as broker:
        broker.exists = False
        broker.put(b"a")
        with reading(broker, declare="ifMissing") as driver:
            assert bodies(driver.rows(1)) == [b"a"]
        assert broker.declared == 1


@pytest.mark.parametrize("missing", CLOSED, ids=["channel", "connection", "connection, no method"])
def test_a_missing_queue_that_is_not_declared_is_named_whatever_the_answer_ends(missing: Fault) -> None:
    with OddBroker(Habits(missing=missing), random.Random(1)) as broker:
        broker.exists = False
        with reading(broker) as driver, pytest.raises(NotFound, match=r"AMQP_QUEUE_NOT_FOUND.*'q'.*declare=ifMissing"):
            driver.latest()


def test_too_few_channels_are_named_before_anything_is_received() -> None:
    with OddBroker(Habits(), random.Random(1), channel_max=2) as broker, reading(broker) as driver:
        with pytest.raises(ResourceLimitExceeded, match=r"AMQP_CHANNELS_EXHAUSTED.* allows 2 .*to 3 or more"):
            driver.latest()
        assert broker.consumers == 0


@pytest.mark.parametrize("gaps", [1, 3])
def test_delivery_tags_with_gaps_are_acked_as_they_came(gaps: int) -> None:
    with OddBroker(Habits(gaps=gaps), random.Random(1)) as broker:
        broker.put(*numbers(500))
        with reading(broker, maxMessagesPerTrigger=70) as driver:
            assert bodies(driver.rows(500)) == numbers(500)
            driver.trigger()
            broker.wait(lambda: len(broker.acked) == 500)
        assert broker.acked == numbers(500)
        assert (broker.unknown, broker.consumers) == ([], 1)


ENDS: list[Fault] = [
    ("channel", code, kind) for code in (320, 504, 541) for kind in (None, spec.BasicAck)
]  # named or not
ENDS += [("channel", code, None) for code in (406, 501, 506, 530, 999)]
ENDS += [("connection", code, kind) for code in (320, 504, 541) for kind in (None, spec.BasicAck)]
ENDS += [("connection", 501, None), ("cut", 0, None)]


@pytest.mark.parametrize("fault", ENDS, ids=str)
def test_a_query_outlives_what_a_broker_may_do(fault: Fault) -> None:
    with OddBroker(Habits(faults=[fault] * 3), random.Random(1)) as broker:
        with reading(broker, maxMessagesPerTrigger=5, retry__maxAttempts=5) as driver:
            for number in range(200):
                if not broker.habits.faults:
                    break
                broker.put(b"%d" % number)
                driver.trigger()
            sent = {b"%d" % each for each in range(number)}
            driver.until(lambda rows: sent <= set(bodies(rows)))
        assert broker.unknown == []


@pytest.mark.parametrize("code", [311, 406])
def test_a_query_ends_where_the_same_would_come_again(code: int) -> None:
    faults: list[Fault] = [("channel", code, spec.BasicAck)]
    refused = pytest.raises((PreconditionFailed, ResourceLimitExceeded), match=f" {code}")
    with OddBroker(Habits(faults=faults), random.Random(1)) as broker, reading(broker) as driver:

        def go_on() -> None:
            for number in range(200):
                broker.put(b"%d" % number)
                driver.trigger()

        with refused:
            go_on()


@pytest.mark.parametrize("seed", range(examples(60)))
def test_habits_at_random(seed: int) -> None:
    """Every message is in a batch before it is acked, none stays, and no ack is one of a delivery that is not due."""
    chance = random.Random(seed)
    habits = Habits(
        gaps=chance.choice([1, 2, 5]),
        counts_all=chance.random() < 0.5,
        cap=chance.choice([1, 4, 16, 1 << 16]),
        missing=chance.choice(CLOSED),
        faults=chance.choices(ENDS, k=chance.randint(0, 5)),
        stalls=chance.randint(0, 2),
    )
    count = chance.randint(1, 60)
    with OddBroker(habits, chance) as broker:
        broker.exists = chance.random() < 0.5
        available_now = chance.random() < 0.3 and broker.exists
        broker.put(*numbers(count))
        most = chance.choice([3, 10, 1000])
        options = {"declare": "ifMissing", "maxMessagesPerTrigger": most, "retry__maxAttempts": 50}
        with reading(broker, available_now=available_now, **options) as driver:
            for _ in range(400):
                if driver.trigger() is None and (available_now or not broker.depth):
                    break
                with broker.changed:
                    assert set(broker.acked) <= distinct(driver), "acked before it was in a batch"
                if chance.random() < 0.1:  # the batch takes long
                    counts = broker.counts
                    with broker.changed:
                        broker.changed.wait_for(lambda: broker.counts > counts + 3, 0.5)  # noqa: B023  called at once
            else:
                pytest.fail(f"{broker.depth} of {count} messages are left: {habits}")
        assert broker.unknown == []
        assert distinct(driver) == set(numbers(count))
