"""What a channel of 0-9-1 keeps, and what it forgets when it, or its connection, is closed."""

from __future__ import annotations

import pytest

from amqp_core.broker.model.messages import Message
from amqp_core.broker.v0_9.wire import WIRE
from amqp_core.v0_9 import spec
from amqp_core.v0_9._codec import encode_header, encode_method
from amqp_core.v0_9.framing import HEADER, encode_content, encode_frame
from tests.core.broker.peer_0_9 import FRAME_MAX, World, method, publish


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


IMMEDIATE = content(spec.BasicPublish(routing_key="q", immediate=True))
"""Ends the connection (540)."""


def test_an_error_of_the_connection_ends_its_consumers_at_once() -> None:
    """The client reads nothing behind connection.close, and may be slow to answer it."""
    world = World()
    peer, other = world.connect(), world.connect()
    peer.send(spec.QueueDeclare(queue="q"), spec.BasicConsume(queue="q"))
    other.send(publish(b"held"))
    peer.read()
    peer.server.receive(IMMEDIATE)
    other.send(publish(b"next"))
    queue = world.host.queues["q"]
    assert (queue.message_count, queue.unsettled_count, queue.consumer_count) == (1, 1, 0)
    peer.read()
    assert [each.reply_code for each in peer.received(spec.ConnectionClose)] == [540]
    assert peer.bodies == [b"held"]


def test_what_comes_behind_an_error_of_the_connection_is_dropped_and_what_came_before_is_confirmed() -> None:
    world = World()
    peer = world.connect()
    peer.send(spec.QueueDeclare(queue="q"), spec.ConfirmSelect())
    peer.send(publish(b"before"), IMMEDIATE, publish(b"behind"))
    assert [type(each) for _, each in peer.methods][-2:] == [spec.BasicAck, spec.ConnectionClose]
    assert world.host.queues["q"].message_count == 1


def test_a_close_by_the_client_behind_an_error_ends_the_connection() -> None:
    peer = World().connect()
    peer.send(publish(b"", channel=7), method(0, spec.ConnectionClose(200, "", 0, 0)))
    assert peer.server.is_over
    assert isinstance(peer.methods[-1][1], spec.ConnectionCloseOk)


def test_the_prefetch_of_a_channel_counts_what_consumers_hold_until_it_is_settled() -> None:
    """As on RabbitMQ: what basic.get has got does not count, and an ack of a transaction does when that commits."""
    world = World()
    peer = world.connect()
    peer.send(spec.QueueDeclare(queue="q"), *(publish(b"%d" % number) for number in range(8)))
    peer.send(spec.TxSelect(), spec.BasicQos(prefetch_count=2, global_=True))
    peer.send(spec.BasicGet(queue="q"), spec.BasicGet(queue="q"))
    peer.send(spec.BasicConsume(queue="q"))
    assert peer.bodies == [b"0", b"1", b"2", b"3"]
    peer.send(spec.BasicAck(delivery_tag=3), spec.BasicAck(delivery_tag=4))
    world.host.queues["q"].ready()
    peer.read()
    assert peer.bodies[4:] == []
    peer.send(spec.TxRollback(), spec.BasicAck(delivery_tag=3), spec.TxCommit())
    assert peer.bodies[4:] == [b"4"]
    peer.send(spec.BasicNack(delivery_tag=0, multiple=True, requeue=False), spec.TxCommit())
    assert peer.bodies[5:] == [b"5", b"6"]
    peer.send(spec.ChannelClose(200, "", 0, 0), spec.ChannelOpen(), spec.BasicQos(prefetch_count=1, global_=True))
    peer.send(spec.BasicConsume(queue="q"))
    assert peer.bodies[7:] == [b"5"]


@pytest.mark.parametrize(
    ("end", "last"),
    [
        (method(1, spec.ChannelClose(200, "", 0, 0)), spec.ChannelCloseOk),
        (method(0, spec.ConnectionClose(200, "", 0, 0)), spec.ConnectionCloseOk),
        (b"no frame", spec.ConnectionClose),
    ],
    ids=["channel", "connection", "error"],
)
def test_what_was_published_is_confirmed_before_the_close_that_came_with_it_is_answered(
    end: bytes, last: type[spec.Method]
) -> None:
    """Nothing is read behind the answer: the client would take messages for lost that are in the queue."""
    world = World()
    peer = world.connect()
    peer.send(spec.QueueDeclare(queue="q", arguments={"x-max-length": 2, "x-overflow": "reject-publish"}))
    peer.send(spec.ConfirmSelect())
    peer.send(spec.QueueDeclare(queue="other"), *(publish(b"%d" % number) for number in range(3)), end)
    assert [type(each) for _, each in peer.methods][-4:] == [spec.QueueDeclareOk, spec.BasicAck, spec.BasicNack, last]
    assert [(each.delivery_tag, each.multiple) for each in peer.received(spec.BasicAck)] == [(2, True)]
    assert world.host.queues["q"].message_count == 2
