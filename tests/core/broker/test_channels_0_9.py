"""What a channel of 0-9-1 keeps, and what it forgets when it is closed."""

from __future__ import annotations

from amqp_core.v0_9 import spec
from tests.core.broker.peer_0_9 import World


def test_an_empty_name_is_the_queue_that_this_channel_declared_last() -> None:
    peer = World().connect()
    peer.send(spec.QueueDeclare(queue="q"), spec.QueueBind(queue="", exchange="amq.fanout", routing_key="x"))
    assert len(peer.received(spec.QueueBindOk)) == 1
    peer.send(spec.ChannelClose(200, "", 0, 0), spec.ChannelOpen())
    peer.send(spec.QueueBind(queue="", exchange="amq.fanout", routing_key="y"))
    assert len(peer.received(spec.QueueBindOk)) == 1
    assert [each.reply_code for each in peer.received(spec.ChannelClose)] == [404]
