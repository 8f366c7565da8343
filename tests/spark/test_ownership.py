"""Exactly-once on a fake broker and a driver without a JVM: what is owned, offered, finished, refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqp_spark.state.records import ConsumerState
from tests.spark.driver import Driver, bodies
from tests.spark.fake_client import FakeBroker
from tests.spark.reader_support import Readers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from amqp_spark.datasource.stream_reader import AmqpStreamReader


@pytest.fixture
def fake() -> FakeBroker:
    return FakeBroker("q", "r")


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


@pytest.fixture
def readers(fake: FakeBroker, tmp_path: Path) -> Iterator[Consumers]:
    readers = Consumers(fake)
    readers.spool = tmp_path / "spool"
    yield readers
    readers.stop()


def numbers(count: int, begin: int = 0) -> list[bytes]:
    return [b"%06d" % number for number in range(begin, begin + count)]


def files(readers: Consumers) -> list[str]:
    return sorted(path.name for path in readers.spool.glob("*.spool"))


def states(fake: FakeBroker) -> list[ConsumerState]:
    return [ConsumerState.load(body) for _, body in sorted(fake.states.items())]


def test_a_batch_is_accepted_before_spark_hears_of_it(fake: FakeBroker, readers: Consumers) -> None:
    fake.publish("q", *numbers(30))
    driver = Driver(readers())
    while (end := driver.latest()) == driver.start:
        pass
    (state,) = states(fake)
    (batch,) = state.owned
    assert end == {"q": {"epoch": state.epoch, "position": batch.end, "version": 1}}
    assert fake.accepted == numbers(batch.end)
    assert files(readers) == [batch.file]


def test_batch_after_batch_and_nothing_is_left(fake: FakeBroker, readers: Consumers) -> None:
    fake.publish("q", *numbers(100))
    fake.publish("r", *numbers(100, 100))
    driver = Driver(readers("q,r", maxMessagesPerTrigger=30))
    assert sorted(bodies(driver.rows(200))) == numbers(200)
    fake.wait(lambda: driver.trigger() is None and not any(state.owned for state in states(fake)))
    fake.wait(lambda: not files(readers))
    assert sorted(fake.accepted) == numbers(200)
    assert [state.queue for state in states(fake)] == ["q", "r"]


def test_a_planned_batch_is_the_same_after_a_restart(fake: FakeBroker, readers: Consumers) -> None:
    fake.publish("q", *numbers(100))
    first = Driver(readers(maxMessagesPerTrigger=40))
    first.rows(40)
    while (rows := first.trigger(fail=True)) is None:
        pass
    first.reader.stop()
    second = Driver(readers(maxMessagesPerTrigger=7, numPartitions=5), first)
    assert second.restart_batch() == rows
    assert sorted(bodies([*first.batches[0], *second.rows(60)])) == numbers(100)
