"""Which message a broker speaks of, although some have properties that are no text: brokers pass on any octets."""

from __future__ import annotations

import pytest

from amqp_core.v0_9 import spec
from amqp_core.v0_9.channel import Content
from amqp_core.v0_9.returned import Returned, find_refused, read_published
from tests.support.runs_0_9 import publish

STAMP = 1_700_000_000


def opaque(body: bytes) -> memoryview:
    """A message whose correlation id is not UTF-8."""
    return memoryview(publish(body, correlation_id="text").replace(b"text", b"\xff\xfe\xfd\xfc"))


def stamped(header: bytes) -> bytes:
    """A content header to which the broker has added a timestamp, as interceptors of RabbitMQ do."""
    flags = int.from_bytes(header[12:14]) | 0x0040
    return header[:12] + flags.to_bytes(2) + header[14:] + STAMP.to_bytes(8)


@pytest.mark.parametrize(
    "text",
    ["user_id property set to 'bob' but authenticated user was 'guest'", "invalid expiration '9': {value_too_large,9}"],
)
def test_a_refused_message_is_found_behind_one_that_cannot_be_read(text: str) -> None:
    messages = [opaque(b"x"), memoryview(publish(b"y", user_id="bob", expiration="9"))]
    assert find_refused(text, enumerate(messages, 1)) == 2
    assert find_refused(text, enumerate([messages[0], messages[0]], 1)) is None


def test_a_returned_message_with_another_header_is_found_by_its_body() -> None:
    messages = {1: opaque(b"x"), 2: opaque(b"y")}
    published = read_published(messages[2])
    content = Content(stamped(published.header), published.body)
    method = spec.BasicReturn(reply_code=312, reply_text="NO_ROUTE", exchange="", routing_key="q")
    assert Returned(messages.get).find(method, content, 1, 2) == 2
