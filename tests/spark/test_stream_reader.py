"""The contract of behaviour, point by point, on a fake broker and a driver without a JVM.

Each test named ``test_point_<n>_...`` belongs to the point of that number in the list of what a source over a queue
has to keep: 1 where messages are received, 2 batches fixed when planned, 3 decoding late, 4 the accept signal,
5 epochs, 6 incarnations, 7 transport of bytes, 8 credit, 9 the end of the reader.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from amqp_core.errors import AuthenticationFailed, ConnectionLost, NotFound, ResourceDeleted, ResourceLocked
from amqp_spark.compat import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from amqp_spark.datasource import link
from amqp_spark.datasource.partitions import SMALL_BATCH_BYTES, InlinePartition, PullPartition
from amqp_spark.datasource.pull import fetch
from amqp_spark.errors import OffsetError, TransferError, UnsupportedModeError
from tests.spark.driver import Driver, Offset, bodies, dumps
from tests.spark.fake_client import FakeBroker, transfer_frames
from tests.spark.reader_support import Readers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqp_spark.datasource.stream_reader import AmqpStreamReader


@pytest.fixture
def fake() -> FakeBroker:
    return FakeBroker("q", "r")


@pytest.fixture
def readers(fake: FakeBroker) -> Iterator[Readers]:
    readers = Readers(fake)
    yield readers
    readers.stop()


def numbers(count: int, begin: int = 0) -> list[bytes]:
    return [b"%06d" % number for number in range(begin, begin + count)]


# --- 1 receive where the accept must happen


def test_point_1_the_session_that_received_is_the_one_that_accepts(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(120))
    driver = Driver(readers())
    assert bodies(driver.rows(120)) == numbers(120)
    driver.trigger()
    fake.wait(lambda: len(fake.accepted) == 120)  # the fake session raises on ids that it does not hold
    assert fake.connects == 1


def test_point_1_constructing_and_pickling_a_reader_holds_nothing(fake: FakeBroker, readers: Readers) -> None:
    reader = readers()
    reader.initialOffset()
    reader.getDefaultReadLimit()
    reader.commit(reader.initialOffset())
    assert reader.reportLatestOffset() is None
    assert fake.connects == 0
    dumps(reader)


def test_point_1_each_queue_has_a_connection_of_its_own(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(10))
    fake.publish("r", *numbers(10, 100))
    rows = Driver(readers("q,r")).rows(20)
    assert [body for queue, _, body in rows if queue == "r"] == numbers(10, 100)
    assert fake.connects == 2


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
            shipped += b"".join(frames for part in partition.slices for frames in part.frames)
    assert shipped == b"".join(map(transfer_frames, [b"one", b"", b"x" * 70_000]))


def test_point_3_credentials_do_not_travel_to_executors(readers: Readers) -> None:
    reader = readers(username="guest", password="s3cret-word", saslMechanisms="PLAIN")
    assert b"s3cret-word" not in dumps(reader)
    assert "s3cret-word" not in repr(reader)


# --- 4 the accept signal


def test_point_4_latest_offset_accepts_everything_up_to_start(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(10))
    driver = Driver(readers())
    driver.rows(10)
    assert len(fake.accepted) < 10  # the last batch is in the commit log, and Spark has not said so yet
    driver.latest()
    fake.wait(lambda: fake.accepted == numbers(10))
    driver.latest()
    assert fake.depth("q") == 0


def test_point_4_a_batch_that_failed_is_not_accepted(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(10))
    reader = readers()
    driver = Driver(reader)
    while driver.trigger(fail=True) is None:
        pass
    driver.latest()
    reader.stop()
    assert fake.accepted == []
    assert [message.body for message in fake.queues["q"]] == numbers(10)
    assert all(message.redelivered for message in fake.queues["q"])


def test_point_4_commit_accepts_too_and_both_are_idempotent(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(10))
    driver = Driver(readers())
    driver.rows(10)
    end = driver.start
    for _ in range(3):
        driver.reader.commit(end)
        driver.latest()
    fake.wait(lambda: fake.accepted == numbers(10))


def test_point_4_an_idle_stream_drains(fake: FakeBroker, readers: Readers) -> None:
    driver = Driver(readers())
    for round_ in range(3):
        fake.publish("q", *numbers(5, 5 * round_))
        driver.rows(5 * round_ + 5)
        driver.latest()
        fake.wait(lambda done=5 * round_ + 5: len(fake.accepted) == done)  # type: ignore[misc]
    assert fake.depth("q") == 0


def test_point_4_trigger_once_is_refused(fake: FakeBroker, readers: Readers) -> None:
    reader = readers()
    with pytest.raises(UnsupportedModeError, match=r"Trigger\.Once.*availableNow"):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert fake.connects == 0


def test_point_4_asynchronous_progress_tracking_is_recognised(fake: FakeBroker, readers: Readers) -> None:
    reader = readers(maxMessagesPerTrigger=5)
    fake.publish("q", *numbers(10))
    driver = Driver(reader)
    while not driver.offsets:
        driver.trigger()
    end = driver.latest()
    while end == driver.start:
        end = driver.latest()
    with pytest.raises(UnsupportedModeError, match="asyncProgressTrackingEnabled"):
        reader.partitions(driver.start, end)  # no commit(start) came before


def test_point_4_at_most_once_is_settled_on_transfer(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(10))
    driver = Driver(readers(deliveryGuarantee="at-most-once"))
    assert bodies(driver.rows(10)) == numbers(10)
    driver.latest()
    driver.reader.stop()
    assert fake.subscriptions[0]["accept"] is False
    assert fake.accepted == []
    assert fake.depth("q") == 0


def test_point_4_rejected_messages_are_rejected_at_the_accept_signal(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", b"good 1", b"bad 1", b"good 2", b"bad 2")
    driver = Driver(readers(mode="REJECT"))
    rows = driver.until(lambda rows: b"good 2" in bodies(rows))
    assert bodies(rows) == [b"good 1", b"good 2"]
    driver.read(driver.last_partitions)  # a second attempt of the task reports the same again
    driver.latest()
    fake.wait(lambda: fake.depth("q") == 0)
    assert fake.accepted == [b"good 1", b"good 2"]
    assert fake.rejected == [(b"bad 1", "a bad body"), (b"bad 2", "a bad body")]


# --- 5 offsets name an epoch


def test_point_5_the_initial_offset_is_a_constant(readers: Readers) -> None:
    offsets = [readers("r,q").initialOffset() for _ in range(2)]
    assert offsets[0] == offsets[1] == {"q": {"position": 0, "version": 1}, "r": {"position": 0, "version": 1}}


def test_point_5_a_range_of_an_earlier_epoch_is_an_empty_batch_and_the_broker_redelivers(
    fake: FakeBroker, readers: Readers
) -> None:
    fake.publish("q", *numbers(10))
    first = Driver(readers())
    while first.trigger(fail=True) is None:
        pass
    first.reader.stop()
    fake.publish("q", *numbers(5, 10))
    second = Driver(readers(), first)
    assert second.restart_batch() == []
    assert bodies(second.rows(15)) == numbers(15)
    assert second.offsets[-1]["q"]["epoch"] != first.offsets[-1]["q"]["epoch"]


def test_point_5_a_committed_offset_of_an_earlier_epoch_goes_on_with_what_the_broker_has(
    fake: FakeBroker, readers: Readers
) -> None:
    fake.publish("q", *numbers(10))
    first = Driver(readers())
    first.rows(10)
    first.latest()
    first.reader.stop()
    fake.publish("q", *numbers(5, 10))
    second = Driver(readers(), first)
    assert second.restart_batch() is None
    second.until(lambda rows: bodies(rows) == numbers(5, 10))


def test_point_5_mixed_epochs_in_one_offset(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(10))
    fake.publish("r", *numbers(10, 100))
    first = Driver(readers("q,r"))
    first.rows(20)
    first.latest()
    first.reader.stop()
    fake.publish("r", *numbers(5, 110))
    second = Driver(readers("q,r"), first)
    second.until(lambda rows: bodies(rows) == numbers(5, 110))
    end = second.offsets[-1]
    assert end["q"] == first.offsets[-1]["q"]
    assert end["r"]["epoch"] != end["q"]["epoch"]
    fake.publish("q", *numbers(5, 10))
    second.until(lambda rows: bodies(rows) == numbers(5, 110) + numbers(5, 10))
    second.latest()
    fake.wait(lambda: fake.depth("q") + fake.depth("r") == 0)


def test_point_5_batch_0_asked_for_from_the_initial_offset_after_a_restart(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(3))
    first = Driver(readers())
    while first.trigger(fail=True) is None:
        pass
    first.reader.stop()
    reader = readers()
    assert list(reader.partitions(reader.initialOffset(), first.offsets[0])) == []


@pytest.mark.parametrize(
    ("offset", "problem"),
    [
        ({"q": 5}, "not of this source"),
        ({"other": {"epoch": 1, "position": 5, "version": 1}}, "belongs to 'other', the query now reads 'q'"),
        ({"q": {"epoch": 1, "position": 5, "version": 2}}, "version 2"),
    ],
)
def test_point_5_an_offset_of_another_format_or_queue_is_named(
    readers: Readers, offset: dict[str, object], problem: str
) -> None:
    reader = readers()
    with pytest.raises(OffsetError, match=problem):
        reader.latestOffset(offset, ReadMaxRows(1))


def test_point_5_a_position_of_this_epoch_that_was_never_planned_is_named(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(3))
    driver = Driver(readers())
    driver.rows(3)
    beyond = driver.start | {"q": driver.start["q"] | {"position": 99}}
    with pytest.raises(OffsetError, match="position 99"):
        driver.reader.latestOffset(beyond, driver.limit)


# --- 6 incarnations


def test_point_6_after_a_reconnect_planned_ranges_stay_readable_and_their_accept_is_no_operation(
    fake: FakeBroker, readers: Readers
) -> None:
    fake.publish("q", *numbers(20))
    driver = Driver(readers(maxMessagesPerTrigger=5))
    while not driver.offsets:
        driver.trigger()
    planned = driver.batches[0]
    fake.wait(lambda: fake.held() == 20)
    fake.cut()
    fake.wait(lambda: fake.connects == 2 and fake.held() == 20)
    assert driver.read(driver.last_partitions) == planned
    assert driver.read(driver.reader.partitions(driver.initial, driver.offsets[0])) == planned
    # Unaccepted in the session that is gone: the broker sends it again, flagged, which is at-least-once.
    assert bodies(driver.rows(25)) == numbers(5) + numbers(20)
    driver.latest()
    fake.wait(lambda: fake.depth("q") == 0)
    assert fake.accepted == numbers(20)


def test_point_6_what_was_received_and_not_planned_is_dropped_and_comes_again_once(
    fake: FakeBroker, readers: Readers
) -> None:
    fake.publish("q", *numbers(20))
    driver = Driver(readers())
    driver.latest()
    fake.wait(lambda: fake.held() == 20)
    first = driver.latest()
    fake.cut()
    fake.publish("q", *numbers(10, 20))
    fake.wait(lambda: fake.connects == 2 and fake.held() == 30)
    assert first != driver.start
    rows = driver.rows(30 + first["q"]["position"])
    assert bodies(rows)[-30:] == numbers(30)


def test_point_6_while_disconnected_the_query_goes_on_and_connects_again(fake: FakeBroker, readers: Readers) -> None:
    driver = Driver(readers())
    fake.publish("q", *numbers(5))
    driver.rows(5)
    driver.latest()
    fake.wait(lambda: len(fake.accepted) == 5)
    fake.refuse = [ConnectionLost("refused") for _ in range(3)]
    fake.cut()
    fake.publish("q", *numbers(5, 5))
    assert bodies(driver.rows(10)) == numbers(10)
    assert fake.connects == 5


def test_point_6_attempts_end_with_the_reason(fake: FakeBroker, readers: Readers) -> None:
    driver = Driver(readers(retry__maxAttempts=2))
    fake.refuse = [ConnectionLost(f"refused {number}") for number in range(9)]
    with pytest.raises(ConnectionLost, match="refused 2"):
        driver.rows(1)
    assert fake.connects == 3


@pytest.mark.parametrize("error", [AuthenticationFailed("login refused"), NotFound(404, None, "no such queue")])
def test_point_6_what_a_retry_cannot_heal_fails_at_once(fake: FakeBroker, readers: Readers, error: Exception) -> None:
    driver = Driver(readers())
    fake.refuse = [error]
    with pytest.raises(type(error)):
        driver.rows(1)
    assert fake.connects == 1


def test_point_6_a_queue_that_is_deleted_gives_what_was_received_first(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(20))
    driver = Driver(readers(maxMessagesPerTrigger=5))
    driver.latest()
    fake.wait(lambda: fake.held() == 20)
    fake.cut(ResourceDeleted(408, None, "queue deleted"))
    assert bodies(driver.rows(20)) == numbers(20)
    with pytest.raises(ResourceDeleted):
        driver.rows(21)


def test_point_6_a_queue_that_is_given_up_ends_the_query_although_another_one_is_busy(
    fake: FakeBroker, readers: Readers
) -> None:
    reader = readers("q,r")
    driver = Driver(reader)
    fake.publish("q", *numbers(5))
    assert bodies(driver.rows(5)) == numbers(5)
    run = reader._run
    assert run is not None
    fake.wait(lambda: all(client.subscription for client in fake.clients) and len(fake.clients) == 2)
    (client,) = [client for client in fake.clients if client.subscription and client.subscription.queue == "r"]
    client.end(ResourceDeleted(408, None, "queue deleted"))
    fake.wait(lambda: run._receiver.failure() is not None)
    fake.publish("q", *numbers(5, 5))
    fake.wait(run._receiver.waiting)
    with pytest.raises(ResourceDeleted):
        driver.trigger()
    reader.stop()
    assert fake.accepted == numbers(5)
    assert [message.body for message in fake.queues["q"]] == numbers(5, 5)


def test_point_6_at_most_once_keeps_what_the_broker_will_not_send_again(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(20))
    driver = Driver(readers(deliveryGuarantee="at-most-once", maxMessagesPerTrigger=5))
    driver.latest()
    fake.wait(lambda: not fake.queues["q"])
    fake.cut()
    fake.publish("q", *numbers(5, 20))
    assert bodies(driver.rows(25)) == numbers(25)


# --- 7 bulk bytes bypass the driver JVM


def bulk(readers: Readers, fake: FakeBroker, **options: str) -> Driver:
    body = b"x" * 10_000
    fake.publish("q", *(b"%06d" % number + body for number in range(300)))
    driver = Driver(readers(maxBytesPerTrigger="64m", **options), available_now=True)
    fake.wait(lambda: fake.held() == 300)
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


@pytest.mark.parametrize("transfer", ["auto", "pull", "inline"])
def test_point_7_every_transfer_gives_the_same_rows(fake: FakeBroker, readers: Readers, transfer: str) -> None:
    driver = bulk(readers, fake, transfer=transfer, numPartitions="3")
    rows = [row for batch in driver.batches for row in batch]
    assert [(position, body[:6]) for _, position, body in rows] == list(enumerate(numbers(300)))
    kind = InlinePartition if transfer == "inline" else PullPartition
    assert [type(each) for each in driver.last_partitions] == [kind] * 3


def test_point_7_a_large_batch_is_pulled_in_parts_of_about_equal_size(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *(b"x" * 10_000 for _ in range(300)))
    driver = Driver(readers(numPartitions=3), available_now=True)
    fake.wait(lambda: fake.held() == 300)
    driver.trigger()
    lengths = [each.end - each.begin for each in driver.last_partitions if isinstance(each, PullPartition)]
    assert lengths == [100, 100, 100]


def test_point_7_auto_stays_inline_where_spark_encrypts(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "amqp_spark.datasource.driver_env.spark_settings", lambda: {"spark.network.crypto.enabled": "true"}
    )
    driver = bulk(readers, fake, numPartitions="2")
    assert [type(each) for each in driver.last_partitions] == [InlinePartition] * 2


def test_point_7_nothing_is_served_after_it_was_accepted(fake: FakeBroker, readers: Readers) -> None:
    driver = bulk(readers, fake, transfer="pull")
    partitions = driver.last_partitions
    driver.latest()
    fake.wait(lambda: fake.depth("q") == 0)
    with pytest.raises(TransferError, match="not held"):
        driver.read(partitions)


# --- 8 credit


def held_bytes(driver: Driver) -> int:
    run = driver.reader._run
    return 0 if run is None else run._receiver._held.bytes


def test_point_8_what_is_held_stays_within_the_buffer(fake: FakeBroker, readers: Readers) -> None:
    size = len(transfer_frames(b"x" * 10_000))
    fake.publish("q", *(b"x" * 10_000 for _ in range(500)))
    fake.block_messages = 1
    driver = Driver(readers(maxBytesPerTrigger=20 * size, bufferBytes=50 * size))
    worst = 0

    def watch(rows: list[tuple[str, int, bytes]]) -> bool:
        nonlocal worst
        worst = max(worst, held_bytes(driver))
        return len(rows) >= 500

    driver.until(watch)
    assert 20 * size < worst <= 51 * size  # one transfer may pass the bound


def test_point_8_queues_share_the_buffer_and_what_one_frees_lets_the_other_go_on(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(transfer_frames(b"x" * 10_000))
    for queue in ("q", "r"):
        fake.publish(queue, *(b"x" * 10_000 for _ in range(200)))
    monkeypatch.setattr(link, "IDLE_SECONDS", 1e6)  # nothing but a wake-up makes a starved queue go on
    fake.block_messages = 1  # what one read of the socket brings may pass the bound, for each queue
    driver = Driver(readers("q,r", maxBytesPerTrigger=20 * size, bufferBytes=50 * size))
    worst = 0

    def watch(rows: list[tuple[str, int, bytes]]) -> bool:
        nonlocal worst
        worst = max(worst, held_bytes(driver))
        return len(rows) >= 400

    driver.until(watch)
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
    (client,) = fake.clients
    subscription = client.subscription
    assert subscription is not None
    assert 0 < subscription.credit <= link.MAX_CREDIT
    assert max(subscription.granted) <= link.MAX_CREDIT


def test_point_8_at_the_bound_the_socket_is_not_read_until_spark_accepts(fake: FakeBroker, readers: Readers) -> None:
    size = len(transfer_frames(b"x" * 10_000))
    fake.publish("q", *(b"x" * 10_000 for _ in range(300)))
    driver = Driver(readers(maxBytesPerTrigger=size, bufferBytes=3 * size))
    driver.latest()
    fake.wait(lambda: all(client.paused for client in fake.clients) and bool(fake.clients))
    assert fake.held() == 3
    assert len(driver.rows(300)) == 300  # each accept makes room, and the socket is read again
    driver.latest()
    fake.wait(lambda: fake.depth("q") == 0)
    fake.wait(lambda: not any(client.paused for client in fake.clients))


# --- 9 the reader must die with its driver


def test_point_9_a_reader_ends_when_its_parent_is_killed() -> None:
    child = textwrap.dedent(
        """
        import os, threading
        from amqp_spark.datasource import driver_env
        driver_env.PARENT_CHECK_SECONDS = 0.05
        driver_env.watch_parent(os.getppid())
        print(os.getpid(), flush=True)
        threading.Event().wait()  # a call of Spark that does not return
        """
    )
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        pid = int(process.stdout.readline())
        os.kill(pid, 0)
        process.kill()
        process.wait()
        assert process.stdout.read() == ""  # end of file: the child holds the pipe until it ends


def test_point_9_stopping_gives_everything_back_in_order(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(20))
    reader = readers(maxMessagesPerTrigger=5)
    driver = Driver(reader)
    driver.rows(5)
    fake.wait(lambda: fake.held() == 20)
    driver.latest()
    reader.stop()
    assert fake.accepted == numbers(5)
    assert [message.body for message in fake.queues["q"]] == numbers(15, 5)
    assert fake.clients == []


# --- AvailableNow


def run_available_now(reader: AmqpStreamReader) -> Driver:
    driver = Driver(reader, available_now=True)
    while driver.trigger() is not None:
        pass
    return driver


def test_available_now_reads_what_was_there_and_leaves_nothing_unaccepted(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(500))
    driver = run_available_now(readers(maxMessagesPerTrigger=80))
    assert bodies([row for batch in driver.batches for row in batch]) == numbers(500)
    assert fake.accepted == numbers(500)  # at once: Spark may end the process now
    assert fake.syncs == 1


def test_available_now_does_not_read_what_comes_later(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(100))
    driver = Driver(readers(maxMessagesPerTrigger=10), available_now=True)
    driver.trigger()
    fake.publish("q", *numbers(50, 100))
    while driver.trigger() is not None:
        pass
    assert bodies([row for batch in driver.batches for row in batch]) == numbers(100)
    assert len(fake.queues["q"]) == 50


@pytest.mark.parametrize("counts_held", [True, False])
def test_available_now_of_an_empty_queue_ends(readers: Readers, fake: FakeBroker, counts_held: bool) -> None:
    fake.counts_held = counts_held
    assert run_available_now(readers()).batches == []


@pytest.mark.parametrize("counts_held", [True, False])
def test_available_now_ends_when_others_took_a_part(fake: FakeBroker, readers: Readers, counts_held: bool) -> None:
    fake.counts_held = counts_held
    fake.publish("q", *numbers(100))

    def take_some(name: str) -> None:
        if name == "subscribe":
            for _ in range(40):
                fake.queues["q"].popleft()

    fake.on_command = take_some
    driver = run_available_now(readers())
    assert bodies([row for batch in driver.batches for row in batch]) == numbers(60, 40)


def test_available_now_ends_with_a_warning_when_others_hold_messages(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(link, "HELD_ELSEWHERE_SECONDS", 0.3)
    fake.publish("q", *numbers(10))
    fake.held_elsewhere["q"] = 7
    driver = run_available_now(readers())
    assert len(driver.batches[0]) == 10
    assert "7 message(s) that it does not send" in caplog.text


def test_available_now_is_patient_with_a_broker_that_knows_of_no_other_consumer(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(link, "HELD_ELSEWHERE_SECONDS", 0.0)
    monkeypatch.setattr(link, "HELD_BY_NOBODY_SECONDS", 0.3)
    fake.publish("q", *numbers(10))
    fake.held_elsewhere["q"] = 7
    fake.holders_are_seen = False
    driver = run_available_now(readers())
    assert len(driver.batches[0]) == 10
    assert "a transaction or a dying session holds them" in caplog.text


def test_available_now_is_not_fooled_by_a_flush_that_ends_early(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(10))
    fake.early_flushes = 2
    fake.held_elsewhere["q"] = 5
    arrived: list[int] = []

    def more(name: str) -> None:
        if name == "flush" and not arrived:
            arrived.append(1)
            fake.held_elsewhere["q"] = 0
            fake.publish("q", *numbers(5, 10))

    fake.on_command = more
    driver = run_available_now(readers())
    assert bodies([row for batch in driver.batches for row in batch]) == numbers(15)


def test_available_now_with_a_selector_ends_by_flush_rounds(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(10))
    fake.held_elsewhere["q"] = 100  # what the selector leaves out
    driver = run_available_now(readers(selector="symbol = 'A'"))
    assert len(driver.batches[0]) == 10
    assert fake.subscriptions[0]["selector"] == "symbol = 'A'"


def test_available_now_with_a_selector_is_not_kept_going_by_what_comes_later(
    fake: FakeBroker, readers: Readers
) -> None:
    fake.publish("q", *numbers(100))
    driver = Driver(readers(selector="symbol = 'A'", maxMessagesPerTrigger=10), available_now=True)
    while driver.trigger() is not None:
        assert len(driver.batches) < 50
        fake.publish("q", *numbers(10, 1000))
    assert bodies([row for batch in driver.batches for row in batch]) == numbers(100)


def test_available_now_survives_a_reconnect(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(300))
    driver = Driver(readers(maxMessagesPerTrigger=50), available_now=True)
    driver.trigger()
    fake.cut()
    while driver.trigger() is not None:
        pass
    assert set(bodies([row for batch in driver.batches for row in batch])) == set(numbers(300))
    assert fake.depth("q") == 0


def test_available_now_raises_what_ended_the_receiver(fake: FakeBroker, readers: Readers) -> None:
    fake.refuse = [AuthenticationFailed("login refused")]
    with pytest.raises(AuthenticationFailed):
        run_available_now(readers())


# --- options at the start of a session


def test_a_missing_queue_is_named(readers: Readers) -> None:
    with pytest.raises(NotFound, match=r"no queue 'nowhere'.*declare=ifMissing"):
        Driver(readers("nowhere")).rows(1)


def test_declare_and_bind(fake: FakeBroker, readers: Readers) -> None:
    driver = Driver(readers("new", declare="ifMissing", bind="amq.topic/a.#;amq.direct/b"))
    fake.wait(lambda: driver.latest() is not None and "new" in fake.queues and len(fake.bindings) == 2)
    assert fake.bindings == [("new", "amq.topic", "a.#"), ("new", "amq.direct", "b")]


def test_other_consumers_are_a_warning_that_names_the_effect(
    fake: FakeBroker, readers: Readers, caplog: pytest.LogCaptureFixture
) -> None:
    fake.consumers["q"] = 1
    fake.publish("q", b"x")
    Driver(readers()).rows(1)
    assert "already has 1 consumer(s)" in caplog.text


def test_an_exclusive_subscription_that_is_refused_fails_after_some_attempts(
    fake: FakeBroker, readers: Readers
) -> None:
    fake.consumers["q"] = 1
    with pytest.raises(ResourceLocked):
        Driver(readers(exclusive="true")).rows(1)
    assert fake.connects == 1 + link.LOCKED_ATTEMPTS


# --- the report


def test_the_report_comes_from_memory_and_a_query_now_and_then(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "SURVEY_SECONDS", 0.0)
    monkeypatch.setattr(link, "IDLE_SECONDS", 0.01)
    size = len(transfer_frames(b"0" * 6))
    fake.publish("q", *numbers(100))
    driver = Driver(readers(maxMessagesPerTrigger=5, bufferBytes=10 * size, maxBytesPerTrigger=10 * size))
    driver.rows(5)

    def backlog() -> object:
        driver.latest()
        report = driver.reader.reportLatestOffset()
        assert report is not None
        assert report["q"].keys() <= {"epoch", "position", "version", "backlog"}
        return report["q"].get("backlog")

    fake.wait(lambda: backlog() == 95 - (driver.latest()["q"]["position"] - 5))
    monkeypatch.setattr(link, "SURVEY_SECONDS", 1e9)
    queries = fake.queries
    for _ in range(50):
        driver.reader.reportLatestOffset()
    assert fake.queries == queries


def test_batches_and_offsets_pickle_without_secrets(fake: FakeBroker, readers: Readers) -> None:
    driver = bulk(readers, fake, transfer="pull")
    partition = driver.last_partitions[0]
    assert isinstance(partition, PullPartition)
    assert partition.endpoint.token.hex() not in repr(partition)
    assert pickle.loads(pickle.dumps(partition)) == partition
    assert SMALL_BATCH_BYTES == 1 << 20


def test_point_7_an_endpoint_that_is_open_for_rejects_only_serves_no_bytes(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", b"good")
    driver = Driver(readers(mode="REJECT", transfer="inline"))
    driver.rows(1)
    (partition,) = driver.last_partitions
    assert partition.endpoint is not None
    epoch = driver.offsets[0]["q"]["epoch"]
    with pytest.raises(TransferError, match="serves none"):
        list(fetch(partition.endpoint, queue="q", epoch=epoch, begin=0, end=1))


def test_point_7_a_batch_is_not_cut_into_tiny_partitions(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *(b"x" * 10_000 for _ in range(150)))
    driver = Driver(readers(numPartitions=64), available_now=True)
    fake.wait(lambda: fake.held() == 150)
    driver.trigger()
    assert len(driver.last_partitions) == 2
