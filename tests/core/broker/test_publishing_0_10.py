"""Publishing over 0-10: what becomes of a transfer, its properties and fragments."""

from __future__ import annotations

from typing import Any

import pytest

from amqp_core.broker.properties import MOST_HEADER_BYTES
from amqp_core.broker.v0_10.errors import Code
from amqp_core.broker.v0_10.wire import Reader
from amqp_core.errors import ConnectionClosed
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import encode_header, encode_struct32
from tests.core.broker.peer_0_10 import EXPLICIT, NONE, Peer, code_of, ids, waiting


@pytest.mark.parametrize(
    ("delivery", "accept_mode", "answer"),
    [
        ({"key": "q"}, EXPLICIT, "accept"),
        ({"key": "q"}, NONE, ""),
        ({"key": "nowhere"}, EXPLICIT, "reject 1"),
        ({"key": "nowhere"}, NONE, ""),
        ({"key": "nowhere", "discard_unroutable": True}, EXPLICIT, "accept"),
        ({"key": "q", "immediate": True}, EXPLICIT, "reject 2"),
        ({"key": "q", "immediate": True}, NONE, ""),
        ({"key": "full"}, EXPLICIT, "reject 0"),
        ({"key": "full"}, NONE, "exception 506"),
        ({"key": "q", "exchange": "missing"}, EXPLICIT, "exception 404"),
        ({"key": "q", "exchange": "missing"}, NONE, "exception 404"),
    ],
)
def test_what_becomes_of_a_transfer(peer: Peer, delivery: dict[str, Any], accept_mode: int, answer: str) -> None:
    arguments: dict[str, object] = {"qpid.max_count": 0, "qpid.policy_type": "reject"}
    peer.call(spec.QueueDeclare(queue="full", arguments=arguments))
    command_id = peer.publish(b"body", accept_mode=accept_mode, **delivery)
    found = [f"accept {each.transfers}" for each in peer.received(spec.MessageAccept)]
    found += [f"reject {each.code} {each.transfers}" for each in peer.received(spec.MessageReject)]
    found += [f"exception {each.error_code}" for each in peer.received(spec.ExecutionException)]
    if "exception" not in answer and answer:
        answer += f" [({command_id}, {command_id})]"
    assert found == [answer] * bool(answer)
    assert peer.session.is_complete(command_id) is ("exception" not in answer)
    routed = delivery == {"key": "q"}
    assert peer.world.host.queues["q"].message_count == routed


def test_an_immediate_message_that_is_awaited(peer: Peer) -> None:
    peer.subscribe()
    peer.flow(1)
    peer.publish(b"1", immediate=True)
    peer.publish(b"2", immediate=True)
    assert peer.bodies == [b"1"]
    assert [each.code for each in peer.received(spec.MessageReject)] == [spec.MessageRejectCode.IMMEDIATE]


def test_accepts_come_before_completion_and_together(peer: Peer) -> None:
    session = peer.session
    header = encode_header(spec.DeliveryProperties(routing_key="q"), None)
    transfer = spec.MessageTransfer(destination="", accept_mode=EXPLICIT, acquire_mode=0)
    first, *_ = [session.send(transfer, header=header) for _ in range(3)]
    session.send(spec.ExecutionSync())
    *_, last = [session.send(transfer, header=header) for _ in range(2)]
    peer.pump()
    assert [each.transfers for each in peer.received(spec.MessageAccept)] == [[(first, first + 2)], [(last - 1, last)]]


@pytest.mark.parametrize("user", [b"guest", b"", None])
def test_a_user_id_of_the_login(peer: Peer, user: bytes | None) -> None:
    peer.publish(b"1", properties=spec.MessageProperties(user_id=user))
    assert waiting(peer) == [b"1"]


def test_a_user_id_of_another_is_refused(peer: Peer) -> None:
    peer.publish(b"1", properties=spec.MessageProperties(user_id=b"carol"))
    assert code_of(peer) == 403
    assert waiting(peer) == []


@pytest.mark.parametrize(
    "header",
    [
        b"\0",
        b"\0\0\0\4\4\1\xff\xff",
        b"\0\0\0\x40\4\1\0\0",
        encode_struct32(spec.DeliveryProperties(routing_key="q")) + b"\0\0\0\4\4\3\1\0",
        encode_struct32(spec.DeliveryProperties(routing_key="q")) * 2,
        encode_struct32(spec.MessageProperties()) * 2,
    ],
)
def test_a_malformed_header_ends_the_connection_of_the_publisher(peer: Peer, header: bytes) -> None:
    transfer = spec.MessageTransfer(destination="", accept_mode=NONE, acquire_mode=0)
    peer.session.send(transfer, header=header, body=b"x", sync=True)
    peer.pump()
    assert isinstance(peer.error, ConnectionClosed)
    assert peer.error.reply_code == spec.ConnectionCloseCode.FRAMING_ERROR
    assert waiting(peer) == []


def test_a_header_may_be_as_long_as_one_of_0_9_1(peer: Peer) -> None:
    """A longer one ends its session, not the connection."""

    def properties(more: int) -> spec.MessageProperties:
        return spec.MessageProperties(application_headers={"a": bytes(60_000), "b": bytes(1_000 + more)})

    delivery = spec.DeliveryProperties(routing_key="q", delivery_mode=1)
    longest = MOST_HEADER_BYTES - len(encode_header(delivery, properties(0)))
    peer.publish(b"fits", delivery_mode=1, properties=properties(longest))
    assert code_of(peer) is None
    peer.publish(b"too long", delivery_mode=1, properties=properties(longest + 1))
    assert code_of(peer) == Code.RESOURCE_LIMIT_EXCEEDED
    assert "131065 bytes" in (peer.received(spec.ExecutionException)[0].description or "")
    assert peer.error is None
    peer.attach(1, b"another")
    assert waiting(peer) == [b"fits"]


def test_long_delivery_properties_are_not_kept() -> None:
    """A publisher would else fill the memory with headers of messages that are gone."""
    reader = Reader("guest")
    for number in range(100):
        delivery = spec.DeliveryProperties(routing_key="q", resume_id="0" * 60_000 + str(number))
        reader.read("x", encode_header(delivery, None), b"", 0.0)
        reader.read("x", encode_header(spec.DeliveryProperties(routing_key=str(number)), None), b"", 0.0)
    assert len(reader._envelopes) == 100


@pytest.mark.parametrize("fragment", [spec.FragmentProperties(first=True, last=False), spec.FragmentProperties()])
def test_fragments(peer: Peer, fragment: spec.FragmentProperties) -> None:
    whole = fragment.first and fragment.last
    header = encode_header(spec.DeliveryProperties(routing_key="q"), None, [encode_struct32(fragment)])
    transfer = spec.MessageTransfer(destination="", accept_mode=NONE, acquire_mode=0)
    peer.session.send(transfer, header=header, body=b"x", sync=True)
    peer.pump()
    assert code_of(peer) == (None if whole else 540)


def test_a_transfer_without_header_and_body(peer: Peer) -> None:
    peer.call(spec.ExchangeBind(queue="q", exchange="amq.fanout", binding_key=""))
    peer.call(spec.MessageTransfer(destination="amq.fanout", accept_mode=NONE, acquire_mode=0))
    peer.subscribe()
    peer.flow(1)
    assert peer.transfers == [
        (peer.transfers[0][0], spec.DeliveryProperties(exchange="amq.fanout"), spec.MessageProperties(), b"")
    ]


@pytest.mark.parametrize("body", [None, b"", b"x"])
def test_a_body_segment_comes_back_as_it_was_sent(peer: Peer, body: bytes | None) -> None:
    """Also an empty one: clients tell it from none."""
    header = encode_header(spec.DeliveryProperties(routing_key="q"), None)
    peer.subscribe()
    for _ in range(2):
        peer.flow(1)
        transfer = spec.MessageTransfer(destination="", accept_mode=NONE, acquire_mode=0)
        peer.session.send(transfer, header=header, body=body, sync=True)
        peer.pump()
        peer.call(spec.MessageReject(transfers=ids(peer), code=spec.MessageRejectCode.UNSPECIFIED))
    assert peer.with_body == [body is not None] * 2
    assert peer.bodies == [body or b""] * 2


def test_properties_come_back_and_the_exchange_is_named(peer: Peer) -> None:
    peer.call(spec.ExchangeBind(queue="q", exchange="amq.topic", binding_key="a.#"))
    headers: dict[str, object] = {"a": 1, "b": ["c", None], "d": b"\0"}
    properties = spec.MessageProperties(content_type="text/plain", correlation_id=b"\xff", application_headers=headers)
    peer.publish(b"x", "a.b", "amq.topic", priority=7, delivery_mode=2, timestamp=5, properties=properties)
    peer.subscribe()
    peer.flow(1)
    _, delivery, found, body = peer.transfers[0]
    assert (found, body) == (properties, b"x")
    assert delivery == spec.DeliveryProperties(
        priority=7, delivery_mode=2, timestamp=5, exchange="amq.topic", routing_key="a.b"
    )


def test_structs_in_another_order_and_unknown_ones(peer: Peer) -> None:
    unknown = b"\0\0\0\4\4\x77\0\0"
    properties = spec.MessageProperties(content_type="a/b")
    header = unknown + encode_struct32(properties) + encode_struct32(spec.DeliveryProperties(routing_key="q"))
    transfer = spec.MessageTransfer(destination="", accept_mode=NONE, acquire_mode=0)
    peer.session.send(transfer, header=header, body=b"x")
    peer.subscribe()
    peer.flow(1)
    assert peer.transfers[0][2] == properties
    assert peer.world.host.queues["q"].unsettled_count == 1


@pytest.mark.parametrize(
    ("delivery", "lives_ms"), [({"ttl": 500}, 500), ({"expiration": 1_700_000_002}, 2000), ({"ttl": 0}, 0)]
)
def test_time_to_live(peer: Peer, delivery: dict[str, Any], lives_ms: int) -> None:
    peer.publish(b"x", **delivery)
    host, now = peer.world.host, peer.world.now
    if lives_ms:
        host.expire(now + lives_ms / 1000 - 0.01)
        assert host.queues["q"].message_count == 1
    host.expire(now + lives_ms / 1000)
    assert host.queues["q"].message_count == 0
