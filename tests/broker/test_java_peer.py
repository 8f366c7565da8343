"""Messages of another implementation, the Java JMS client, as itself and as this project's client receive them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from amqp_core.v0_10 import type_codes
from amqp_core.v0_10._read import read_list_typed, read_map_typed
from tests.support import javapeer
from tests.support.capabilities import needs

if TYPE_CHECKING:
    from tests.support.fixtures import Broker, Connect, OwnBroker

pytestmark = pytest.mark.broker

EXPECTED = javapeer.expected()


TYPE_NAMES = {
    type_codes.VOID: "void",
    type_codes.BOOLEAN: "boolean",
    type_codes.INT8: "int8",
    type_codes.INT16: "int16",
    type_codes.INT32: "int32",
    type_codes.INT64: "int64",
    type_codes.FLOAT: "float",
    type_codes.DOUBLE: "double",
    type_codes.CHAR: "char",
    type_codes.STR16: "str16",
    type_codes.VBIN32: "vbin32",
    type_codes.MAP: "map",
    type_codes.LIST: "list",
}


def spelled(typed: type_codes.Typed) -> list[object]:
    """A typed value as ``expected.json`` spells it: ``["int32", 5]``."""
    plain: object
    match typed.value:
        case bytes() as data:
            plain = data.hex()
        case dict() as entries:
            plain = {key: spelled(item) for key, item in entries.items()}
        case list() as items:
            plain = [spelled(item) for item in items]
        case value:
            plain = value
    return [TYPE_NAMES[typed.code], plain]


def body_as(form: str, body: bytes) -> object:
    """The body in one of the forms of ``expected.json``."""
    if form == "utf8":
        return body.decode()
    if form == "hex":
        return body.hex()
    if form == "map":
        entries, end = read_map_typed(body, 0)
        assert end == len(body)
        return {key: spelled(item) for key, item in entries.items()}
    assert form == "list"
    items, end = read_list_typed(body, 0)
    assert end == len(body)
    return [spelled(item) for item in items]


def strict(value: object) -> str:
    """A text that differs for 1, 1.0 and True, and for 0.0 and -0.0, which compare equal."""
    return json.dumps(value, sort_keys=True)


@pytest.mark.thorough
@needs("keeps_ttl", "stamps_expiration")
def test_what_the_java_peer_publishes_it_receives_as_expected(broker: Broker, queue: str) -> None:
    javapeer.publish_all(broker, queue)
    received = javapeer.receive(broker, queue, len(EXPECTED))
    for message, expected in zip(received, EXPECTED, strict=True):
        java = expected["java"]
        assert {key: message[key] for key in java} == java, expected["name"]
    ttl = EXPECTED[0]["wire"]["ttl"]
    assert received[0]["expiration"] - received[0]["timestamp"] == ttl
    assert not any(message["redelivered"] for message in received)


@needs("keeps_ttl")
def test_what_the_java_peer_publishes_the_client_receives_as_expected(
    broker: Broker, queue: str, connect: Connect
) -> None:
    javapeer.publish_all(broker, queue)
    subscription = connect().subscribe(queue)
    subscription.grant(len(EXPECTED))
    for expected in EXPECTED:
        (message,) = subscription.take(1, timeout=30)
        wire, delivery, properties = expected["wire"], message.delivery, message.properties
        headers = wire["headers"] and {name: value for name, (_, value) in wire["headers"].items()}
        reply_to = properties.reply_to and {
            "exchange": properties.reply_to.exchange,
            "routing_key": properties.reply_to.routing_key,
        }
        correlation_id = properties.correlation_id.hex() if properties.correlation_id is not None else None
        user_id = (properties.user_id or b"").decode()
        found = {
            "content_type": properties.content_type,
            "priority": delivery.priority,
            "delivery_mode": delivery.delivery_mode,
            "ttl": delivery.ttl,
            "correlation_id": correlation_id,
            "reply_to": reply_to,
        }
        assert found == {key: wire[key] for key in found}, expected["name"]
        assert user_id == broker.username
        assert strict(properties.application_headers) == strict(headers), expected["name"]
        ((form, body),) = wire["body"].items()
        assert strict(body_as(form, message.body)) == strict(body), expected["name"]
        assert properties.content_length == len(message.body)
        assert properties.message_id is not None


@pytest.mark.thorough
def test_a_queue_with_too_few_messages_is_an_error_of_the_peer(broker: Broker, queue: str) -> None:
    javapeer.publish_all(broker, queue)
    with pytest.raises(javapeer.PeerFailed, match="exit code 3"):
        javapeer.receive(broker, queue, len(EXPECTED) + 1, timeout_s=1)


@pytest.mark.thorough
def test_a_refused_login_is_an_error_of_the_peer(own_broker: OwnBroker) -> None:
    stranger = own_broker(durable=False)
    stranger.password = "wrong"
    with pytest.raises(javapeer.PeerFailed, match=r"(?i)authentic"):
        javapeer.publish_all(stranger, "any")
