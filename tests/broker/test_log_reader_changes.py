"""Readers of streams of real RabbitMQ, without a JVM: what happens to the stream meanwhile, and hidden messages."""

from __future__ import annotations

import socket
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import types as t

from amqp_core.errors import AmqpError
from amqp_core.v0_9.messages import Message
from amqp_core.v0_9.spec import BasicProperties
from amqp_spark.connect import connect
from amqp_spark.datasource.log import positions, probe, range_reader, retries
from amqp_spark.datasource.log.batch_reader import AmqpLogBatchReader
from amqp_spark.datasource.log.stream_reader import AmqpLogStreamReader
from amqp_spark.errors import LogError
from tests.broker.log_support import Streams, bodies_of, offsets_of
from tests.broker.source_0_9_support import numbers

if TYPE_CHECKING:
    from tests.spark.driver import Driver
    from tests.support.rabbitmq import RabbitMQNode

pytestmark = pytest.mark.broker


def test_a_stream_that_was_made_again_is_noticed(streams: Streams) -> None:
    streams.publish(numbers(100))
    driver = streams.log_driver()
    driver.rows(100)
    streams.remade()
    streams.publish(numbers(150, 1000))
    with pytest.raises(LogError, match=r"AMQP_LOG_REPLACED.*before offset 100.*failOnDataLoss=false"):
        streams.log_driver(driver).trigger()
    again = streams.log_driver(driver, failOnDataLoss="false")
    again.until(lambda rows: len(rows) == 150)
    assert bodies_of(row for batch in again.batches for row in batch) == numbers(150, 1000)


@pytest.mark.parametrize("available_now", [False, True])
def test_a_stream_that_is_made_again_while_many_messages_wait_is_noticed(streams: Streams, available_now: bool) -> None:
    streams.publish(numbers(300))
    driver = streams.log_driver(available_now=available_now, maxMessagesPerTrigger=50)
    assert bodies_of(driver.trigger_until_rows()) == numbers(50)
    streams.remade()
    streams.publish(numbers(400, 5000))
    with pytest.raises(LogError, match=r"AMQP_LOG_REPLACED"):
        driver.trigger_until_rows()
    again = streams.log_driver(driver, available_now=available_now, failOnDataLoss="false", maxMessagesPerTrigger=50)
    again.until(lambda rows: len(rows) == 400)
    assert bodies_of(row for batch in again.batches for row in batch) == numbers(400, 5000)


def test_a_stream_that_is_made_again_may_be_lost_while_the_query_runs(streams: Streams) -> None:
    streams.publish(numbers(300))
    driver = streams.log_driver(failOnDataLoss="false", maxMessagesPerTrigger=50)
    assert bodies_of(driver.trigger_until_rows()) == numbers(50)
    streams.remade()
    streams.publish(numbers(100, 5000))
    driver.batches.clear()
    driver.until(lambda rows: len(rows) == 100)
    assert bodies_of(row for batch in driver.batches for row in batch) == numbers(100, 5000)


@pytest.mark.thorough
@pytest.mark.parametrize("count", [20, 200])
def test_a_logged_batch_of_a_stream_that_was_made_again_is_empty(
    streams: Streams, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "RECOVERY_SECONDS", 2.0)
    streams.publish(numbers(100))
    driver = streams.log_driver(maxMessagesPerTrigger=50)
    driver.trigger_until_rows()
    driver.trigger(fail=True)
    streams.remade()
    streams.publish(numbers(count, 5000))
    with pytest.raises(LogError, match=f"AMQP_LOG_REPLACED.* {'ends' if count < 50 else 'has another message'} before"):
        streams.log_driver(driver).restart_batch()
    again = streams.log_driver(driver, failOnDataLoss="false")
    assert again.restart_batch() == []
    again.until(lambda rows: len(rows) == count)
    assert bodies_of(row for batch in again.batches for row in batch) == numbers(count, 5000)


@pytest.mark.parametrize("count", [pytest.param(5, marks=pytest.mark.thorough), 200])
def test_the_first_logged_batch_of_a_stream_that_was_made_again_is_empty(
    streams: Streams, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins at offset 0, where all streams are the same; only its end tells."""
    monkeypatch.setattr(retries, "RECOVERY_SECONDS", 2.0)
    streams.publish(numbers(100))
    driver = streams.log_driver(maxMessagesPerTrigger=100)
    driver.trigger(fail=True)
    streams.remade()
    streams.publish(numbers(count, 5000))
    again = streams.log_driver(driver, failOnDataLoss="false")
    assert again.restart_batch() == []
    assert again.last_partitions == [], "no task waits for messages that will not come"
    again.until(lambda rows: len(rows) == count)
    assert bodies_of(row for batch in again.batches for row in batch) == numbers(count, 5000)


def test_a_range_of_a_stream_that_is_made_again_before_it_is_read(streams: Streams) -> None:
    streams.publish(numbers(100))
    reader = AmqpLogStreamReader(streams.options(), streams.plan())
    streams.made.append(reader)
    begin = reader.latestOffset({}, reader.getDefaultReadLimit())
    end = reader.latestOffset(begin, reader.getDefaultReadLimit())
    (partition,) = reader.partitions(begin, end)
    streams.remade()
    streams.publish(numbers(100, 5000))
    with pytest.raises(LogError, match=r"AMQP_LOG_REPLACED"):
        list(reader.read(partition))


def test_each_range_of_a_batch_notices_that_the_stream_was_made_again(streams: Streams) -> None:
    """A task that runs late, or once more, reads another stream than the tasks before it."""
    streams.publish(numbers(12_000))
    driver = streams.log_driver(maxMessagesPerTrigger=12_000, numPartitions=2)
    first, second = driver.reader.partitions(driver.start, driver.latest())
    assert bodies_of(driver.read([second])) == numbers(6000, 6000)
    streams.remade()
    streams.publish(numbers(12_000, 500_000))
    with pytest.raises(LogError, match=r"AMQP_LOG_REPLACED.*before offset 12000"):
        driver.read([first])


def test_a_task_of_a_batch_read_notices_that_the_stream_was_made_again(streams: Streams) -> None:
    streams.publish(numbers(12_000))
    reader = AmqpLogBatchReader(streams.options(numPartitions=2), streams.plan(), connector=connect)
    first, _ = reader.partitions()
    streams.remade()
    streams.publish(numbers(12_000, 500_000))
    with pytest.raises(LogError, match=r"AMQP_LOG_REPLACED.*before offset 12000"):
        list(reader.read(first))


@pytest.mark.parametrize(("count", "text"), [(200, "has another message before"), (5, "ends before")])
def test_a_range_of_a_stream_that_was_made_again_may_be_lost_and_does_not_bring_rows_of_the_new_one(
    streams: Streams, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, count: int, text: str
) -> None:
    monkeypatch.setattr(retries, "RECOVERY_SECONDS", 2.0)
    streams.publish(numbers(100))
    driver = streams.log_driver(failOnDataLoss="false", maxMessagesPerTrigger=100)
    driver.offsets.append(driver.latest())
    ranges = driver.reader.partitions(driver.start, driver.offsets[-1])
    streams.remade()
    streams.publish(numbers(count, 5000))
    assert driver.read(ranges) == []
    assert text in caplog.text
    driver.commits += 1
    assert bodies_of(driver.rows(count)) == numbers(count, 5000), "each row of the new stream comes once"


def test_equal_messages_are_told_apart_by_their_properties(streams: Streams) -> None:
    def publish(count: int, first: int) -> None:
        with streams.connect() as client:
            for number in range(first, first + count):
                message = Message(b"tick", BasicProperties(message_id=str(number), delivery_mode=2))
                client.publish(message, routing_key=streams.queue)
            client.confirm()

    publish(100, 0)
    driver = streams.log_driver()
    driver.rows(100)
    streams.remade()
    publish(150, 1000)
    with pytest.raises(LogError, match="AMQP_LOG_REPLACED"):
        streams.log_driver(driver).trigger_until_rows()


def test_more_messages_than_a_batch_may_have_do_not_wait(streams: Streams) -> None:
    streams.publish([bytes(10_000)] * 30)
    driver = streams.log_driver(maxBytesPerTrigger="200k", minMessagesPerTrigger=50, maxTriggerDelay="1h")
    assert 0 < len(driver.trigger_until_rows()) < 30


def test_few_messages_wait_for_the_longest_delay(streams: Streams) -> None:
    streams.publish(numbers(3))
    driver = streams.log_driver(minMessagesPerTrigger=50, maxTriggerDelay="2s")
    assert driver.trigger() is None
    assert bodies_of(driver.trigger_until_rows()) == numbers(3)


def test_the_lag_counts_what_is_in_no_batch(streams: Streams) -> None:
    streams.publish(numbers(100))
    driver = streams.log_driver(maxMessagesPerTrigger=60)
    driver.trigger_until_rows()
    assert lag_of(driver) == 40
    driver.trigger_until_rows()
    again = streams.log_driver(driver, maxMessagesPerTrigger=60)
    assert again.trigger() is None
    assert lag_of(again) == 0, "a restart knows where it begins"


def lag_of(driver: Driver) -> int:
    latest = driver.reader.reportLatestOffset()
    assert latest is not None
    (entry,) = latest.values()
    assert set(entry) == {"lag", "offset", "rowsPerSecond"}
    return int(entry["lag"])


@pytest.mark.thorough
@pytest.mark.parametrize("count", [0, 5])
def test_a_stream_that_was_made_again_and_is_shorter_is_noticed(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(retries, "RECOVERY_SECONDS", 2.0)
    streams.publish(numbers(100))
    driver = streams.log_driver()
    driver.rows(100)
    streams.remade()
    streams.publish(numbers(count))
    with pytest.raises(LogError, match=r"AMQP_LOG_REPLACED.* ends before offset 100"):
        streams.log_driver(driver).trigger()


@pytest.fixture
def short(streams: Streams) -> Streams:
    """A stream that removes old messages soon."""
    streams.make_forgetful()
    return streams


@pytest.mark.sampled("fails", every=2)
@pytest.mark.parametrize("fails", ["true", "false"])
def test_an_offset_that_retention_has_removed_is_refused(short: Streams, fails: str) -> None:
    """failOnDataLoss is about what a query has not read yet, and not about where it begins."""
    short.publish(numbers(40))
    first = short.forget()
    text = rf"AMQP_LOG_OFFSET_OUTSIDE.*'startingOffsets' asks for {first - 1} of .* offsets from {first} to"
    with pytest.raises(LogError, match=text):
        short.read(startingOffsets=first - 1, failOnDataLoss=fails)
    with pytest.raises(LogError, match=r"'endingOffsets' asks for 0"):
        short.read(endingOffsets="0", failOnDataLoss=fails)
    with pytest.raises(LogError, match=r"AMQP_LOG_OFFSET_OUTSIDE.*asks for 0 of .*Give an offset from"):
        short.log_driver(startingOffsets="0", failOnDataLoss=fails)
    assert offsets_of(short.read(startingOffsets=first, endingOffsets=first + 1)) == [first]


def test_messages_removed_before_they_were_read_are_noticed(short: Streams, caplog: pytest.LogCaptureFixture) -> None:
    short.publish(numbers(40))
    driver = short.log_driver(maxMessagesPerTrigger=20)
    driver.trigger_until_rows()
    first = short.forget()
    with pytest.raises(LogError, match=rf"AMQP_LOG_DATA_LOST.*Messages 20 to {first} .*x-max-age"):
        short.log_driver(driver).trigger()
    again = short.log_driver(driver, failOnDataLoss="false")
    rows = again.until(bool)
    assert offsets_of(rows)[0] == first
    assert "AMQP_LOG_DATA_LOST" in caplog.text


def test_a_logged_batch_whose_messages_were_removed_is_noticed(short: Streams) -> None:
    short.publish(numbers(40))
    driver = short.log_driver(maxMessagesPerTrigger=20)
    driver.trigger_until_rows()
    driver.trigger(fail=True)
    short.forget()
    with pytest.raises(LogError, match=r"AMQP_LOG_DATA_LOST.*Messages 20 to"):
        short.log_driver(driver).restart_batch()
    again = short.log_driver(driver, failOnDataLoss="false")
    assert again.restart_batch() == []
    again.until(bool)


def test_offsets_that_the_broker_leaves_out_are_told(
    streams: Streams, log_node: RabbitMQNode, caplog: pytest.LogCaptureFixture
) -> None:
    """RabbitMQ leaves out compressed sub-entries of the stream protocol, and stored offsets of its consumers. This test
    stores one offset, and then four in a row."""

    def store(count: int) -> None:
        found = f"rabbit_misc:r(<<'durable'>>, queue, <<'{streams.queue}'>>)".replace("'", '"')
        stored = (
            "begin osiris:write_tracking(amqqueue:get_pid(Q), integer_to_binary(N), {offset, N}), timer:sleep(50) end"
        )
        log_node.evaluate(f"{{ok, Q}} = rabbit_amqqueue:lookup({found}), [{stored} || N <- lists:seq(1, {count})]")

    streams.publish(numbers(5))
    store(1)
    streams.publish(numbers(5, 5))
    assert offsets_of(streams.read()) == [*range(5), *range(6, 11)]
    assert "the broker sends nothing" not in caplog.text
    store(4)
    streams.publish(numbers(5, 10))
    rows = streams.read()
    assert offsets_of(rows) == [*range(5), *range(6, 11), *range(15, 20)]
    assert bodies_of(rows) == numbers(15)
    assert f"stream {streams.queue!r}: the broker sends nothing for the offsets 11 to 14." in caplog.text


def publish_compressed(streams: Streams, log_node: RabbitMQNode, count: int) -> None:
    """Store messages in one compressed sub-entry, as a publisher of the stream protocol does."""
    found = f"rabbit_misc:r(<<'durable'>>, queue, <<'{streams.queue}'>>)".replace("'", '"')
    packed = f"Data = zlib:gzip(binary:copy(<<0:1, 5:31, 0, 83, 117, 160, 0>>, {count}))"
    write = f"osiris:write(amqqueue:get_pid(Q), undefined, 1, {{batch, {count}, 1, {count} * 9, Data}})"
    log_node.evaluate(f"{{ok, Q}} = rabbit_amqqueue:lookup({found}), {packed}, {write}, timer:sleep(300)")


@pytest.mark.parametrize("log_node", ["rabbitmq"], indirect=True)  # 3.10 closes the connection with 541
def test_a_stream_that_ends_with_a_compressed_sub_entry_is_refused_in_words(
    streams: Streams, log_node: RabbitMQNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "SURE_SECONDS", 1.0)
    streams.publish(numbers(5))
    publish_compressed(streams, log_node, 4)
    with pytest.raises(LogError, match=r"AMQP_LOG_END_HIDDEN.*compressed sub-entry"):
        streams.read()
    streams.publish(numbers(3, 5))
    assert offsets_of(streams.read()) == [*range(5), 9, 10, 11]


@pytest.mark.parametrize("log_node", ["rabbitmq"], indirect=True)
def test_a_stream_of_nothing_but_a_compressed_sub_entry_is_warned_of(
    streams: Streams, log_node: RabbitMQNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in (probe, positions):
        monkeypatch.setattr(module, "SURE_SECONDS", 1.0)
    publish_compressed(streams, log_node, 4)
    streams.wait_for_count(4, 0)
    assert streams.log_driver().trigger() is None
    assert f"stream {streams.queue!r}: the broker counts messages and sends none" in caplog.text
    streams.publish(numbers(3))
    assert offsets_of(streams.log_driver().rows(3)) == [4, 5, 6]


def test_streams_that_are_empty_get_what_comes_later(streams: Streams) -> None:
    other = f"{streams.queue}-other"
    streams.declare(other)
    try:
        driver = streams.log_driver(queue=f"{streams.queue},{other}")
        assert driver.trigger() is None
        streams.publish(numbers(3))
        assert bodies_of(driver.rows(3)) == numbers(3)
        streams.publish(numbers(3, 3), other)
        assert bodies_of(driver.rows(6)) == numbers(6)
    finally:
        streams.close(other)


def test_a_range_is_read_on_after_a_lost_connection(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "PREFETCH", 50)
    streams.publish(numbers(3000))
    connections: list[Any] = []

    def connected(options: Any) -> Any:
        connections.append(connect(options))
        return connections[-1]

    (part,) = AmqpLogBatchReader(streams.options(), streams.plan(), connector=connect).partitions()
    monkeypatch.setattr("amqp_spark.arrow.decode.plan.MOST_ROWS", 100)
    monkeypatch.setattr("amqp_spark.arrow.columns.gathering._TOGETHER", 1)
    reader = range_reader.RangeReader(part, streams.options(), streams.plan(), connected)
    rows: list[int | None] = []
    for batch in reader.batches():
        rows += batch.column(1).to_pylist()
        if len(connections) < 4 and len(rows) > 700 * len(connections):
            connections[-1]._driver.transport._sock.shutdown(socket.SHUT_RDWR)
    assert rows == list(range(3000))
    assert len(connections) == 4


def test_every_property_comes_through_a_stream(streams: Streams) -> None:
    properties = BasicProperties(
        content_type="text/plain", headers={"symbol": "A", "qty": 5}, delivery_mode=2, priority=4,
        correlation_id="c", reply_to="r", expiration="60000", message_id="m", timestamp=1_700_000_000, type="tick",
        user_id=streams.username, app_id="app",
    )  # fmt: skip
    with streams.connect() as client:
        client.publish(Message(b"body", properties), routing_key=streams.queue)
        client.confirm()
    names = ["stream", "offset", "body", "content_type", "message_id", "type", "delivery_count", "application_headers"]
    kinds = {"offset": t.LongType(), "body": t.BinaryType(), "delivery_count": t.LongType()}
    headers = t.StructType([t.StructField("symbol", t.StringType()), t.StructField("qty", t.IntegerType())])
    schema = t.StructType(
        [
            t.StructField(name, headers if name == "application_headers" else kinds.get(name, t.StringType()))
            for name in names
        ]
    )
    reader = AmqpLogBatchReader(streams.options(), streams.plan(schema), connector=connect)
    (part,) = reader.partitions()
    (batch,) = reader.read(part)
    assert batch.to_pylist() == [
        {
            "stream": streams.queue, "offset": 0, "body": b"body", "content_type": "text/plain", "message_id": "m",
            "type": "tick", "delivery_count": None, "application_headers": {"symbol": "A", "qty": 5},
        }
    ]  # fmt: skip


def test_what_a_stream_does_not_keep(streams: Streams) -> None:
    """So the sink refuses it with ``queueType=stream``."""
    headers = {"list": [1, 2], "table": {"a": 1}, "text": "kept", "number": 5}
    with streams.connect() as client:
        properties = BasicProperties(headers=headers, cluster_id="c", delivery_mode=2)
        client.publish(Message(b"a", properties), routing_key=streams.queue)
        client.confirm()
    with streams.connect() as client:
        client.publish(Message(b"b", BasicProperties(headers={"price": Decimal("1.5")})), routing_key=streams.queue)
        with pytest.raises(AmqpError, match="541"):
            client.confirm()
    with streams.connect() as client:
        subscription = client.subscribe(streams.queue, max_unsettled=10, arguments={"x-stream-offset": "first"})
        (message,) = subscription.take(1)
    assert message.headers == {"text": "kept", "number": 5, "x-stream-offset": 0}
    assert message.properties.cluster_id is None
