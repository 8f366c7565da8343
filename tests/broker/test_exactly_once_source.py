"""Exactly-once from a queue in a real Spark, on a real broker."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from pyspark.errors import StreamingQueryException

from amqp_spark import crashpoints
from amqp_spark.state.names import CONSUMER, Names
from amqp_spark.state.records import ConsumerState
from tests.broker.stream_support import Stream, depth, numbers, publish, subscribers
from tests.support.process import wait_until
from tests.support.query_process import CrashPoints, Query, QueryProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession

    from amqp_core.v0_10.client import Client
    from tests.support.fixtures import Broker, Connect

pytestmark = [pytest.mark.broker, pytest.mark.spark]

BODY = "body BINARY, position BIGINT, queue STRING"


class Consumer:
    """A consumerId on the broker, its spool, and a client to look with."""

    def __init__(self, connect: Connect, directory: Path, vhost: str, protocol: str) -> None:
        self.protocol = protocol
        self.consumer_id = f"test {uuid4()}"
        self.spool = directory / "spool"
        self.vhost = vhost
        self._connect = connect
        self.client: Client = connect(vhost, heartbeat=0)

    def options(self, **more: Any) -> dict[str, Any]:
        return {
            "protocol": self.protocol,
            "deliveryGuarantee": "exactly-once",
            "consumerId": self.consumer_id,
            "spoolLocation": str(self.spool),
            **more,
        }

    def files(self) -> list[str]:
        return sorted(path.name for path in self.spool.glob("*.spool"))

    def state(self, index: int = 0) -> ConsumerState:
        """The state when no query holds it."""
        client = self._connect(self.vhost)
        subscription = client.subscribe(Names(CONSUMER, self.consumer_id, index).state)
        subscription.grant(1)
        message = subscription.take_one(timeout=30)
        assert message is not None
        assert message.command_id is not None
        client.release([(message.command_id, message.command_id)], sync=True)
        client.close()
        return ConsumerState.load(message.body)

    def forget(self) -> None:
        client = self._connect(self.vhost)
        for index in range(3):
            name = Names(CONSUMER, self.consumer_id, index).state
            if client.query_queue(name) is not None:
                client.delete_queue(name)


@pytest.fixture(scope="session", params=["0-10", "0-9-1"])
def protocol(request: pytest.FixtureRequest) -> str:
    """The protocol of the query; the test looks with 0-10."""
    found: str = request.param
    return found


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest, protocol: str, broker: Broker) -> Broker:
    """A broker that speaks it; over 0-9-1 that is Broker-J."""
    return broker if protocol == "0-10" else request.getfixturevalue("brokerj_0_9")


@pytest.fixture
def consumer(connect: Connect, tmp_path: Path, protocol: str) -> Iterator[Consumer]:
    consumer = Consumer(connect, tmp_path, "durable", protocol)
    yield consumer
    consumer.forget()


@pytest.fixture
def stream(spark: SparkSession, broker: Broker, tmp_path: Path) -> Stream:
    return Stream(spark, broker, tmp_path)


def frame(stream: Stream, consumer: Consumer, queue: str, **more: Any) -> DataFrame:
    return stream.frame(queue, BODY, vhost=consumer.vhost, **consumer.options(**more))


@pytest.mark.thorough
def test_several_batches_of_a_durable_queue(stream: Stream, consumer: Consumer, durable_queue: str) -> None:
    publish(consumer.client, durable_queue, numbers(5000), persistent=True)
    stream.drain(frame(stream, consumer, durable_queue, maxMessagesPerTrigger=1200))
    assert stream.bodies() == numbers(5000)
    assert len(stream.batches) == 5
    assert depth(consumer.client, durable_queue) == 0
    assert consumer.files() == []
    state = consumer.state()
    assert state.owned == ()
    assert state.finished is not None
    assert state.finished.position == 5000


@pytest.mark.sampled("protocol", every=2)
def test_a_running_query_leaves_nothing_behind_when_it_is_idle(
    stream: Stream, consumer: Consumer, durable_queue: str
) -> None:
    query = stream.start(frame(stream, consumer, durable_queue))
    try:
        for begin in range(0, 3000, 1000):
            publish(consumer.client, durable_queue, numbers(1000, begin), persistent=True)
            wait_until(lambda begin=begin: len(stream.rows) >= begin + 1000, "rows", 60)  # type: ignore[misc]
        wait_until(lambda: not consumer.files(), "the files are deleted", 60)
        assert depth(consumer.client, durable_queue) == 0
    finally:
        query.stop()
    assert stream.bodies() == numbers(3000)
    assert consumer.state().owned == ()


@pytest.mark.sampled("protocol", every=2)
def test_several_queues_a_self_union_and_two_actions(
    stream: Stream, consumer: Consumer, connect: Connect, durable_queue: str
) -> None:
    other = f"{durable_queue}-other"
    consumer.client.declare_queue(other, durable=True)
    try:
        publish(consumer.client, durable_queue, numbers(900), persistent=True)
        publish(consumer.client, other, numbers(600, 900), persistent=True)
        one = frame(stream, consumer, f"{durable_queue},{other}", maxMessagesPerTrigger=700, transfer="pull")

        def two_actions(batch: DataFrame, number: int) -> None:
            first = sorted(row["body"] for row in batch.collect())
            stream.collect(batch, number)
            assert sorted(row["body"] for row in stream.batches[number]) == first

        stream.drain(one.union(one), two_actions)
        assert Counter(stream.bodies()) == dict.fromkeys(numbers(1500), 2)
        assert consumer.files() == []
        assert [consumer.state(index).queue for index in (0, 1)] == [durable_queue, other]
    finally:
        client = connect(consumer.vhost)
        wait_until(lambda: subscribers(client, other) == 0, "the reader has gone", 60)
        client.delete_queue(other)


def fails_at(stream: Stream, batch: int, seen: list[Row]) -> Callable[[DataFrame, int], None]:
    """A sink that reads a batch and fails, once."""

    def each(frame: DataFrame, number: int) -> None:
        if number == batch:
            seen.extend(frame.collect())
            raise RuntimeError("as it was told to")
        stream.collect(frame, number)

    return each


@pytest.mark.sampled("protocol", every=2)
def test_a_batch_that_failed_is_the_same_after_a_restart(
    stream: Stream, consumer: Consumer, durable_queue: str
) -> None:
    publish(consumer.client, durable_queue, numbers(3000), persistent=True)
    seen: list[Row] = []
    options = {"maxMessagesPerTrigger": 1000, "transfer": "pull"}
    with pytest.raises(StreamingQueryException, match="as it was told to"):
        stream.drain(frame(stream, consumer, durable_queue, **options), fails_at(stream, 1, seen))
    # batch 1 is owned, and batch 2 if it was planned while Spark worked; what was dropped may still have its file
    owned = consumer.state().owned
    assert len(owned) in {1, 2}
    assert owned[0].count == 1000
    assert {batch.file for batch in owned} <= set(consumer.files())
    stream.drain(frame(stream, consumer, durable_queue, **options | {"numPartitions": 7, "transfer": "inline"}))
    assert sorted(stream.batches[1]) == sorted(seen)
    assert stream.bodies() == numbers(3000)
    assert consumer.files() == []


@pytest.mark.sampled("protocol", every=2)
def test_after_available_now_and_a_pause_the_query_goes_on(
    stream: Stream, consumer: Consumer, durable_queue: str
) -> None:
    for begin in (0, 100):
        publish(consumer.client, durable_queue, numbers(100, begin), persistent=True)
        stream.drain(frame(stream, consumer, durable_queue, heartbeat=1))
        lock = Names(CONSUMER, consumer.consumer_id).lock
        wait_until(lambda: consumer.client.query_queue(lock) is None, "every timer has run out", 60)  # noqa: B023
        assert consumer.files() == []
    assert stream.bodies() == numbers(200)


@pytest.mark.thorough
@pytest.mark.sampled("protocol", every=2)
def test_a_deleted_checkpoint_reads_what_is_owned_and_what_is_left(
    stream: Stream, consumer: Consumer, durable_queue: str
) -> None:
    publish(consumer.client, durable_queue, numbers(300), persistent=True)
    options = {"maxMessagesPerTrigger": 100}
    with pytest.raises(StreamingQueryException, match="as it was told to"):
        stream.drain(frame(stream, consumer, durable_queue, **options), fails_at(stream, 1, []))
    stream.directory /= "new"
    stream.drain(frame(stream, consumer, durable_queue, **options))
    assert stream.bodies() == numbers(300)
    assert consumer.files() == []


@pytest.mark.sampled("protocol", every=2)
def test_a_checkpoint_that_was_rolled_back_is_an_error_until_the_state_is_adopted(
    stream: Stream, consumer: Consumer, durable_queue: str, tmp_path: Path
) -> None:
    options = {"maxMessagesPerTrigger": 100}
    publish(consumer.client, durable_queue, numbers(300), persistent=True)
    stream.drain(frame(stream, consumer, durable_queue, **options))
    shutil.copytree(stream.directory / "checkpoint", tmp_path / "older" / "checkpoint")
    publish(consumer.client, durable_queue, numbers(100, 300), persistent=True)
    stream.drain(frame(stream, consumer, durable_queue, **options))
    publish(consumer.client, durable_queue, numbers(100, 400), persistent=True)
    with pytest.raises(StreamingQueryException, match="as it was told to"):
        stream.drain(frame(stream, consumer, durable_queue, **options), fails_at(stream, 4, []))
    owned, files = consumer.state().owned, consumer.files()
    assert sum(batch.count for batch in owned) == 100

    stream.directory = tmp_path / "older"
    told = r"the checkpoint is at epoch \d+, position 300, but the state finished .* adoptState=true"
    with pytest.raises(StreamingQueryException, match=told):
        stream.drain(frame(stream, consumer, durable_queue, **options))
    assert consumer.state().owned == owned
    assert consumer.files() == files
    stream.drain(frame(stream, consumer, durable_queue, adoptState="true", **options))
    publish(consumer.client, durable_queue, numbers(100, 500), persistent=True)
    stream.drain(frame(stream, consumer, durable_queue, **options))
    assert stream.bodies() == numbers(600)
    assert consumer.files() == []
    assert consumer.state().owned == ()


@pytest.mark.sampled("protocol", every=2)
def test_a_state_queue_that_was_deleted_is_an_error_until_the_spool_is_adopted(
    stream: Stream, consumer: Consumer, durable_queue: str
) -> None:
    publish(consumer.client, durable_queue, numbers(300), persistent=True)
    options = {"maxMessagesPerTrigger": 100}
    with pytest.raises(StreamingQueryException, match="as it was told to"):
        stream.drain(frame(stream, consumer, durable_queue, **options), fails_at(stream, 1, []))
    consumer.state()
    consumer.forget()
    before = consumer.files()
    with pytest.raises(StreamingQueryException, match="there is no state"):
        stream.drain(frame(stream, consumer, durable_queue, **options))
    assert consumer.files() == before
    stream.drain(frame(stream, consumer, durable_queue, adoptState="true", **options))
    assert stream.bodies() == numbers(300)
    assert consumer.files() == []


@pytest.mark.sampled("protocol", every=2)
def test_a_state_queue_that_is_deleted_while_the_query_runs(
    stream: Stream, consumer: Consumer, durable_queue: str
) -> None:
    query = stream.start(frame(stream, consumer, durable_queue))
    try:
        publish(consumer.client, durable_queue, numbers(100), persistent=True)
        wait_until(lambda: len(stream.rows) == 100 and not consumer.files(), "a batch", 60)
        state = Names(CONSUMER, consumer.consumer_id).state
        consumer.client.delete_queue(state)
        publish(consumer.client, durable_queue, numbers(100, 100), persistent=True)
        with pytest.raises(StreamingQueryException, match=rf"StateError: .*The state queue '{re.escape(state)}' of"):
            query.awaitTermination(60)
    finally:
        query.stop()
    wait_until(lambda: depth(consumer.client, durable_queue) == 100, "the messages are back", 60)
    assert stream.bodies() == numbers(100)


# --- readers that are suspended or orphaned


@pytest.fixture
def points() -> Iterator[CrashPoints]:
    points = CrashPoints()
    yield points
    points.close()


@pytest.mark.thorough
def test_a_suspended_reader_is_succeeded_and_stops_when_it_goes_on(
    broker: Broker, consumer: Consumer, points: CrashPoints, durable_queue: str, tmp_path: Path
) -> None:
    publish(consumer.client, durable_queue, numbers(300), persistent=True)
    query = query_over(broker, consumer, durable_queue, tmp_path)
    with QueryProcess(points=points) as first, QueryProcess() as second:
        reader = first.run_to_point(query, crashpoints.TX_COMMITTED, after=1)
        os.kill(reader, signal.SIGSTOP)
        # the successor fails with "in use" unless it gets the lock within two heartbeats and five seconds
        second.drain([query])
        points.release(crashpoints.TX_COMMITTED, reader)
        os.kill(reader, signal.SIGCONT)
        error = first.wait(query)
        assert error is not None
        assert "another query has taken over the state" in error
    assert [row["body"] for row in query.rows()] == numbers(300)
    assert consumer.state().owned == ()
    assert consumer.files() == []


@pytest.mark.thorough
def test_the_reader_of_a_killed_driver_lets_go(
    broker: Broker, consumer: Consumer, points: CrashPoints, durable_queue: str, tmp_path: Path
) -> None:
    publish(consumer.client, durable_queue, numbers(300), persistent=True)
    query = query_over(broker, consumer, durable_queue, tmp_path)
    with QueryProcess(points=points) as driver:
        driver.run_to_point(query, crashpoints.TX_SENT, after=1)
        points.disarm()
        assert driver.kill_driver() == []
        driver.start()
        driver.drain([query])
    assert [row["body"] for row in query.rows()] == numbers(300)
    assert consumer.state().owned == ()
    assert consumer.files() == []


@pytest.mark.thorough
@pytest.mark.parametrize("protocol", ["0-9-1"], indirect=True)
def test_the_protocol_changes_with_the_spool(
    stream: Stream, consumer: Consumer, durable_queue: str, tmp_path: Path
) -> None:
    publish(consumer.client, durable_queue, numbers(300), persistent=True)
    stream.drain(frame(stream, consumer, durable_queue))
    publish(consumer.client, durable_queue, numbers(300, 300), persistent=True)
    other = {"protocol": "0-10"}
    with pytest.raises(StreamingQueryException, match="has messages of AMQP 0-9-1, and the broker speaks AMQP 0-10"):
        stream.drain(frame(stream, consumer, durable_queue, **other))
    other |= {"spoolLocation": str(tmp_path / "other"), "adoptState": "true"}
    stream.drain(frame(stream, consumer, durable_queue, **other))
    assert stream.bodies() == numbers(600)
    assert depth(consumer.client, durable_queue) == 0


def query_over(broker: Broker, consumer: Consumer, queue: str, directory: Path) -> Query:
    """A query in a driver of its own."""
    options = {
        "url": broker.url(consumer.vhost),
        "username": broker.username,
        "password": broker.password,
        "queue": queue,
        "heartbeat": "2",
        "maxMessagesPerTrigger": "100",
        **consumer.options(),
    }
    return Query(name=queue, options=options, directory=directory, schema="body BINARY, position BIGINT")
