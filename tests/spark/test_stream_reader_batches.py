"""Batches of a stream reader: their messages, how they travel, how much it holds: points 2, 3, 7 and 8.

The points, in the names of tests too, are those of the list in :mod:`tests.spark.reader_support`.
"""

from __future__ import annotations

import pickle
import socket
from collections import deque

import pytest

from amqp_spark.compat import ReadMaxBytes, ReadMaxRows
from amqp_spark.datasource import credit, partitions
from amqp_spark.datasource.block_server import fetch
from amqp_spark.datasource.credit import MAX_CREDIT
from amqp_spark.datasource.partitions import SMALL_BATCH_BYTES, InlinePartition, PullPartition
from amqp_spark.errors import TransferError
from tests.spark.driver import Driver, Offset, bodies, dumps, running
from tests.spark.reader_support import Readers, numbers
from tests.support.fake_broker import FakeBroker, transfer_frames
from tests.support.process import wait_until

# --- 2 a batch is fixed when it is planned


def test_point_2_a_batch_is_fixed_when_it_is_planned(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(30))
    driver = Driver(readers())
    rows = driver.rows(30)
    fake.publish("q", *numbers(10, 30))
    fake.wait(lambda: fake.held() >= 10)
    end = driver.offsets[0]
    again = driver.reader.partitions(driver.initial, end)
    first = driver.batches[0]
    assert driver.read(again) == first
    assert rows[: len(first)] == first


def test_point_2_read_is_idempotent_and_makes_no_broker_io(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(30))
    driver = Driver(readers())
    rows = driver.trigger_until_rows()
    connects, queries = fake.connects, fake.queries
    for _ in range(3):
        assert driver.read(driver.last_partitions) == rows
    assert (fake.connects, fake.queries) == (connects, queries)


def test_point_2_two_plans_of_one_range_are_equal_as_in_a_self_union(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(30))
    driver = Driver(readers())
    start = driver.start
    rows = driver.trigger_until_rows()
    twice = [driver.reader.partitions(start, driver.offsets[-1]) for _ in range(2)]
    assert [driver.read(each) for each in twice] == [rows, rows]


def test_point_2_a_planned_end_that_was_not_logged_is_offered_again(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(10))
    driver = Driver(readers())
    ends: list[Offset] = []
    while not ends or ends[-1] == driver.start:
        ends.append(driver.latest())
    end = ends[-1]
    fake.publish("q", *numbers(10, 10))
    fake.wait(lambda: fake.held() == 20)
    assert driver.latest() == end


def test_point_2_both_bounds_of_a_batch_hold(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(100))
    size = len(transfer_frames(b"0" * 6))
    driver = Driver(readers(maxMessagesPerTrigger=7, maxBytesPerTrigger=5 * size))
    assert isinstance(driver.limit, ReadMaxRows)
    driver.rows(100)
    assert max(map(len, driver.batches)) == 5
    only_messages = Driver(readers("r", maxMessagesPerTrigger=7))
    fake.publish("r", *numbers(100))
    only_messages.rows(100)
    assert max(map(len, only_messages.batches)) == 7


def test_point_2_a_message_above_the_byte_bound_passes_alone(fake: FakeBroker, readers: Readers) -> None:
    large = b"L" * 5000
    fake.publish("q", b"a", large, b"b")
    driver = Driver(readers(maxBytesPerTrigger=1000))
    rows = driver.rows(3)
    assert bodies(rows) == [b"a", large, b"b"]
    assert [large] in [bodies(batch) for batch in driver.batches]


def test_point_2_the_default_limit_carries_one_bound(readers: Readers) -> None:
    assert readers(maxMessagesPerTrigger=7).getDefaultReadLimit() == ReadMaxRows(7)
    assert readers(maxBytesPerTrigger="8k").getDefaultReadLimit() == ReadMaxBytes(8192)


# --- 3 split early, decode late


def test_point_3_the_receiver_ships_frames_exactly_as_received(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", b"one", b"", b"x" * 70_000)
    driver = Driver(readers(transfer="inline"))
    shipped = b""
    while len(bodies([row for batch in driver.batches for row in batch])) < 3:
        driver.trigger_until_rows()
        for partition in driver.last_partitions:
            assert isinstance(partition, InlinePartition)
            shipped += b"".join(part.chunk.frames for part in partition.slices)
    assert shipped == b"".join(map(transfer_frames, [b"one", b"", b"x" * 70_000]))


def test_point_3_credentials_do_not_travel_to_executors(readers: Readers) -> None:
    reader = readers(username="guest", password="s3cret-word", saslMechanisms="PLAIN")
    assert b"s3cret-word" not in dumps(reader)
    assert "s3cret-word" not in repr(reader)


# --- 7 bulk bytes bypass the driver JVM


def bulk(readers: Readers, fake: FakeBroker, **options: str) -> Driver:
    body = b"x" * 10_000
    fake.publish("q", *(b"%06d" % number + body for number in range(300)))
    driver = Driver(readers(maxBytesPerTrigger="64m", **options), available_now=True)
    assert len(driver.trigger() or []) == 300
    return driver


def test_point_7_a_small_batch_is_one_inline_partition(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(10))
    fake.publish("r", *numbers(10))
    driver = Driver(readers("q,r", numPartitions=4))
    driver.latest()
    fake.wait(lambda: fake.held() == 20)
    driver.rows(20)
    assert [type(each) for each in driver.last_partitions] == [InlinePartition]


@pytest.mark.usefixtures("whole_batches")
@pytest.mark.parametrize("transfer", ["auto", "pull", "inline"])
def test_point_7_every_transfer_gives_the_same_rows(fake: FakeBroker, readers: Readers, transfer: str) -> None:
    driver = bulk(readers, fake, transfer=transfer, numPartitions="3")
    rows = [row for batch in driver.batches for row in batch]
    assert [(position, body[:6]) for _, position, body in rows] == list(enumerate(numbers(300)))
    kind = InlinePartition if transfer == "inline" else PullPartition
    assert [type(each) for each in driver.last_partitions] == [kind] * 3


@pytest.mark.usefixtures("whole_batches")
def test_point_7_a_large_batch_is_pulled_in_parts_of_about_equal_size(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *(b"x" * 10_000 for _ in range(300)))
    driver = Driver(readers(numPartitions=3), available_now=True)
    driver.trigger()
    (one, two, three) = (each.ranges for each in driver.last_partitions)
    assert [each.end - each.begin for each in (*one, *two, *three)] == [100, 100, 100]


@pytest.mark.usefixtures("whole_batches")
def test_point_7_a_large_batch_has_more_inline_partitions_than_the_option_says(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert partitions.INLINE_PIECE_BYTES == 16 << 20, "docs/delivery.md says so, of the order of a queue"
    monkeypatch.setattr(partitions, "INLINE_PIECE_BYTES", 1 << 20)
    driver = bulk(readers, fake, transfer="inline", numPartitions="1")
    assert [type(each) for each in driver.last_partitions] == [InlinePartition] * 3


@pytest.mark.usefixtures("whole_batches")
@pytest.mark.parametrize("transfer", ["pull", "inline"])
def test_point_7_small_parts_of_many_queues_are_one_partition_and_large_ones_are_cut(
    fake: FakeBroker, readers: Readers, transfer: str
) -> None:
    """Of each its own rows and rejects."""
    queues = [f"q{number:02d}" for number in range(40)]
    expected = {}
    for queue in queues:
        fake.queues[queue] = deque()
        kilobytes = 300 if queue == "q07" else 1
        bad, good = b"bad " + queue.encode(), [b"%06d" % number + b"x" * 1000 * kilobytes for number in range(7)]
        fake.publish(queue, bad, *good)
        expected[queue] = good
    driver = Driver(readers(",".join(queues), mode="REJECT", transfer=transfer, numPartitions=3), available_now=True)
    rows = driver.trigger() or []
    found = {queue: [body for of, _position, body in rows if of == queue] for queue in queues}
    assert found == expected
    parts = driver.last_partitions
    names = [[each.queue for each in (part.ranges if transfer == "pull" else part.slices)] for part in parts]
    together = [queue for queue in queues if queue != "q07"]
    assert sorted(names, key=len) == [["q07"], ["q07"], ["q07"], together]
    driver.latest()
    fake.wait(lambda: sorted(fake.rejected) == [(b"bad " + queue.encode(), "a bad body") for queue in queues])


def of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of Spark that nothing is known of, and a driver that executors reach from other machines."""
    monkeypatch.setattr("amqp_spark.datasource.driver_env.spark_settings", dict)
    monkeypatch.setattr("amqp_spark.datasource.driver_env.is_loopback", lambda _: False)


@pytest.mark.usefixtures("whole_batches")
@pytest.mark.parametrize("transfer", ["auto", "pull"])
@pytest.mark.parametrize("known", [True, False])
def test_point_7_what_is_pulled_is_encrypted_where_spark_encrypts_or_may_encrypt(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch, transfer: str, known: bool
) -> None:
    of_a_cluster(monkeypatch)
    if known:
        settings = {"spark.master": "local[2]", "spark.network.crypto.enabled": "true"}
        monkeypatch.setattr("amqp_spark.datasource.driver_env.spark_settings", lambda: settings)
    driver = bulk(readers, fake, transfer=transfer, numPartitions="2")
    partitions = driver.last_partitions
    assert [type(each) for each in partitions] == [PullPartition] * 2
    assert all(each.endpoint.fingerprint is not None for each in partitions)


@pytest.mark.usefixtures("whole_batches")
def test_point_7_auto_stays_inline_where_it_must_encrypt_and_cannot(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_a_cluster(monkeypatch)
    monkeypatch.setattr("amqp_spark.datasource.encryption.available", lambda: False)
    driver = bulk(readers, fake, numPartitions="2")
    assert [type(each) for each in driver.last_partitions] == [InlinePartition] * 2


def test_point_7_a_port_that_is_taken_is_an_error_of_the_first_call(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amqp_spark.datasource.block_server.PORT_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(TransferError, match=f"Option transferPort is {port}"):
            Driver(readers(transferPort=str(port), transferHost="127.0.0.1")).latest()
    assert fake.connects == 0


@pytest.mark.usefixtures("whole_batches")
def test_point_7_nothing_is_served_after_it_was_accepted(fake: FakeBroker, readers: Readers) -> None:
    driver = bulk(readers, fake, transfer="pull")
    partitions = driver.last_partitions
    driver.latest()
    fake.wait(lambda: fake.depth("q") == 0)
    with pytest.raises(TransferError, match="does not hold the batch"):
        driver.read(partitions)


def test_point_7_an_endpoint_that_is_open_for_rejects_only_serves_no_bytes(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", b"good")
    driver = Driver(readers(mode="REJECT", transfer="inline"))
    driver.rows(1)
    (partition,) = driver.last_partitions
    assert partition.endpoint is not None
    epoch = driver.offsets[0]["q"]["epoch"]
    with pytest.raises(TransferError, match="serves none"):
        list(fetch(partition.endpoint, queue="q", epoch=epoch, begin=0, end=1))


@pytest.mark.usefixtures("whole_batches")
def test_point_7_a_batch_is_not_cut_into_tiny_partitions(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *(b"x" * 10_000 for _ in range(150)))
    driver = Driver(readers(numPartitions=64), available_now=True)
    driver.trigger()
    assert len(driver.last_partitions) == 2


@pytest.mark.usefixtures("whole_batches")
def test_batches_and_offsets_pickle_without_secrets(fake: FakeBroker, readers: Readers) -> None:
    driver = bulk(readers, fake, transfer="pull")
    partition = driver.last_partitions[0]
    assert isinstance(partition, PullPartition)
    assert partition.endpoint.token.hex() not in repr(partition)
    assert pickle.loads(pickle.dumps(partition)) == partition
    assert SMALL_BATCH_BYTES == 1 << 20


# --- 8 credit


def held_bytes(driver: Driver) -> int:
    run = running(driver.reader)
    return 0 if run is None else run._receiver.held.bytes


def most_held_bytes(driver: Driver, count: int) -> int:
    """Trigger until there are so many rows; the most that was held between two triggers."""
    worst = 0

    def watch(rows: list[tuple[str, int, bytes]]) -> bool:
        nonlocal worst
        worst = max(worst, held_bytes(driver))
        return len(rows) >= count

    driver.until(watch)
    return worst


def test_point_8_what_is_held_stays_within_the_buffer(fake: FakeBroker, readers: Readers) -> None:
    size = len(transfer_frames(b"x" * 10_000))
    fake.publish("q", *(b"x" * 10_000 for _ in range(500)))
    fake.block_messages = 1
    driver = Driver(readers(maxBytesPerTrigger=20 * size, bufferBytes=50 * size))
    driver.trigger()
    # this broker sends one message in each round of reading, so that they come slowly
    wait_until(lambda: held_bytes(driver) > 20 * size, "more than one batch in the buffer", 60.0)
    worst = most_held_bytes(driver, 500)
    assert 20 * size < worst <= 51 * size  # one transfer may pass the bound


def test_point_8_queues_share_the_buffer_and_what_one_frees_lets_the_other_go_on(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(transfer_frames(b"x" * 10_000))
    for queue in ("q", "r"):
        fake.publish(queue, *(b"x" * 10_000 for _ in range(200)))
    monkeypatch.setattr(credit, "IDLE_SECONDS", 1e6)  # nothing but a wake-up makes a starved queue go on
    fake.block_messages = 1  # what one read of the socket brings may pass the bound, for each queue
    driver = Driver(readers("q,r", maxBytesPerTrigger=20 * size, bufferBytes=50 * size))
    driver.trigger()
    wait_until(lambda: held_bytes(driver) > 20 * size, "more than one batch in the buffer", 60.0)
    worst = most_held_bytes(driver, 400)
    assert 20 * size < worst <= 52 * size


def test_point_8_one_message_larger_than_the_whole_buffer_passes_alone(fake: FakeBroker, readers: Readers) -> None:
    large = [b"L%d" % number + b"x" * 50_000 for number in range(3)]
    fake.publish("q", *large, b"small")
    driver = Driver(readers(maxBytesPerTrigger=2000, bufferBytes=2000))
    assert bodies(driver.rows(4)) == [*large, b"small"]
    driver.latest()
    fake.wait(lambda: fake.depth("q") == 0)


def test_point_8_credit_stays_below_what_brokers_can_count(fake: FakeBroker, readers: Readers) -> None:
    driver = Driver(readers(bufferBytes="1g"))
    fake.publish("q", *numbers(200))
    driver.rows(200)
    (client,) = fake.live
    subscription = client.subscription
    assert subscription is not None
    assert 0 < subscription.credit <= MAX_CREDIT
    assert max(subscription.granted) <= MAX_CREDIT


def test_point_8_at_the_bound_the_socket_is_not_read_until_spark_accepts(fake: FakeBroker, readers: Readers) -> None:
    size = len(transfer_frames(b"x" * 10_000))
    fake.publish("q", *(b"x" * 10_000 for _ in range(300)))
    driver = Driver(readers(maxBytesPerTrigger=size, bufferBytes=3 * size))
    driver.latest()
    fake.wait(lambda: all(client.paused for client in fake.live) and bool(fake.live))
    assert fake.held() == 3
    assert len(driver.rows(300)) == 300  # each accept makes room, and the socket is read again
    driver.latest()
    fake.wait(lambda: fake.depth("q") == 0)
    fake.wait(lambda: not any(client.paused for client in fake.live))
