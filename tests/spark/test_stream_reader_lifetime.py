"""The life of a stream reader: its first session, reconnects, the end by itself and by others: points 6 and 9.

The points, in the names of tests too, are those of the list in :mod:`tests.spark.reader_support`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from amqp_core.errors import (
    AmqpError,
    AuthenticationFailed,
    ConnectionLost,
    DecodeError,
    NotFound,
    ProtocolError,
    ResourceDeleted,
    ResourceLocked,
)
from amqp_spark.datasource import backlog, consumer_setup, drain_detector, incarnation, receiver
from amqp_spark.errors import UnsupportedModeError
from tests.spark.driver import Driver, bodies, running
from tests.spark.reader_support import Readers, numbers
from tests.support.fake_broker import FakeClient, FakeInfo

if TYPE_CHECKING:
    from amqp_spark.datasource.stream_reader import AmqpStreamReader
    from tests.support.fake_broker import FakeBroker

# --- options at the start of a session


def test_a_missing_queue_is_named(readers: Readers) -> None:
    with pytest.raises(NotFound, match=r"AMQP_QUEUE_NOT_FOUND.*'nowhere'.*declare=ifMissing"):
        Driver(readers("nowhere")).rows(1)


@pytest.mark.parametrize(
    ("capability", "needed"),
    [
        ("max_unsettled", "The source needs max unsettled, which"),
        ("selectors", "'selector' has the value 'a = 1', and"),
    ],
)
def test_a_broker_without_what_the_source_needs_gets_no_command(
    fake: FakeBroker, readers: Readers, capability: str, needed: str
) -> None:
    fake.lacks = frozenset({capability} if capability == "selectors" else {"credit", capability})
    with pytest.raises(UnsupportedModeError, match=f"{needed}.* broker fake:5672"):
        Driver(readers("new", declare="ifMissing", selector="a = 1")).rows(1)
    assert "new" not in fake.queues


def test_declare_and_bind(fake: FakeBroker, readers: Readers) -> None:
    driver = Driver(readers("new", declare="ifMissing", bind="amq.topic/a.#;amq.direct/b"))
    driver.latest()
    assert "new" in fake.queues
    assert fake.bindings == {("new", "amq.topic", "a.#"), ("new", "amq.direct", "b")}


def test_other_consumers_are_a_warning_that_names_the_effect(
    fake: FakeBroker, readers: Readers, caplog: pytest.LogCaptureFixture
) -> None:
    fake.consumers["q"] = 1
    fake.publish("q", b"x")
    Driver(readers()).rows(1)
    assert "already has 1 consumer(s)" in caplog.text


def test_an_exclusive_subscription_that_is_refused_fails_when_no_lost_session_can_be_the_reason(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(consumer_setup, "DYING_SECONDS", 0.0)
    fake.heartbeat_s = 1e6
    fake.consumers["q"] = 1

    def time_passes(_name: str) -> None:
        if fake.connects > 2:
            fake.heartbeat_s = 0.0

    fake.on_command = time_passes
    with pytest.raises(ResourceLocked) as caught:
        Driver(readers(exclusive="true", retry__maxAttempts=1)).rows(1)
    assert "set exclusive to false" in caught.value.__notes__[0]
    assert fake.connects > 2  # attempts are not what ends it
    assert caplog.text.count("trying again for 2000000 s, in case that is a session which was lost") == 1


def test_an_exclusive_subscription_waits_for_a_session_of_ours_that_was_lost(
    fake: FakeBroker, readers: Readers, caplog: pytest.LogCaptureFixture
) -> None:
    fake.publish("q", *numbers(20))
    driver = Driver(readers(exclusive="true", retry__maxAttempts=2))
    driver.rows(20)
    fake.cut_one_sided()
    fake.wait(lambda: fake.connects > 8)
    fake.bury()
    fake.publish("q", *numbers(10, 20))
    assert set(bodies(driver.rows(50))) == set(numbers(30))
    assert "consumer(s)" not in caplog.text


# --- the first call, after which a trigger with an interval makes none for long


@pytest.mark.usefixtures("whole_batches")
def test_the_first_call_has_what_the_queue_had(fake: FakeBroker, readers: Readers) -> None:
    fake.block_messages = 7
    fake.publish("q", *numbers(100))
    fake.publish("r", *numbers(100))
    driver = Driver(readers("q,r"))
    rows = driver.trigger()
    assert rows is not None
    assert len(rows) == 200


def test_the_first_call_of_an_empty_queue_is_answered_when_it_is_subscribed(fake: FakeBroker, readers: Readers) -> None:
    assert Driver(readers()).trigger() is None
    assert fake.subscriptions


@pytest.mark.usefixtures("fake")
def test_the_first_call_names_a_missing_queue(readers: Readers) -> None:
    with pytest.raises(NotFound, match=r"AMQP_QUEUE_NOT_FOUND.*'nowhere'"):
        Driver(readers("nowhere")).latest()


def test_the_first_call_does_not_wait_longer_than_connecting_may_take(fake: FakeBroker, readers: Readers) -> None:
    fake.fails["connect"] = [ConnectionLost("away")] * 100_000
    assert Driver(readers(connectTimeout="0.2", retry__maxAttempts=1_000_000)).trigger() is None
    fake.wait(lambda: fake.connects > 1)


def test_the_first_call_waits_for_every_host_of_the_url(fake: FakeBroker, readers: Readers) -> None:
    """All but the last do not answer: that takes their whole time."""
    fake.publish("q", *numbers(5))
    fake.connecting_s = 1.2
    rows = Driver(readers(url="amqp://one,two,three,four,five/", connectTimeout="1")).trigger()
    assert rows is not None
    assert len(rows) == 5


def test_an_exclusive_query_has_time_for_the_session_that_was_lost(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(5))
    fake.connecting_s = 0.5
    rows = Driver(readers(exclusive="true", connectTimeout="0.1", heartbeat="1")).trigger()
    assert rows is not None
    assert len(rows) == 5


def test_the_first_call_waits_a_few_seconds_for_what_others_hold(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "BEGIN_SECONDS", 0.2)
    fake.held_elsewhere["q"] = 5
    assert Driver(readers()).trigger() is None
    assert fake.subscriptions


# --- 6 incarnations


def test_point_6_a_session_of_ours_that_was_lost_is_no_other_consumer(
    fake: FakeBroker, readers: Readers, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver(readers())
    fake.publish("q", *numbers(5))
    driver.rows(5)
    driver.latest()
    fake.wait(lambda: len(fake.accepted) == 5)
    fake.cut_one_sided()
    fake.publish("q", *numbers(5, 5))
    assert bodies(driver.rows(10)) == numbers(10)
    assert fake.seen_consumers("q") == 2
    assert "consumer(s)" not in caplog.text


def test_point_6_an_idle_queue_outlives_any_number_of_reconnects_that_work(
    fake: FakeBroker, readers: Readers, caplog: pytest.LogCaptureFixture
) -> None:
    reader = readers(retry__maxAttempts=2)
    driver = Driver(reader)
    driver.latest()
    stream = running(reader)
    assert stream is not None
    (consumer,) = stream._receiver.consumers
    while fake.connects < 8:
        fake.wait(lambda: bool(fake.live) and consumer.connected and consumer._life.asked)
        fake.cut()
    fake.publish("q", *numbers(5))
    assert bodies(driver.rows(5)) == numbers(5)
    assert "attempt 1 of 2" in caplog.text
    assert "attempt 2 of 2" not in caplog.text


def test_point_6_a_queue_whose_messages_come_again_each_time_before_any_is_settled_is_given_up(
    fake: FakeBroker, readers: Readers
) -> None:
    fake.publish("q", *numbers(20))
    driver = Driver(readers(retry__maxAttempts=2))
    driver.latest()
    for _ in range(3):
        fake.wait(lambda: fake.held() == 20)
        fake.cut()
    with pytest.raises(ConnectionLost):
        driver.rows(1000)
    assert fake.connects == 3
    assert fake.depth("q") == 20


def test_point_6_a_session_that_received_for_a_while_and_was_cut_off_worked(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two triggers nothing can be settled, however often the connection is cut."""
    monkeypatch.setattr(incarnation, "CALM_SECONDS", 0.0)
    driver = Driver(readers(retry__maxAttempts=2))
    driver.latest()
    for number in range(6):
        fake.publish("q", *numbers(1, number))
        fake.wait(lambda count=number + 1: fake.held() == count)  # type: ignore[misc] # mypy takes no default here
        fake.cut()
    assert set(bodies(driver.rows(6))) == set(numbers(6))


@pytest.mark.parametrize("error", [DecodeError("frame type 255"), ProtocolError("a control where none may be")])
def test_point_6_what_a_peer_breaks_each_time_is_given_up_however_long_it_takes(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(incarnation, "CALM_SECONDS", 0.0)
    fake.publish("q", *numbers(20))
    driver = Driver(readers(retry__maxAttempts=2))
    driver.latest()
    for _ in range(3):
        fake.wait(lambda: fake.held() == 20)
        fake.cut(error)
    with pytest.raises(type(error)):
        driver.rows(1000)


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
    fake.fails["connect"] = [ConnectionLost("refused") for _ in range(3)]
    fake.cut()
    fake.publish("q", *numbers(5, 5))
    assert bodies(driver.rows(10)) == numbers(10)
    assert fake.connects == 5


def test_point_6_attempts_end_with_the_reason(fake: FakeBroker, readers: Readers) -> None:
    driver = Driver(readers(retry__maxAttempts=2))
    fake.fails["connect"] = [ConnectionLost(f"refused {number}") for number in range(9)]
    with pytest.raises(ConnectionLost, match="refused 2"):
        driver.rows(1)
    assert fake.connects == 3


@pytest.mark.parametrize("error", [AuthenticationFailed("login refused"), NotFound(404, None, "no such queue")])
def test_point_6_what_a_retry_cannot_heal_fails_at_once(fake: FakeBroker, readers: Readers, error: AmqpError) -> None:
    driver = Driver(readers())
    fake.fails["connect"] = [error]
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


def test_point_6_a_queue_that_is_deleted_and_made_again_gives_what_was_received_first(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broker-J says nothing, and sends nothing of the new queue to the consumer of the old one."""
    monkeypatch.setattr(backlog, "SURVEY_SECONDS", 0.0)
    monkeypatch.setattr(backlog, "SERVICE_SECONDS", 0.01)
    fake.publish("q", *numbers(20))
    driver = Driver(readers(maxMessagesPerTrigger=5))
    driver.rows(5)

    def asked(queries: int) -> bool:
        driver.reader._running()._receiver.touch()  # type: ignore[union-attr]
        return fake.queries >= queries

    fake.wait(lambda: asked(3) and fake.held() >= 15)
    (subscription,) = (client.subscription for client in fake.live if client.subscription is not None)
    subscription.queue = "the old q"
    fake.publish("q", *numbers(5, 20))
    assert bodies(driver.rows(20)) == numbers(20)
    with pytest.raises(ResourceDeleted, match="'q' was deleted while the query read it"):
        driver.rows(21)
    assert [message.body for message in fake.queues["q"]][-5:] == numbers(5, 20)


def test_point_6_a_queue_that_is_given_up_ends_the_query_although_another_one_is_busy(
    fake: FakeBroker, readers: Readers
) -> None:
    reader = readers("q,r")
    driver = Driver(reader)
    fake.publish("q", *numbers(5))
    assert bodies(driver.rows(5)) == numbers(5)
    run = running(reader)
    assert run is not None
    fake.wait(lambda: all(client.subscription for client in fake.live) and len(fake.live) == 2)
    (client,) = [client for client in fake.live if client.subscription and client.subscription.queue == "r"]
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


def test_available_now_reads_a_queue_whose_messages_the_broker_does_not_count(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fields of a result are optional (0-10 section 10, queue.query)."""
    monkeypatch.setattr(FakeClient, "query_queue", lambda _client, _name: FakeInfo(None, None))
    fake.publish("q", *numbers(500))
    driver = run_available_now(readers(maxMessagesPerTrigger=80))
    assert bodies([row for batch in driver.batches for row in batch]) == numbers(500)
    assert fake.accepted == numbers(500)


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
    monkeypatch.setattr(drain_detector, "HELD_ELSEWHERE_SECONDS", 0.3)
    monkeypatch.setattr(drain_detector, "HELD_BY_UNKNOWN_SECONDS", 1e6)
    fake.publish("q", *numbers(10))
    fake.held_elsewhere["q"] = 7
    driver = run_available_now(readers())
    assert len(driver.batches[0]) == 10
    assert "7 message(s) that it does not send: other consumers hold them" in caplog.text


def test_available_now_waits_longer_for_a_broker_that_knows_of_no_other_consumer(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(drain_detector, "HELD_ELSEWHERE_SECONDS", 0.0)
    monkeypatch.setattr(drain_detector, "HELD_BY_UNKNOWN_SECONDS", 0.3)
    fake.publish("q", *numbers(10))
    fake.held_elsewhere["q"] = 7
    fake.holders_are_seen = False
    driver = run_available_now(readers())
    assert len(driver.batches[0]) == 10
    assert "7 message(s) that it does not send: a transaction or a dying session holds them" in caplog.text


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
    fake.fails["connect"] = [AuthenticationFailed("login refused")]
    with pytest.raises(AuthenticationFailed):
        run_available_now(readers())


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
    assert fake.live == []
