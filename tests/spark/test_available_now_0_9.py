"""AvailableNow over a protocol without credit: what was there at the start is read, what came later goes back."""

from __future__ import annotations

import threading
import time
from array import array
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from amqp_core.blocks import Block
from amqp_core.errors import (
    AmqpError,
    AuthenticationFailed,
    ConnectionLost,
    DeadlineExceeded,
    LimitReached,
    NotFound,
    ResourceDeleted,
)
from amqp_core.v0_10.redelivery import first_is_redelivered
from amqp_spark.datasource import consumer_setup, drain_detector
from amqp_spark.datasource.available_now import AvailableNow
from amqp_spark.datasource.exactly_once.recovery import Consumer
from amqp_spark.datasource.exactly_once.transactional_state import BatchPart, TransactionalState
from amqp_spark.datasource.receive_buffer import ReceiveBuffer
from amqp_spark.spool.spool import Spool
from amqp_spark.state.records import ConsumerState
from tests.spark.driver import Driver, running
from tests.spark.reader_support import numbers
from tests.support.fake_broker import FakeBlock, FakeBroker
from tests.support.fake_broker.client import FakeClient
from tests.support.fake_broker.subscription import FakeSubscription
from tests.support.fake_broker.transactions import FakeTransactions

if TYPE_CHECKING:
    from pathlib import Path

    from amqp_core.address import ConnectOptions
    from tests.spark.reader_support import Readers


@pytest.fixture
def fake() -> FakeBroker:
    return FakeBroker(protocol="0-9-1")


def drained(driver: Driver) -> list[bytes]:
    """The bodies of all batches until the query ends."""
    while driver.trigger() is not None:
        pass
    return [row[2] for batch in driver.batches for row in batch]


@pytest.mark.usefixtures("fast_recounts")
@pytest.mark.parametrize("counts", [[], [0], [40], [0, 0]])
def test_available_now_reads_all_that_was_there_although_the_count_is_late(
    fake: FakeBroker, readers: Readers, counts: list[int]
) -> None:
    fake.publish("q", *numbers(100))
    fake.counts = [*counts, *counts]  # asked for when the session begins, and for the end
    assert drained(Driver(readers(), available_now=True)) == numbers(100)
    assert len(fake.accepted) == 100
    assert fake.depth("q") == 0


@pytest.mark.usefixtures("fast_recounts")
def test_available_now_counts_what_arrives_with_the_second_count_as_received(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader was kept from reading, so that the queue seemed quiet; the broker counts what it has not sent yet."""
    recount = AvailableNow._recount

    def kept_from_reading(available_now: AvailableNow, *given: Any) -> None:
        fake.publish("q", *numbers(50, 50))
        fake.counts = [0]
        recount(available_now, *given)

    monkeypatch.setattr(AvailableNow, "_recount", kept_from_reading)
    fake.publish("q", *numbers(50))
    fake.counts = [0, 0]
    assert drained(Driver(readers(), available_now=True)) == numbers(100)


@pytest.mark.usefixtures("fast_recounts")
def test_available_now_ends_although_messages_keep_coming_and_returns_what_is_beyond_the_end(
    fake: FakeBroker, readers: Readers
) -> None:
    fake.publish("q", *numbers(1000))
    published = 1000

    def more(name: str) -> None:
        nonlocal published
        if name == "accept":
            fake.publish("q", *numbers(100, published))
            published += 100

    fake.on_command = more
    found = drained(Driver(readers(bufferBytes="1m", maxBytesPerTrigger="20k"), available_now=True))
    assert found == numbers(len(found))
    assert 1000 <= len(found) < published
    assert len(fake.accepted) == len(found)
    assert fake.held() == 0
    assert [message.body for message in fake.messages("q")] == numbers(published - len(found), len(found))


@pytest.mark.usefixtures("fast_recounts")
@pytest.mark.parametrize(
    "error",
    [
        LimitReached(530, "NOT_ALLOWED - user connection limit (1) is reached"),
        ConnectionLost("a proxy closes what is too many"),
        AuthenticationFailed("the token has expired"),
        NotFound(404, None, "another broker of the list"),
    ],
)
def test_available_now_counts_again_where_no_second_connection_is_to_be_had(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch, error: AmqpError
) -> None:
    """A second connection counts while messages arrive. When no more arrive, the receiving connection counts."""
    connect, is_quiet, refused = fake.connect, drain_detector.DrainDetector.is_quiet, 0

    def limited(options: ConnectOptions) -> Any:
        nonlocal refused
        if fake.live:
            refused += 1
            raise error
        return connect(options)

    monkeypatch.setattr(fake, "connect", limited)
    monkeypatch.setattr(drain_detector.DrainDetector, "is_quiet", lambda self: refused > 1 and is_quiet(self))
    fake.publish("q", *numbers(100))
    assert drained(Driver(readers(), available_now=True)) == numbers(100)
    assert refused > 1
    assert len(fake.subscriptions) == 1, "the session was not lost for it"


@pytest.mark.usefixtures("fast_recounts")
def test_available_now_ends_without_a_second_connection_although_messages_never_cease(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection that receives counts then."""
    connect = fake.connect

    def refused(options: ConnectOptions) -> Any:
        if fake.live:
            raise AuthenticationFailed("the token has expired")
        return connect(options)

    monkeypatch.setattr(fake, "connect", refused)
    monkeypatch.setattr(drain_detector.DrainDetector, "is_quiet", lambda self: False)
    fake.publish("q", *numbers(100))
    assert drained(Driver(readers(), available_now=True)) == numbers(100)
    assert len(fake.subscriptions) == 1
    assert "no second connection could be had 5 times" in caplog.text


@pytest.mark.usefixtures("fast_recounts")
def test_available_now_goes_on_while_a_second_connection_takes_long(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is to the host of the first one: on another one the queue may be another one."""
    connect, is_quiet = fake.connect, drain_detector.DrainDetector.is_quiet
    asked: list[ConnectOptions] = []
    over = threading.Event()

    def slow(options: ConnectOptions) -> Any:
        if not fake.live:
            return connect(options)
        asked.append(options)
        over.wait(30)
        raise ConnectionLost("it came to nothing")

    monkeypatch.setattr(fake, "connect", slow)
    monkeypatch.setattr(drain_detector.DrainDetector, "is_quiet", lambda self: bool(asked) and is_quiet(self))
    fake.publish("q", *numbers(100))
    assert drained(Driver(readers(url="amqp://fake,standby"), available_now=True)) == numbers(100)
    over.set()
    assert [options.hosts for options in asked] == [(("fake", 5672),)]
    assert len(fake.subscriptions) == 1


@pytest.mark.usefixtures("fast_recounts")
def test_available_now_does_not_wait_for_ever_for_the_end_of_its_subscription(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that lives and does not answer basic.cancel: the next session ends the query."""
    monkeypatch.setattr("amqp_spark.datasource.available_now.CEASE_SECONDS", 0.1)
    monkeypatch.setattr(FakeSubscription, "ceased", property(lambda subscription: len(fake.subscriptions) > 1))

    def given_up(subscription: FakeSubscription) -> NoReturn:
        raise DeadlineExceeded("waited for the answer to basic.cancel")

    monkeypatch.setattr(FakeSubscription, "cancel", given_up)
    fake.publish("q", *numbers(100))
    assert set(drained(Driver(readers(), available_now=True))) == set(numbers(100))
    assert len(fake.subscriptions) == 2


@pytest.mark.usefixtures("fast_recounts")
def test_available_now_of_an_empty_queue_ends(fake: FakeBroker, readers: Readers) -> None:
    assert drained(Driver(readers(), available_now=True)) == []


@pytest.mark.usefixtures("fast_recounts")
def test_available_now_goes_on_after_a_lost_connection(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(600))
    cuts = 2

    def cut(name: str) -> None:
        nonlocal cuts
        if name == "accept" and cuts:
            cuts -= 1
            fake.cut()

    fake.on_command = cut
    driver = Driver(readers(bufferBytes="1m", maxMessagesPerTrigger=100), available_now=True)
    found = drained(driver)
    assert set(found) == set(numbers(600))
    fake.wait(lambda: fake.depth("q") == 0)


@pytest.mark.usefixtures("fast_recounts")
def test_available_now_returns_what_came_after_its_start_also_after_a_lost_connection(
    fake: FakeBroker, readers: Readers
) -> None:
    """It arrives before the end is known, and nothing arrives after that."""
    fake.publish("q", *numbers(100))
    driver = Driver(readers(bufferBytes="1m", maxMessagesPerTrigger=50), available_now=True)
    assert driver.trigger() is not None
    fake.wait(lambda: fake.held() == 100)
    stream = running(driver.reader)
    assert stream is not None
    (consumer,) = stream._receiver.consumers
    fake.wait(lambda: consumer._available_now._detector.limit == 100)

    def cut(name: str) -> None:
        if name == "accept":
            fake.on_command = lambda _: None
            fake.cut()
            fake.publish("q", *numbers(60, 100))

    fake.on_command = cut
    found = drained(driver)
    assert set(found) == set(numbers(100)), f"{len(set(found)) - 100} messages that came later"
    fake.wait(lambda: fake.depth("q") == 60)


@pytest.mark.usefixtures("fast_recounts")
@pytest.mark.parametrize("others", [0, 1])
def test_available_now_replaces_a_consumer_that_gets_nothing(
    fake: FakeBroker, readers: Readers, caplog: pytest.LogCaptureFixture, others: int
) -> None:
    """Each time after some messages have come. Nothing waits for the sessions before, which were closed in order."""
    sent = [number + bytes(1000) for number in numbers(500)]
    fake.publish("q", *sent)
    fake.consumers["q"] = others

    def stall(name: str) -> None:
        if name == "accept" and len(fake.subscriptions) in (1, 2):
            fake.stalls["q"] = 1

    fake.on_command = stall
    driver = Driver(readers(bufferBytes="64k", maxBytesPerTrigger="16k"), available_now=True)
    assert set(drained(driver)) == set(sent)
    fake.wait(lambda: fake.depth("q") == 0)
    assert len(fake.subscriptions) == 3
    assert "AMQP_CONSUMER_STALLED" in caplog.text
    assert "ends without them" not in caplog.text


@pytest.mark.usefixtures("fast_recounts")
@pytest.mark.parametrize("frozen", [True, False])
def test_available_now_waits_for_a_lost_session_although_its_consumer_was_replaced_or_the_next_one_was(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch, frozen: bool
) -> None:
    """The broker does not answer when a session is closed whose consumer it has cancelled; or one was lost before."""
    monkeypatch.setattr(consumer_setup, "DYING_SECONDS", 1e6)
    close = FakeClient.close

    def unanswered(client: FakeClient) -> bool:
        if client is fake.clients[0]:
            fake.cut_one_sided()
        close(client)
        return False

    def cancel(name: str) -> None:
        if name == "subscribe":
            fake.on_command = lambda _: None
            fake.cancels.append(ResourceDeleted(404, None, "the consumer is cancelled", "basic.cancel"))

    monkeypatch.setattr(FakeClient, "close", unanswered if frozen else close)
    sent = [number + bytes(1000) for number in numbers(100)]
    fake.publish("q", *sent)
    driver = Driver(readers(bufferBytes="64k", maxBytesPerTrigger="16k"), available_now=True)
    assert driver.trigger() is not None
    fake.wait(lambda: fake.held() >= 30)
    if frozen:
        cancel("subscribe")
    else:
        fake.on_command = cancel
        fake.cut_one_sided()
    later = threading.Timer(2.0, fake.bury)
    later.start()
    assert set(drained(driver)) == set(sent)
    later.join()
    assert fake.depth("q") == 0


@pytest.mark.usefixtures("fast_recounts")
@pytest.mark.parametrize("others", [0, 1])
def test_available_now_ends_when_a_second_consumer_gets_nothing_either(
    fake: FakeBroker,
    readers: Readers,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    others: int,
) -> None:
    monkeypatch.setattr(drain_detector, "HELD_BY_UNKNOWN_SECONDS", 1e6 if others else 0.3)
    monkeypatch.setattr(drain_detector, "HELD_ELSEWHERE_SECONDS", 0.3 if others else 1e6)
    fake.publish("q", *numbers(100))
    fake.consumers["q"] = others
    fake.stalls["q"] = 4
    assert drained(Driver(readers(), available_now=True)) == []
    assert len(fake.subscriptions) == 2
    reason = "a new consumer got none either, or another one is active alone"
    text = f"the broker counts 100 message(s) that it does not send: {reason}; this AvailableNow query ends without"
    assert text in caplog.text
    assert fake.depth("q") == 100


@pytest.mark.usefixtures("fast_recounts")
@pytest.mark.parametrize("since", ["accept", "subscribe"])
def test_available_now_does_not_believe_a_count_that_has_not_even_its_own_consumer(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, since: str
) -> None:
    """RabbitMQ counts 0 and 0 while the leader of a quorum queue does not answer; another one is elected meanwhile."""
    seen_consumers, asked = FakeBroker.seen_consumers, 0

    def seen(broker: FakeBroker, queue: str) -> int:
        nonlocal asked
        if not broker.stalls[queue]:
            return seen_consumers(broker, queue)
        asked += 1
        if asked == 4:
            broker.stalls[queue] = 0
        return 0

    def lost(name: str) -> None:
        if name == since:
            fake.on_command = lambda _: None
            fake.stalls["q"] = 1 if since == "accept" else 2
            fake.counts = [0] * 4

    monkeypatch.setattr(FakeBroker, "seen_consumers", seen)
    sent = [number + bytes(1000) for number in numbers(500)]
    fake.publish("q", *sent)
    fake.on_command = lost
    assert drained(Driver(readers(bufferBytes="64k", maxBytesPerTrigger="16k"), available_now=True)) == sent
    assert asked == 4
    assert len(fake.subscriptions) == 1
    assert "may end before" not in caplog.text


@pytest.mark.usefixtures("fast_recounts")
def test_available_now_ends_where_no_consumer_is_ever_counted(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(drain_detector, "HELD_BY_UNKNOWN_SECONDS", 0.5)
    monkeypatch.setattr(FakeBroker, "seen_consumers", lambda _broker, _queue: 0)
    fake.publish("q", *numbers(100))
    assert drained(Driver(readers(), available_now=True)) == numbers(100)
    assert "may end before all that was there has come" in caplog.text


@pytest.mark.usefixtures("fast_recounts")
def test_available_now_waits_for_a_lost_session_that_a_queue_without_leader_does_not_count(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node of the source was that of the leader, too. RabbitMQ 4.3 returns what the session held after a minute."""
    monkeypatch.setattr(consumer_setup, "DYING_SECONDS", 1e6)
    seen_consumers = FakeBroker.seen_consumers

    def seen(broker: FakeBroker, queue: str) -> int:
        return seen_consumers(broker, queue) if broker.live and broker.live[-1].subscription is not None else 0

    fake.publish("q", *numbers(100))
    driver = Driver(readers(), available_now=True)
    driver.trigger()
    fake.wait(lambda: fake.held() == 100)
    monkeypatch.setattr(FakeBroker, "seen_consumers", seen)
    fake.counts = [0, 0]
    fake.cut_one_sided()
    later = threading.Timer(1.5, fake.bury)
    later.start()
    assert set(drained(driver)) == set(numbers(100))
    later.join()
    assert fake.depth("q") == 0
    assert len(fake.accepted) == 100


@pytest.mark.usefixtures("fast_recounts")
@pytest.mark.parametrize("together", [False, True])
def test_available_now_reads_all_although_the_queue_takes_messages_back_from_a_session_that_lives(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """As a quorum queue does when the link to the node of the source breaks. It ignores acknowledgements of what it has
    taken back, and these messages come, and count, twice. Where reading was paused, they come in one block with those
    that came before."""
    apply, taken, breaks = FakeTransactions.apply, 0, False

    def apply_to_held(transactions: FakeTransactions) -> None:
        nonlocal taken
        client = transactions.client
        transactions.accepts = [each for each in transactions.accepts if each in client.held]
        if breaks and taken < 3 and not together:
            taken += 1
            fake.requeue(client, list(client.held))
            transactions.accepts = []
        apply(transactions)
        if breaks and taken < 3 and together and client.subscription is not None:
            taken += 1
            client.subscription.send_block()
            fake.requeue(client, list(client.held))
            client.subscription.send_block()

    def redelivered(_: FakeClient, block: Any) -> list[int]:
        starts = [0, *block.ends[:-1]]
        parts = (block.frames[start:end] for start, end in zip(starts, block.ends, strict=True))
        return [index for index, part in enumerate(parts) if first_is_redelivered(Block(part, array("I", [len(part)])))]

    def in_one_block(subscription: FakeSubscription) -> list[FakeBlock]:
        blocks, subscription.ready = subscription.ready, []
        frames, ends = b"", []
        for block in blocks:
            ends += [len(frames) + end for end in block.ends]
            frames += block.frames
        return [FakeBlock(frames, ends, blocks[0].first_id, max(each.largest for each in blocks))] if blocks else []

    monkeypatch.setattr(FakeSubscription, "take_arrived", in_one_block)
    monkeypatch.setattr(FakeTransactions, "apply", apply_to_held)
    monkeypatch.setattr(FakeClient, "redelivered", redelivered)
    monkeypatch.setattr(FakeClient, "first_is_redelivered", lambda _, block: first_is_redelivered(block))
    fake.earlier_deliveries = 1
    sent = [number + bytes(1000) for number in numbers(500)]
    fake.publish("q", *sent)
    driver = Driver(readers(bufferBytes="64k", maxBytesPerTrigger="16k"), available_now=True)
    assert driver.trigger() is not None
    stream = running(driver.reader)
    assert stream is not None
    (consumer,) = stream._receiver.consumers
    fake.wait(lambda: consumer._available_now._detector.limit == 500)
    breaks = True
    assert set(drained(driver)) == set(sent)
    assert taken == 3
    assert len(fake.subscriptions) == 1
    assert fake.depth("q") == 0


@pytest.mark.usefixtures("fast_recounts")
def test_available_now_does_not_replace_a_consumer_for_messages_that_may_be_held(
    fake: FakeBroker, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broker-J counts them, too, and does not say whether they are ready."""
    monkeypatch.setattr(drain_detector, "HELD_ELSEWHERE_SECONDS", 0.6)
    fake.counts_held = True
    fake.publish("q", *numbers(100))
    fake.held_elsewhere["q"] = 5
    assert drained(Driver(readers(), available_now=True)) == numbers(100)
    assert len(fake.subscriptions) == 1


def test_a_batch_is_not_owned_if_the_end_is_found_before_its_own_while_it_is_written(tmp_path: Path) -> None:
    """With exactly-once: what AvailableNow cuts off goes back to the queue, so it must not be owned as well."""
    held = ReceiveBuffer(["q"], 1 << 20, time.monotonic)
    buffer = held.buffers["q"]
    for first in (1, 101):
        buffer.append(Block(bytes(1000), array("I", range(10, 1001, 10)), first))
    consumer = Consumer(consumer_id="me", queue="q", index=0, count=1, spool=str(tmp_path), adopt=False, heartbeat=5)
    owner = TransactionalState(consumer, Spool(str(tmp_path), consumer_id="me", queue="q"), held, buffer)
    owner.state = ConsumerState("me", "q", str(tmp_path), epoch=1, instance="ab")
    swapped: list[Any] = []
    owner._owner = SimpleNamespace(swap=lambda *given, **named: swapped.append((given, named)))

    def planned(end: int) -> BatchPart:
        part = BatchPart(owner, buffer, end, 10 * end, 1)
        assert part.change.entry is not None
        part.change.entry.batch = replace(part.change.entry.batch, file="f", checksum="c")
        return part

    part = planned(200)
    assert buffer.cut_off(150) == [(151, 200)]
    with held.changed:
        owner.ask(part.change)
    owner.run(finish=False)
    assert (part.change.done, part.change.committed, swapped, owner.entries) == (True, False, [], [])
    part = planned(150)
    with held.changed:
        owner.ask(part.change)
    owner.run(finish=False)
    assert (part.change.committed, len(swapped)) == (True, 1)
    assert [entry.batch.end for entry in owner.entries] == [150]
    assert (buffer.accepted, buffer.received, buffer.held_bytes, buffer.waiting_bytes) == (150, 150, 0, 0)
