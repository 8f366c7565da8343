"""Publishers over 0-10 that are stopped: message.stop and message.flow, and a client that does not stop."""

from __future__ import annotations

import random

import pytest

from amqp_core.broker.v0_10 import flow
from amqp_core.broker.v0_10.flow import MOST_BEYOND
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import encode_header
from amqp_core.v0_10.framing import BODY, COMMAND, HEADER, encode_assembly
from amqp_core.v0_10.producer_credit import ProducerCredit
from tests.core.broker.model_support import ME
from tests.core.broker.peer_0_10 import Peer, World

MIB = 1 << 20
TOO_LONG = {"x-max-length": 10, "x-overflow": "flow-control"}


def left(peer: Peer) -> int | None:
    """The credit of a client that heeds what it was told; None: no limit."""
    credit = ProducerCredit()
    for command in peer.commands:
        credit.receive(command)
    return credit.left


def drain(world: World, queue: str = "q") -> int:
    """Empty a queue; return how many messages it had."""
    count = 0
    while (entry := world.host.get(queue, owner=ME)) is not None:
        world.host.accept([entry])
        count += 1
    return count


def publisher(world: World, **arguments: object) -> Peer:
    """A client with a session, and queue q."""
    peer = world.connect()
    peer.attach(name=b"%d" % len(world.peers))
    peer.call(spec.QueueDeclare(queue="q", arguments=arguments))
    return peer


def test_a_publisher_is_stopped_and_goes_on() -> None:
    world = World(10 * MIB)
    peer = publisher(world)
    while left(peer) is None:
        peer.publish(bytes(MIB))
    assert world.host.queues["q"].message_count == 10
    peer.publish(b"under way")
    assert world.host.queues["q"].message_count == 11
    assert not peer.server.is_stalled, "its accepts are read"
    peer.server.relieve()
    peer.pump()
    assert left(peer) == 0
    assert drain(world) == 11
    peer.server.relieve()
    peer.pump()
    assert left(peer) is None
    assert not peer.server.is_restrained
    assert len(peer.received(spec.MessageAccept)) == 11


def test_who_does_not_publish_is_not_stopped() -> None:
    world = World(10 * MIB)
    sender, peer = publisher(world), publisher(world)
    while left(sender) is None:
        sender.publish(bytes(MIB))
    peer.subscribe()
    peer.flow()
    for command_id, *_ in list(peer.transfers):
        peer.call(spec.MessageAccept(transfers=[(command_id, command_id)]))
    assert len(peer.transfers) == 10
    assert left(peer) is None
    sender.server.relieve()
    sender.pump()
    assert left(sender) is None


def test_accepts_of_a_session_that_is_stopped_free_the_memory() -> None:
    world = World(10 * MIB)
    peer = publisher(world)
    peer.subscribe()
    peer.flow()
    while left(peer) is None:
        peer.publish(bytes(MIB))
    peer.call(spec.MessageAccept(transfers=[(each, each) for each, *_ in peer.transfers]))
    assert world.memory.queued.nbytes == 0
    peer.server.relieve()
    peer.pump()
    assert left(peer) is None


def test_a_client_that_does_not_stop_is_not_read_in_the_end() -> None:
    world = World(8 * MIB)
    peer = publisher(world)
    chance = random.Random(3)
    for _ in range(200):
        if peer.server.is_stalled:
            break
        peer.publish(bytes(chance.choice([200, 4000, 100_000, 2 * MIB])))
    assert left(peer) == 0
    assert peer.server.is_stalled
    assert world.memory.queued.nbytes <= 8 * MIB + MOST_BEYOND + 5 * MIB
    for at in range(0, 1000, 5):
        peer.server.tick(at)
    assert not peer.server.is_over, "silence of a client that is not read counts for nothing"
    peer.publish(b"late")
    assert drain(world) > 0
    peer.server.relieve()
    peer.pump()
    assert left(peer) is None
    assert drain(world) == 1, "what waited is processed, and the connection is read"


def test_small_messages_of_a_client_that_does_not_stop_are_counted_with_what_they_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flow, "MOST_BEYOND", MIB)
    world = World(MIB)
    peer = publisher(world)
    header = encode_header(spec.DeliveryProperties(routing_key="q"), None)
    for _ in range(20):
        if peer.server.is_stalled:
            break
        for _ in range(500):
            peer.session.send(spec.MessageTransfer(destination="", accept_mode=1, acquire_mode=0), header=header)
        peer.pump()
    assert peer.server.is_stalled
    assert world.memory.queued.nbytes < 3 * MIB


def test_what_a_client_has_sent_before_its_close_is_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told at once that the connection is closed, and closes its socket then."""
    monkeypatch.setattr(flow, "MOST_BEYOND", MIB)
    world = World(MIB)
    peer = publisher(world)
    header = encode_header(spec.DeliveryProperties(routing_key="q"), None)
    transfer = spec.MessageTransfer(destination="", accept_mode=1, acquire_mode=0)
    for _ in range(10):
        peer.session.send(transfer, header=header, body=bytes(MIB // 2))
    peer.protocol.close()
    peer.pump()
    assert peer.ended is not None
    assert peer.server.is_over
    assert drain(world) == 10


def test_a_client_that_does_not_stop_and_holds_all_the_memory_is_closed() -> None:
    world = World(8 * MIB)
    peer = publisher(world)
    peer.subscribe()
    peer.flow(messages=1)
    for _ in range(100):
        if not peer.server.is_stalled:
            peer.publish(bytes(MIB))
        peer.server.relieve()
    peer.pump()
    assert peer.ended is not None
    assert "blocked" in str(peer.error)
    assert world.host.queues["q"].unsettled_count == 0


@pytest.mark.parametrize(
    "arguments",
    [
        TOO_LONG,
        {"qpid.max_count": 10, "qpid.policy_type": "producer_flow_control"},
        {"x-qpid-capacity": 100, "x-qpid-flow-resume-capacity": 80},
    ],
)
def test_a_queue_with_flow_control(arguments: dict[str, object]) -> None:
    world = World()
    peer, other = publisher(world, **arguments), world.connect()
    other.attach(name=b"other")
    for number in range(12):
        peer.publish(b"%010d" % number)
    assert left(peer) == 0
    assert world.host.queues["q"].message_count == 12, "nothing is refused"
    other.publish(b"", key="none")
    assert left(other) is None
    held = [world.host.get("q", owner=ME) for _ in range(4)]
    peer.server.relieve()
    peer.pump()
    assert left(peer) is None
    assert len(held) == 4


def test_a_session_that_ends_is_stopped_no_more() -> None:
    world = World()
    peer = publisher(world, **TOO_LONG)
    for _ in range(10):
        peer.publish(b"")
    assert peer.server.is_restrained
    peer.session.detach()
    peer.pump()
    peer.server.relieve()
    assert not peer.server.is_restrained


def test_a_transaction_without_end_ends_the_session() -> None:
    world = World(10 * MIB)
    peer = publisher(world)
    peer.call(spec.TxSelect())
    for _ in range(5):
        if peer.session.error is None:
            peer.publish(bytes(MIB))
    [exception] = peer.received(spec.ExecutionException)
    assert (exception.error_code, "transactions" in (exception.description or "")) == (506, True)
    assert world.memory.queued.nbytes == 0


def test_messages_in_parts_may_take_as_much_as_the_largest_message() -> None:
    world = World(4 * MIB)
    peer = world.connect()
    for channel in range(5):
        peer.attach(channel, b"%d" % channel)
    segments = [(COMMAND, b"\x04\x01\x00\x00"), (HEADER, b""), (BODY, bytes(MIB))]
    begun = [b"".join(encode_assembly(channel, 1, segments, 65535)[:-2]) for channel in range(5)]
    for part in begun[:4]:
        peer.server.receive(part)
    assert 3 * MIB < peer.server.unfinished_bytes < 5 * MIB
    assert not peer.server.is_closing
    peer.server.receive(begun[4])
    assert peer.server.is_closing


def test_no_connection_beyond_the_limit() -> None:
    world = World()
    peer = Peer(world, "guest", "guest", "", refuse=lambda: "2 connections are open")
    world.peers.append(peer)
    peer.pump()
    assert not peer.opened
    assert "2 connections are open" in str(peer.error)
