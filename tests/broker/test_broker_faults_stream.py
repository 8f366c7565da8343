"""The network and the broker fail under a running query: nothing is lost, what is repeated is flagged."""

from __future__ import annotations

from collections import Counter
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from amqp_core.v0_10 import spec
from tests.broker.stream_support import Stream, bodies, depth, is_drained, numbers, publish, subscribers
from tests.support.dial import address, by_way_of
from tests.support.process import wait_until
from tests.support.proxy import FaultProxy
from tests.support.triggers import Frame, Trigger, frame, operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.support.fixtures import Broker, Connect, OwnBroker
    from tests.support.proxied import Fault

pytestmark = [pytest.mark.broker, pytest.mark.spark]

COUNT = 200
QUICK: dict[str, Any] = {"maxMessagesPerTrigger": 50, "retry.maxDelay": "0.1", "retry.maxAttempts": 50}
SCHEMA = "body BINARY, redelivered BOOLEAN, position BIGINT"


@pytest.fixture
def stream(spark: SparkSession, broker: Broker, tmp_path: Path) -> Stream:
    return Stream(spark, broker, tmp_path)


@pytest.fixture
def proxy(broker: Broker) -> Iterator[FaultProxy]:
    with FaultProxy(address(broker)) as proxy:
        yield proxy


def through(stream: Stream, proxy: FaultProxy, queue: str, **options: Any) -> DataFrame:
    """The stream over a connection that the proxy passes on."""
    return stream.frame(queue, SCHEMA, url=by_way_of(proxy.port, stream.broker.url()), **(QUICK | options))


def must_hold_all(stream: Stream, count: int = COUNT) -> None:
    """Every message came; what came again is flagged."""
    copies = Counter(stream.bodies())
    assert set(copies) == set(numbers(count))
    unflagged = Counter(bytes(row["body"]) for row in stream.rows if not row["redelivered"])
    assert [body for body, times in unflagged.items() if times > 1] == []


def body_frame(nth: int, *, past: bool = False, inside: int = 0) -> Trigger:
    def is_body(found: Frame) -> bool:
        return found.kind == spec.SegmentType.BODY

    return frame(is_body, nth=nth, past=past, inside=inside)


def accept(nth: int = 1, *, past: bool = False, inside: int = 0) -> Trigger:
    return operation(spec.MessageAccept.CODE, nth=nth, past=past, inside=inside)


# Each strikes one connection, once.
FAULTS: dict[str, Callable[[FaultProxy], Fault]] = {
    "ended before the subscription": lambda p: p.to_broker.cut(operation(spec.MessageSubscribe.CODE)),
    "ended before the first credit": lambda p: p.to_broker.cut(operation(spec.MessageFlow.CODE)),
    "ended between two messages": lambda p: p.to_client.cut(body_frame(70, past=True)),
    "ended inside a body": lambda p: p.to_client.cut(body_frame(70, inside=15)),
    "reset inside a frame header": lambda p: p.to_client.cut(body_frame(130, inside=5), how="reset"),
    "ended before an accept": lambda p: p.to_broker.cut(accept()),
    "ended inside an accept": lambda p: p.to_broker.cut(accept(2, inside=14)),
    "ended after an accept": lambda p: p.to_broker.cut(accept(2, past=True)),
    "half closed by the broker": lambda p: p.to_client.half_close(body_frame(70, past=True)),
    "half closed to the broker": lambda p: p.to_broker.half_close(accept()),
    "stalled from the broker": lambda p: p.to_client.stall(body_frame(70, inside=15)),
    "stalled to the broker": lambda p: p.to_broker.stall(accept()),
}


@pytest.mark.sampled("fault", every=3)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_connection_that_breaks_is_made_again(
    stream: Stream, proxy: FaultProxy, connect: Connect, queue: str, fault: str
) -> None:
    client = connect(heartbeat=0)
    publish(client, queue, numbers(COUNT))
    struck = FAULTS[fault](proxy)
    query = stream.start(through(stream, proxy, queue, heartbeat=1))
    try:
        wait_until(lambda: is_drained(client, queue, COUNT, stream), "the queue is drained", 60)
    finally:
        query.stop()
    assert struck.struck.is_set()
    assert len(proxy.connections) > 1
    must_hold_all(stream)


@pytest.mark.sampled("fault", every=3)
@pytest.mark.parametrize("fault", ["ended inside a body", "ended before an accept", "ended after an accept"])
def test_available_now_ends_over_a_connection_that_breaks(
    stream: Stream, proxy: FaultProxy, connect: Connect, queue: str, fault: str
) -> None:
    client = connect(heartbeat=0)
    publish(client, queue, numbers(COUNT))
    struck = FAULTS[fault](proxy)
    stream.drain(through(stream, proxy, queue))
    assert struck.struck.is_set()
    assert depth(client, queue) == 0
    must_hold_all(stream)


@pytest.mark.sampled("way", every=2)
@pytest.mark.parametrize("way", ["split", "coalesce"])
def test_how_bytes_are_cut_up_does_not_matter(
    stream: Stream, proxy: FaultProxy, connect: Connect, queue: str, way: str
) -> None:
    client = connect(heartbeat=0)
    publish(client, queue, numbers(COUNT))
    for lane in (proxy.to_broker, proxy.to_client):
        if way == "split":
            lane.split(size=1)
        else:
            lane.coalesce(quiet_s=0.02)
    stream.drain(through(stream, proxy, queue))
    assert stream.bodies() == numbers(COUNT)
    assert depth(client, queue) == 0


def test_garbage_from_the_broker_loses_nothing(stream: Stream, proxy: FaultProxy, connect: Connect, queue: str) -> None:
    client = connect(heartbeat=0)
    publish(client, queue, numbers(COUNT))
    struck = proxy.to_client.inject(b"\xff" * 40, body_frame(130, past=True))
    stream.drain(through(stream, proxy, queue))
    assert struck.struck.is_set()
    assert depth(client, queue) == 0
    must_hold_all(stream)


@pytest.mark.thorough
def test_garbage_on_every_connection_ends_the_query(
    stream: Stream, proxy: FaultProxy, connect: Connect, queue: str
) -> None:
    client = connect(heartbeat=0)
    publish(client, queue, numbers(COUNT))
    proxy.to_client.inject(b"\xff" * 40, body_frame(20, past=True), times=None)
    query = stream.start(through(stream, proxy, queue, **{"retry.maxAttempts": 2, "maxMessagesPerTrigger": 30}))
    with pytest.raises(StreamingQueryException, match=r"DecodeError: .*MALFORMED\] .*frame type 255 .*\(at byte \d+\)"):
        query.awaitTermination(60)
    wait_until(lambda: not subscribers(client, queue), "the reader to go")
    stream.drain(stream.frame(queue, SCHEMA))
    assert depth(client, queue) == 0
    must_hold_all(stream)


@pytest.mark.thorough
def test_a_broker_that_comes_later_is_waited_for(
    stream: Stream, proxy: FaultProxy, connect: Connect, queue: str
) -> None:
    client = connect(heartbeat=0)
    publish(client, queue, numbers(COUNT))
    proxy.refuse()
    # The first call waits as long as connecting may take; attempts must outlast that and a slow machine.
    query = stream.start(through(stream, proxy, queue, **{"connectTimeout": 2, "retry.maxAttempts": 5000}))
    try:
        wait_until(lambda: query.status["message"] == "Waiting for data to arrive", "the query to run", 180)
        assert not proxy.connections
        proxy.listen_again()
        wait_until(lambda: is_drained(client, queue, COUNT, stream), "the queue is drained", 180)
    finally:
        query.stop()
    assert stream.bodies() == numbers(COUNT)


def test_a_message_above_the_byte_limits_passes_alone(stream: Stream, connect: Connect, queue: str) -> None:
    client = connect(heartbeat=0)
    sizes = [10, 10, 3_000_000, 10, 1_000_000, 2_000_000, 10, 10]
    sent = [number + bytes(size) for number, size in zip(numbers(len(sizes)), sizes, strict=True)]
    publish(client, queue, sent)
    stream.drain(stream.frame(queue, SCHEMA, maxBytesPerTrigger="100k", bufferBytes="200k"))
    assert stream.bodies() == sent
    for rows in stream.batches.values():
        assert len(rows) == 1 or all(len(body) < 100_000 for body in bodies(rows))
    assert depth(client, queue) == 0


@pytest.mark.thorough
def test_competing_queries_take_everything_once(
    spark: SparkSession, broker: Broker, connect: Connect, queue: str, tmp_path: Path
) -> None:
    published = 0
    client = connect(heartbeat=0)
    streams = [Stream(spark, broker, tmp_path / name) for name in ("one", "two")]
    limits: dict[str, Any] = {"maxMessagesPerTrigger": 200, "bufferBytes": "40k", "maxBytesPerTrigger": "20k"}
    queries = [each.start(each.frame(queue, SCHEMA, **limits)) for each in streams]
    try:
        wait_until(lambda: subscribers(client, queue) == 2, "both consumers", 60)
        while not all(each.rows for each in streams):  # Broker-J may forget one until it has renewed its credit
            assert published < 60_000, "one query takes all"
            publish(client, queue, numbers(3000, published))
            published += 3000
            wait_until(partial(is_drained, client, queue, published, *streams), "the queue is drained", 120)
    finally:
        for query in queries:
            query.stop()
    assert sorted(streams[0].bodies() + streams[1].bodies()) == numbers(published)


def test_one_of_competing_queries_fails_and_the_other_takes_over(
    spark: SparkSession, broker: Broker, connect: Connect, queue: str, tmp_path: Path
) -> None:
    count = 1000
    client = connect(heartbeat=0)
    steady, failing = (Stream(spark, broker, tmp_path / name) for name in ("steady", "failing"))
    limits: dict[str, Any] = {"maxMessagesPerTrigger": 100, "bufferBytes": "40k", "maxBytesPerTrigger": "20k"}

    failed = Event()

    def fail_third(rows: DataFrame, batch: int) -> None:
        if batch == 2:
            failed.set()
            raise RuntimeError("the sink is full")
        failing.collect(rows, batch)

    def wait_for_the_other(rows: DataFrame, batch: int) -> None:
        steady.collect(rows, batch)
        assert failed.wait(120), "the other query gets no third batch"

    queries = [steady.start(steady.frame(queue, SCHEMA, **limits), wait_for_the_other)]
    queries.append(failing.start(failing.frame(queue, SCHEMA, **limits), fail_third))
    try:
        wait_until(lambda: subscribers(client, queue) == 2, "both consumers", 60)
        publish(client, queue, numbers(count))
        wait_until(lambda: is_drained(client, queue, count, steady, failing), "the queue is drained", 120)
        wait_until(queries[1].exception, "the query has ended", 60)
        assert "the sink is full" in str(queries[1].exception())
    finally:
        for query in queries:
            query.stop()
    assert set(steady.bodies()) | set(failing.bodies()) == set(numbers(count))
    repeated = set(steady.bodies()) & set(failing.bodies())
    again = [row for row in steady.rows if bytes(row["body"]) in repeated]
    assert all(row["redelivered"] for row in again)


@pytest.mark.thorough
def test_a_broker_killed_under_available_now(
    spark: SparkSession, own_broker: OwnBroker, connect: Connect, tmp_path: Path
) -> None:
    ours = own_broker()
    stream = Stream(spark, ours, tmp_path)
    client = connect("durable", ours)
    client.declare_queue("killed", durable=True)
    publish(client, "killed", numbers(COUNT), persistent=True)

    def kill_once(rows: DataFrame, batch: int) -> None:
        stream.collect(rows, batch)
        if batch == 1:
            ours.restart(kill=True)

    stream.drain(stream.frame("killed", SCHEMA, vhost="durable", **(QUICK | {"retry.maxDelay": "0.5"})), kill_once)
    # Broker-J does not flag what it recovers from its store, so repeated messages need not be flagged here.
    assert set(stream.bodies()) == set(numbers(COUNT))
    assert max(Counter(stream.bodies()).values()) <= 2
    assert depth(connect("durable", ours), "killed") == 0


@pytest.mark.thorough
def test_a_broker_that_freezes_and_goes_on(
    spark: SparkSession, own_broker: OwnBroker, connect: Connect, tmp_path: Path
) -> None:
    ours = own_broker(durable=False)
    stream = Stream(spark, ours, tmp_path)
    client = connect(broker=ours, heartbeat=0)
    client.declare_queue("frozen")
    publish(client, "frozen", numbers(COUNT))
    limits: dict[str, Any] = {"heartbeat": 1, "connectTimeout": 1, "retry.maxAttempts": 500, "retry.maxDelay": "0.2"}

    def freeze_once(rows: DataFrame, batch: int) -> None:
        stream.collect(rows, batch)
        if batch == 1:
            ours.pause()

    with FaultProxy((ours.host, ours.port)) as proxy:
        query = stream.start(through(stream, proxy, "frozen", **limits), freeze_once)
        try:
            proxy.wait_for_connections(3, 60)  # the first was given up, and another one was not answered
            ours.resume()
            wait_until(lambda: not depth(client, "frozen"), "the queue is drained", 60)
        finally:
            ours.resume()
            query.stop()
    must_hold_all(stream)
