"""The readers of streams over real RabbitMQ, without a JVM."""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.errors import NotFound
from amqp_spark.compat import ReadAllAvailable
from amqp_spark.connect import connect
from amqp_spark.datasource.log import range_reader, retries
from amqp_spark.datasource.log.batch_reader import AmqpLogBatchReader
from amqp_spark.errors import LogError, OffsetError, UnsupportedModeError
from tests.broker.log_support import Streams, bodies_of, offsets_of
from tests.broker.source_0_9_support import numbers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.spark.driver import Driver

pytestmark = pytest.mark.broker


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
