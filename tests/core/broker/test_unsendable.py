"""Messages that cannot be written for a consumer: they are not lost, and nobody else has an error of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqp_core.broker.model.messages import Death, Message
from amqp_core.broker.v0_9.wire import WIRE as WIRE_0_9
from amqp_core.broker.v0_10.wire import WIRE
from amqp_core.v0_9 import spec as spec_0_9
from amqp_core.v0_9._codec import encode_header as encode_header_0_9
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import encode_header
from tests.core.broker import peer_0_9
from tests.core.broker.peer_0_10 import Peer, World

if TYPE_CHECKING:
    from amqp_core.broker.model.virtual_host import VirtualHost

DEATHS = (Death("q", "expired", "", ("k",), 1, 1_700_000_000.0),)
TOO_LONG = "k" * 256
"""A routing key that 0-9-1 cannot write."""


def unsendable(body: bytes = b"bad") -> Message:
    """A dead letter whose header cannot be read, to be changed; publishers cannot make such, a store may have one."""
    return Message(WIRE, "", "q", b"\xff" * 20, body, deaths=DEATHS)


def put(host: VirtualHost, message: Message) -> None:
    host.queues["q"].put(message, 1_700_000_000.0)


def client(world: World, name: bytes = b"s") -> Peer:
    peer = world.connect()
    peer.attach(name=name)
    peer.call(spec.QueueDeclare(queue="q"))
    return peer


@pytest.mark.parametrize("accept_mode", [0, 1])
@pytest.mark.parametrize("waits", [True, False])
def test_the_session_ends_and_the_message_stays(*, accept_mode: int, waits: bool) -> None:
    world = World()
    peer = client(world)
    if waits:
        put(world.host, unsendable())
    peer.subscribe(accept_mode=accept_mode)
    peer.flow()
    if not waits:
        put(world.host, unsendable())  # by somebody else, who has no error of it
    put(world.host, Message(WIRE, "", "q", encode_header(spec.DeliveryProperties(), None), b"good"))
    peer.pump()
    (error,) = peer.received(spec.ExecutionException)
    assert (error.error_code, peer.bodies, peer.error) == (541, [], None)
    assert "cannot be sent" in (error.description or "")
    queue = world.host.queues["q"]
    assert (queue.message_count, queue.unsettled_count, queue.consumer_count) == (2, 0, 0)
    assert [each.body for each in bodies(queue.message_count, world.host)] == [b"bad", b"good"]
    peer.attach(1, b"another")
    assert peer.error is None


def bodies(count: int, host: VirtualHost) -> list[Message]:
    entries = [host.get("q", owner=None) for _ in range(count)]
    return [entry.message for entry in entries if entry is not None]


def test_who_browses_does_not_take_it() -> None:
    world = World()
    put_into, peer = client(world), client(world, b"t")
    put(world.host, unsendable())
    peer.subscribe(accept_mode=1, acquire_mode=1)
    peer.flow()
    assert len(peer.received(spec.ExecutionException)) == 1
    queue = world.host.queues["q"]
    assert (queue.message_count, queue.unsettled_count) == (1, 0)
    assert put_into.received(spec.ExecutionException) == []


def test_a_limit_of_deliveries_takes_it_out_of_the_way() -> None:
    """Else each subscription would end that it comes to."""
    world = World()
    peer = world.connect()
    world.host.declare_queue("q", owner=None, arguments={"x-delivery-limit": 1})
    put(world.host, unsendable())
    put(world.host, Message(WIRE, "", "q", encode_header(spec.DeliveryProperties(), None), b"good"))
    for name in (b"a", b"b", b"c"):
        peer.attach(name=name)
        peer.subscribe()
        peer.flow()
    assert len(peer.received(spec.ExecutionException)) == 2
    assert peer.bodies == [b"good"]


@pytest.mark.parametrize("no_ack", [False, True])
@pytest.mark.parametrize("gets", [False, True])
def test_a_connection_of_0_9_1_ends_and_the_message_stays(*, no_ack: bool, gets: bool) -> None:
    world = peer_0_9.World()
    peer = world.connect()
    peer.send(spec_0_9.QueueDeclare(queue="q"))
    if not gets:
        peer.send(spec_0_9.BasicConsume(queue="q", no_ack=no_ack))
    header = encode_header_0_9(spec_0_9.BasicProperties(), 3)
    put(world.host, Message(WIRE_0_9, "", TOO_LONG, header, b"bad", deaths=DEATHS))
    put(world.host, Message(WIRE_0_9, "", "q", header, b"yes"))
    if gets:
        peer.send(spec_0_9.BasicGet(queue="q", no_ack=no_ack))
    peer.read()
    (closed,) = peer.received(spec_0_9.ConnectionClose)
    peer.server.lost()
    assert (closed.reply_code, peer.bodies) == (541, [])
    queue = world.host.queues["q"]
    assert (queue.message_count, queue.unsettled_count, queue.consumer_count) == (2, 0, 0)
    assert [each.body for each in bodies(2, world.host)] == [b"bad", b"yes"]
