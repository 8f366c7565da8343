"""What a channel of 0-9-1 keeps, and what it forgets when it is closed."""

from __future__ import annotations

from amqp_core.broker.model.messages import Message
from amqp_core.broker.v0_9.wire import WIRE
from amqp_core.v0_9 import spec
from amqp_core.v0_9._codec import encode_header, encode_method
from amqp_core.v0_9.framing import HEADER, encode_content, encode_frame
from tests.core.broker.peer_0_9 import FRAME_MAX, World, method


def content(publish: spec.BasicPublish) -> bytes:
    """The frames of a message without properties."""
    return b"".join(
        encode_content(1, encode_method(publish), encode_header(spec.BasicProperties(), 1), b"b", FRAME_MAX)
    )


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


def test_a_header_larger_than_the_frames_of_a_consumer_is_sent_whole() -> None:
    """As brokers do: it comes from a client with larger frames."""
    world = World()
    peer = world.connect()
    peer.send(spec.QueueDeclare(queue="q"))
    header = encode_header(spec.BasicProperties(headers={"h": "x" * FRAME_MAX}), 0)
    world.host.publish(Message(WIRE, "", "q", header, b""), now=0)
    peer.server.receive(method(1, spec.BasicGet(queue="q")))
    assert peer.server.take_bytes().endswith(encode_frame(HEADER, 1, header))
