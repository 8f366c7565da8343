"""What a channel of 0-9-1 keeps, and what it forgets when it is closed."""

from __future__ import annotations

from amqp_core.v0_9 import spec
from amqp_core.v0_9._codec import encode_header, encode_method
from amqp_core.v0_9.framing import encode_content
from tests.core.broker.peer_0_9 import FRAME_MAX, World


def content(method: spec.BasicPublish) -> bytes:
    """The frames of a message without properties."""
    return b"".join(encode_content(1, encode_method(method), encode_header(spec.BasicProperties(), 1), b"b", FRAME_MAX))


def test_an_empty_name_is_the_queue_that_this_channel_declared_last() -> None:
    peer = World().connect()
    peer.send(spec.QueueDeclare(queue="q"), spec.QueueBind(queue="", exchange="amq.fanout", routing_key="x"))
    assert len(peer.received(spec.QueueBindOk)) == 1
    peer.send(spec.ChannelClose(200, "", 0, 0), spec.ChannelOpen())
    peer.send(spec.QueueBind(queue="", exchange="amq.fanout", routing_key="y"))
    assert len(peer.received(spec.QueueBindOk)) == 1
    assert [each.reply_code for each in peer.received(spec.ChannelClose)] == [404]


def test_a_message_to_an_exchange_whose_name_is_not_utf_8_is_refused_and_one_with_such_a_key_is_served() -> None:
    text = b"n\xff".decode("utf-8", "surrogateescape")
    peer = World().connect()
    peer.send(spec.QueueDeclare(queue="q"), spec.QueueBind(queue="q", exchange="amq.topic", routing_key="#"))
    peer.send(content(spec.BasicPublish(exchange="amq.topic", routing_key=text)), spec.BasicGet(queue="q"))
    assert [each.routing_key for each in peer.received(spec.BasicGetOk)] == [text]
    peer.send(content(spec.BasicPublish(exchange=text)))
    assert [each.reply_code for each in peer.received(spec.ChannelClose)] == [404]
