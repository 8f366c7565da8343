"""Publishers over 0-9-1 that are stopped: connection.blocked, channel.flow, and a connection that is not read."""

from __future__ import annotations

import random

from amqp_core.broker.model.memory import MESSAGE_BYTES
from amqp_core.v0_9 import spec
from tests.core.broker.model_support import ME
from tests.core.broker.peer_0_9 import Peer, World, method, publish

MIB = 1 << 20
FULL = {"x-max-length": 10, "x-overflow": "flow-control"}


def full_world() -> tuple[World, Peer]:
    """A broker whose memory is full, and the client that has filled it and confirms."""
    world = World(10 * MIB)
    world.host.declare_queue("q", owner=ME)
    peer = world.connect()
    peer.send(spec.ConfirmSelect())
    while not peer.server.is_stalled:
        peer.send(publish(bytes(MIB)))
    return world, peer


def drain(world: World, queue: str = "q") -> int:
    """Empty a queue; return how many messages it had."""
    count = 0
    while (entry := world.host.get(queue, owner=ME)) is not None:
        world.host.accept([entry])
        count += 1
    return count


def test_a_publisher_is_blocked_and_unblocked() -> None:
    world, peer = full_world()
    [blocked] = peer.received(spec.ConnectionBlocked)
    assert "low on memory" in blocked.reason
    assert peer.received(spec.BasicAck)[-1].delivery_tag == 10, "what was taken is confirmed"
    peer.send(publish(b"late"), publish(b"later"))
    assert world.host.queues["q"].message_count == 10
    peer.relieve()
    assert peer.received(spec.ConnectionUnblocked) == []
    assert drain(world) == 10
    peer.relieve()
    assert len(peer.received(spec.ConnectionUnblocked)) == 1
    assert not peer.server.is_stalled
    assert not peer.server.is_restrained
    assert drain(world) == 2
    assert peer.received(spec.BasicAck)[-1].delivery_tag == 12


def test_what_a_client_has_sent_before_its_close_is_carried_out() -> None:
    """It is told at once that the connection is closed, and closes its socket then."""
    world, _ = full_world()
    world.host.declare_queue("other", owner=ME)
    peer = world.connect()
    peer.send(spec.BasicConsume(queue="other", no_ack=True))
    messages = [publish(b"%d" % number) for number in range(5)]
    peer.send(*messages, method(0, spec.ConnectionClose(200, "", 0, 0)))
    assert len(peer.received(spec.ConnectionCloseOk)) == 1
    assert peer.server.is_over
    assert not peer.server.is_stalled
    world.connect().send(publish(b"for others", "other"))
    peer.server.lost()
    assert drain(world, "other") == 1, "it consumes no more"
    assert drain(world) == 10 + 5


def test_a_client_that_does_not_know_it_is_not_told() -> None:
    world, _ = full_world()
    peer = world.connect({})
    peer.send(publish(b"x"), publish(b"y"))
    assert peer.server.is_stalled
    assert peer.received(spec.ConnectionBlocked) == []
    assert drain(world) == 11
    peer.relieve()
    assert peer.received(spec.ConnectionUnblocked) == []
    assert drain(world) == 1


def test_who_does_not_publish_is_not_stopped() -> None:
    world, publisher = full_world()
    peer = world.connect()
    peer.send(spec.BasicQos(prefetch_count=1), spec.BasicConsume(queue="q", consumer_tag="c"))
    for tag in range(1, 11):
        peer.send(spec.BasicAck(tag))
    assert len(peer.received(spec.BasicDeliver)) == 10
    assert not peer.server.is_stalled
    publisher.relieve()
    assert not publisher.server.is_stalled


def test_silence_of_a_client_that_is_not_read_counts_for_nothing() -> None:
    _, peer = full_world()
    for at in range(0, 1000, 20):
        peer.server.tick(at)
    assert not peer.server.is_over


def test_the_overshoot_is_one_message_of_each_connection() -> None:
    world = World(8 * MIB)
    world.host.declare_queue("q", owner=ME)
    peers = [world.connect() for _ in range(4)]
    chance = random.Random(7)
    largest = 0
    for _ in range(60):
        for peer in peers:
            sizes = [chance.choice([200, 4000, 100_000, 2 * MIB]) for _ in range(5)]
            largest = max(largest, *sizes)
            if not peer.server.is_stalled:
                peer.send(*(publish(bytes(size)) for size in sizes))
        assert world.memory.queued.nbytes <= 8 * MIB + len(peers) * (largest + 1000)
    assert all(peer.server.is_stalled for peer in peers)


def test_acks_on_a_connection_that_publishes_free_the_memory_in_the_end() -> None:
    world = World(10 * MIB)
    peer = world.connect()
    peer.send(spec.QueueDeclare(queue="q"), spec.BasicConsume(queue="q", consumer_tag="c"))
    for _ in range(10):
        peer.send(publish(bytes(MIB)))
        peer.read()
    peer.send(publish(b"x"), *(spec.BasicAck(tag) for tag in range(1, 11)), publish(b"y"))
    assert peer.server.is_stalled
    assert world.memory.queued.nbytes > 10 * MIB
    peer.relieve()
    assert world.memory.queued.nbytes < MIB
    peer.relieve()
    assert not peer.server.is_restrained
    assert peer.bodies[-1] == b"y"


def test_a_connection_that_publishes_on_and_holds_all_the_memory_is_closed() -> None:
    world = World(10 * MIB)
    peer = world.connect()
    peer.send(spec.QueueDeclare(queue="q"), spec.BasicGet(queue="q"))
    peer.send(publish(bytes(MIB)), spec.BasicGet(queue="q"))
    most = 0
    for _ in range(100):
        if not peer.server.is_stalled:
            peer.send(publish(bytes(MIB)))
        most = max(most, world.memory.queued.nbytes)
        peer.relieve()
    [close] = peer.received(spec.ConnectionClose)
    assert (close.reply_code, "blocked" in close.reply_text) == (506, True)
    assert most < 15 * MIB
    assert world.host.queues["q"].unsettled_count == 0
    peer.send(method(0, spec.ConnectionCloseOk()))
    assert peer.server.is_over


def test_a_queue_with_flow_control_stops_the_channel_and_the_connection() -> None:
    world = World()
    peer = world.connect()
    peer.send(spec.QueueDeclare(queue="q", arguments=FULL), *(publish(b"%d" % number) for number in range(20)))
    assert peer.received(spec.ChannelFlow) == [spec.ChannelFlow(active=False)]
    assert world.host.queues["q"].message_count == 10
    assert peer.server.is_stalled
    peer.send(spec.ChannelFlowOk(active=False))
    world.host.get("q", owner=ME)
    peer.relieve()
    assert peer.server.is_stalled
    world.host.get("q", owner=ME)
    peer.relieve()
    assert peer.received(spec.ChannelFlow)[1:] == [spec.ChannelFlow(active=True), spec.ChannelFlow(active=False)]
    assert world.host.queues["q"].message_count == 10
    while world.host.queues["q"].message_count:
        drain(world)
        peer.relieve()
    peer.send(spec.ChannelFlowOk(active=True), spec.ChannelFlowOk(active=False), spec.ChannelFlowOk(active=True))
    assert peer.received(spec.ChannelClose) == []
    assert not peer.server.is_restrained


def test_other_queues_do_not_stop_it() -> None:
    world = World()
    peer = world.connect()
    peer.send(spec.QueueDeclare(queue="full", arguments=FULL), spec.QueueDeclare(queue="q"))
    other = world.connect()
    other.send(*(publish(b"", "full") for _ in range(20)))
    peer.send(*(publish(b"") for _ in range(20)))
    assert other.server.is_stalled
    assert not peer.server.is_restrained
    assert world.host.queues["q"].message_count == 20


def test_a_transaction_without_end_closes_the_connection() -> None:
    world = World(10 * MIB)
    peer = world.connect()
    peer.send(spec.QueueDeclare(queue="q"), spec.TxSelect())
    for _ in range(6):
        peer.send(publish(bytes(MIB)))
    [close] = peer.received(spec.ConnectionClose)
    assert (close.reply_code, "transactions" in close.reply_text) == (506, True)
    assert world.memory.uncommitted.nbytes == 4 * (MIB + MESSAGE_BYTES + 14)
    peer.send(method(0, spec.ConnectionCloseOk()))
    assert world.memory.used == 0


def test_a_transaction_that_fits_is_committed() -> None:
    world = World(10 * MIB)
    peer = world.connect()
    peer.send(spec.QueueDeclare(queue="q"), spec.TxSelect())
    for _ in range(12):
        peer.send(publish(bytes(MIB)), publish(bytes(MIB)), spec.TxCommit())
        drain(world)
    assert len(peer.received(spec.TxCommitOk)) == 12
    peer.send(publish(bytes(MIB)), spec.TxRollback())
    assert world.memory.used == 0


def test_messages_in_parts_may_take_as_much_as_the_largest_message() -> None:
    world = World()
    peer = world.connect(max_message_bytes=4 * MIB)
    for channel in range(2, 6):
        peer.send(method(channel, spec.ChannelOpen()), publish(bytes(MIB), channel=channel, missing=MIB))
    assert 4 * MIB < peer.server.unfinished_bytes < 5 * MIB
    assert not peer.server.is_closing
    peer.send(method(6, spec.ChannelOpen()), publish(bytes(MIB), channel=6, missing=1))
    [close] = peer.received(spec.ConnectionClose)
    assert (close.reply_code, "not ended" in close.reply_text) == (506, True)
    assert peer.server.unfinished_bytes == 0


def test_answers_wait_until_the_client_has_read_some() -> None:
    world = World()
    peer = world.connect()
    peer.send(spec.QueueDeclare(queue="q"), *(publish(bytes(100_000)) for _ in range(40)))
    peer.server.receive(method(1, spec.BasicGet(queue="q", no_ack=True)) * 40)
    assert peer.server.is_stalled
    assert 28 <= world.host.queues["q"].message_count <= 30
    peer.server.paused = True
    peer.read()
    assert len(peer.received(spec.BasicGetOk)) <= 12, "the socket takes no more"
    peer.server.paused = False
    for _ in range(10):
        peer.read()
    assert len(peer.received(spec.BasicGetOk)) == 40
    assert not peer.server.is_stalled


def test_no_connection_beyond_the_limit() -> None:
    peer = World().connect(refuse=lambda: "2 connections are open")
    [close] = peer.received(spec.ConnectionClose)
    assert (close.reply_code, close.reply_text) == (530, "NOT_ALLOWED - 2 connections are open")
    assert not peer.server.is_open
