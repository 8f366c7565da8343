"""The readers of streams over real RabbitMQ, without a JVM."""

from __future__ import annotations

import json
import random
import socket
import time
from collections import defaultdict
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import types as t

from amqp_core.errors import AmqpError, NotFound
from amqp_core.v0_9.messages import Message
from amqp_core.v0_9.spec import BasicProperties
from amqp_spark.compat import ReadAllAvailable
from amqp_spark.connect import connect
from amqp_spark.datasource.log import range_reader, retries
from amqp_spark.datasource.log.batch_reader import AmqpLogBatchReader
from amqp_spark.datasource.log.stream_reader import AmqpLogStreamReader
from amqp_spark.errors import LogError, OffsetError, UnsupportedModeError
from tests.broker.log_support import Streams
from tests.broker.source_0_9_support import numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.spark.driver import Driver
    from tests.support.rabbitmq import RabbitMQNode

pytestmark = pytest.mark.broker


@pytest.fixture(params=["rabbitmq", pytest.param("rabbitmq310", marks=pytest.mark.thorough)])
def node(request: pytest.FixtureRequest) -> RabbitMQNode:
    found: RabbitMQNode = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def streams(node: RabbitMQNode) -> Iterator[Streams]:
    found = Streams(node.url("durable"), node.username, node.password)
    found.declare()
    yield found
    found.close()


def offsets_of(rows: Iterable[Any]) -> list[int]:
    return [row[1] for row in rows]


def bodies_of(rows: Iterable[Any]) -> list[bytes]:
    return [row[2] for row in rows]


# --- batch reads


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [("earliest", "latest", (0, 30)), ("5", "latest", (5, 30)), ("5", "6", (5, 6)), ("0", "0", (0, 0)),
     ("30", "latest", (30, 30)), ("earliest", "29", (0, 29))],
)  # fmt: skip
def test_a_batch_read_has_exactly_its_range(streams: Streams, begin: str, end: str, expected: tuple[int, int]) -> None:
    streams.publish(numbers(30))
    rows = streams.read(startingOffsets=begin, endingOffsets=end)
    assert offsets_of(rows) == list(range(*expected))
    assert bodies_of(rows) == numbers(30)[slice(*expected)]
    assert {row[0] for row in rows} <= {streams.queue}


def test_every_offset_is_met_exactly_however_the_messages_were_stored(streams: Streams) -> None:
    chance = random.Random(5)
    sent = [bytes([at % 256]) * chance.choice([0, 1, 100, 5000, 200_000]) for at in range(300)]
    for at in range(0, 300, 50):
        streams.publish(sent[at : at + 50])
    for _ in range(15):
        begin = chance.randrange(300)
        end = chance.randint(begin, 300)
        rows = streams.read(startingOffsets=begin, endingOffsets=end, numPartitions=3)
        assert offsets_of(rows) == list(range(begin, end))
        assert bodies_of(rows) == sent[begin:end]


def test_a_large_range_is_cut_into_partitions_that_read_by_themselves(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "PREFETCH", 100)
    streams.publish(numbers(12_000))
    reader = AmqpLogBatchReader(streams.options(numPartitions=4), streams.plan(), connector=connect)
    parts = reader.partitions()
    assert len(parts) == 2, "none has fewer than 5,000 messages"
    found = [[row for batch in reader.read(part) for row in batch.column(1).to_pylist()] for part in reversed(parts)]
    assert found == [list(range(6000, 12_000)), list(range(6000))]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"startingOffsets": "31"}, r"AMQP_LOG_OFFSET_OUTSIDE.*startingOffsets.*asks for 31.*offsets from 0 to 30"),
        ({"endingOffsets": "31"}, r"endingOffsets.*asks for 31"),
        ({"startingOffsets": "9", "endingOffsets": "8"}, "'endingOffsets' has 8 for stream .*'startingOffsets' has 9"),
    ],
)
def test_offsets_outside_of_the_stream_are_refused(streams: Streams, given: dict[str, str], text: str) -> None:
    streams.publish(numbers(30))
    with pytest.raises(LogError, match=text):
        streams.read(**given)


def test_an_empty_stream_has_no_rows(streams: Streams) -> None:
    assert streams.read() == []


def test_a_time_begins_with_the_messages_that_were_stored_then(streams: Streams) -> None:
    streams.publish(numbers(10))
    assert streams.read(startingOffsets="2099-01-01T00:00:00Z") == []
    assert offsets_of(streams.read(startingOffsets="2020-01-01T00:00:00Z")) == list(range(10))


def test_a_time_in_the_middle_divides_what_was_stored_before_and_after_it(streams: Streams) -> None:
    streams.publish(numbers(10))
    seconds = int(time.time()) + 2
    time.sleep(max(0.0, seconds + 0.2 - time.time()))
    streams.publish(numbers(10, 10))
    when = datetime.fromtimestamp(seconds, UTC).isoformat()
    assert bodies_of(streams.read(startingOffsets=when)) == numbers(10, 10)
    assert bodies_of(streams.read(endingOffsets=when)) == numbers(10)
    driver = streams.log_driver(startingOffsets=when)
    assert offsets_of(driver.rows(10)) == list(range(10, 20))


def test_each_stream_has_its_own_positions(streams: Streams) -> None:
    other, third = f"{streams.queue}-other", f"{streams.queue}-third"
    queues = ",".join((streams.queue, other, third))

    def offsets(rows: Iterable[Any]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for row in rows:
            found[row[0]].append(row[1])
        return found

    try:
        for name in (other, third):
            streams.declare(name)
        for name in (streams.queue, other, third):
            streams.publish(numbers(20), name)
        begin = json.dumps({streams.queue: 5, other: "earliest"})
        end = json.dumps({streams.queue: -1, other: 7, third: 3})
        found = offsets(streams.read(queue=queues, startingOffsets=begin, endingOffsets=end))
        assert found == {streams.queue: [*range(5, 20)], other: [*range(7)], third: [*range(3)]}, "third: earliest"
        driver = streams.log_driver(queue=queues, startingOffsets=begin)
        streams.publish(numbers(2, 20), third)
        driver.until(lambda rows: len(rows) == 15 + 20 + 2)
        found = offsets(row for batch in driver.batches for row in batch)
        expected = {streams.queue: [*range(5, 20)], other: [*range(20)], third: [20, 21]}
        assert {log: sorted(rows) for log, rows in found.items()} == expected, "third: latest"
    finally:
        for reader in streams.made:
            reader.stop()
        with streams.connect() as client:
            for name in (other, third):
                client.delete_queue(name)


def test_a_queue_that_is_no_stream_and_one_that_is_missing_are_refused(streams: Streams) -> None:
    other = f"{streams.queue}-classic"
    with streams.connect() as client:
        client.declare_queue(other, durable=True)
    try:
        with pytest.raises(LogError, match=r"AMQP_LOG_IS_QUEUE.*Remove queueType=stream"):
            streams.read(queue=other)
        with pytest.raises(NotFound, match="AMQP_QUEUE_NOT_FOUND"):
            streams.read(queue="is-not-there")
    finally:
        with streams.connect() as client:
            client.delete_queue(other)


def test_a_stream_is_not_read_as_a_queue(streams: Streams) -> None:
    for guarantee in ("at-least-once", "at-most-once"):
        driver = streams.driver(deliveryGuarantee=guarantee)
        with pytest.raises(LogError, match=r"AMQP_QUEUE_IS_LOG.*Set queueType=stream"):
            driver.rows(1)
        streams.stop()


# --- streaming


def test_batches_are_bounded_and_follow_each_other(streams: Streams) -> None:
    streams.publish(numbers(1000))
    driver = streams.log_driver(maxMessagesPerTrigger=300)
    driver.rows(1000)
    assert [len(batch) for batch in driver.batches] == [300, 300, 300, 100]
    assert bodies_of(row for batch in driver.batches for row in batch) == numbers(1000)
    streams.publish(numbers(5, 1000))
    driver.rows(1005)
    assert offsets_of(driver.batches[-1])[-1] == 1004


def test_bytes_of_a_batch_are_estimated_from_the_messages_seen(streams: Streams) -> None:
    streams.publish([bytes(10_000)] * 200)
    driver = streams.log_driver(maxBytesPerTrigger="200k")
    driver.rows(200)
    assert all(len(batch) <= 25 for batch in driver.batches[1:])


def test_the_estimated_bytes_follow_a_change_of_sizes(streams: Streams) -> None:
    driver = streams.log_driver(maxBytesPerTrigger="200k")
    for number in range(40):
        streams.publish(numbers(200))
        driver.rows(200 * (number + 1))
    for number in range(2):
        driver.batches.clear()
        streams.publish([bytes(50_000)] * 60)
        driver.rows(60)
        assert number == 0 or max(len(batch) for batch in driver.batches) <= 8


def test_available_now_ends_at_what_was_there(streams: Streams) -> None:
    streams.publish(numbers(500))
    driver = streams.log_driver(available_now=True, maxMessagesPerTrigger=200)
    streams.publish(numbers(100, 500))
    while driver.trigger() is not None:
        pass
    assert sum(map(len, driver.batches)) == 500
    again = streams.log_driver(driver, available_now=True)
    while again.trigger() is not None:
        pass
    assert bodies_of(again.batches[-1]) == numbers(100, 500)


def test_a_batch_is_replayed_byte_for_byte_by_another_run(streams: Streams) -> None:
    streams.publish(numbers(400))
    driver = streams.log_driver(maxMessagesPerTrigger=150)
    driver.trigger_until_rows()
    assert driver.trigger(fail=True) is not None
    lost = driver.read(driver.last_partitions)
    streams.publish(numbers(50, 400))
    again = streams.log_driver(driver)
    assert again.restart_batch() == lost
    assert bodies_of(lost) == numbers(150, 150)
    again.until(lambda rows: bool(rows) and rows[-1][1] == 449)


def test_latest_begins_behind_what_is_there(streams: Streams) -> None:
    streams.publish(numbers(20))
    driver = streams.log_driver(startingOffsets="latest")
    assert driver.trigger() is None
    streams.publish(numbers(3, 20))
    assert offsets_of(driver.rows(3)) == [20, 21, 22]


def test_where_a_query_begins_is_kept_although_nothing_came_before_its_restart(streams: Streams) -> None:
    streams.publish(numbers(20))
    driver = streams.log_driver(startingOffsets="latest")
    streams.publish(numbers(3, 20))
    assert offsets_of(streams.log_driver(driver, startingOffsets="latest").rows(3)) == [20, 21, 22]


def test_trigger_once_is_refused(streams: Streams) -> None:
    reader = streams.log_driver().reader
    with pytest.raises(UnsupportedModeError, match=r"Trigger\.Once is not supported.*availableNow"):
        reader.latestOffset({}, ReadAllAvailable())


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("count", "text"), [(10, "AMQP_LOG_REPLACED.* ends before"), (30, "AMQP_LOG_REPLACED.* has another message")]
)
def test_a_stream_that_is_made_again_while_the_query_runs_is_noticed(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, count: int, text: str
) -> None:
    monkeypatch.setattr(retries, "RECOVERY_SECONDS", 2.0)
    streams.publish(numbers(20))
    driver = streams.log_driver()
    driver.rows(20)
    assert driver.trigger() is None
    streams.remade()
    streams.publish(numbers(count, 5000))
    with pytest.raises(LogError, match=text):
        driver.until(lambda rows: len(rows) > 20)


@pytest.mark.thorough
def test_a_stream_that_is_made_again_while_a_batch_runs_and_is_shorter_is_noticed(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream is not watched meanwhile, so the broker does not say that it is deleted."""
    monkeypatch.setattr(retries, "RECOVERY_SECONDS", 2.0)
    streams.publish(numbers(20))
    driver = streams.log_driver()
    driver.rows(20)
    streams.remade()
    streams.publish(numbers(10))
    with pytest.raises(LogError, match=r"AMQP_LOG_REPLACED.* ends before"):
        driver.until(lambda rows: len(rows) > 20)


def test_few_messages_wait_for_more(streams: Streams) -> None:
    streams.publish(numbers(5))
    driver = streams.log_driver(minMessagesPerTrigger=10, maxTriggerDelay="1h")
    assert driver.trigger() is None
    streams.publish(numbers(5, 5))
    assert len(driver.trigger_until_rows()) == 10


def test_ten_streams_in_one_query_and_one_that_joins(streams: Streams) -> None:
    names = [f"{streams.queue}-{number}" for number in range(10)]
    joins = f"{streams.queue}-joins"
    chance = random.Random(7)
    sent: dict[str, list[bytes]] = defaultdict(list)

    def more(*logs: str) -> None:
        for log in logs:
            bodies = numbers(chance.randrange(1, 60), len(sent[log]))
            streams.publish(bodies, log)
            sent[log] += bodies

    def found(driver: Driver) -> dict[str, list[bytes]]:
        rows: dict[str, list[bytes]] = defaultdict(list)
        for batch in driver.batches:
            for row in batch:
                rows[row[0]].append(row[2])
        return rows

    try:
        for name in (*names, joins):
            streams.declare(name)
        more(*names)
        driver = streams.log_driver(queue=",".join(names), maxMessagesPerTrigger=40)
        driver.until(lambda rows: len(rows) == sum(map(len, sent.values())))
        more(names[3], joins)
        again = streams.log_driver(driver, queue=",".join((joins, *names)), maxMessagesPerTrigger=40)
        again.batches = driver.batches
        again.until(lambda rows: len(rows) == sum(map(len, sent.values())))
        assert found(again) == sent
        with pytest.raises(OffsetError, match="AMQP_OFFSET_LOGS_CHANGED"):
            streams.log_driver(again, queue=names[0]).trigger()
    finally:
        for reader in streams.made:
            reader.stop()
        with streams.connect() as client:
            for name in (*names, joins):
                client.delete_queue(name)


# --- what happens to the stream meanwhile


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
    streams: Streams, node: RabbitMQNode, caplog: pytest.LogCaptureFixture
) -> None:
    """RabbitMQ leaves out compressed sub-entries of the stream protocol, and stored offsets of its consumers. This test
    stores one offset, and then four in a row."""

    def store(count: int) -> None:
        found = f"rabbit_misc:r(<<'durable'>>, queue, <<'{streams.queue}'>>)".replace("'", '"')
        stored = (
            "begin osiris:write_tracking(amqqueue:get_pid(Q), integer_to_binary(N), {offset, N}), timer:sleep(50) end"
        )
        node.evaluate(f"{{ok, Q}} = rabbit_amqqueue:lookup({found}), [{stored} || N <- lists:seq(1, {count})]")

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
