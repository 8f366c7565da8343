"""Frames of deliveries of 0-9-1 written by hand for tests: bytes only, independent of the generated encoder.

The layouts are those of the 0-9-1 specification (section 2.3.5: frames; 4.2.6: content framing).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8


def frame(kind: int, payload: bytes = b"", *, channel: int = 1, end: int = 0xCE) -> bytes:
    """One frame with its header and its end octet."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes([end])


def heartbeat() -> bytes:
    """A heartbeat."""
    return frame(HEARTBEAT, channel=0)


def short(text: bytes) -> bytes:
    """A short string."""
    return bytes([len(text)]) + text


def long(raw: bytes) -> bytes:
    """A long string, or a table of these encoded entries."""
    return struct.pack(">I", len(raw)) + raw


def deliver_method(
    tag: int, *, consumer: bytes = b"c1", exchange: bytes = b"", key: bytes = b"k", redelivered: bool = False
) -> bytes:
    """The payload of basic.deliver."""
    return (
        struct.pack(">HH", 60, 60)
        + short(consumer)
        + struct.pack(">QB", tag, redelivered)
        + short(exchange)
        + short(key)
    )


def content_header(size: int, properties: bytes = b"\0\0") -> bytes:
    """The payload of a content header; ``properties`` begin with their flags."""
    return struct.pack(">HHQ", 60, 0, size) + properties


def content(method: bytes, header: bytes, body: Iterable[bytes], *, channel: int = 1) -> bytes:
    """A method, its content header and the frames of its body."""
    return b"".join(
        (
            frame(METHOD, method, channel=channel),
            frame(HEADER, header, channel=channel),
            *(frame(BODY, part, channel=channel) for part in body),
        )
    )


def cut(body: bytes, limit: int) -> list[bytes]:
    """The payloads of the body frames, each with its frame at most ``limit`` bytes."""
    room = limit - 8
    return [body[start : start + room] for start in range(0, len(body), room)]


def delivery(
    tag: int,
    body: bytes = b"",
    *,
    consumer: bytes = b"c1",
    exchange: bytes = b"",
    key: bytes = b"k",
    redelivered: bool = False,
    properties: bytes = b"\0\0",
    channel: int = 1,
    limit: int = 131072,
) -> bytes:
    """The frames of one delivery."""
    method = deliver_method(tag, consumer=consumer, exchange=exchange, key=key, redelivered=redelivered)
    return content(method, content_header(len(body), properties), cut(body, limit), channel=channel)


def frames_of(data: bytes) -> list[bytes]:
    """The single frames of ``data``."""
    found = []
    while data:
        size = 8 + int.from_bytes(data[3:7])
        found.append(data[:size])
        data = data[size:]
    return found


PROPERTIES = (
    *("content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to"),
    *("expiration", "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id"),
)


def properties(**encoded: bytes) -> bytes:
    """Property flags and these properties, each encoded, for :func:`content_header`."""
    flags = sum(0x8000 >> index for index, name in enumerate(PROPERTIES) if name in encoded)
    assert set(encoded) <= set(PROPERTIES)
    return struct.pack(">H", flags) + b"".join(encoded[name] for name in PROPERTIES if name in encoded)


def table(*entries: tuple[bytes, bytes]) -> bytes:
    """A table; a value begins with its type letter."""
    return long(b"".join(short(key) + value for key, value in entries))
