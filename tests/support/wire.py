"""Frames of message transfers written by hand for tests: bytes only, independent of the generated encoder.

The layouts are those of the 0-10 specification (frame header, section 4.4.2; packed structs with the byte order of the
presence flags that brokers use: first byte = fields 0 to 7, bit 0 = first field).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FIRST_SEGMENT, LAST_SEGMENT, FIRST_FRAME, LAST_FRAME = 8, 4, 2, 1
CONTROL, COMMAND, HEADER, BODY = 0, 1, 2, 3


def frame(flags: int, kind: int, payload: bytes, *, track: int = 1, channel: int = 0) -> bytes:
    """One frame with its 12-byte header."""
    return struct.pack(">BBHBBHI", flags, kind, 12 + len(payload), 0, track, channel, 0) + payload


def segment(kind: int, payload: bytes, *, first: bool, last: bool, channel: int = 0, limit: int = 65535) -> bytes:
    """The frames of one segment, none larger than ``limit`` bytes."""
    room = limit - 12
    pieces = [payload[i : i + room] for i in range(0, len(payload), room)] or [b""]
    out = []
    for i, piece in enumerate(pieces):
        flags = (
            first * FIRST_SEGMENT | last * LAST_SEGMENT | (i == 0) * FIRST_FRAME | (i == len(pieces) - 1) * LAST_FRAME
        )
        out.append(frame(flags, kind, piece, channel=channel))
    return b"".join(out)


def assembly(
    command: bytes,
    header: bytes | None = None,
    body: bytes | None = None,
    *,
    channel: int = 0,
    limit: int = 65535,
    header_limit: int | None = None,
) -> bytes:
    """A command with its content segments; None leaves a segment out."""
    segments = [(COMMAND, command, limit)]
    if header is not None:
        segments.append((HEADER, header, header_limit or limit))
    if body is not None:
        segments.append((BODY, body, limit))
    last = len(segments) - 1
    return b"".join(
        segment(kind, payload, first=i == 0, last=i == last, channel=channel, limit=most)
        for i, (kind, payload, most) in enumerate(segments)
    )


def transfer_command(destination: bytes = b"amqp1") -> bytes:
    """message.transfer with destination, accept-mode explicit and acquire-mode pre-acquired."""
    return bytes.fromhex("0401 0100 0700") + bytes([len(destination)]) + destination + b"\x00\x00"


def transfer(
    header: bytes | None = None,
    body: bytes | None = None,
    *,
    destination: bytes = b"amqp1",
    channel: int = 0,
    limit: int = 65535,
    header_limit: int | None = None,
) -> bytes:
    """The frames of one message.transfer."""
    return assembly(
        transfer_command(destination), header, body, channel=channel, limit=limit, header_limit=header_limit
    )


def heartbeat() -> bytes:
    """connection.heartbeat on channel 0."""
    return frame(0x0F, CONTROL, b"\x01\x0a\0\0", track=0)


def completed(channel: int = 0) -> bytes:
    """session.completed with one range (0, 5)."""
    return frame(0x0F, CONTROL, bytes.fromhex("020a 0100 0008 00000000 00000005"), track=0, channel=channel)


def result(channel: int = 0, limit: int = 65535) -> bytes:
    """execution.result: a command assembly that is not a transfer."""
    return assembly(bytes.fromhex("0302 0100 0300 00000007 00000006 0801 0100 0171"), channel=channel, limit=limit)


# ---- values of maps, each with its type code -----------------------------------------------------------------------


def str8(text: bytes) -> bytes:
    """A str8 field: size and bytes."""
    return bytes([len(text)]) + text


def vbin16(data: bytes) -> bytes:
    """A vbin16 field: size and bytes."""
    return struct.pack(">H", len(data)) + data


def vbin32(data: bytes) -> bytes:
    """A vbin32 field: size and bytes."""
    return struct.pack(">I", len(data)) + data


def map_(entries: Iterable[tuple[bytes, int, bytes]]) -> bytes:
    """A map: size32, count32, and per entry key (str8), type code and encoded value."""
    items = list(entries)
    body = b"".join(str8(key) + bytes([code]) + value for key, code, value in items)
    return struct.pack(">II", 4 + len(body), len(items)) + body


def list_(items: Sequence[tuple[int, bytes]]) -> bytes:
    """A list: size32, count32, and per item type code and encoded value."""
    body = b"".join(bytes([code]) + value for code, value in items)
    return struct.pack(">II", 4 + len(body), len(items)) + body


def array_(code: int, items: Sequence[bytes]) -> bytes:
    """An array: size32, type code, count32, the encoded values."""
    body = bytes([code]) + struct.pack(">I", len(items)) + b"".join(items)
    return struct.pack(">I", len(body)) + body


# ---- header structs ------------------------------------------------------------------------------------------------


def struct32(code: int, flags: int, fields: bytes) -> bytes:
    """A struct32 in a header segment: size32, code, presence flags (field i = bit i of ``flags``), fields."""
    body = struct.pack(">H", code) + struct.pack("<H", flags) + fields
    return struct.pack(">I", len(body)) + body


DELIVERY = [
    *("discard_unroutable", "immediate", "redelivered", "priority", "delivery_mode", "ttl", "timestamp", "expiration"),
    *("exchange", "routing_key", "resume_id", "resume_ttl"),
]
MESSAGE = [
    *("content_length", "message_id", "correlation_id", "reply_to", "content_type", "content_encoding", "user_id"),
    *("app_id", "application_headers"),
]


def _packed(code: int, names: list[str], fields: dict[str, bytes]) -> bytes:
    unknown = set(fields) - set(names)
    if unknown:
        raise KeyError(f"not fields of this struct: {sorted(unknown)}")
    flags = sum(1 << i for i, name in enumerate(names) if name in fields)
    return struct32(code, flags, b"".join(fields[name] for name in names if name in fields))


def delivery(**fields: bytes) -> bytes:
    """delivery-properties of encoded fields (bits: ``b""``), in the order of the specification."""
    return _packed(0x0401, DELIVERY, fields)


def message(**fields: bytes) -> bytes:
    """message-properties of encoded fields, in the order of the specification."""
    return _packed(0x0403, MESSAGE, fields)


def reply_to(exchange: bytes | None, routing_key: bytes | None) -> bytes:
    """The reply-to struct: size16, presence flags, str8 fields."""
    flags = (exchange is not None) | (routing_key is not None) << 1
    body = struct.pack("<H", flags) + b"".join(str8(s) for s in (exchange, routing_key) if s is not None)
    return struct.pack(">H", len(body)) + body


def frames_of(data: bytes) -> list[bytes]:
    """Whole frames, one by one."""
    found = []
    while data:
        size = int.from_bytes(data[2:4])
        found.append(data[:size])
        data = data[size:]
    return found
