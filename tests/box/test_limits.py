"""Limits of the embedded broker: publishers that are stopped, clients that flood, stall or speak garbage."""

from __future__ import annotations

import random
import select
import socket
import threading
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING, Any

import pika
import pytest

from amqp_core.address import ConnectOptions
from amqp_core.broker import running
from amqp_core.broker.v0_10.flow import MOST_BEYOND
from amqp_core.errors import AmqpError, ConnectionClosed, PublisherStopped, PublishingBlocked
from amqp_core.v0_9 import spec
from amqp_core.v0_9.client import Client as Client09
from amqp_core.v0_9.messages import Message as Message09
from amqp_core.v0_10.client import Client as Client010
from amqp_core.v0_10.framing import PROTOCOL_HEADER
from amqp_core.v0_10.messages import Message as Message010
from tests.bench.raw_0_9 import RawConnection
from tests.core.broker.peer_0_9 import method, publish
from tests.support import runs, runs_0_9

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from amqp_core.broker import Broker

MIB = 1 << 20
LIMIT = 8 * MIB
SIZES = (200, 4000, 100_000, 2 * MIB)
Client = Client09 | Client010
MESSAGES = {Client09: Message09, Client010: Message010}
RUNS: dict[Any, Any] = {Client09: runs_0_9, Client010: runs}
BOTH = pytest.mark.parametrize("kind", [Client09, Client010])


@pytest.fixture
def broker() -> Iterator[Broker]:
    with running(memory_limit=LIMIT, max_connections=20) as found:
        yield found


def address(broker: Broker) -> ConnectOptions:
    return ConnectOptions(hosts=(("127.0.0.1", broker.port),), virtual_host="/", username="guest", password="guest")


@pytest.fixture
def connect(broker: Broker) -> Iterator[Callable[[type[Client]], Any]]:
    with ExitStack() as stack:

        def make(kind: type[Client]) -> Any:
            client = kind.connect(address(broker))
            stack.callback(client.abort)
            return client

        yield make


def work(client: Any, queue: str = "work", count: int = 300) -> None:
    """Publish and consume on a queue of its own; return when all has come back."""
    client.declare_queue(queue)
    message = MESSAGES[type(client)]
    bodies = [b"%d" % number for number in range(count)]
    for body in bodies:
        client.publish(message(body), routing_key=queue)
    client.confirm()
    assert take(client, queue, count) == bodies


def take(client: Any, queue: str, count: int) -> list[bytes]:
    """The next messages of a queue."""
    found: list[bytes] = []
    subscription = client.subscribe(queue, max_unsettled=10)
    while len(found) < count:
        for message in subscription.take(1):
            found.append(message.body)
            client.accept([(message.transfer_id, message.transfer_id)])
    subscription.cancel()
    return found


class Flood:
    """A client that writes as fast as it can, whatever the broker says; it reads nothing."""

    def __init__(self, connection: RawConnection, chance: random.Random) -> None:
        self.connection = connection
        self._messages = [publish(bytes(chance.choice(SIZES)), "flood") for _ in range(30)]
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                for message in self._messages:
                    self.connection.socket.sendall(message)

    def __enter__(self) -> Flood:
        self.connection.socket.settimeout(None)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self.connection.socket.close()


def test_a_flood_is_bounded_and_consumers_go_on(broker: Broker, connect: Callable[[type[Client]], Any]) -> None:
    consumer = connect(Client09)
    consumer.declare_queue("flood")
    memory = broker._server.memory
    floods = 3
    most = LIMIT + floods * (max(SIZES) + 1000)
    with ExitStack() as stack:
        for seed in range(floods):
            stack.enter_context(Flood(RawConnection(address(broker)), random.Random(seed)))
        subscription = consumer.subscribe("flood", max_unsettled=5)
        taken = nbytes = 0
        while nbytes < 10 * LIMIT:
            for message in subscription.take(1):
                taken += 1
                nbytes += len(message.body)
                consumer.accept([(taken, taken)])
                assert memory.queued.nbytes <= most
    assert memory.transit < most


@BOTH
def test_our_publisher_waits_until_there_is_room(
    broker: Broker, connect: Callable[[type[Client]], Any], kind: type[Client]
) -> None:
    client, consumer = connect(kind), connect(kind)
    client.declare_queue("q")
    chance = random.Random(1)
    bodies = [bytes([number]) + bytes(chance.choice(SIZES)) for number in range(60)]
    publisher = client.publisher()
    failed: list[BaseException] = []

    def send() -> None:
        try:
            for start in range(0, len(bodies), 5):
                publisher.send(RUNS[kind].run(bodies[start : start + 5], routing_key="q"))
            publisher.finish()
        except AmqpError as error:
            failed.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    found = take(consumer, "q", len(bodies))
    thread.join()
    assert not failed
    assert [body[0] for body in found] == [body[0] for body in bodies]


@pytest.mark.sampled("kind", every=2)
@BOTH
def test_our_publisher_gives_up_in_time(
    broker: Broker, connect: Callable[[type[Client]], Any], kind: type[Client]
) -> None:
    client, other = connect(kind), connect(kind)
    client.declare_queue("q")
    publisher = client.publisher(blocked_timeout_s=0.5)
    run = RUNS[kind].run([bytes(MIB)], routing_key="q")

    def send() -> None:
        for _ in range(100):
            publisher.send(run)

    with pytest.raises((PublishingBlocked, PublisherStopped)) as caught:
        send()
    if kind is Client09:
        assert "low on memory" in str(caught.value)
    memory = broker._server.memory
    assert LIMIT < memory.queued.nbytes < LIMIT + (MOST_BEYOND if kind is Client010 else 2 * MIB)
    assert len(take(other, "q", 8)) == 8, "who does not publish goes on"


@BOTH
def test_a_queue_with_flow_control_refuses_nothing(connect: Callable[[type[Client]], Any], kind: type[Client]) -> None:
    client, consumer = connect(kind), connect(kind)
    client.declare_queue("q", arguments={"x-max-length": 50, "x-overflow": "flow-control"})
    publisher = client.publisher()
    thread = threading.Thread(
        target=lambda: [publisher.send(RUNS[kind].numbered(100, first)) for first in range(0, 2000, 100)]
    )
    thread.start()
    found = take(consumer, "q", 2000)
    thread.join()
    publisher.finish()
    assert not publisher.rejected
    assert [int(body.split(b":")[0]) for body in found] == list(range(2000))


def fill(client: Client09) -> None:
    """Fill the memory with messages of queue q: the last one stops the publisher."""
    for _ in range(8):
        client.publish(Message09(bytes(MIB)), routing_key="q")
    client.confirm()


def test_pika_is_told_that_it_is_blocked_and_unblocked(broker: Broker, connect: Callable[[type[Client]], Any]) -> None:
    parameters = pika.ConnectionParameters("127.0.0.1", broker.port, blocked_connection_timeout=60)
    told: list[str] = []
    with pika.BlockingConnection(parameters) as connection, pika.BlockingConnection(parameters) as other:
        connection.add_on_connection_blocked_callback(lambda _, frame: told.append(frame.method.reason))
        connection.add_on_connection_unblocked_callback(lambda *_: told.append("unblocked"))
        channel = connection.channel()
        channel.queue_declare("q")
        fill(connect(Client09))
        assert not told
        channel.basic_publish("", "q", b"x")
        while not told:
            connection.process_data_events(1)
        assert "low on memory" in told[0]
        consumer = other.channel()
        while consumer.basic_get("q", auto_ack=True)[2] is not None:
            pass
        while len(told) < 2:
            connection.process_data_events(1)
        assert told[1:] == ["unblocked"]
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"again")
        assert consumer.basic_get("q", auto_ack=True)[2] == b"again"


def test_pika_obeys_channel_flow(broker: Broker) -> None:
    parameters = pika.ConnectionParameters("127.0.0.1", broker.port)
    with pika.BlockingConnection(parameters) as connection, pika.BlockingConnection(parameters) as other:
        channel, consumer = connection.channel(), other.channel()
        channel.queue_declare("q", arguments={"x-max-length": 5, "x-overflow": "flow-control"})
        channel.confirm_delivery()
        found = []
        for number in range(40):
            if number % 5 == 0 and number:
                found += [consumer.basic_get("q", auto_ack=True)[2] for _ in range(5)]
            channel.basic_publish("", "q", b"%d" % number)
        assert found == [b"%d" % number for number in range(35)]
        consumer.queue_purge("q")  # a connection that is stopped is not read, nor is its close


@BOTH
def test_no_more_connections_than_allowed(
    broker: Broker, connect: Callable[[type[Client]], Any], kind: type[Client]
) -> None:
    clients = [connect(kind) for _ in range(20)]
    with pytest.raises(ConnectionClosed, match=r"connection limit \(20\) is reached") as refused:
        connect(kind)
    assert refused.value.retryable
    work(clients[0])
    clients.pop().close()
    work(connect(kind))


def silent(broker: Broker) -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.port))


def said(broker: Broker, data: bytes) -> socket.socket:
    found = silent(broker)
    found.sendall(data)
    return found


def never_reads(broker: Broker) -> socket.socket:
    """A client that asks without end, and reads no answer, until it is not read any more."""
    name = "n" * 200
    connection = RawConnection(address(broker))
    connection.call(1, spec.QueueDeclare(queue=name), spec.QueueDeclareOk)
    host, port = connection.socket.getsockname()
    [peer] = [each for each in list(broker._server._peers) if each.name == f"{host}:{port}"]
    questions, rest = method(1, spec.QueueDeclare(queue=name, passive=True)) * 1000, b""
    connection.socket.setblocking(False)
    while peer._connection is not None and peer._connection.is_read:
        rest = rest or questions
        if select.select([], [connection.socket], [], 0.05)[1]:
            with suppress(BlockingIOError):
                rest = rest[connection.socket.send(rest) :]
    return connection.socket


BAD: dict[str, Callable[[Broker], socket.socket]] = {
    "silent": silent,
    "one octet": lambda broker: said(broker, b"A"),
    "HTTP": lambda broker: said(broker, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 1000),
    "garbage": lambda broker: said(broker, random.Random(5).randbytes(100_000)),
    "0-9-1, then garbage": lambda broker: said(broker, b"AMQP\0\0\x09\x01" + random.Random(6).randbytes(100_000)),
    "0-10, then garbage": lambda broker: said(broker, PROTOCOL_HEADER + random.Random(7).randbytes(100_000)),
    "0-9-1, then half a frame": lambda broker: said(broker, b"AMQP\0\0\x09\x01\1\0\0\0\0\x0f\xff"),
    "0-10, then half a frame": lambda broker: said(broker, PROTOCOL_HEADER + b"\x0f\0\x0f\xff"),
    "0-9-1, a large frame before login": lambda broker: said(broker, b"AMQP\0\0\x09\x01\1\0\0\0\1\0\0"),
    "0-10, a large frame before login": lambda broker: said(broker, PROTOCOL_HEADER + b"\x0f\0\xff\xff\0\0\0\0"),
    "never reads": never_reads,
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_client_costs_the_others_nothing(
    broker: Broker, connect: Callable[[type[Client]], Any], name: str
) -> None:
    clients = [connect(Client09), connect(Client010)]
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(closing(BAD[name](broker)))
        for number, client in enumerate(clients):
            work(client, f"work{number}")
        work(connect(Client09), "later")
        assert broker._server.memory.transit < 3 * 6 * MIB


def test_frames_before_login_are_small(broker: Broker) -> None:
    for data in (b"AMQP\0\0\x09\x01\1\0\0\0\1\0\0", PROTOCOL_HEADER + b"\x0f\0\xff\xff\0\0\0\0\0\0\0\0"):
        with closing(said(broker, data)) as found:
            found.settimeout(60)
            answer = b""
            while part := found.recv(65536):
                answer += part
            assert answer.startswith(data[:8]) or b"\0\x0a\0\x0a" in answer


@pytest.mark.parametrize("first", [b"", b"AMQP", b"AMQP\0\0\x09\x01", PROTOCOL_HEADER + b"\x0f"])
def test_a_login_has_to_end(broker: Broker, monkeypatch: pytest.MonkeyPatch, first: bytes) -> None:
    monkeypatch.setattr("amqp_core.broker.peer.LOGIN_SECONDS", 0.1)
    with closing(said(broker, first)) as found:
        found.settimeout(60)
        with suppress(ConnectionResetError):
            while found.recv(65536):
                pass
