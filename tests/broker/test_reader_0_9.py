"""The reader of a stream on RabbitMQ (classic and quorum queues) and on Broker-J with AMQP 0-9-1, without a JVM."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.errors import (
    AuthenticationFailed,
    NotFound,
    PreconditionFailed,
    ResourceDeleted,
    ResourceLocked,
    VirtualHostRefused,
)
from amqp_spark.datasource import consumer_watch
from amqp_spark.datasource import unsettled as module
from amqp_spark.datasource.credit import SLACK_BYTES
from amqp_spark.errors import UnsupportedModeError
from tests.broker.source_0_9_support import PLACES, RABBITMQ, Place, drained, numbers, requested
from tests.spark.driver import Driver, bodies, running
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.rabbitmq import RabbitMQNode

pytestmark = pytest.mark.broker


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with requested(request) as place:
        yield place


@pytest.fixture(params=RABBITMQ)
def rabbit(request: pytest.FixtureRequest) -> Iterator[Place]:
    with requested(request) as place:
        yield place


def test_a_query_reads_commits_and_accepts(place: Place) -> None:
    place.publish(numbers(2000))
    driver = place.driver(maxMessagesPerTrigger=700)
    assert bodies(driver.rows(2000)) == numbers(2000)
    driver.trigger()
    place.publish(numbers(10, 2000))
    assert bodies(driver.rows(2010)) == numbers(2010)
    driver.trigger()
    place.stop()
    wait_until(lambda: place.count() == (0, 0), "nothing is left, and nothing unaccepted came back")


def kill(place: Place) -> None:
    """End the reader as a crash does, after the broker has handled what it accepted."""
    stream = running(place.readers.pop())
    assert stream is not None
    receiver = stream._receiver
    assert receiver.sync()
    receiver.held.stopping = True
    for consumer in receiver.consumers:
        assert consumer._client is not None
        consumer._client.abort()


def test_a_killed_reader_loses_nothing(place: Place) -> None:
    place.publish(numbers(1000))
    first = place.driver(maxMessagesPerTrigger=300)
    assert 0 < len(first.trigger_until_rows()) <= 300, "what has arrived, up to the limit"
    first.trigger_until_rows()
    kill(place)
    second = place.driver(Driver(place.reader()), available_now=True)
    found = Counter(body for batch in first.batches for body in bodies(batch)) + Counter(drained(second))
    assert set(found) == set(numbers(1000))
    assert sum(found.values()) <= 1300, "the accepted batch does not come again"
    place.stop()
    wait_until(lambda: place.count() == (0, 0), "nothing is left")


def test_available_now_reads_what_is_there_and_leaves_the_rest(place: Place) -> None:
    place.publish(numbers(3000))
    driver = place.driver(available_now=True, maxMessagesPerTrigger=500)
    first = driver.trigger_until_rows()
    place.publish(numbers(500, 3000))
    found = bodies(first) + drained(driver)[len(first) :]
    assert found == numbers(len(found))
    assert 3000 <= len(found) <= 3500
    place.stop()
    wait_until(lambda: place.count() == (3500 - len(found), 0), "the rest is there")
    assert place.take() == numbers(3500 - len(found), len(found))


@pytest.mark.sampled("place", every=2)
def test_messages_of_all_sizes_within_a_small_buffer(place: Place) -> None:
    sizes = [8, 100, 5000, 70_000, 8, 2_000_000] * 40
    sent = [number + b"x" * (size - 8) for number, size in zip(numbers(240), sizes, strict=True)]
    place.publish(sent)
    driver = place.driver(available_now=True, bufferBytes="4m", maxBytesPerTrigger="2m")
    receiver = running(driver.reader)._receiver  # type: ignore[union-attr]
    most, store = 0, receiver.consumers[0].store

    def measured(blocks: object) -> None:
        nonlocal most
        store(blocks)  # type: ignore[arg-type]
        most = max(most, receiver.held.bytes)

    receiver.consumers[0].store = measured  # type: ignore[method-assign]
    assert drained(driver) == sent
    assert most <= (4 << 20) + SLACK_BYTES + 2_001_000


def test_rejected_messages_go_to_the_dead_letter_exchange(rabbit: Place) -> None:
    dead = f"{rabbit.queue}-dead"
    rabbit.close()
    rabbit.declare(dead)
    rabbit.declare(x_dead_letter_exchange="", x_dead_letter_routing_key=dead)
    rabbit.publish([b"good 1", b"bad 1", b"good 2", b"bad 2", b"bad 3", b"good 3"])
    try:
        driver = rabbit.driver(available_now=True, mode="REJECT")
        assert drained(driver) == [b"good 1", b"good 2", b"good 3"]
        rabbit.stop()
        wait_until(lambda: rabbit.count(dead)[0] == 3, "the rejected ones are there")
        assert rabbit.take(dead) == [b"bad 1", b"bad 2", b"bad 3"]
        rabbit.wait_for_count(0, 0)
    finally:
        rabbit.close(dead)


def test_at_most_once_leaves_nothing_to_come_again(place: Place) -> None:
    place.publish(numbers(1000))
    driver = place.driver(deliveryGuarantee="at-most-once")
    assert bodies(driver.rows(1000)) == numbers(1000)
    wait_until(lambda: place.count()[0] == 0, "the broker has forgotten them")
    place.stop()
    place.wait_for_count(0, 0)


def test_messages_of_readers_that_were_killed_often_are_a_warning(
    rabbitmq: RabbitMQNode, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(rabbitmq.url("durable"), rabbitmq.username, rabbitmq.password, "quorum")
    with closing(place):
        place.declare()
        place.publish(numbers(100))
        for _ in range(10):
            with place.connect() as client:
                subscription = client.subscribe(place.queue)
                wait_until(lambda: subscription.take_blocks(0.1) != [], "messages come")  # noqa: B023  called at once
                client.abort()
        driver = place.driver()
        driver.rows(100)
        wait_until(lambda: "messages were delivered 10 times before" in caplog.text, "the warning, behind the messages")


def test_messages_of_a_queue_that_a_query_declared_survive_all_deaths_of_their_readers(rabbitmq: RabbitMQNode) -> None:
    """RabbitMQ drops a message of another quorum queue after 20 returns."""
    options: dict[str, Any] = {"declare": "ifMissing", "queueType": "quorum"}
    with closing(Place(rabbitmq.url("durable"), rabbitmq.username, rabbitmq.password, "quorum")) as place:
        assert place.driver(**options).trigger() is None
        place.stop()
        place.publish(numbers(50))
        for _ in range(25):
            place.driver(**options).rows(1)
            kill(place)
        assert sorted(drained(place.driver(available_now=True, **options))) == numbers(50)


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_declare_and_bind(rabbitmq: RabbitMQNode, queue_type: str) -> None:
    place = Place(rabbitmq.url("durable"), rabbitmq.username, rabbitmq.password, queue_type)
    arguments = "x-max-length=5;x-overflow=reject-publish"
    options: dict[str, Any] = {"declare": "ifMissing", "queueType": queue_type, "queueArguments": arguments}
    with closing(place):
        driver = place.driver(**options, bind=f"amq.topic/{place.queue}.*")
        assert driver.trigger() is None
        limits = {"x-delivery-limit": -1} if queue_type == "quorum" else {}
        with place.connect() as client:  # refused if one differs
            given = {"x-queue-type": queue_type, "x-max-length": 5, "x-overflow": "reject-publish"}
            client.declare_queue(place.queue, durable=True, arguments=given | limits)
            with pytest.raises(PreconditionFailed):
                client.declare_queue(place.queue, durable=True, arguments=given | limits | {"x-max-length": 6})
        place.publish([b"a"])
        assert bodies(driver.rows(1)) == [b"a"]


def test_an_exclusive_consumer_is_refused_or_named(rabbit: Place, caplog: pytest.LogCaptureFixture) -> None:
    with rabbit.connect() as client:
        client.subscribe(rabbit.queue)
        driver = rabbit.driver(exclusive="true", heartbeat=0)
        if rabbit.queue_type == "classic":
            with pytest.raises(ResourceLocked, match="exclusive"):
                driver.rows(1)
            return
        with caplog.at_level(logging.WARNING):
            driver.trigger()
            wait_until(lambda: "x-single-active-consumer" in caplog.text, "the warning")


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"password": "s3cret-and-wrong"}, AuthenticationFailed, "Check user name"),
        ({"url": "/no-such-host"}, VirtualHostRefused, "no-such-host"),
        ({"queue": "no-such-queue"}, NotFound, r"'no-such-queue' does not exist on virtual host 'durable'.*declare="),
    ],
    ids=["password", "virtual host", "queue"],
)
def test_what_cannot_be_read_is_named(
    rabbit: Place, changes: dict[str, Any], error: type[Exception], text: str
) -> None:
    if "url" in changes:
        changes = {"url": rabbit.address.rsplit("/", 1)[0] + changes["url"]}
    rabbit.publish(numbers(1))
    with pytest.raises(error, match=text) as raised:
        rabbit.driver(**changes).trigger_until_rows()
    assert "s3cret" not in str(raised.value)
    rabbit.wait_for_count(1, 0)  # nothing was received


def test_a_queue_in_exclusive_use_is_named(rabbitmq: RabbitMQNode) -> None:
    place = Place(rabbitmq.url("durable"), rabbitmq.username, rabbitmq.password)
    with place.connect() as owner:
        owner.declare_queue(place.queue, exclusive=True)
        with pytest.raises(ResourceLocked, match=place.queue):
            place.driver(retry__maxAttempts=0, heartbeat=1).trigger_until_rows()
        place.stop()


@pytest.mark.sampled("place", every=3)
def test_a_queue_deleted_under_a_query_is_named_after_all_that_it_sent(place: Place) -> None:
    place.publish(numbers(10))
    driver = place.driver()
    assert bodies(driver.rows(10)) == numbers(10)
    with place.connect() as client:
        client.delete_queue(place.queue)
    # Broker-J does not tell its consumers: the connection that counts the backlog notices it
    with pytest.raises((ResourceDeleted, NotFound), match=place.queue):
        wait_until(lambda: driver.trigger() is not None, "the error of the consumer", 40.0)


def test_returned_messages_of_a_quorum_queue_say_how_often_they_were_delivered(rabbitmq: RabbitMQNode) -> None:
    place = Place(rabbitmq.url("durable"), rabbitmq.username, rabbitmq.password, "quorum")
    place.declare()
    try:
        place.publish(numbers(1))
        for earlier in range(3):
            with place.connect() as client:
                subscription = client.subscribe(place.queue)
                block = subscription.take_blocks(10.0)[0]
                assert client.earlier_deliveries(block) == earlier
    finally:
        place.close()


def test_consumer_priority(rabbit: Place) -> None:
    with rabbit.connect() as client:
        other = client.subscribe(rabbit.queue)
        driver = rabbit.driver(consumerPriority=10)
        wait_until(lambda: driver.trigger() is None and rabbit.count()[1] == 2, "both consume")
        rabbit.publish(numbers(100))
        assert bodies(driver.rows(100)) == numbers(100)
        assert other.take_blocks(0.0) == []


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"selector": "a = 1"}, "Option 'selector' has the value 'a = 1', and AMQP 0-9-1 of .* has no selectors"),
    ],
)
def test_what_0_9_1_does_not_have_is_refused(place: Place, options: dict[str, Any], named: str) -> None:
    place.publish([b"a"])
    with pytest.raises(UnsupportedModeError, match=named):
        place.driver(**options).rows(1)
    place.stop()
    place.wait_for_count(1, 0)


@pytest.mark.parametrize(
    ("rabbit", "taken"),
    [
        ("quorum", True),
        ("classic", False),
        pytest.param("classic 3.10", True, marks=pytest.mark.thorough),  # it ignores the argument
    ],
    indirect=["rabbit"],
)
def test_consumer_timeout_is_for_quorum_queues_only(rabbit: Place, taken: bool) -> None:
    rabbit.publish([b"a"])
    driver = rabbit.driver(consumerTimeout="2h")
    if taken:
        assert bodies(driver.rows(1)) == [b"a"]
        return
    with pytest.raises(PreconditionFailed) as raised:
        driver.rows(1)
    assert any("'consumerTimeout'" in note for note in raised.value.__notes__)


def test_a_consumer_whose_messages_timed_out_gets_them_again(
    rabbitmq: RabbitMQNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """RabbitMQ 4.3 sends such a consumer nothing more; it says so with basic.cancel where that is announced."""
    monkeypatch.setattr(consumer_watch, "QUIET_SECONDS", 0.5)
    monkeypatch.setattr(consumer_watch, "CERTAIN_SECONDS", 0.2)
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.1)
    place = Place(rabbitmq.url("durable"), rabbitmq.username, rabbitmq.password, "quorum")
    with closing(place):
        place.declare()
        place.publish(numbers(10))
        driver = place.driver(consumerTimeout="1s", maxMessagesPerTrigger=4)
        driver.trigger_until_rows()
        wait_until(lambda: "raise option consumerTimeout" in caplog.text, "it is noticed")
        driver.until(lambda rows: set(bodies(rows)) == set(numbers(10)))
        driver.trigger()
        place.stop()
        wait_until(lambda: place.count() == (0, 0), "all are accepted")


@pytest.mark.thorough
def test_a_channel_closed_for_a_delivery_timeout_is_opened_again(
    rabbitmq310: RabbitMQNode, caplog: pytest.LogCaptureFixture
) -> None:
    rabbitmq310.evaluate("application:set_env(rabbit, consumer_timeout, 1000)")
    rabbitmq310.evaluate("application:set_env(rabbit, channel_tick_interval, 500)")
    place = Place(rabbitmq310.url("durable"), rabbitmq310.username, rabbitmq310.password, "quorum")
    with closing(place):
        place.declare()
        place.publish(numbers(10))
        driver = place.driver(maxMessagesPerTrigger=4)
        driver.trigger_until_rows()
        wait_until(lambda: "option consumerTimeout" in caplog.text, "the channel is closed", 120)
        rabbitmq310.evaluate("application:set_env(rabbit, consumer_timeout, 600000)")
        driver.until(lambda rows: set(bodies(rows)) == set(numbers(10)))
        driver.trigger()
        place.stop()
        wait_until(lambda: place.count() == (0, 0), "all are accepted")


@pytest.mark.thorough
def test_a_batch_may_take_longer_than_the_broker_waits_for_its_reader(
    rabbitmq: RabbitMQNode,
) -> None:
    """The broker cannot send for 30 s, so it closes the connection; the next limit is such that all of it fits."""
    sent = [number + bytes(500_000) for number in numbers(60)]
    with closing(Place(rabbitmq.url("durable"), rabbitmq.username, rabbitmq.password, "quorum")) as place:
        place.declare()
        place.publish(sent)
        driver = place.driver(bufferBytes="2m", maxBytesPerTrigger="1m")
        driver.trigger_until_rows()
        stream = running(driver.reader)
        assert stream is not None
        (consumer,) = stream._receiver.consumers
        first = consumer.flow.most
        wait_until(lambda: consumer.buffer.incarnation == 1 and consumer.connected, "the next session", 120)
        assert consumer.flow.most == 4 < (first or 0), "as many as fit into the buffer"
        driver.until(lambda rows: set(bodies(rows)) == set(sent))
        driver.trigger()
        place.stop()
        wait_until(lambda: place.count() == (0, 0), "all are accepted")
        assert consumer.buffer.incarnation == 1
