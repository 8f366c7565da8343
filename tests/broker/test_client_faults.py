"""The network and the broker fail at every step of a conversation: only AmqpErrors, in time, and nothing is lost."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import pytest

from amqp_core.address import ConnectOptions
from amqp_core.errors import (
    AmqpError,
    CommandFailed,
    ConnectionClosed,
    ConnectionFailed,
    ConnectionLost,
    DeadlineExceeded,
    OutcomeUnknown,
    ProtocolError,
    SessionDetached,
)
from amqp_core.v0_10 import spec
from amqp_core.v0_10.client import Client
from amqp_core.v0_10.messages import Message, messages_of
from tests.support.brokerj import BrokerConfig, BrokerJ
from tests.support.process import wait_until
from tests.support.proxy import FaultProxy
from tests.support.triggers import after, operation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqp_core.v0_10.subscription import Subscription
    from tests.support.triggers import Trigger

pytestmark = pytest.mark.broker

DOCUMENTED = (ConnectionFailed, ProtocolError, DeadlineExceeded, OutcomeUnknown, SessionDetached, CommandFailed)
COUNT = 40
QUEUE = "faults"


@pytest.fixture(scope="module")
def victim() -> Iterator[BrokerJ]:
    """A broker of our own: it is killed and frozen."""
    with BrokerJ(BrokerConfig(durable=False, heap="512m")) as broker:
        yield broker


@pytest.fixture
def proxy(victim: BrokerJ) -> Iterator[FaultProxy]:
    with FaultProxy((victim.host, victim.port)) as proxy:
        yield proxy


def connect(victim: BrokerJ, port: int = 0, *, silence_timeout_s: float = 30.0, heartbeat: int = 0) -> Client:
    options = ConnectOptions(
        hosts=((victim.host, port or victim.port),),
        username=victim.username,
        password=victim.password,
        connect_timeout=silence_timeout_s,
        heartbeat=heartbeat,
    )
    return Client.connect(options, call_timeout_s=silence_timeout_s)


@dataclass
class Conversation:
    """Everything that a client does, step by step, and what it knows when it ends."""

    confirmed: bool = False
    received: list[bytes] = field(default_factory=list)
    accept_sent: bool = False
    accepted: bool = False
    closed: bool = False
    error: AmqpError | None = None

    def run(self, victim: BrokerJ, port: int, silence_timeout_s: float) -> None:
        client = None
        try:
            client = connect(victim, port, silence_timeout_s=silence_timeout_s)
            info = client.query_queue(QUEUE)
            assert info is not None
            for number in range(COUNT):
                client.publish(Message(b"%d:" % number + bytes(200)), routing_key=QUEUE)
            client.confirm()
            self.confirmed = True
            subscription = client.subscribe(QUEUE)
            subscription.grant(2 * COUNT)
            deadline = time.monotonic() + silence_timeout_s
            first = None
            while len(self.received) < COUNT and time.monotonic() < deadline:
                for block in subscription.take_blocks(max(0.0, deadline - time.monotonic())):
                    first = block.first_id if first is None else first
                    self.received += [message.body.partition(b":")[0] for message in messages_of(block)]
            if len(self.received) < COUNT or first is None:
                raise DeadlineExceeded(f"{len(self.received)} of {COUNT} came")
            self.accept_sent = True
            client.accept([(first, first + COUNT - 1)], sync=True)
            self.accepted = True
            client.close()
            self.closed = True
        except AmqpError as error:
            self.error = error
        finally:
            if client is not None:
                client.abort()


def left_on_the_queue(victim: BrokerJ) -> list[bytes]:
    """Take all messages of the queue when the broker has noticed that every other client is gone."""
    client = connect(victim)

    def alone() -> bool:
        info = client.query_queue(QUEUE)
        return info is not None and info.subscriber_count == 0

    wait_until(alone, "the broker to notice that its clients are gone")
    found = [message.body.partition(b":")[0] for message in drain(client.subscribe(QUEUE))]
    client.purge_queue(QUEUE)
    client.close()
    return found


def drain(subscription: Subscription) -> list[Message]:
    subscription.grant(100_000)
    subscription.flush()
    return [message for block in subscription.take_blocks(0) for message in messages_of(block)]


@pytest.fixture(autouse=True)
def empty_queue(victim: BrokerJ) -> None:
    if not victim.running:
        victim.start()
    client = connect(victim)
    client.declare_queue(QUEUE)
    client.purge_queue(QUEUE)
    client.close()


ALL = [b"%d" % number for number in range(COUNT)]

Lane = Literal["to_client", "to_broker"]
STEPS: list[tuple[str, Lane, Trigger]] = [
    ("protocol header out", "to_broker", after(3)),
    ("start-ok", "to_broker", operation(spec.ConnectionStartOk.CODE, inside=20)),
    ("secure-ok", "to_broker", operation(spec.ConnectionSecureOk.CODE)),
    ("tune-ok", "to_broker", operation(spec.ConnectionTuneOk.CODE)),
    ("open", "to_broker", operation(spec.ConnectionOpen.CODE)),
    ("attach", "to_broker", operation(spec.SessionAttach.CODE)),
    ("query", "to_broker", operation(spec.QueueQuery.CODE, inside=13)),
    ("first transfer out", "to_broker", operation(spec.MessageTransfer.CODE)),
    ("middle transfer out", "to_broker", operation(spec.MessageTransfer.CODE, nth=COUNT // 2, inside=30)),
    ("sync", "to_broker", operation(spec.ExecutionSync.CODE)),
    ("subscribe", "to_broker", operation(spec.MessageSubscribe.CODE)),
    ("flow", "to_broker", operation(spec.MessageFlow.CODE, nth=2)),
    ("accept", "to_broker", operation(spec.MessageAccept.CODE, inside=5)),
    ("detach", "to_broker", operation(spec.SessionDetach.CODE)),
    ("close", "to_broker", operation(spec.ConnectionClose.CODE)),
    ("protocol header in", "to_client", after(3)),
    ("start", "to_client", operation(spec.ConnectionStart.CODE, inside=40)),
    ("secure", "to_client", operation(spec.ConnectionSecure.CODE)),
    ("tune", "to_client", operation(spec.ConnectionTune.CODE)),
    ("open-ok", "to_client", operation(spec.ConnectionOpenOk.CODE)),
    ("attached", "to_client", operation(spec.SessionAttached.CODE)),
    ("result", "to_client", operation(spec.ExecutionResult.CODE, inside=14)),
    ("completed", "to_client", operation(spec.SessionCompleted.CODE, nth=2)),
    ("first transfer in", "to_client", operation(spec.MessageTransfer.CODE)),
    ("inside a transfer", "to_client", operation(spec.MessageTransfer.CODE, nth=COUNT // 2, inside=50)),
    ("between transfers", "to_client", operation(spec.MessageTransfer.CODE, nth=COUNT // 2)),
    ("detached", "to_client", operation(spec.SessionDetached.CODE)),
    ("close-ok", "to_client", operation(spec.ConnectionCloseOk.CODE, inside=3)),
]
FAULTS = ["fin", "reset", "half-close", "garbage", "stall"]


@pytest.mark.sampled("fault", every=2)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("step", "lane", "at"), STEPS, ids=[step for step, _, _ in STEPS])
def test_a_fault_at_every_step_loses_nothing(
    victim: BrokerJ, proxy: FaultProxy, step: str, lane: Lane, at: Trigger, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amqp_core.pump._CLOSE_TIMEOUT_S", 0.5)
    direction = getattr(proxy, lane)
    if fault == "garbage":
        order = direction.inject(b"\xde\xad\xbe\xef" * 8, at)
    elif fault == "stall":
        order = direction.stall(at)
    elif fault == "half-close":
        order = direction.half_close(at)
    else:
        order = direction.cut(at, how=fault)
    # a fault that shows by nothing but silence is noticed by the deadline alone
    conversation = Conversation()
    for silence_timeout_s in (0.3, 2.0, 8.0, 30.0) if fault in ("stall", "garbage") else (30.0,):
        conversation = Conversation()
        conversation.run(victim, proxy.port, silence_timeout_s)
        if order.struck.wait(1.0):  # it is said a moment after it has happened
            break
        # the machine was too slow to get that far: nothing has been seen yet
        proxy.cut_all()
        left_on_the_queue(victim)
    assert order.struck.is_set()
    proxy.cut_all()

    if conversation.closed:
        assert step in ("detach", "close", "detached", "close-ok"), f"{fault} at {step} went unnoticed"
    else:
        assert isinstance(conversation.error, DOCUMENTED), repr(conversation.error)
    assert conversation.received == ALL[: len(conversation.received)]
    left = left_on_the_queue(victim)
    if conversation.accepted:
        assert left == []
    elif conversation.accept_sent:
        assert left in ([], ALL), "an accept is whole or not at all"
    elif conversation.confirmed:
        assert left == ALL
    else:
        assert left == ALL[: len(left)]


@pytest.mark.parametrize("lane", ["to_client", "to_broker"])
@pytest.mark.parametrize("disturbance", ["single bytes", "pieces", "coalesce", "delay"])
def test_a_network_that_is_merely_odd_changes_nothing(
    victim: BrokerJ, proxy: FaultProxy, lane: Lane, disturbance: str
) -> None:
    direction = getattr(proxy, lane)
    if disturbance == "single bytes":
        direction.split()
    elif disturbance == "pieces":
        direction.split(size=13)
    elif disturbance == "coalesce":
        direction.coalesce()
    else:
        direction.delay(0.02)
    conversation = Conversation()
    conversation.run(victim, proxy.port, 30.0)
    assert conversation.error is None
    assert conversation.received == ALL
    assert conversation.closed
    assert left_on_the_queue(victim) == []


@pytest.mark.parametrize(
    "garbage", [b"\0" * 24, b"HTTP/1.1 200 OK\r\n\r\n", b"\x0f\x01\x00\x10\0\x01" + bytes(6) + b"\x63\x63"]
)
def test_what_was_received_before_the_fault_is_taken_first(victim: BrokerJ, proxy: FaultProxy, garbage: bytes) -> None:
    publisher = connect(victim)
    for number in range(COUNT):
        publisher.publish(Message(b"%d:" % number), routing_key=QUEUE)
    publisher.confirm()
    publisher.close()
    proxy.to_client.inject(garbage, operation(spec.MessageTransfer.CODE, nth=11))
    client = connect(victim, proxy.port)
    subscription = client.subscribe(QUEUE)
    subscription.grant(COUNT)
    found: list[bytes] = []
    with pytest.raises(ProtocolError):
        _take_until_it_fails(subscription, found)
    assert found == ALL[:10]
    with pytest.raises(ProtocolError):
        client.sync()
    client.close()
    assert left_on_the_queue(victim) == ALL


def _take_until_it_fails(subscription: Subscription, found: list[bytes]) -> None:
    while True:
        for block in subscription.take_blocks(10.0):
            found += [message.body.partition(b":")[0] for message in messages_of(block)]


# ---------------------------------------------------------------------------------------------------- the broker itself
def test_a_frozen_broker_is_noticed_and_its_return_survived(victim: BrokerJ) -> None:
    client = connect(victim, heartbeat=1)
    subscription = client.subscribe(QUEUE)
    subscription.grant(10)
    client.publish(Message(b"0:"), routing_key=QUEUE)
    client.confirm()
    assert [message.body for message in subscription.take(1)] == [b"0:"]
    victim.pause()
    try:
        with pytest.raises(ConnectionLost, match="silent for two heartbeat intervals"):
            _take_until_it_fails(subscription, [])
        with pytest.raises(AmqpError):
            connect(victim, silence_timeout_s=0.3)
    finally:
        victim.resume()
    client.close()
    assert left_on_the_queue(victim) == [b"0"]


def test_a_call_to_a_frozen_broker_has_a_deadline(victim: BrokerJ) -> None:
    client = connect(victim)
    client._driver.call_timeout_s = 0.3
    victim.pause()
    try:
        with pytest.raises(DeadlineExceeded, match=r"execution\.sync"):
            client.sync()
    finally:
        victim.resume()


@pytest.mark.parametrize("kill", [False, True])
def test_a_broker_that_goes_away(victim: BrokerJ, kill: bool) -> None:
    client, publisher, idle = connect(victim), connect(victim), connect(victim)
    publisher.publish(Message(b"0:"), routing_key=QUEUE)
    publisher.confirm()
    subscription = client.subscribe(QUEUE)
    subscription.grant(10)
    assert len(subscription.take(1)) == 1
    if kill:
        victim.kill9()
    else:
        victim.stop()
    found: list[bytes] = []
    with pytest.raises((ConnectionClosed, ConnectionLost)) as raised:
        _take_until_it_fails(subscription, found)
    assert raised.value.retryable
    with pytest.raises((ConnectionClosed, ConnectionLost, OutcomeUnknown)):
        _publish_until_it_fails(publisher)
    with pytest.raises(OutcomeUnknown):
        publisher.confirm()
    with pytest.raises((ConnectionClosed, ConnectionLost)):
        idle.sync()
    for one in (client, publisher, idle):
        one.close()
    with pytest.raises(ConnectionFailed):
        connect(victim)
    victim.start()
    connect(victim).close()


def _publish_until_it_fails(client: Client) -> None:
    while True:
        client.publish(Message(bytes(100)), routing_key=QUEUE)
