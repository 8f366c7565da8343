"""When a queue gets credit: turns for messages of any size, and queues that bring nothing."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.v0_10 import spec
from amqp_spark.datasource import credit as credit_module
from amqp_spark.datasource.credit import CreditFlowControl
from amqp_spark.datasource.receive_buffer import ReceiveBuffer
from tests.spark.driver import Driver, bodies
from tests.spark.reader_support import Readers, numbers
from tests.support.fake_broker import FakeBroker, FakeSubscription
from tests.support.fakepeer import FakePeer, Peer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from amqp_core.v0_10.client import Client
    from amqp_core.v0_10.subscription import Subscription


class Producer:
    """A peer with one queue, which sends what there is credit for."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.credit = self.backlog = self.stops = 0
        self.forgets = False
        """Whether it sends nothing until a stop, as Broker-J now and then to one of competing consumers."""
        self.flows: list[int] = []
        peer.hooks |= {spec.MessageStop: self._stop, spec.MessageFlow: self._flow}

    def publish(self, count: int) -> None:
        self.backlog += count
        self._send()

    def _stop(self, _: spec.Command) -> None:
        self.credit = 0
        self.stops += 1
        self.forgets = False

    def _flow(self, command: spec.Command) -> None:
        assert isinstance(command, spec.MessageFlow)
        if command.unit == spec.MessageCreditUnit.MESSAGE:
            assert command.value is not None
            self.flows.append(command.value)
            self.credit += command.value
            self._send()

    def _send(self) -> None:
        count = min(self.credit, self.backlog)
        if count and not self.forgets:
            self.peer.transfer(*[b"x" * 100] * count)
            self.credit -= count
            self.backlog -= count


@contextmanager
def controlled(
    script: Callable[[Peer], None],
) -> Iterator[tuple[Client, Subscription, ReceiveBuffer, CreditFlowControl]]:
    """A client of a peer, and what controls its subscription of one queue."""
    with FakePeer(script) as server:
        client = server.connect()
        held = ReceiveBuffer(["q"], 128 << 20, time.monotonic)
        held.wake["q"] = lambda: None
        yield client, client.subscribe("q"), held, CreditFlowControl("q", held)
        client.close()


def received(
    flow: CreditFlowControl, held: ReceiveBuffer, subscription: Subscription, client: object, seconds: float
) -> int:
    """Regulate and receive for some seconds; how many messages came."""
    got, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        flow.regulate(client, subscription, left=16_384, idles=True)  # type: ignore[arg-type] # the client itself
        for block in subscription.take_blocks(flow.take_timeout()):
            with held.changed:
                held.buffers["q"].append(block)
                flow.arrived(block)
            got += block.count
    return got


def test_a_turn_ends_with_its_message_although_the_stop_before_it_completes_late() -> None:
    """The message is charged to the credit from before the stop; what seems to be left is gone."""
    producers: list[Producer] = []

    def script(peer: Peer) -> None:
        peer.open()
        producer = Producer(peer)
        producers.append(producer)
        published, later = None, False
        while peer.ended is None:
            peer.hears(0.05)
            if any(isinstance(command, spec.MessageSubscribe) for _, command in peer.commands):
                peer.completing = False
            if published is None and producer.flows and producer.flows[-1] == 1:
                published = time.monotonic()
                producer.publish(1)  # with the credit of the turn
            if not peer.completing:
                peer.session.tell_completed()
                peer.flush()
            if published is not None and not later and time.monotonic() - published > 2.0:
                later = True
                producer.publish(5)

    with controlled(script) as (client, subscription, held, flow):
        got = 0
        end = time.monotonic() + 30
        while got < 6 and time.monotonic() < end:
            got += received(flow, held, subscription, client, 0.2)
            held.buffers["q"].fix(held.buffers["q"].received, held.buffers["q"].held_bytes)
            held.buffers["q"].accept(held.buffers["q"].received)  # Spark is done with it at once
    assert got == 6


def test_a_queue_that_brings_nothing_gets_new_credit_once() -> None:
    producers: list[Producer] = []

    def script(peer: Peer) -> None:
        peer.open()
        producers.append(Producer(peer))
        producers[0].backlog = 1
        peer.serve()

    with controlled(script) as (client, subscription, held, flow):
        held.hold_elsewhere("other", 1 << 20)
        got, end = 0, time.monotonic() + 20
        while not got and time.monotonic() < end:
            got = received(flow, held, subscription, client, 0.1)
        assert got + received(flow, held, subscription, client, 0.4) == 1
        held.hold_elsewhere("other", 0)  # another queue gives its bytes of the budget back
        received(flow, held, subscription, client, 2.5)
    assert producers[0].stops < 16, "five on a quiet machine; one for each look were twenty-five"


def test_a_queue_whose_turn_the_broker_forgot_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credit_module, "IDLE_SECONDS", 0.2)

    def script(peer: Peer) -> None:
        peer.open()
        producer = Producer(peer)
        while producer.flows[-1:] != [1]:  # the turn of a queue that brings nothing
            peer.hears(0.05)
        producer.forgets = True
        producer.publish(3)
        peer.serve()

    with controlled(script) as (client, subscription, held, flow):
        got = 0
        end = time.monotonic() + 30
        while got < 3 and time.monotonic() < end:
            got += received(flow, held, subscription, client, 0.1)
    assert got == 3


@pytest.fixture
def many() -> Iterator[Callable[[int], tuple[FakeBroker, Readers]]]:
    """Brokers with so many queues, and readers of them."""
    made: list[Readers] = []

    def make(count: int) -> tuple[FakeBroker, Readers]:
        fake = FakeBroker(*(f"q{number:02}" for number in range(count)))
        made.append(Readers(fake))
        return fake, made[-1]

    yield make
    for readers in made:
        readers.stop()


def test_a_queue_that_knows_of_a_message_comes_before_those_that_only_look(
    many: Callable[[int], tuple[FakeBroker, Readers]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages are larger than its share of the buffer."""
    fake, readers = many(40)
    turns: list[str] = []
    leave = CreditFlowControl.leave_turn

    def left(self: CreditFlowControl) -> None:
        if self._turn_since is not None:
            turns.append(self._queue)
        leave(self)

    monkeypatch.setattr(CreditFlowControl, "leave_turn", left)
    fake.publish("q00", *(number + b"x" * 46_000 for number in numbers(6)))
    driver = Driver(readers(",".join(fake.queues), bufferBytes="1m", maxBytesPerTrigger="1m"))
    assert len(driver.rows(6)) == 6
    assert len(turns) < 40 + 6 * 10, "there is no round of all queues for each message"


@pytest.mark.parametrize("forgotten", [False, True])
def test_queues_that_wait_for_another_large_message_keep_none_from_its_turn(
    many: Callable[[int], tuple[FakeBroker, Readers]], monkeypatch: pytest.MonkeyPatch, *, forgotten: bool
) -> None:
    """The last messages of two empty queues exceeded their share; so does that of a third one, or it was forgotten."""
    fake, readers = many(4)
    forgets: set[str] = set()
    send, renew = FakeSubscription._send, FakeSubscription.renew

    def sent(self: FakeSubscription, most: int) -> bool:
        return self.queue not in forgets and send(self, most)

    def renewed(self: FakeSubscription, *args: Any) -> None:
        forgets.discard(self.queue)
        renew(self, *args)

    monkeypatch.setattr(FakeSubscription, "_send", sent)
    monkeypatch.setattr(FakeSubscription, "renew", renewed)
    driver = Driver(readers(",".join(fake.queues), bufferBytes="1m", maxBytesPerTrigger="1m"))
    for queue in ("q00", "q01"):
        fake.publish(queue, b"L" * 400_000)
    assert len(driver.rows(2)) == 2
    if forgotten:
        forgets.add("q03")
        fake.publish("q03", *numbers(3))
    else:
        fake.publish("q03", b"L" * 400_000, *numbers(2))
    assert len(driver.rows(5)) == 5


@pytest.mark.parametrize("queues", [4, 10])
def test_a_batch_that_is_waited_for_comes_although_its_messages_exceed_their_share(
    many: Callable[[int], tuple[FakeBroker, Readers]], queues: int
) -> None:
    fake, readers = many(queues)
    fake.publish("q00", *(number + bytes(1_200_000 // queues) for number in numbers(10)))
    options = {"bufferBytes": "1m", "maxBytesPerTrigger": "1m", "maxTriggerDelay": "15m"}
    driver = Driver(readers(",".join(fake.queues), minMessagesPerTrigger=5, **options))
    assert len(driver.rows(5)) >= 3


def test_a_message_larger_than_what_is_left_of_the_credit_comes_to_a_batch_that_is_waited_for(
    many: Callable[[int], tuple[FakeBroker, Readers]],
) -> None:
    fake, readers = many(1)
    fake.publish("q00", *(number + bytes(20_000) for number in numbers(20)))
    options = {"bufferBytes": "1m", "maxBytesPerTrigger": "1m", "maxTriggerDelay": "15m"}
    driver = Driver(readers("q00", minMessagesPerTrigger=100, **options))
    driver.trigger()
    fake.wait(lambda: fake.held() == 20)
    fake.publish("q00", b"B" * 700_000, *numbers(200))
    assert b"B" * 700_000 in bodies(driver.rows(21))
