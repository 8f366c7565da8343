"""The source when things go wrong: errors that name what to do, and nothing received that is lost."""

from __future__ import annotations

import socket
from collections import Counter
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from tests.broker.stream_support import Stream, depth, numbers, publish, subscribers
from tests.support.capabilities import needs
from tests.support.dial import address
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from amqp_core.v0_10.messages import Message
    from tests.support.capabilities import Capabilities
    from tests.support.fixtures import Broker, Connect, OwnBroker

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture
def stream(spark: SparkSession, broker: Broker, tmp_path: Path) -> Stream:
    return Stream(spark, broker, tmp_path)


@pytest.fixture
def garbage_port() -> Iterator[int]:
    """A port with a server of another protocol."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(8)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.sampled("options", every=2)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"password": "wrong-s3cret"}, "AuthenticationFailed", marks=needs("checks_passwords")),
        ({"queue": "no-such-queue"}, r"\[AMQP_QUEUE_NOT_FOUND\] Queue 'no-such-queue' does not exist"),
        pytest.param({"url": "amqp://{host}:{port}/nowhere"}, "VirtualHostRefused", marks=needs("virtual_hosts")),
        ({"url": "amqp://127.0.0.1:{closed}/default", "retry.maxAttempts": "1"}, r"127\.0\.0\.1:{closed}"),
        (
            {"url": "amqp://127.0.0.1:{garbage}/default", "retry.maxAttempts": "1"},
            r"VersionRefused: .*AMQP_PROTOCOL_MISMATCH.* does not speak AMQP 0-10 or 0-9-1; it .* HTTP\.",
        ),
        ({"url": "amqps://{host}:{port}/default"}, "TlsError"),
        pytest.param({"selector": "this is no selector"}, "selector", marks=needs("selectors")),
    ],
)
def test_what_cannot_work_is_named_and_no_secret_is(
    stream: Stream, queue: str, garbage_port: int, free_port: int, options: dict[str, str], message: str
) -> None:
    host, port = address(stream.broker)
    names = {"host": host, "port": port, "closed": free_port, "garbage": garbage_port}
    given: dict[str, Any] = {key: value.format(**names) for key, value in options.items()}
    with pytest.raises(StreamingQueryException, match=message.format(**names)) as caught:
        stream.drain(stream.frame(given.pop("queue", queue), **given))
    assert "s3cret" not in str(caught.value)


def test_options_and_columns_that_cannot_be_served_are_all_named(stream: Stream, queue: str) -> None:
    wrong = {"bufferBytes": "x", "queu": "q", "mode": "maybe"}
    with pytest.raises(AnalysisException, match=r"(?s)3 options.*'queu'.*'bufferBytes'.*'mode'"):
        stream.frame(queue, **wrong)
    with pytest.raises(
        StreamingQueryException,
        match=r"(?s)4 options.*'queu'.*'bufferBytes'.*'mode'.*no column 'topic'",
    ):
        stream.drain(stream.frame(queue, "body STRING, topic STRING", **wrong))
    with pytest.raises(StreamingQueryException, match=r"SchemaError: \[AMQP_COLUMN_UNKNOWN\] .*'topic'.* queue, "):
        stream.drain(stream.frame(queue, "body STRING, topic STRING"))


@pytest.mark.thorough
def test_an_exclusive_queue_is_refused_to_the_second(stream: Stream, connect: Connect, queue: str) -> None:
    client = connect(heartbeat=0)
    client.subscribe(queue, exclusive=True)
    with pytest.raises(StreamingQueryException, match=r"(?s)ResourceLocked.*set exclusive to false"):
        stream.drain(stream.frame(queue, exclusive="true", heartbeat=1))


def test_trigger_once_is_refused(stream: Stream, connect: Connect, queue: str) -> None:
    publish(connect(), queue, numbers(3))
    query = stream.start(stream.frame(queue), once=True)
    with pytest.raises(StreamingQueryException, match=r"Use Trigger\.AvailableNow"):
        query.awaitTermination(60)
    assert stream.rows == []


def test_asynchronous_progress_tracking_fails_when_seen(stream: Stream, connect: Connect, queue: str) -> None:
    client = connect(heartbeat=0)
    publish(client, queue, numbers(100))
    writer = stream.frame(queue, maxMessagesPerTrigger=10).writeStream.format("noop")
    writer = writer.option("asyncProgressTrackingEnabled", "true")
    query = writer.option("checkpointLocation", str(stream.directory / "checkpoint")).start()
    with pytest.raises(StreamingQueryException, match="asyncProgressTrackingEnabled"):
        query.awaitTermination(60)
    wait_until(lambda: not subscribers(client, queue), "the reader has gone")
    assert depth(client, queue) >= 90


def test_a_checkpoint_of_another_queue_is_named(stream: Stream, connect: Connect, queue: str) -> None:
    client = connect(heartbeat=0)
    publish(client, queue, numbers(10))
    stream.drain(stream.frame(queue))
    client.declare_queue(f"{queue}-b", auto_delete=False)
    try:
        with pytest.raises(StreamingQueryException, match=f"belongs to '{queue}', and the query now reads '{queue}-b'"):
            stream.drain(stream.frame(f"{queue}-b"))
    finally:
        client.delete_queue(f"{queue}-b")


@needs("quiet_deletion")
def test_a_queue_deleted_under_the_stream_gives_what_was_received_and_fails(
    stream: Stream, connect: Connect, queue: str
) -> None:
    client = connect(heartbeat=0)
    publish(client, queue, numbers(100))
    entered, leave = Event(), Event()

    def first_waits(frame: DataFrame, batch: int) -> None:
        if batch == 0:
            entered.set()
            assert leave.wait(60)
        stream.collect(frame, batch)

    query = stream.start(stream.frame(queue, maxMessagesPerTrigger=30), first_waits)
    assert entered.wait(60)
    client.delete_queue(queue)
    leave.set()
    with pytest.raises(StreamingQueryException, match=queue):
        query.awaitTermination(60)
    assert stream.bodies() == numbers(100)


@pytest.mark.thorough
def test_two_consumers_share_a_queue_and_available_now_ends(
    stream: Stream, connect: Connect, queue: str, capabilities: Capabilities
) -> None:
    client = connect(heartbeat=0)
    publish(client, queue, numbers(100))
    other = client.subscribe(queue)
    other.grant(30)
    held: list[Message] = []
    while len(held) < 30:
        held += other.take(30 - len(held))
    ids = [message.command_id or 0 for message in held]
    stream.drain(stream.frame(queue))
    assert stream.bodies() == numbers(70, 30)
    assert depth(client, queue) == (30 if capabilities.counts_held else 0)
    client.release([(ids[0], ids[-1])], sync=True)
    assert depth(client, queue) == 30


@pytest.mark.thorough
@pytest.mark.sampled("kill", every=2)
@pytest.mark.parametrize("kill", [True, False])
def test_a_broker_that_restarts_under_the_stream_loses_nothing(
    spark: SparkSession, own_broker: OwnBroker, connect: Connect, tmp_path: Path, kill: bool
) -> None:
    ours = own_broker()
    stream = Stream(spark, ours, tmp_path)
    queue = "restarts"
    client = connect("durable", ours)
    client.declare_queue(queue, durable=True)
    publish(client, queue, numbers(200), persistent=True)
    frame = stream.frame(
        queue, vhost="durable", maxMessagesPerTrigger=20, retry__maxAttempts=100, retry__maxDelay="0.5"
    )
    query = stream.start(frame)
    try:
        wait_until(lambda: len(stream.rows) >= 40, "some batches", 60)
        ours.restart(kill=kill)
        again = connect("durable", ours)
        publish(again, queue, numbers(100, 200), persistent=True)
        wait_until(lambda: not depth(again, queue), "the queue is drained", 60)
    finally:
        query.stop()
    counts = Counter(stream.bodies())
    assert set(counts) == set(numbers(300))
    assert all(counts[body] == 1 for body in numbers(100, 200))


@pytest.mark.thorough
def test_a_broker_that_freezes_is_left_for_the_next_host(
    spark: SparkSession, own_broker: OwnBroker, connect: Connect, tmp_path: Path
) -> None:
    first, second = own_broker(), own_broker()
    queue = "moves"
    for ours in (first, second):
        connect(broker=ours).declare_queue(queue)
    publish(connect(broker=first), queue, numbers(50))
    stream = Stream(spark, first, tmp_path)
    url = f"amqp://127.0.0.1:{first.port},127.0.0.1:{second.port}/default"
    frame = stream.frame(queue, url=url, heartbeat=1, connectTimeout=2, retry__maxDelay="0.2")
    query = stream.start(frame)
    try:
        wait_until(lambda: len(stream.rows) == 50, "the first broker's messages", 60)
        first.pause()
        publish(connect(broker=second), queue, numbers(50, 50))
        wait_until(lambda: len(stream.rows) == 100, "the second broker's messages", 60)
    finally:
        query.stop()
        first.resume()
    assert stream.bodies() == numbers(100)


def test_a_read_of_a_queue_that_is_not_there_is_named(stream: Stream) -> None:
    options = {"url": stream.broker.url(), "username": stream.broker.username, "password": stream.broker.password}
    frame = stream.spark.read.format("amqp").options(**options, queue="no-such-queue")
    with pytest.raises(Exception, match="Queue 'no-such-queue' does not exist"):
        frame.load().collect()
