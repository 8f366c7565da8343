"""A transaction whose messages a full queue rejects does nothing; the end of many consumers counts as one return."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqp_core.v0_9 import spec as spec_0_9
from amqp_core.v0_10 import spec
from tests.core.broker.peer_0_9 import World as World09
from tests.core.broker.peer_0_9 import publish
from tests.core.broker.peer_0_10 import Peer, World

if TYPE_CHECKING:
    from collections.abc import Callable

FULL = {"qpid.max_count": 1, "qpid.policy_type": "reject"}


@pytest.fixture
def peer() -> Peer:
    peer = World().connect()
    peer.attach()
    return peer


def ready(peer: Peer, queue: str) -> int:
    return peer.world.host.queues[queue].message_count


@pytest.mark.parametrize("accept_mode", [0, 1])
def test_a_commit_over_0_10_that_has_no_room_does_nothing(peer: Peer, accept_mode: int) -> None:
    peer.call(spec.QueueDeclare(queue="in"))
    peer.call(spec.QueueDeclare(queue="free"))
    peer.call(spec.QueueDeclare(queue="full", arguments=FULL))
    peer.publish(b"old", key="full")
    peer.publish(b"1", key="in")
    peer.call(spec.TxSelect())
    peer.subscribe("in")
    peer.flow()
    ((command_id, *_),) = peer.transfers
    peer.publish(b"a", key="free", accept_mode=accept_mode)
    peer.publish(b"b", key="full", accept_mode=accept_mode)
    peer.call(spec.MessageAccept(transfers=[(command_id, command_id)]))
    peer.call(spec.TxCommit())
    (exception,) = peer.received(spec.ExecutionException)
    assert exception.error_code == spec.ExecutionErrorCode.RESOURCE_LIMIT_EXCEEDED
    assert [ready(peer, queue) for queue in ("in", "free", "full")] == [1, 0, 1]


def test_a_commit_over_0_10_goes_where_its_messages_were_routed(peer: Peer) -> None:
    for queue in ("q", "gone"):
        peer.call(spec.QueueDeclare(queue=queue))
        peer.call(spec.ExchangeBind(queue=queue, exchange="amq.fanout", binding_key=""))
    peer.call(spec.TxSelect())
    accepted = peer.publish(b"a", exchange="amq.fanout")
    rejected = peer.publish(b"b", key="none")
    assert [each.transfers for each in peer.received(spec.MessageAccept)] == [[(accepted, accepted)]]
    assert [each.transfers for each in peer.received(spec.MessageReject)] == [[(rejected, rejected)]]
    peer.call(spec.ExchangeUnbind(queue="q", exchange="amq.fanout", binding_key=""))
    peer.call(spec.QueueDelete(queue="gone"))
    assert ready(peer, "q") == 0
    peer.call(spec.TxCommit())
    assert ready(peer, "q") == 1


def lost(peer: Peer) -> None:
    peer.server.lost()


def closed(peer: Peer) -> None:
    peer.server.close(spec.ConnectionCloseCode.CONNECTION_FORCED, "the end")


@pytest.mark.parametrize("end", [lost, closed])
def test_a_connection_that_ends_with_many_sessions_returns_a_message_once(
    peer: Peer, end: Callable[[Peer], None]
) -> None:
    """Else each of its sessions would be given what the one before has returned, and the limit would drop it."""
    peer.call(spec.QueueDeclare(queue="q", arguments={"x-delivery-limit": 3}))
    for channel in range(1, 7):
        peer.attach(channel, b"s%d" % channel)
        peer.call(spec.MessageSubscribe(queue="q", destination="d", accept_mode=0, acquire_mode=0), channel=channel)
        for unit in (0, 1):
            peer.call(spec.MessageFlow(destination="d", unit=unit, value=None), channel=channel)
    for number in range(12):
        peer.publish(b"%d" % number)
    assert ready(peer, "q") == 0
    end(peer)
    queue = peer.world.host.queues["q"]
    entries = [peer.world.host.get("q", owner=peer) for _ in range(12)]
    assert [entry and (entry.message.body, entry.returns) for entry in entries] == [
        (b"%d" % number, 1) for number in range(12)
    ]
    assert queue.message_count == 0


@pytest.mark.parametrize("distributed", [False, True])
def test_the_time_to_live_of_a_message_begins_with_the_commit_over_0_10(peer: Peer, *, distributed: bool) -> None:
    xid = spec.Xid(1, b"g", b"b")
    peer.call(spec.QueueDeclare(queue="q"))
    peer.call(spec.DtxSelect() if distributed else spec.TxSelect())
    if distributed:
        peer.call(spec.DtxStart(xid=xid))
    peer.publish(b"a", ttl=5000)
    peer.world.now += 10
    if distributed:
        peer.call(spec.DtxEnd(xid=xid))
        peer.call(spec.DtxCommit(xid=xid, one_phase=True))
    else:
        peer.call(spec.TxCommit())
    peer.world.host.expire(peer.world.now + 4.9)
    assert ready(peer, "q") == 1
    peer.world.host.expire(peer.world.now + 5.1)
    assert ready(peer, "q") == 0


def test_the_time_to_live_of_a_message_begins_with_the_commit_over_0_9_1() -> None:
    world = World09()
    peer = world.connect()
    queue = world.host.declare_queue("q", owner=None)
    peer.send(spec_0_9.TxSelect(), publish(b"a", expiration="5000"))
    world.now += 10
    peer.send(spec_0_9.TxCommit())
    world.host.expire(world.now + 4.9)
    assert queue.message_count == 1
    world.host.expire(world.now + 5.1)
    assert queue.message_count == 0
