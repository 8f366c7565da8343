"""Exactly-once from Broker-J over AMQP 0-9-1: acknowledgements and state in one transaction, as with 0-10."""

from __future__ import annotations

import base64
import json
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from amqp_core.errors import ResourceLocked
from amqp_spark import crashpoints
from amqp_spark.cli import EXIT_DONE, EXIT_OPTIONS
from amqp_spark.errors import StateError
from amqp_spark.state.names import CONSUMER, Names
from amqp_spark.state.records import ConsumerState
from tests.broker.source_0_9_support import ExactlyOncePlace, drained, numbers
from tests.broker.transactions_support import Command
from tests.spark.driver import bodies
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.broker.exactly_once_support import Fate
    from tests.support.brokerj import BrokerJ

pytestmark = pytest.mark.broker

CUTS = (
    crashpoints.LOCK_TAKEN, crashpoints.RECOVERY_MID, crashpoints.EPOCH_RAISED, crashpoints.TX_SENT,
    crashpoints.FINISH_SENT,
)  # fmt: skip
"""Points at which the thread of the consumer waits for the broker, or is about to."""


class Consumer(ExactlyOncePlace):
    """The consumer of a queue of Broker-J, and its state on the broker."""

    @property
    def names(self) -> Names:
        return Names(CONSUMER, self.queue)

    def state(self) -> ConsumerState:
        """The state when no query holds it."""
        with self.connect() as client:
            fetcher = client.fetcher(self.names.state)
            fetcher.grant(1)
            message = fetcher.take_one(timeout=30)
        assert message is not None
        return ConsumerState.load(message.body)

    def is_unlocked(self) -> bool:
        with self.connect() as client:
            try:
                return client.query_queue(self.names.lock) is None
            except ResourceLocked:
                return False


@pytest.fixture
def consumer(brokerj_0_9: BrokerJ, tmp_path: Path) -> Iterator[Consumer]:
    broker = brokerj_0_9
    with closing(Consumer(broker.url("durable"), broker.username, broker.password)) as consumer:
        consumer.directory = tmp_path
        consumer.declare()
        yield consumer
        consumer.close(consumer.names.state)


def nothing_is_left(consumer: Consumer) -> None:
    consumer.stop()
    wait_until(lambda: consumer.count() == (0, 0), "all are accepted")
    assert consumer.files() == []
    assert consumer.state().owned == ()
    wait_until(consumer.is_unlocked, "the lock is gone")


def test_a_queue_is_read_once_and_nothing_is_left(consumer: Consumer) -> None:
    consumer.publish(numbers(1000))
    driver = consumer.driver(available_now=True, maxMessagesPerTrigger=300)
    assert drained(driver) == numbers(1000)
    nothing_is_left(consumer)


@pytest.mark.sampled("point", every=2)
@pytest.mark.parametrize("point", CUTS)
def test_a_connection_is_lost_at_a_point(consumer: Consumer, fate: Fate, point: str) -> None:
    consumer.publish(numbers(1000))
    fate.cut_at(point)
    driver = consumer.driver(available_now=True, maxMessagesPerTrigger=300)
    assert drained(driver) == numbers(1000)
    assert fate.point == "", "it came there"
    nothing_is_left(consumer)


@pytest.mark.thorough
def test_a_batch_larger_than_the_prefetch_of_a_moment(consumer: Consumer) -> None:
    consumer.publish(numbers(70_000))
    assert drained(consumer.driver(available_now=True)) == numbers(70_000)
    nothing_is_left(consumer)


def test_a_backlog_of_large_messages_comes_once_and_in_order(
    consumer: Consumer, caplog: pytest.LogCaptureFixture
) -> None:
    """The first session learns their size before it lets many come."""
    sent = [body + bytes(20_000) for body in numbers(2000)]
    consumer.publish(sent)
    driver = consumer.driver(available_now=True, bufferBytes="8m", maxBytesPerTrigger="2m")
    assert drained(driver) == sent
    assert "AMQP_BUFFER_OVERFLOWED" not in caplog.text
    nothing_is_left(consumer)


@pytest.mark.thorough
def test_two_queries_with_one_consumer_id(consumer: Consumer) -> None:
    consumer.publish(numbers(10))
    consumer.driver().rows(10)
    with pytest.raises(StateError, match="another query has held the lock"):
        consumer.driver().trigger_until_rows()


def test_a_batch_is_replayed_after_a_restart(consumer: Consumer) -> None:
    consumer.publish(numbers(200))
    first = consumer.driver(maxMessagesPerTrigger=100)
    while (rows := first.trigger(fail=True)) is None:
        pass
    consumer.stop()
    second = consumer.driver(first, maxMessagesPerTrigger=7, numPartitions=3)
    assert sorted(second.restart_batch() or []) == sorted(rows)


def test_the_command_shows_and_skips_over_0_10(
    consumer: Consumer,
    brokerj_0_9: BrokerJ,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    consumer.publish(numbers(100))
    driver = consumer.driver(maxMessagesPerTrigger=40)
    while driver.trigger(fail=True) is None:
        pass
    command = Command.of(brokerj_0_9, monkeypatch, capsys, "durable")
    assert command("--consumer-id", consumer.queue, "--option", "protocol=0-9-1") == EXIT_OPTIONS
    assert "Use this command with protocol=0-10, which Broker-J serves on the same port" in command.err
    (state,) = command.json("--consumer-id", consumer.queue)["states"]
    assert state["held"]
    consumer.stop()
    wait_until(consumer.is_unlocked, "the lock is gone")
    (state,) = command.json("--consumer-id", consumer.queue)["states"]
    assert not state["held"]
    assert state["files"][0]["rows"] == 40
    place = f"{consumer.state().owned[0].epoch}:7"
    which = ["--consumer-id", consumer.queue, "--queue", consumer.queue]
    assert command(*which, "--skip", place, "--to", str(tmp_path / "bad.json"), "--yes") == EXIT_DONE, command.err
    aside = json.loads((tmp_path / "bad.json").read_text())
    assert aside["protocol"] == "0-9-1"
    assert base64.b64decode(aside["columns"]["body"]) == numbers(1, 7)[0]
    assert aside["columns"]["routing_key"] == consumer.queue
    replayed = consumer.driver(driver).restart_batch()
    assert replayed is not None
    assert sorted(bodies(replayed)) == numbers(7) + numbers(32, 8), "message 7 is set aside"
