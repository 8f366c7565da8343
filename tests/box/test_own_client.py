"""Our own client and connector against the embedded broker."""

from __future__ import annotations

import random
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.address import ConnectOptions
from amqp_core.broker import running
from amqp_core.v0_9.client import Client
from amqp_core.v0_9.messages import Message
from tests.support.runs_0_9 import numbers_of, run

if TYPE_CHECKING:
    from pathlib import Path

    from amqp_core.broker import Broker
    from tests.box.conftest import Connect


def test_many_messages_through_publisher_and_blocks(connect: Connect) -> None:
    publisher, consumer = connect(), connect()
    publisher.declare_queue("q")
    count = 20_000
    found: list[int] = []
    subscription = consumer.subscribe("q", max_unsettled=500)
    sending = publisher.publisher()

    def send() -> None:
        for first in range(0, count, 1000):
            sending.send(run([b"%d:" % number for number in range(first, first + 1000)], routing_key="q"))
        sending.finish()

    thread = threading.Thread(target=send)
    thread.start()
    while len(found) < count:
        found += [int(message.body.rstrip(b":")) for message in subscription.take(500)]
        consumer.accept([(1, len(found))], sync=True)
    thread.join()
    assert found == list(range(count))


def test_a_consumer_that_does_not_read_holds_little_memory_and_loses_nothing(connect: Connect) -> None:
    client, slow = connect(), connect()
    client.declare_queue("q")
    bodies = [random.Random(number).randbytes(200_000) for number in range(200)]
    subscription = slow.subscribe("q", accept=False)  # no prefetch: only the socket pushes back
    publisher = client.publisher()
    publisher.send(run(bodies, routing_key="q"))
    publisher.finish()
    info = client.query_queue("q")
    assert info is not None
    assert info.message_count > 100, "most wait in the queue, not in the connection"
    found: list[bytes] = []
    while len(found) < len(bodies):
        found += [message.body for message in subscription.take(10)]
    assert found == bodies


def test_both_versions_of_the_protocol(connect: Connect) -> None:
    for version in ("0-9-1", "0-9", "auto"):
        client = connect(protocol=version) if version != "auto" else connect()
        client.declare_queue(version)
        client.publish(Message(b"x"), routing_key=version)
        client.confirm()
        assert client.subscribe(version, accept=False).take(1)[0].body == b"x"


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n", b"AMQP\x00\x01\x00\x00", b"AMQP\x00\x00\x09\x01" + bytes(100), b"\x16\x03\x01", b""],
)
def test_garbage_costs_the_others_nothing(amqp_broker: Broker, connect: Connect, garbage: bytes) -> None:
    client = connect()
    client.declare_queue("q")
    with socket.create_connection(("127.0.0.1", amqp_broker.port), timeout=10) as stranger:
        stranger.sendall(garbage)
        stranger.shutdown(socket.SHUT_WR)
        answer = stranger.recv(1 << 16)
        assert answer in (b"", b"AMQP\x00\x00\x09\x01") or answer[0] == 1
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.publish(Message(b"1"), routing_key="q")
    client.confirm()
    assert numbers_of([run([b"1"], routing_key="q")]) == [1]
    assert client.subscribe("q", accept=False).take(1)[0].body == b"1"


def test_the_end_of_many_consumers_counts_as_one_return(tmp_path: Path) -> None:
    """Of connections that end together each would else be given what another one has returned."""
    login: dict[str, Any] = {"username": "guest", "password": "guest", "protocol": "0-9-1"}
    with running(store=tmp_path / "broker.db") as broker:
        clients = [Client.connect(ConnectOptions(hosts=(("127.0.0.1", broker.port),), **login)) for _ in range(7)]
        publisher = clients[0]
        publisher.declare_queue("q", durable=True, arguments={"x-delivery-limit": 3})
        for client in clients[1:]:
            client.subscribe("q", max_unsettled=2)
            client.sync()
        for number in range(20):
            publisher.publish_to_queue("q", b"%d" % number, content_type="text/plain")
        publisher.confirm()
    for client in clients:
        client.abort()
    with (
        running(store=tmp_path / "broker.db") as broker,
        Client.connect(ConnectOptions(hosts=(("127.0.0.1", broker.port),), **login)) as client,
    ):
        info = client.query_queue("q")
        assert info is not None
        assert info.message_count == 20
