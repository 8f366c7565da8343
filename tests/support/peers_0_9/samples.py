"""Messages with every property and every type of a table, as far as brokers and clients can keep them."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from tests.support.peers_0_9.messages import PeerMessage

if TYPE_CHECKING:
    from tests.support.peers_0_9.messages import Peer

# Floats are exact in single precision, which aio-pika writes. It reads decimals as if they were not signed.
HEADERS: dict[str, object] = {
    "bool": True,
    "int8": -5,
    "int16": -300,
    "int32": 70_000,
    "int64": -(2**40),
    "float": 1.5,
    "decimal": Decimal("12.34"),
    "text": "Grüße, 世界 🚀",
    "raw": b"\x00\xff",
    "time": datetime(2024, 2, 29, 12, 30, 15, tzinfo=UTC),
    "nothing": None,
    "list": [1, "two", [None, False]],
    "map": {"a": {"b": [{"c": 3}]}},
}
PROPERTIES: dict[str, object] = {
    "content_type": "text/plain",
    "content_encoding": "utf-8",
    "headers": HEADERS,
    "delivery_mode": 2,
    "priority": 7,
    "correlation_id": "order-ä-1",
    "reply_to": "replies",
    "message_id": "m-1",
    "timestamp": 1_700_000_000,
    "type": "tick",
    "user_id": "guest",
    "app_id": "tests",
    "cluster_id": "c",
}

RABBITMQ_EXPIRATION = "86400000"
"""An expiration that no message of a test reaches, in milliseconds: ten years are the most."""
BROKER_J_EXPIRATION = "4000000000000"
"""The same for Broker-J, which counts them since 1970."""


def full_message_of(peer: Peer, expiration: str, body: bytes) -> PeerMessage:
    """Return a message with all that ``peer`` can write."""
    headers = {name: value for name, value in HEADERS.items() if type(value) not in peer.cannot_write}
    properties = {name: value for name, value in PROPERTIES.items() if name not in peer.cannot_set}
    return PeerMessage(body=body, properties=properties | {"headers": headers, "expiration": expiration})


def small_message(body: bytes = b"") -> PeerMessage:
    """Return one with few properties: aio-pika makes up an id, and Broker-J lets transient messages overtake others."""
    return PeerMessage(body=body, properties={"message_id": "m-2", "delivery_mode": 2})
