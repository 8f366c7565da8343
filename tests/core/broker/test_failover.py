"""The connection or session of a single active consumer ends: the next consumer gets all, in order."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.broker.model.messages import Message
from amqp_core.broker.server import WIRES, Server
from amqp_core.protocol_header import HEADERS_0_9
from amqp_core.v0_9 import spec as spec_0_9
from amqp_core.v0_9._codec import encode_header
from amqp_core.v0_10 import spec
from tests.core.broker import peer_0_9
from tests.core.broker.peer_0_9 import FRAME_MAX, method
from tests.core.broker.peer_0_10 import NONE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.core.broker.peer_0_10 import Peer

ONE_AT_A_TIME: dict[str, Any] = {"x-single-active-consumer": True}


@pytest.mark.parametrize("end", ["close", "lost", "stolen"])
@pytest.mark.parametrize("accept_mode", [0, NONE])
def test_nothing_is_given_to_another_subscription_that_ends_with_it(
    peer: Peer, other: Peer, end: str, accept_mode: int
) -> None:
    """With accept-mode none that would be lost, and with explicit count as a delivery."""
    peer.call(spec.QueueDeclare(queue="single", arguments=ONE_AT_A_TIME | {"x-qpid-maximum-delivery-count": 2}))
    peer.subscribe("single")
    peer.flow(1)
    peer.subscribe("single", "second", accept_mode=accept_mode)
    peer.flow(destination="second")
    for number in range(4):
        other.publish(b"%d" % number, "single")
    if end == "close":
        peer.protocol.close()
        peer.pump()
    elif end == "lost":
        peer.server.lost()
    else:
        other.attach(1, b"s", force=True)
    other.subscribe("single")
    other.flow()
    received = [(body, delivery.redelivered) for _, delivery, _, body in other.transfers]
    assert received == [(b"0", True), (b"1", False), (b"2", False), (b"3", False)]


@pytest.mark.parametrize("end", ["detach", "exception"])
def test_what_a_session_held_comes_first(peer: Peer, other: Peer, end: str) -> None:
    peer.call(spec.QueueDeclare(queue="single", arguments=ONE_AT_A_TIME))
    peer.subscribe("single")
    peer.flow(2)
    other.subscribe("single")
    other.flow()
    for number in range(4):
        other.publish(b"%d" % number, "single")
    if end == "detach":
        peer.session.detach()
        peer.pump()
    else:
        peer.call(spec.QueuePurge(queue="none"))
    assert other.bodies == [b"0", b"1", b"2", b"3"]


def test_what_a_channel_held_comes_first() -> None:
    world = peer_0_9.World()
    peer, other = world.connect(), world.connect()
    peer.send(
        spec_0_9.QueueDeclare(queue="single", arguments=ONE_AT_A_TIME),
        spec_0_9.BasicQos(prefetch_count=2),
        spec_0_9.BasicConsume(queue="single"),
    )
    other.send(spec_0_9.BasicConsume(queue="single"))
    for number in range(4):
        other.send(peer_0_9.publish(b"%d" % number, "single"))
    peer.send(spec_0_9.ChannelClose(200, "", 0, 0))
    other.read()
    assert other.bodies == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("end", ["close", "garbage", "lost"])
def test_nothing_is_given_to_another_channel_that_ends_with_it(end: str) -> None:
    world = peer_0_9.World()
    peer, other = world.connect(), world.connect()
    peer.send(
        spec_0_9.QueueDeclare(queue="single", arguments=ONE_AT_A_TIME),
        spec_0_9.BasicQos(prefetch_count=1),
        spec_0_9.BasicConsume(queue="single"),
        method(2, spec_0_9.ChannelOpen()),
        method(2, spec_0_9.BasicConsume(queue="single", no_ack=True)),
    )
    for number in range(4):
        other.send(peer_0_9.publish(b"%d" % number, "single"))
    if end == "close":
        peer.send(method(0, spec_0_9.ConnectionClose(200, "", 0, 0)))
    elif end == "garbage":
        peer.send(b"no frame")
    else:
        peer.server.lost()
    other.send(spec_0_9.BasicConsume(queue="single"))
    assert other.bodies == [b"0", b"1", b"2", b"3"]


def test_nothing_is_given_to_another_connection_when_the_broker_stops(tmp_path: Path) -> None:
    path = tmp_path / "broker.db"
    hello = b"".join(
        (
            HEADERS_0_9["0-9-1"],
            method(0, spec_0_9.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US")),
            method(0, spec_0_9.ConnectionTuneOk(2047, FRAME_MAX, 60)),
            method(0, spec_0_9.ConnectionOpen("/")),
            method(1, spec_0_9.ChannelOpen()),
            method(1, spec_0_9.BasicQos(prefetch_count=1)),
        )
    )

    async def run() -> None:
        server = Server(store=path)
        port = await server.start()
        host = server.hosts["/"]
        queue = host.declare_queue("single", owner=None, durable=True, arguments=ONE_AT_A_TIME)
        for no_ack in (False, True):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.sendall(hello + method(1, spec_0_9.BasicConsume(queue="single", no_ack=no_ack)))
            while queue.consumer_count <= no_ack:
                await asyncio.sleep(0)
        for _ in range(4):
            header = encode_header(spec_0_9.BasicProperties(delivery_mode=2), 1)
            host.publish(Message(WIRES["0-9"], "", "single", header, b"x", persistent=True), now=server.now())
        await server.stop()

    with ExitStack() as stack:
        asyncio.run(run())
    restored = Server(store=path)
    assert restored.hosts["/"].queues["single"].message_count == 4
    asyncio.run(restored.stop())
