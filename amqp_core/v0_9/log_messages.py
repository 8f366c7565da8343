"""Messages of a log (a stream of RabbitMQ): their offsets, and what identifies one of them.

The broker adds the offset to the headers of each delivery (an extension of RabbitMQ). Offsets of one log are
consecutive, and each has the same message for ever.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, TypeGuard

from amqp_core.api import LogEntry
from amqp_core.blocks import Block
from amqp_core.errors import DecodeError, UndecodableMessage
from amqp_core.read_primitives import read_uint16, read_vbin8
from amqp_core.v0_9._read import read_entry
from amqp_core.v0_9._scan import parts
from amqp_core.v0_9.messages import each_message

if TYPE_CHECKING:
    from amqp_core.api import Block as AnyBlock

OFFSET: Final = "x-stream-offset"
"""The header of a delivery, and the argument of a consumer, with an offset."""
DIGEST_BYTES: Final = 20

_PROPERTIES: Final = 12
"""Offset of the flags of the properties in a content header: behind class, weight and body size."""
_CONTENT_TYPE: Final = 0x8000
_CONTENT_ENCODING: Final = 0x4000
_HEADERS: Final = 0x2000


def log_entry(block: AnyBlock, index: int) -> LogEntry | None:
    """The place of a message of a block in its log; ``None`` if it comes from no log.

    The digest covers what every version of the broker delivers alike: exchange, routing key, some properties, body. Of
    a message whose properties cannot be decoded it covers the body: what becomes of it is for its reader to say.
    """
    assert isinstance(block, Block)
    begin = block.ends[index - 1] if index else 0
    part = block.part(index, index + 1, begin, block.ends[index])
    (message,) = each_message(part)
    if isinstance(message, UndecodableMessage):
        return _raw_entry(part.frames)
    offset = message.headers.get(OFFSET)
    if not _is_offset(offset):
        return None
    properties = message.properties
    names = (message.exchange, message.routing_key, properties.message_id, properties.correlation_id, properties.app_id)
    texts = ["" if each is None else str(each) for each in (*names, properties.timestamp)]
    return LogEntry(offset, _digest(*(text.encode(errors="backslashreplace") for text in texts), message.body))


def _raw_entry(frames: bytes) -> LogEntry | None:
    """The place of a message that has a malformed property, such as one that is not UTF-8."""
    try:
        _, (begin, end), body = parts(frames, 0, len(frames))
        offset = _raw_offset(frames[begin:end])
    except DecodeError:
        return None
    if not _is_offset(offset):
        return None
    pieces = (frames[start:stop] for start, stop in zip(body[::2], body[1::2], strict=True))
    return LogEntry(offset, _digest(b"".join(pieces)))


def _raw_offset(header: bytes) -> object:
    flags, pos = read_uint16(header, _PROPERTIES)
    if not flags & _HEADERS:
        return None
    for flag in (_CONTENT_TYPE, _CONTENT_ENCODING):  # they come before the headers
        if flags & flag:
            _, pos = read_vbin8(header, pos)
    return read_entry(header, pos, OFFSET.encode())


def _is_offset(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _digest(*content: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in content:
        digest.update(len(part).to_bytes(8) + part)
    return digest.digest()
