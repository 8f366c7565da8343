"""Properties of a message in terms of no protocol: how a message passes from one to another.

A message keeps the header of the protocol that it came with. Its ``wire`` reads that as ``Properties`` where a client
of another protocol gets it, and the adapter of that client writes them as its own header. What a protocol has no place
for goes into the application headers, or is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from amqp_core.broker.model.messages import Wire
from amqp_core.typed_values import Datetime, Typed
from amqp_core.write_primitives import MOST_SHORT, cut_short

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqp_core.broker.model.messages import Message

MESSAGE_ID: Final = "message-id"
"""Application header with a message id that is no UUID, for 0-10."""
CORRELATION_ID: Final = "correlation-id"
"""Application header with a correlation id that is no short text, for 0-9-1."""
TYPE: Final = "x-jms-type"
"""Application header with the type, for 0-10; the JMS clients of Qpid use it."""
MOST_HEADER_BYTES: Final = 131_064
"""The longest header of a message, in bytes: what one frame of 0-9-1 holds, which a header has to fit.

Without a limit, one of 0-10 could take all memory, and the time of everybody when it is read.
"""
# Timestamps are seconds by the specifications and milliseconds from Java clients.
_FIRST_MS: Final = 100_000_000_000
_INT64: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class Properties:
    """Properties of a message. Times: ``ttl_ms`` milliseconds, ``timestamp`` seconds since 1970.

    ``reply_to`` is an exchange and a routing key; the default exchange is empty.
    """

    content_type: str | None = None
    content_encoding: str | None = None
    headers: Mapping[str, object] = field(default_factory=dict)
    persistent: bool = False
    priority: int | None = None
    correlation_id: bytes | None = None
    reply_to: tuple[str, str] | None = None
    ttl_ms: int | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: bytes | None = None
    app_id: bytes | None = None


class NeutralWire(Wire, Protocol):
    """How a protocol reads its own messages for the others."""

    def properties(self, message: Message) -> Properties:
        """All properties; for a message that died: without ttl, which it has lost."""


def seconds(timestamp: int | None) -> int | None:
    """A timestamp in seconds, also if it was given in milliseconds."""
    return timestamp // 1000 if timestamp is not None and timestamp >= _FIRST_MS else timestamp


def milliseconds(timestamp: int | None) -> int | None:
    """A timestamp in milliseconds, also if it was given in seconds."""
    return timestamp * 1000 if timestamp is not None and timestamp < _FIRST_MS else timestamp


def short_text(value: str | None) -> str | None:
    """A text that fits a short string; a longer one is left out, and one that stands for octets that are not UTF-8."""
    try:
        return None if value is None or len(value.encode()) > MOST_SHORT else value
    except UnicodeEncodeError:
        return None


def text_or_octets(key: str) -> str | bytes:
    """A routing key of 0-9-1 where a text must be UTF-8; one that is not as its octets."""
    try:
        key.encode()
    except UnicodeEncodeError:
        return key.encode("utf-8", "surrogateescape")
    return key


def portable(value: object, *, uuids: bool) -> object:
    """A value of an application header with types that both protocols have.

    Args:
        uuids: whether the protocol that gets it has UUIDs; else they become text.
    """
    if isinstance(value, Typed):
        return portable(value.value, uuids=uuids)
    if isinstance(value, dict):
        return {short_key(name): portable(each, uuids=uuids) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [portable(each, uuids=uuids) for each in value]
    if isinstance(value, UUID | Decimal):
        return value if isinstance(value, UUID) == uuids else str(value)
    if isinstance(value, int | float):
        return _number(value, of_0_10=uuids)
    return bytes(value) if isinstance(value, bytearray | memoryview) else value


def _number(value: int | float, *, of_0_10: bool) -> object:
    """A number; one that the other protocol does not have as text."""
    if isinstance(value, float):
        return value if of_0_10 or math.isfinite(value) else str(value)
    if not -_INT64 <= value < _INT64:
        return str(int(value))
    return int(value) if isinstance(value, Datetime) and value < 0 else value


def short_key(name: object) -> str:
    """The name of a header, cut to what a short string holds."""
    return cut_short(str(name))
