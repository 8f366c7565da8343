"""The source in a real Spark over a real broker: what is published arrives, once, whatever Spark does."""

from __future__ import annotations

from threading import Event, Timer
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from amqp_core.v0_10.messages import Message
from tests.broker.stream_support import Stream, bodies, depth, numbers, publish, subscribers
from tests.support.capabilities import needs
from tests.support.process import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.support.capabilities import Capabilities
    from tests.support.fixtures import Broker, Connect

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture
def stream(spark: SparkSession, broker: Broker, tmp_path: Path) -> Stream:
    return Stream(spark, broker, tmp_path)


def test_available_now_drains_a_queue(stream: Stream, connect: Connect, queue: str) -> None:
    client = connect(heartbeat=0)
    publish(client, queue, numbers(1000), headers={"symbol": "A", "qty": 5})
    stream.drain(stream.frame(queue))
    assert stream.bodies() == numbers(1000)
    assert [row["position"] for row in stream.rows] == list(range(1000))
    assert {(row["queue"], row["routing_key"], row["redelivered"]) for row in stream.rows} == {(queue, queue, False)}
    assert stream.rows[0]["application_headers"] == {"symbol": "A", "qty": "5"}
    assert depth(client, queue) == 0


def test_a_running_query_drains_while_idle(stream: Stream, connect: Connect, queue: str) -> None:
    client = connect(heartbeat=0)
    query = stream.start(stream.frame(queue))
    try:
        for round_ in range(3):
            publish(client, queue, numbers(50, 50 * round_))
            wait_until(lambda: len(stream.rows) >= 50 * round_ + 50, "every row")  # noqa: B023 - called here only
            assert stream.bodies() == numbers(50 * round_ + 50)
            wait_until(lambda: not depth(client, queue), "the queue is drained")
    finally:
        query.stop()


def test_sizes_from_nothing_to_megabytes(stream: Stream, connect: Connect, queue: str) -> None:
    client = connect(heartbeat=0)
    sent = [b"", b"x", b"y" * (64 * 1024 + 1), b"z" * 5_000_000, b"end"] * 3
    publish(client, queue, sent)
    stream.drain(stream.frame(queue, "body BINARY, position BIGINT", maxBytesPerTrigger="4m"))
    assert stream.bodies() == sent
    assert [len(rows) for rows in stream.batches.values()].count(1) >= 3  # the large ones, alone
    assert depth(client, queue) == 0


@pytest.mark.parametrize("transfer", ["inline", "pull", "auto"])
def test_large_batches_by_every_transfer(stream: Stream, connect: Connect, queue: str, transfer: str) -> None:
    client = connect(heartbeat=0)
    sent = [number + b"x" * 2000 for number in numbers(3000)]
    publish(client, queue, sent)
    stream.drain(stream.frame(queue, "body BINARY, position BIGINT", transfer=transfer, numPartitions=3))
    assert stream.bodies() == sent
    assert depth(client, queue) == 0


@pytest.mark.thorough
def test_two_actions_in_foreach_batch_see_the_same_rows(stream: Stream, connect: Connect, queue: str) -> None:
    client = connect(heartbeat=0)
    publish(client, queue, numbers(200))
    pairs = []

    def twice(frame: DataFrame, batch: int) -> None:
        pairs.append((bodies(frame.collect()), bodies(frame.collect()), frame.count(), batch))

    stream.drain(stream.frame(queue, maxMessagesPerTrigger=80), twice)
    assert [body for first, *_ in pairs for body in first] == numbers(200)
    assert all(first == second and len(first) == count for first, second, count, _ in pairs)
    assert depth(client, queue) == 0


@pytest.mark.thorough
def test_a_union_with_itself_has_every_row_twice(stream: Stream, connect: Connect, queue: str) -> None:
    client = connect(heartbeat=0)
    publish(client, queue, numbers(100))
    frame = stream.frame(queue, "body BINARY")
    stream.drain(frame.union(frame))
    assert sorted(stream.bodies()) == sorted(numbers(100) * 2)
    assert depth(client, queue) == 0


def test_a_restarted_query_goes_on_after_what_it_accepted(stream: Stream, connect: Connect, queue: str) -> None:
    client = connect(heartbeat=0)
    publish(client, queue, numbers(100))
    stream.drain(stream.frame(queue))
    publish(client, queue, numbers(50, 100))
    stream.drain(stream.frame(queue))
    assert stream.bodies() == numbers(150)
    stream.drain(stream.frame(queue))
    assert stream.bodies() == numbers(150)


def test_a_batch_that_failed_comes_again_after_a_restart(
    stream: Stream, connect: Connect, queue: str, capabilities: Capabilities
) -> None:
    client = connect(heartbeat=0)
    publish(client, queue, numbers(100))

    def fail(frame: DataFrame, batch: int) -> None:
        frame.collect()
        raise RuntimeError("the sink is full")

    with pytest.raises(StreamingQueryException, match="the sink is full"):
        stream.drain(stream.frame(queue), fail)
    wait_until(lambda: not subscribers(client, queue), "the reader has gone")
    assert depth(client, queue) == 100
    stream.drain(stream.frame(queue))
    assert stream.bodies() == numbers(100)
    assert {row["redelivered"] for row in stream.rows} == {capabilities.flags_redelivered}
    assert stream.batches[0] == []  # the batch that was logged: the broker sends its messages at new positions
    assert depth(client, queue) == 0


def test_several_queues_in_one_query(stream: Stream, connect: Connect, queue: str) -> None:
    client = connect(heartbeat=0)
    other = f"{queue}-other"
    client.declare_queue(other, auto_delete=False)
    try:
        publish(client, queue, numbers(300))
        publish(client, other, numbers(100, 1000))
        stream.drain(stream.frame(f"{queue},{other}", maxMessagesPerTrigger=90))
        assert sorted(stream.bodies()) == numbers(300) + numbers(100, 1000)
        assert {row["queue"] for row in stream.rows} == {queue, other}
        assert max(map(len, stream.batches.values())) == 90
        assert depth(client, queue) + depth(client, other) == 0
    finally:
        client.delete_queue(other)


def test_stopping_leaves_everything_unaccepted_on_the_broker(stream: Stream, connect: Connect, queue: str) -> None:
    client = connect(heartbeat=0)
    publish(client, queue, numbers(100))
    entered, leave = Event(), Event()

    def hold(frame: DataFrame, batch: int) -> None:
        entered.set()
        assert leave.wait(60)

    query = stream.start(stream.frame(queue, maxMessagesPerTrigger=10), hold)
    assert entered.wait(60)
    leave_later = Timer(0.5, leave.set)
    leave_later.start()
    query.stop()
    wait_until(lambda: not subscribers(client, queue), "the reader has gone")
    assert depth(client, queue) >= 90
    stream.directory = stream.directory / "another"
    stream.drain(stream.frame(queue))
    assert set(stream.bodies()) >= set(numbers(90, 10))


def test_at_most_once(stream: Stream, connect: Connect, queue: str) -> None:
    client = connect(heartbeat=0)
    publish(client, queue, numbers(100))
    stream.drain(stream.frame(queue, deliveryGuarantee="at-most-once"))
    assert stream.bodies() == numbers(100)
    assert depth(client, queue) == 0


@needs("selectors")
def test_a_selector_reads_what_matches_and_leaves_the_rest(stream: Stream, connect: Connect, queue: str) -> None:
    client = connect(heartbeat=0)
    publish(client, queue, numbers(20), headers={"symbol": "A"})
    publish(client, queue, numbers(30, 20), headers={"symbol": "B"})
    stream.drain(stream.frame(queue, selector="symbol = 'B'"))
    assert stream.bodies() == numbers(30, 20)
    assert depth(client, queue) == 20


def test_declare_and_bind_at_start(stream: Stream, connect: Connect, queue: str) -> None:
    client = connect(heartbeat=0)
    new = f"{queue}-new"
    query = stream.start(stream.frame(new, declare="ifMissing", bind=f"amq.topic/{queue}.#;amq.direct/{queue}"))
    try:
        wait_until(lambda: client.bound("amq.direct", queue=new, binding_key=queue).key_not_matched is False, "bound")
        client.publish(Message(b"topic"), "amq.topic", f"{queue}.a.b")
        client.publish(Message(b"direct"), "amq.direct", queue)
        client.confirm()
        wait_until(lambda: len(stream.rows) == 2, "both arrived")
        declared = client.query_queue(new)
        assert declared is not None
        assert declared.durable
    finally:
        query.stop()
        wait_until(lambda: not subscribers(client, new), "the reader has gone")
        client.delete_queue(new)


@needs("alternate_exchange")
def test_rejected_messages_go_to_the_alternate_exchange(stream: Stream, connect: Connect, queue: str) -> None:
    client = connect(heartbeat=0)
    exchange, dead, source = f"{queue}-x", f"{queue}-dead", f"{queue}-source"
    client.declare_exchange(exchange, "fanout")
    client.declare_queue(dead)
    client.bind(dead, exchange, "")
    client.declare_queue(source, alternate_exchange=exchange)
    publish(client, source, [b"good 1", b"\xff\xfe", b"good 2"])
    stream.drain(stream.frame(source, "body STRING", mode="REJECT"))
    assert [row["body"] for row in stream.rows] == ["good 1", "good 2"]
    assert depth(client, source) == 0
    assert depth(client, dead) == 1
    (rejected,) = client.subscribe(dead).take(1)
    assert rejected.body == b"\xff\xfe"


def test_failfast_names_queue_position_and_column(stream: Stream, connect: Connect, queue: str) -> None:
    client = connect(heartbeat=0)
    publish(client, queue, [b"good", b"\xff\xfe"])
    with pytest.raises(StreamingQueryException, match=rf"position 1 of queue '{queue}' does not fit column 'body'"):
        stream.drain(stream.frame(queue, "body STRING"))
    wait_until(lambda: not subscribers(client, queue), "the reader has gone")
    assert depth(client, queue) == 2


def test_a_batch_read_browses_and_consumes_nothing(stream: Stream, connect: Connect, queue: str) -> None:
    client = connect(heartbeat=0)
    publish(client, queue, numbers(5000))
    options = {"url": stream.broker.url(), "username": stream.broker.username, "password": stream.broker.password}
    frame = stream.spark.read.format("amqp").options(**options, queue=queue).load()
    for _ in range(2):
        rows = frame.select("body", "position").collect()
        assert bodies(rows) == numbers(5000)
        assert [row["position"] for row in rows] == list(range(5000))
    assert depth(client, queue) == 5000
    assert "password" not in frame._jdf.queryExecution().toString()


def test_progress_shows_positions_and_backlog(stream: Stream, connect: Connect, queue: str) -> None:
    client = connect(heartbeat=0)
    publish(client, queue, numbers(100))
    query = stream.drain(stream.frame(queue, maxMessagesPerTrigger=60))
    sources = [progress["sources"][0] for progress in query.recentProgress if progress["numInputRows"]]
    assert [source["numInputRows"] for source in sources] == [60, 40]
    latest = sources[0]["latestOffset"]
    assert '"backlog":' in str(latest).replace("'", '"').replace(" ", "")
