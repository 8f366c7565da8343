"""The publisher against the real broker: much, rejects, flow control, limits, and losses at every step."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest

from amqp_core.address import ConnectOptions
from amqp_core.errors import (
    AmqpError,
    ConnectionFailed,
    DeadlineExceeded,
    ProtocolError,
    PublisherStopped,
    ResourceLimitExceeded,
)
from amqp_core.v0_10 import spec
from amqp_core.v0_10.client import Client
from amqp_core.v0_10.messages import messages_of
from amqp_core.v0_10.publisher import Publisher, Rejected, Transfers
from tests.support.capabilities import needs
from tests.support.process import wait_until
from tests.support.proxy import FaultProxy
from tests.support.runs import number_of, numbers_of, run
from tests.support.tls import TlsMaterial
from tests.support.triggers import after, operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.support.brokerj import BrokerJ
    from tests.support.fixtures import Connect, OwnBroker
    from tests.support.triggers import Trigger

UNROUTABLE = spec.MessageRejectCode.UNROUTABLE


def to(
    queue: str, count: int, first: int = 0, *, size: int = 0, durable: bool = False, tag: object = None
) -> Transfers:
    """A run of numbered transfers to a queue."""
    mode = spec.MessageDeliveryMode.PERSISTENT if durable else spec.MessageDeliveryMode.NON_PERSISTENT
    bodies = (b"%d:" % number + bytes(size) for number in range(first, first + count))
    return run(bodies, routing_key=queue, delivery_mode=mode, tag=tag)


def received(client: Client, queue: str, count: int, timeout_s: float = 120.0) -> list[int]:
    """Take so many messages from a queue for good; return their numbers, in order."""
    subscription = client.subscribe(queue, accept=False)
    subscription.grant(count)
    found: list[int] = []
    deadline = time.monotonic() + timeout_s
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} came"
        blocks = subscription.take_blocks(2.0)
        if not blocks:  # Broker-J may have forgotten the consumer (1 of 8 runs); new credit does not always help
            subscription.cancel()
            blocks = subscription.take_arrived()
            subscription = client.subscribe(queue, accept=False)
            subscription.grant(count - len(found) - sum(len(block.ends) for block in blocks))
        for block in blocks:
            found += [number_of(message.body) for message in messages_of(block)]
    subscription.cancel()
    return found


def drained(client: Client, queue: str) -> list[int]:
    """Take what a queue holds."""
    info = client.query_queue(queue)
    assert info is not None
    return received(client, queue, info.message_count or 0)


# ---------------------------------------------------------------------------------------------------------------- much
@pytest.mark.thorough
@pytest.mark.parametrize("window", [{}, {"max_in_flight": 100}, {"max_bytes_in_flight": 100_000}])
def test_a_hundred_thousand_arrive_in_order(connect: Connect, queue: str, window: dict[str, int]) -> None:
    client = connect()
    publisher = client.publisher(**window)
    chance = random.Random(4)
    first = 0
    while first < 100_000:
        count = min(chance.choice([1, 10, 1000, 4096]), 100_000 - first)
        publisher.send(to(queue, count, first))
        first += count
    publisher.finish()
    assert publisher.sent == publisher.completed
    assert publisher.completed.transfers == 100_000
    assert publisher.rejected == []
    assert received(connect(), queue, 100_000) == list(range(100_000))


def test_persistent_transfers_are_stored_when_they_are_complete(connect: Connect, durable_queue: str) -> None:
    client = connect("durable")
    publisher = client.publisher()
    publisher.send(to(durable_queue, 5000, durable=True))
    publisher.finish()
    assert drained(connect("durable"), durable_queue) == list(range(5000))


def test_large_bodies_in_many_frames(connect: Connect, queue: str) -> None:
    client = connect(max_frame_size=65535)
    publisher = client.publisher(max_bytes_in_flight=3 << 20)
    for number in range(12):
        publisher.send(to(queue, 1, number, size=(number % 3) * (2 << 20)))
    publisher.finish()
    assert drained(connect(), queue) == list(range(12))


@pytest.mark.thorough
def test_large_pieces_over_tls(own_broker: OwnBroker, tmp_path: Path) -> None:
    material = TlsMaterial.make(tmp_path / "tls")
    broker = own_broker(listeners=("tls",), tls=material, durable=False)
    client = dial(broker, port=broker.ports["tls"], tls=True, tls_ca_file=str(material.ca_file))
    client.declare_queue("q")
    publisher = client.publisher()
    publisher.send(to("q", 20_000, size=500))
    publisher.send(to("q", 3, 20_000, size=5 << 20))
    publisher.finish()
    assert drained(client, "q") == list(range(20_003))
    client.close()


# ------------------------------------------------------------------------------------------------------------- rejects
@needs("rejects_unroutable")
def test_what_cannot_be_routed_is_named(connect: Connect, queue: str) -> None:
    client = connect()
    client.bind(queue, "amq.direct", queue)
    publisher = client.publisher()
    good, bad = run([b"1:"], "amq.direct", queue), run([b"2:"], "amq.direct", "unbound-key")
    frames, ends = b"", []
    for number in range(3000):
        frames += bytes((bad if number % 3 == 1 else good).frames)
        ends.append(len(frames))
    publisher.send(Transfers(frames, ends, "a"))
    publisher.send(Transfers(frames, ends, "b"))
    publisher.finish()
    assert publisher.take_rejected() == [
        Rejected(tag, number, UNROUTABLE, "Unroutable") for tag in "ab" for number in range(1, 3000, 3)
    ]
    assert publisher.completed.transfers == 6000
    assert len(drained(client, queue)) == 4000


@needs("rejects_overflow")
def test_a_full_queue_rejects_as_if_it_were_not_there(connect: Connect, fresh_names: Iterator[str]) -> None:
    """Code and text are those of an unroutable message: only a look at the queue tells one from the other."""
    queue = next(fresh_names)
    client = connect()
    client.declare_queue(queue, arguments={"qpid.max_count": 5, "qpid.policy_type": "reject"})
    publisher = client.publisher()
    publisher.send(to(queue, 8, tag="t"))
    publisher.finish()
    assert publisher.take_rejected() == [Rejected("t", number, UNROUTABLE, "Unroutable") for number in (5, 6, 7)]
    # with discard-unroutable, or nothing to reject, what does not fit is dropped without a word or ends the session
    publisher.send(run([b"8:"], routing_key=queue, discard_unroutable=True))
    publisher.finish()
    assert publisher.rejected == []
    assert drained(connect(), queue) == list(range(5))
    publisher.send(to(queue, 5, 10))
    publisher.send(run([b"20:"], routing_key=queue, accept_mode=spec.MessageAcceptMode.NONE))
    with pytest.raises(ResourceLimitExceeded, match="Maximum depth exceeded") as raised:
        publisher.finish()
    assert raised.value.command_id is None
    assert 20 in numbers_of(publisher.unfinished())


def test_a_message_above_the_limit_of_the_broker_ends_the_session(own_broker: OwnBroker, connect: Connect) -> None:
    """The broker's default is 100 MiB; only the body counts. What came before is on the queue, what follows is not."""
    broker = own_broker(context={"qpid.max_message_size": "20000"}, durable=False)
    client = connect(broker=broker)
    client.declare_queue("q")
    publisher = client.publisher()
    publisher.send(run([b"1:".ljust(20_000)], routing_key="q"))
    publisher.send(to("q", 9, 2, tag="before"))
    bodies = [b"11:", b"12:".ljust(20_001), b"13:"]
    publisher.send(run(bodies, routing_key="q", tag="t"))
    publisher.send(to("q", 10, 14))
    with pytest.raises(ResourceLimitExceeded, match="20001 greater than allowed maximum of 20000") as raised:
        publisher.finish()
    assert raised.value.command_id is not None
    assert publisher.locate(raised.value.command_id) == ("t", 1)
    left = numbers_of(publisher.unfinished())
    assert set(range(12, 24)) >= set(left) - set(range(1, 12))
    assert 12 in left
    assert drained(connect(broker=broker), "q") == list(range(1, 12))


# -------------------------------------------------------------------------------------------------------- flow control
@needs("stops_producers")
def test_a_slow_consumer_slows_the_publisher(connect: Connect, fresh_names: Iterator[str]) -> None:
    """Broker-J sometimes forgets that it has stopped a session; another session goes on where that one stopped."""
    queue, stops = next(fresh_names), 0
    consumer, client = connect(), connect()
    arguments = {"qpid.max_count": 300, "qpid.policy_type": "producer_flow_control"}
    client.declare_queue(queue, arguments=arguments)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(_slowly(consumer, queue, 20_000)))
    thread.start()

    def watched(client: Client) -> Publisher:
        publisher = client.publisher(max_in_flight=1000, blocked_timeout_s=2)

        def watch(command: spec.Command) -> None:
            nonlocal stops
            stops += isinstance(command, spec.MessageStop)
            publisher.receive(command)

        client._driver.endpoint.on_command = watch
        return publisher

    publisher = watched(client)
    waiting = deque(to(queue, 1000, 1000 * number) for number in range(20))
    while waiting:
        try:
            publisher.send(waiting.popleft(), timeout_s=150)
        except PublisherStopped:
            assert publisher.in_flight == 0
            waiting.extendleft(reversed(publisher.unfinished()))
            publisher = watched(connect())
            publisher.probe()
    publisher.finish(timeout_s=150)
    thread.join(120)
    assert found == list(range(20_000))
    assert stops
    assert publisher.rejected == []


def _slowly(client: Client, queue: str, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        found += received(client, queue, min(count - len(found), 500))
    return found


def test_a_broker_that_stops_reading_holds_the_publisher_and_loses_nothing(
    own_broker: OwnBroker, connect: Connect
) -> None:
    broker = own_broker(durable=False)
    client = connect(broker=broker, heartbeat=0)
    client.declare_queue("q")
    publisher = client.publisher(max_bytes_in_flight=64 << 20)
    publisher.send(to("q", 1000))
    broker.pause()
    timer = threading.Timer(5.0, broker.resume)
    timer.start()
    began = time.monotonic()
    try:
        for number in range(30):
            publisher.send(to("q", 1, 1000 + number, size=1 << 20))
            assert client._driver.transport.pending_bytes <= 1 << 20
        publisher.finish()
    finally:
        timer.join()
        broker.resume()
    assert time.monotonic() - began >= 5.0, "the broker was not paused"
    assert drained(client, "q") == list(range(1030))


# --------------------------------------------------------------------------------------------------------------- losses
@pytest.fixture(scope="module")
def victim() -> Iterator[BrokerJ]:
    """A broker of this module that may be killed."""
    from tests.support.brokerj import BrokerJ  # noqa: PLC0415

    with BrokerJ() as broker:
        yield broker


def dial(broker: BrokerJ, vhost: str = "default", port: int = 0, **options: object) -> Client:
    settings: dict[str, object] = {
        "hosts": ((broker.host, port or broker.port),),
        "virtual_host": vhost,
        "username": broker.username,
        "password": broker.password,
        "heartbeat": 0,
    }
    return Client.connect(ConnectOptions(**(settings | options)))  # type: ignore[arg-type]


def fresh(broker: BrokerJ, vhost: str = "default", *, durable: bool = False) -> None:
    if not broker.running:
        broker.start()
    with dial(broker, vhost) as client:
        client.declare_queue("loss", durable=durable)
        client.purge_queue("loss")


def publish_until_it_ends(
    client: Client,
    runs: list[Transfers],
    *,
    before: Mapping[int, Callable[[], None]] = MappingProxyType({}),
    **window: int,
) -> tuple[set[int], list[int]]:
    """Publish; return the numbers that are completed, and those that are to be sent again.

    Args:
        client: publishes.
        runs: of numbered transfers.
        before: what to do before a run is sent.
        window: of the publisher.
    """
    publisher = client.publisher(**window)
    left: list[Transfers] = []
    try:
        for position, transfers in enumerate(runs):
            left = runs[position + 1 :]
            before.get(position, lambda: None)()
            publisher.send(transfers)
        publisher.finish()
    except (ConnectionFailed, DeadlineExceeded, ProtocolError):
        left = publisher.unfinished() + left
    assert publisher.rejected == []
    numbers = numbers_of(left)
    done = set(numbers_of(runs)) - set(numbers)
    assert publisher.completed.transfers == len(done)
    assert len(numbers) == len(set(numbers))
    return done, numbers


STEPS: list[tuple[str, str, Trigger]] = [
    ("first transfer", "to_broker", operation(spec.MessageTransfer.CODE)),
    ("inside a transfer", "to_broker", operation(spec.MessageTransfer.CODE, nth=700, inside=40)),
    ("between transfers", "to_broker", operation(spec.MessageTransfer.CODE, nth=1500)),
    ("inside a sync", "to_broker", operation(spec.ExecutionSync.CODE, nth=2, inside=5)),
    ("the last sync", "to_broker", operation(spec.ExecutionSync.CODE, nth=8)),
    ("anywhere", "to_broker", after(77_777)),
    ("first completion", "to_client", operation(spec.SessionCompleted.CODE, nth=2)),
    ("inside a completion", "to_client", operation(spec.SessionCompleted.CODE, nth=3, inside=9)),
    ("a later completion", "to_client", operation(spec.SessionCompleted.CODE, nth=6)),
]


@pytest.mark.sampled("how", every=2)
@pytest.mark.parametrize("how", ["fin", "reset", "half-close", "garbage", "stall"])
@pytest.mark.parametrize(("step", "lane", "at"), STEPS, ids=[step for step, _, _ in STEPS])
def test_a_loss_at_every_step_skips_nothing(
    victim: BrokerJ, step: str, lane: str, at: Trigger, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a stall shows by silence alone; on a slow machine it may be seen where none is, which is a loss like any other
    monkeypatch.setattr("amqp_core.publishing.SILENCE_S", 2.0)
    fresh(victim)
    runs = [to("loss", 250, 250 * number, tag=number) for number in range(8)]
    with FaultProxy((victim.host, victim.port)) as proxy:
        direction = getattr(proxy, lane)
        if how == "garbage":
            fault = direction.inject(b"\xde\xad\xbe\xef" * 8, at)
        elif how == "stall":
            fault = direction.stall(at)
        elif how == "half-close":
            fault = direction.half_close(at)
        else:
            fault = direction.cut(at, how=how)
        client = dial(victim, port=proxy.port)
        done, left = publish_until_it_ends(client, runs, max_in_flight=1000)
        fault.wait(10.0)
        client.abort()
        proxy.cut_all()
        assert sorted(done | set(left)) == list(range(2000)), step
    with dial(victim) as other:
        there = _settled(other)
    assert there == list(range(len(there))), "the broker takes transfers in order"
    assert done <= set(there)
    if how in ("fin", "reset") and lane == "to_broker" and step != "the last sync":
        assert left


def _settled(client: Client, at_least: int = 0) -> list[int]:
    """Take all messages of the queue when it has at least this length and does not grow any more.

    After a restart Broker-J takes connections while it still reads the messages of its queues from the store.
    """
    depths: list[int] = []

    def still() -> bool:
        info = client.query_queue("loss")
        assert info is not None
        depths.append(info.message_count or 0)
        return depths[-1] >= at_least and len(depths) > 10 and len(set(depths[-10:])) == 1

    wait_until(still, "the queue to stay as it is")
    return drained(client, "loss")


@pytest.mark.sampled("moment", every=4)
@pytest.mark.parametrize("how", ["killed", "stopped"])
@pytest.mark.parametrize("moment", [8, 20])
def test_what_was_completed_survives_the_broker(victim: BrokerJ, how: str, moment: int) -> None:
    """Stopped in order, the broker completes what it no longer stores; the publisher must not believe it."""
    fresh(victim, "durable", durable=True)
    end = threading.Thread(target=victim.kill9 if how == "killed" else victim.stop)
    runs = [to("loss", 200, 200 * number, durable=True) for number in range(200)]
    client = dial(victim, "durable")
    done, left = publish_until_it_ends(client, runs, before={moment: end.start}, max_in_flight=400)
    end.join()
    client.abort()
    victim.start()
    with dial(victim, "durable") as other:
        there = _settled(other, len(done))
    assert done
    assert left, "the broker was too fast for this test"
    assert done <= set(there)
    assert there == list(range(len(there)))
    assert sorted(done | set(left)) == list(range(40_000))


@pytest.mark.thorough
@pytest.mark.sampled("size", every=3)
@pytest.mark.parametrize("size", [1, 20, 200])
def test_what_was_finished_survives_an_orderly_stop(victim: BrokerJ, size: int) -> None:
    fresh(victim, "durable", durable=True)
    end = threading.Thread(target=victim.stop)
    client = dial(victim, "durable")
    publisher = client.publisher()
    finished = 0
    try:
        while finished < 1_000_000:
            if finished == 10 * size:
                end.start()
            publisher.send(to("loss", size, finished, durable=True))
            publisher.finish()
            finished += size
    except ConnectionFailed:
        pass
    end.join()
    client.abort()
    victim.start()
    with dial(victim, "durable") as other:
        there = _settled(other, finished)
    assert finished >= 10 * size
    assert there[:finished] == list(range(finished))


# ------------------------------------------------------------------------------------------------------------- discard
@pytest.mark.parametrize("frozen", [False, True])
def test_after_discard_nothing_arrives_late(victim: BrokerJ, frozen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqp_core.pump._CLOSE_TIMEOUT_S", 5.0 if not frozen else 0.3)
    fresh(victim)
    client = dial(victim)
    publisher = client.publisher()
    publisher.send(to("loss", 100))
    publisher.finish()
    if frozen:
        victim.pause()
    try:
        if frozen:
            _send_until_it_is_pending(client, lambda number: publisher.send(to("loss", 1, number, size=1 << 18)))
        else:
            publisher.send(to("loss", 50, 100))
        sent = publisher.sent.transfers
        client.discard()
    finally:
        victim.resume()
    with dial(victim) as other:
        there = _settled(other)
    assert there == list(range(len(there)))
    if frozen:
        assert 100 <= len(there) < sent
    else:
        assert len(there) == 150
    with pytest.raises(AmqpError):
        client.service()


def _send_until_it_is_pending(client: Client, send: Callable[[int], object]) -> None:
    number = 100
    while not client._driver.transport.pending_bytes:
        send(number)
        number += 1


@pytest.mark.thorough
def test_service_keeps_an_idle_client_alive(connect: Connect, queue: str) -> None:
    client = connect(heartbeat=2)
    publisher = client.publisher()
    began = time.monotonic()

    def long_enough() -> bool:
        client.service()
        return time.monotonic() > began + 7.0  # the broker drops a silent client after two intervals

    wait_until(long_enough, "more than three heartbeat intervals")
    publisher.send(to(queue, 1))
    publisher.finish()
    assert drained(client, queue) == [0]
