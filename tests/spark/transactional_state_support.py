"""Consumers with exactly-once on a fake broker, and what is left of them on broker and spool."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from amqp_spark import retry
from amqp_spark.datasource import queue_consumer
from amqp_spark.datasource.queue_consumer import QueueConsumer
from amqp_spark.state.records import ConsumerState
from tests.spark.driver import Driver
from tests.spark.reader_support import Readers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from amqp_spark.datasource.stream_reader import AmqpStreamReader
    from tests.support.fake_broker import FakeBroker


class Consumers(Readers):
    """Readers of one consumer."""

    spool: Path

    def __call__(self, queue: str = "q", **options: str | int) -> AmqpStreamReader:
        given: dict[str, str | int] = {
            "deliveryGuarantee": "exactly-once",
            "consumerId": "me",
            "spoolLocation": str(self.spool),
        }
        return super().__call__(queue, **(given | options))

    def least(self, queue: str = "q", **options: str | int) -> AmqpStreamReader:
        """A reader with at-least-once."""
        return super().__call__(queue, **options)


_PAUSE_S: Final = 1e6
"""Stands for the pause before a consumer connects again."""


def slow_to_return(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event for which each consumer that has lost its connection waits before it connects again."""
    may_return, wait = threading.Event(), QueueConsumer._wait

    def waits(consumer: QueueConsumer, seconds: float) -> None:
        if seconds != _PAUSE_S:
            wait(consumer, seconds)
            return
        while not may_return.is_set() and not consumer._held.stopping:
            wait(consumer, 0.02)

    monkeypatch.setattr(QueueConsumer, "_wait", waits)
    monkeypatch.setattr(queue_consumer, "LOCK_RETRY_SECONDS", 0.02)
    monkeypatch.setattr(retry, "pause_before", lambda attempt, longest: _PAUSE_S)
    return may_return


def idle_until(driver: Driver, condition: Callable[[], bool]) -> None:
    """Let Spark ask, with nothing new, until a condition holds."""
    deadline = time.monotonic() + 60
    while driver.trigger() is None and not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
    assert condition()


def files(consumers: Consumers) -> list[str]:
    return sorted(path.name for path in consumers.spool.glob("*.spool"))


def states(fake: FakeBroker) -> list[ConsumerState]:
    return [ConsumerState.load(body) for _, body in sorted(fake.states.items())]


def stopped(driver: Driver) -> Driver:
    """The driver's reader is gone, as after a crash or a stop."""
    driver.reader.stop()
    return driver


def planned(consumers: Consumers, batches: int = 1) -> Driver:
    """Some batches of 10 were processed; one more is in the log and not committed. The reader is gone."""
    driver = Driver(consumers(maxMessagesPerTrigger=10))
    for _ in range(batches):
        driver.trigger_until_rows()
    while driver.trigger(fail=True) is None:
        pass
    return stopped(driver)


def fresh(consumers: Consumers, queue: str = "q", **options: str | int) -> Driver:
    """A query with a new checkpoint."""
    return Driver(consumers(queue, **options))
