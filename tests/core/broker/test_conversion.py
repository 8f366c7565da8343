"""Messages that are published with one protocol and consumed with another."""

from __future__ import annotations

import math
import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_core.broker.model.messages import Death, Message
from amqp_core.broker.properties import MOST_HEADER_BYTES
from amqp_core.broker.v0_9 import wire as old
from amqp_core.broker.v0_10 import wire as new
from amqp_core.typed_values import Datetime, Typed
from amqp_core.v0_9 import spec as old_spec
from amqp_core.v0_9._codec import encode_header as encode_old
from amqp_core.v0_9._read import read_table_typed
from amqp_core.v0_9.channel import basic_properties
from amqp_core.v0_9.connection import DEFAULT_FRAME_MAX
from amqp_core.v0_9.framing import OVERHEAD
from amqp_core.v0_10 import spec, type_codes
from amqp_core.v0_10._codec import decode_header, encode_header

ID = uuid.UUID("12345678-1234-5678-1234-567812345678")
HEADERS: dict[str, Any] = {
    "text": "grün",
    "int": 42,
    "long": -(1 << 40),
    "float": 2.5,
    "true": True,
    "bytes": b"\x00\xff",
    "none": None,
    "time": Datetime(1_700_000_000),
    "table": {"a": 1, "list": [1, "b", {"c": False}]},
}


def from_new(properties: spec.MessageProperties, **delivery: Any) -> old_spec.BasicProperties:
    """What a consumer of 0-9-1 gets."""
    header = encode_header(spec.DeliveryProperties(routing_key="k", **delivery), properties)
    message = new.Reader("guest").read("x", header, b"body", 1_700_000_000.0).message
    return basic_properties(old.header_of(message))


def from_old(**properties: Any) -> tuple[spec.DeliveryProperties, spec.MessageProperties]:
    """What a consumer of 0-10 gets."""
    basic = old_spec.BasicProperties(**properties)
    message = Message(
        old.WIRE,
        "x",
        "k",
        encode_old(basic, 4),
        b"body",
        persistent=basic.delivery_mode == 2,
        priority=basic.priority or 0,
        ttl_ms=int(basic.expiration) if basic.expiration else None,
    )
    delivery, given_properties, others = decode_header(new.header_of(message, redelivered=False))
    assert delivery is not None
    assert given_properties is not None
    assert not others
    return delivery, given_properties


def test_from_0_10_to_0_9_1() -> None:
    properties = spec.MessageProperties(
        content_length=4,
        message_id=ID,
        correlation_id=b"corr",
        reply_to=spec.ReplyTo(exchange="", routing_key="back"),
        content_type="text/plain",
        content_encoding="utf-8",
        user_id=b"guest",
        app_id=b"app",
        application_headers=HEADERS | {"id": ID, "x-jms-type": "kind", "big": 1 << 63},
    )
    found = from_new(properties, priority=7, delivery_mode=2, ttl=60_000, timestamp=1_700_000_000_123)
    assert found == old_spec.BasicProperties(
        content_type="text/plain",
        content_encoding="utf-8",
        headers=HEADERS | {"id": str(ID), "x-jms-type": "kind", "big": str(1 << 63)},
        delivery_mode=2,
        priority=7,
        correlation_id="corr",
        reply_to="back",
        expiration="60000",
        message_id=str(ID),
        timestamp=1_700_000_000,
        type="kind",
        user_id="guest",
        app_id="app",
    )


def test_from_0_9_1_to_0_10() -> None:
    delivery, properties = from_old(
        content_type="text/plain",
        content_encoding="utf-8",
        headers=HEADERS | {"price": Decimal("1.50")},
        delivery_mode=2,
        priority=7,
        correlation_id="corr",
        reply_to="back",
        expiration="60000",
        message_id=str(ID),
        timestamp=1_700_000_000,
        type="kind",
        user_id="guest",
        app_id="app",
    )
    assert delivery == spec.DeliveryProperties(
        priority=7, delivery_mode=2, ttl=60_000, timestamp=1_700_000_000, exchange="x", routing_key="k"
    )
    assert properties == spec.MessageProperties(
        content_length=4,
        message_id=ID,
        correlation_id=b"corr",
        reply_to=spec.ReplyTo(exchange="", routing_key="back"),
        content_type="text/plain",
        content_encoding="utf-8",
        user_id=b"guest",
        app_id=b"app",
        application_headers=HEADERS | {"price": "1.50", "x-jms-type": "kind"},
    )


def test_what_has_no_place() -> None:
    _, properties = from_old(message_id="no uuid")
    assert (properties.message_id, properties.application_headers) == (None, {"message-id": "no uuid"})
    found = from_new(spec.MessageProperties(correlation_id=b"\xff", reply_to=spec.ReplyTo("e", "k"), user_id=b"guest"))
    assert (found.correlation_id, found.reply_to, found.headers) == (None, "e/k", {"correlation-id": b"\xff"})
    assert from_new(spec.MessageProperties(correlation_id=b"a" * 300)).headers == {"correlation-id": b"a" * 300}


def test_nothing_becomes_nothing() -> None:
    assert from_new(spec.MessageProperties()) == old_spec.BasicProperties(delivery_mode=1)
    delivery, properties = from_old()
    assert delivery == spec.DeliveryProperties(delivery_mode=1, exchange="x", routing_key="k")
    assert properties == spec.MessageProperties(content_length=4)


@pytest.mark.parametrize("redelivered", [False, True])
def test_a_message_that_died_has_lost_its_ttl(*, redelivered: bool) -> None:
    header = encode_header(
        spec.DeliveryProperties(routing_key="k", ttl=5, expiration=9),
        spec.MessageProperties(application_headers={"a": 1}),
    )
    message = new.Reader("guest").read("x", header, b"body", 0.0).message
    dead = Message(
        message.wire,
        "dlx",
        "dead",
        message.header,
        message.body,
        deaths=(Death("q", "expired", "x", ("k",), 1, 1_700_000_000.0),),
    )
    delivery, properties, _ = decode_header(new.header_of(dead, redelivered=redelivered))
    assert delivery == spec.DeliveryProperties(redelivered=redelivered, exchange="x", routing_key="dead")
    assert properties is not None
    assert properties.application_headers == {"a": 1}
    basic = basic_properties(old.header_of(dead))
    assert basic.expiration is None
    assert basic.headers is not None
    assert basic.headers["x-first-death-queue"] == basic.headers["x-last-death-queue"] == "q"
    assert basic.headers["a"] == 1


@pytest.mark.parametrize("content_type", [None, "a/b"])
def test_a_dead_letter_keeps_the_types_of_its_headers(content_type: str | None) -> None:
    deaths = (Death("q", "expired", "x", ("k",), 1, 1_700_000_000.0),)
    typed: dict[str, Any] = {"short": Typed(ord("s"), 5), "float": Typed(ord("f"), 0.5), "table": Typed(ord("F"), {})}
    basic = old_spec.BasicProperties(content_type=content_type, headers=typed, expiration="5")
    dead = Message(old.WIRE, "x", "k", encode_old(basic, 4), b"body", deaths=deaths)
    found = old.header_of(dead)
    table, _ = read_table_typed(found, found.index(b"\x05short") - 4)
    assert {name: table[name] for name in typed} == typed
    assert "x-death" in table

    given: dict[str, Any] = {"short": Typed(type_codes.INT16, 5), "float": Typed(type_codes.FLOAT, 0.5)}
    properties = encode_header(None, spec.MessageProperties(content_type=content_type, application_headers=given))
    for header in (encode_header(spec.DeliveryProperties(), None) + properties, properties):  # in either order
        message = new.Reader("guest").read("x", header, b"body", 0.0).message
        assert new.header_of(message, redelivered=False).endswith(properties)
        dead = Message(new.WIRE, "x", "k", message.header, b"body", deaths=deaths)
        assert new.header_of(dead, redelivered=False).endswith(properties)


def test_a_header_that_would_not_fit_a_frame_is_delivered_without_what_is_too_long() -> None:
    """A UUID is twice as long in 0-9-1, a small integer more: the message must not stop who gets it."""
    headers: dict[str, object] = {f"{number:04}": ID for number in range(5_000)}
    assert from_new(spec.MessageProperties(application_headers=headers, content_type="a/b")) == (
        old_spec.BasicProperties(content_type="a/b", delivery_mode=1)
    )


def test_the_deaths_of_a_message_are_left_out_before_its_headers() -> None:
    headers: dict[str, Any] = {"a": bytes(MOST_HEADER_BYTES - 100)}
    deaths = (Death("q", "expired", "x", ("k",), 1, 1_700_000_000.0),)
    header = encode_old(old_spec.BasicProperties(headers=headers), 4)
    assert len(header) <= MOST_HEADER_BYTES
    dead = Message(old.WIRE, "x", "k", header, b"body", deaths=deaths)
    assert basic_properties(old.header_of(dead)).headers == headers
    short = Message(old.WIRE, "x", "k", encode_old(old_spec.BasicProperties(headers={"a": 1}), 4), b"", deaths=deaths)
    assert "x-death" in (basic_properties(old.header_of(short)).headers or {})


def test_the_limit_is_what_one_frame_of_0_9_1_holds() -> None:
    assert MOST_HEADER_BYTES == DEFAULT_FRAME_MAX - OVERHEAD


NO_TEXT = b"k\xff".decode("utf-8", "surrogateescape")
"""A routing key of 0-9-1 that is not UTF-8."""


def test_a_routing_key_that_is_not_utf_8_has_no_place_in_0_10() -> None:
    message = Message(old.WIRE, "x", NO_TEXT, encode_old(old_spec.BasicProperties(), 4), b"body")
    dead = Message(
        old.WIRE, "x", NO_TEXT, message.header, b"body", deaths=(Death("q", "expired", "x", ("k",), 1, 0.0),)
    )
    for each in (message, dead):
        delivery, _, _ = decode_header(new.header_of(each, redelivered=False))
        assert delivery is not None
        assert (delivery.exchange, delivery.routing_key) == ("x", None)


def test_a_dead_letter_tells_a_routing_key_that_is_not_utf_8() -> None:
    header = encode_old(old_spec.BasicProperties(headers={"a": 1}), 4)
    deaths = (Death("q", "expired", "x", (NO_TEXT, "k"), 1, 0.0),)
    dead = Message(old.WIRE, "x", NO_TEXT, header, b"body", deaths=deaths)
    headers: Any = basic_properties(old.header_of(dead)).headers
    assert headers is not None
    assert headers["a"] == 1
    (death,) = headers["x-death"]
    assert death["routing-keys"] == [b"k\xff", "k"]


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
    | st.binary(max_size=300)
    | st.uuids()
    | st.integers(-(1 << 63), (1 << 63) - 1).map(Datetime)
)
_NOT_OF_0_9_1 = (math.inf, -math.inf)
"""Floats that our codec of 0-9-1 does not write."""
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
_SHORT = st.none() | st.text(max_size=60)
_BYTES = st.none() | st.binary(max_size=400)


@given(
    headers=st.dictionaries(st.text(max_size=10), _VALUES, max_size=4),
    correlation_id=_BYTES,
    app_id=_BYTES,
    content_type=_SHORT,
    timestamp=st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
    expiration=st.none() | st.integers(0, 1 << 40),
    ttl=st.none() | st.integers(0, (1 << 64) - 1),
)
def test_every_message_of_0_10_can_be_delivered_over_0_9_1(
    headers: dict[str, object],
    correlation_id: bytes | None,
    app_id: bytes | None,
    content_type: str | None,
    timestamp: int | None,
    expiration: int | None,
    ttl: int | None,
) -> None:
    properties = spec.MessageProperties(
        correlation_id=correlation_id, app_id=app_id, content_type=content_type, application_headers=headers
    )
    found = from_new(properties, timestamp=timestamp, expiration=expiration, ttl=ttl)
    assert found.content_type == content_type
    assert len(found.headers or {}) >= len(headers)


@given(
    headers=st.dictionaries(
        st.text(max_size=10),
        _SCALARS.filter(lambda value: not isinstance(value, uuid.UUID | int) and value not in _NOT_OF_0_9_1),
        max_size=4,
    ),
    correlation_id=_SHORT,
    message_id=_SHORT,
    reply_to=_SHORT,
    timestamp=st.none() | st.integers(0, (1 << 63) - 1),
    expiration=st.none() | st.integers(0, 1 << 80).map(str),
    priority=st.none() | st.integers(0, 255),
)
def test_every_message_of_0_9_1_can_be_delivered_over_0_10(headers: dict[str, object], **properties: Any) -> None:
    delivery, found = from_old(headers=headers, **properties)
    assert len(found.application_headers or {}) >= len(headers)
    assert delivery.priority == properties["priority"]
