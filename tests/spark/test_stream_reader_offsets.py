"""Offsets of a stream reader, in and out: when messages are accepted, epochs: points 1, 4 and 5.

The points, in the names of tests too, are those of the list in :mod:`tests.spark.reader_support`.
"""

from __future__ import annotations

import pytest

from amqp_spark.compat import ReadAllAvailable, ReadMaxRows
from amqp_spark.datasource import backlog as backlog_survey
from amqp_spark.errors import OffsetError, UnsupportedModeError
from tests.spark.driver import Driver, bodies, dumps
from tests.spark.reader_support import Readers, numbers
from tests.support.fake_broker import FakeBroker, transfer_frames

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
    commands: list[str] = []
    fake.on_command = commands.append
    driver.reader.commit(end)
    fake.wait(lambda: fake.accepted == numbers(10))
    for _ in range(3):
        driver.reader.commit(end)
        driver.latest()
    driver.reader.stop()  # what was signalled goes out before
    assert fake.accepted == numbers(10)
    assert commands.count("accept") == 1


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
        ({"q": 5}, "this source did not write"),
        ({"other": {"epoch": 1, "position": 5, "version": 1}}, "belongs to 'other', and the query now reads 'q'"),
        ({"q": {"epoch": 1, "position": 5, "version": 3}}, "version 3"),
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


# --- offsets name a protocol


def speak(fake: FakeBroker, protocol: str) -> None:
    """Another protocol from the next connection on."""
    fake.protocol = protocol
    fake.counts_held = protocol == "0-10"


def run_once(fake: FakeBroker, readers: Readers, protocol: str, **options: str) -> Driver:
    """A query over a protocol that has committed a batch and ended."""
    speak(fake, protocol)
    fake.publish("q", *numbers(10))
    first = Driver(readers(**options))
    first.rows(10)
    first.latest()
    first.reader.stop()
    return first


@pytest.mark.parametrize(("before", "after"), [("0-10", "0-9-1"), ("0-9-1", "0-10"), ("0-9", "0-10")])
@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
@pytest.mark.parametrize("available_now", [False, True])
def test_a_checkpoint_of_the_other_protocol_is_refused_before_anything_is_received(
    fake: FakeBroker, readers: Readers, before: str, after: str, guarantee: str, available_now: bool
) -> None:
    first = run_once(fake, readers, before, deliveryGuarantee=guarantee)
    assert first.offsets[-1]["q"]["protocol"] == before
    speak(fake, after)
    fake.publish("q", *numbers(5, 10))
    subscriptions = len(fake.subscriptions)
    second = Driver(readers(deliveryGuarantee=guarantee), first, available_now=available_now)
    with pytest.raises(OffsetError, match=f"written with AMQP {before}, and the query now uses AMQP {after}. Set"):
        second.until(lambda rows: bodies(rows) == numbers(5, 10))
    second.reader.stop()
    assert len(fake.subscriptions) == subscriptions
    assert fake.depth("q") == 5
    speak(fake, before)
    third = Driver(readers(deliveryGuarantee=guarantee), first)
    third.until(lambda rows: bodies(rows) == numbers(5, 10))


def test_a_logged_batch_of_the_other_protocol_is_refused(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(10))
    first = Driver(readers())
    while first.trigger(fail=True) is None:
        pass
    first.reader.stop()
    speak(fake, "0-9-1")
    second = Driver(readers(), first)
    assert second.restart_batch() == [], "its messages come again in another batch"
    with pytest.raises(OffsetError, match="written with AMQP 0-10"):
        second.rows(10)


def test_0_9_and_0_9_1_are_no_other_protocols(fake: FakeBroker, readers: Readers) -> None:
    first = run_once(fake, readers, "0-9")
    speak(fake, "0-9-1")
    fake.publish("q", *numbers(5, 10))
    second = Driver(readers(), first)
    second.until(lambda rows: bodies(rows) == numbers(5, 10))
    assert second.offsets[-1]["q"]["protocol"] == "0-9-1"


def test_a_checkpoint_of_an_earlier_release_has_no_protocol(fake: FakeBroker, readers: Readers) -> None:
    first = run_once(fake, readers, "0-10")
    for offset in first.offsets:
        del offset["q"]["protocol"]
        offset["q"]["version"] = 1
    speak(fake, "0-9-1")
    fake.publish("q", *numbers(5, 10))
    second = Driver(readers(), first)
    second.until(lambda rows: bodies(rows) == numbers(5, 10))
    assert second.offsets[-1]["q"]["version"] == 2


def test_a_running_query_may_fail_over_to_a_host_with_the_other_protocol(fake: FakeBroker, readers: Readers) -> None:
    driver = Driver(readers())
    fake.publish("q", *numbers(10))
    driver.rows(10)
    driver.latest()
    fake.wait(lambda: fake.depth("q") == 0)
    speak(fake, "0-9-1")
    fake.cut()
    fake.publish("q", *numbers(5, 10))
    driver.until(lambda rows: bodies(rows)[-5:] == numbers(5, 10))
    assert [offset["q"]["protocol"] for offset in driver.offsets][-1] == "0-9-1"


# --- the report


def test_the_report_comes_from_memory_and_a_query_now_and_then(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog_survey, "SURVEY_SECONDS", 0.0)
    monkeypatch.setattr(backlog_survey, "SERVICE_SECONDS", 0.01)
    size = len(transfer_frames(b"0" * 6))
    fake.publish("q", *numbers(100))
    driver = Driver(readers(maxMessagesPerTrigger=5, bufferBytes=10 * size, maxBytesPerTrigger=10 * size))
    driver.rows(5)

    def backlog() -> object:
        driver.latest()
        report = driver.reader.reportLatestOffset()
        assert report is not None
        assert report["q"].keys() <= {"epoch", "metrics", "position", "version", "backlog"}
        return report["q"].get("backlog")

    fake.wait(lambda: backlog() == 95 - (driver.latest()["q"]["position"] - 5) and fake.connects == 2)
    monkeypatch.setattr(backlog_survey, "SURVEY_SECONDS", 1e9)
    (client,) = (each for each in fake.clients if each.subscription is None)
    serviced = client.services
    fake.wait(lambda: client.services > serviced)  # instead of the next query: none is under way
    queries = fake.queries
    for _ in range(50):
        driver.reader.reportLatestOffset()
    assert fake.queries == queries


def test_the_connection_that_counts_is_kept_alive_while_a_batch_takes_long(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark makes no call meanwhile; without heartbeats the broker would drop the connection."""
    monkeypatch.setattr(backlog_survey, "SURVEY_SECONDS", 0.0)
    monkeypatch.setattr(backlog_survey, "SERVICE_SECONDS", 0.01)
    fake.publish("q", *numbers(5))
    driver = Driver(readers())
    driver.rows(5)

    def is_counted() -> bool:
        driver.latest()
        return fake.connects == 2

    fake.wait(is_counted)
    (client,) = (each for each in fake.clients if each.subscription is None)
    seen = client.services
    fake.wait(lambda: client.services >= seen + 5)
