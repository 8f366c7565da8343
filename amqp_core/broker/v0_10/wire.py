"""Messages of 0-10 in the model, and back.

The header of a transfer is kept with delivery-properties as its first struct, which name the exchange; its other
structs stay as they came. So a delivery is the kept header, with one bit set in it if it is a redelivery.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

from amqp_core.broker.model.messages import Message
from amqp_core.broker.properties import (
    CORRELATION_ID,
    MESSAGE_ID,
    MOST_HEADER_BYTES,
    TYPE,
    NeutralWire,
    Properties,
    portable,
    seconds,
    short_key,
    short_text,
)
from amqp_core.broker.v0_10.errors import Code, Failed
from amqp_core.errors import DecodeError, EncodeError
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import decode_header, decode_struct32, encode_header

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_DELIVERY: Final = spec.DeliveryProperties.CODE.to_bytes(2)
_FRAGMENT: Final = spec.FragmentProperties.CODE
_FLAGS_AT: Final = 6  # behind size and code of the first struct
_REDELIVERED: Final = 0x04
_MOST_KEPT: Final = 256
_LONGEST_KEPT: Final = (
    1024  # exchange and routing key have 255 bytes at most; resume-id, which has 64 KiB, is not in use
)
_MOST_TTL: Final = (1 << 64) - 1
_MOST_CORRELATION: Final = 0xFFFF


class TransferWire:
    """Reads headers of message.transfer."""

    def headers(self, message: Message) -> Mapping[str, object]:
        """The application headers of a message."""
        _, properties, _ = decode_header(message.header)
        return (properties and properties.application_headers) or {}

    def properties(self, message: Message) -> Properties:
        """All properties."""
        delivery, given, _ = decode_header(message.header)
        delivery, given = delivery or spec.DeliveryProperties(), given or spec.MessageProperties()
        headers = dict(given.application_headers or {})
        reply_to = given.reply_to
        return Properties(
            content_type=given.content_type,
            content_encoding=given.content_encoding,
            headers=headers,
            persistent=message.persistent,
            priority=delivery.priority,
            correlation_id=given.correlation_id,
            reply_to=None if reply_to is None else (reply_to.exchange or "", reply_to.routing_key or ""),
            ttl_ms=message.ttl_ms,
            message_id=None if given.message_id is None else str(given.message_id),
            timestamp=delivery.timestamp,
            user_id=given.user_id,
            app_id=given.app_id,
        )


WIRE = TransferWire()
WIRE_WITH_EMPTY_BODY = TransferWire()
"""Of messages that came with a body segment which is empty: they are delivered with one.

Clients tell that from no body: qpid-python has an empty text or None. It is a wire so that other messages need nothing.
"""


@dataclass(frozen=True, slots=True)
class _Envelope:
    """What delivery-properties say, and their encoding as they are delivered."""

    encoded: bytes
    routing_key: str
    priority: int
    persistent: bool
    ttl_ms: int | None
    expiration: int | None
    discard_unroutable: bool
    immediate: bool


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message of a transfer, and what is to be done if nobody takes it."""

    message: Message
    discard_unroutable: bool
    immediate: bool


class Reader:
    """Makes messages of transfers. What equals the headers before is not decoded again.

    Args:
        username: the login, which alone may be the user-id.
    """

    def __init__(self, username: str) -> None:
        self._username = username.encode()
        self._envelopes: dict[tuple[str, bytes], _Envelope] = {}
        self._checked = b""

    def read(self, exchange: str, header: bytes, body: bytes | None, now: float) -> Incoming:
        """The message of a transfer.

        Args:
            header: its header segment.
            body: its body segment; None: it has none.
            now: seconds since 1970.

        Raises:
            DecodeError: the header is malformed.
            Failed: UNAUTHORIZED_ACCESS, its user-id is another's; NOT_IMPLEMENTED, it is a fragment;
                RESOURCE_LIMIT_EXCEEDED, its header is too long.
        """
        if len(header) > MOST_HEADER_BYTES:
            text = f"a header of {len(header)} bytes is too long: at most {MOST_HEADER_BYTES} are possible"
            raise Failed(Code.RESOURCE_LIMIT_EXCEEDED, text)
        if header[4:6] == _DELIVERY:
            end = 4 + int.from_bytes(header[:4])
            rest = header[end:]
            envelope = self._envelope(exchange, header[:end])
        else:
            delivery, _, _ = decode_header(header)
            rest = b"".join(each for each in _structs(header) if each[4:6] != _DELIVERY)
            envelope = _envelope(delivery or spec.DeliveryProperties(), exchange)
        if rest != self._checked:
            self._check(rest)
            self._checked = rest
        ttl_ms = envelope.ttl_ms
        if ttl_ms is None and envelope.expiration is not None:
            ttl_ms = max(0, int((_seconds(envelope.expiration) - now) * 1000))
        message = Message(
            WIRE if body or body is None else WIRE_WITH_EMPTY_BODY,
            exchange,
            envelope.routing_key,
            envelope.encoded + rest,
            body or b"",
            persistent=envelope.persistent,
            priority=envelope.priority,
            ttl_ms=ttl_ms,
        )
        return Incoming(message, envelope.discard_unroutable, envelope.immediate)

    def _envelope(self, exchange: str, struct: bytes) -> _Envelope:
        """What delivery-properties say: those of the messages of a publisher are often the same."""
        envelope = self._envelopes.get((exchange, struct))
        if envelope is None:
            delivery, _ = decode_struct32(struct, 0)
            assert isinstance(delivery, spec.DeliveryProperties)
            envelope = _envelope(delivery, exchange)
            if len(struct) > _LONGEST_KEPT:
                return envelope
            if len(self._envelopes) >= _MOST_KEPT:
                self._envelopes.clear()
            self._envelopes[exchange, struct] = envelope
        return envelope

    def _check(self, structs: bytes) -> None:
        delivery, properties, others = decode_header(structs)
        if delivery is not None:
            raise DecodeError(f"{delivery.NAME} twice in one header", 0)
        if properties is not None and properties.user_id not in (None, b"", self._username):
            given, login = properties.user_id.decode(errors="replace"), self._username.decode()
            raise Failed(Code.UNAUTHORIZED_ACCESS, f"user-id '{given}' is not that of the login '{login}'")
        for raw in others:
            if int.from_bytes(raw[4:6]) == _FRAGMENT:
                fragment, _ = decode_struct32(raw, 0)
                assert isinstance(fragment, spec.FragmentProperties)
                if not (fragment.first and fragment.last):
                    raise Failed(Code.NOT_IMPLEMENTED, "messages in fragments are not served")


def _envelope(delivery: spec.DeliveryProperties, exchange: str) -> _Envelope:
    kept = _changed(delivery, exchange=exchange, redelivered=False, immediate=False)
    return _Envelope(
        encode_header(kept, None),
        delivery.routing_key or "",
        spec.MessageDeliveryPriority.MEDIUM if delivery.priority is None else delivery.priority,
        delivery.delivery_mode == spec.MessageDeliveryMode.PERSISTENT,
        delivery.ttl,
        delivery.expiration or None,
        delivery.discard_unroutable,
        delivery.immediate,
    )


def _structs(header: bytes) -> Iterator[bytes]:
    """The structs of a well-formed header, as they are encoded."""
    at = 0
    while at < len(header):
        end = at + 4 + int.from_bytes(header[at : at + 4])
        yield header[at:end]
        at = end


def _seconds(timestamp: int) -> int:
    return seconds(timestamp) or 0


def _changed(delivery: spec.DeliveryProperties, **fields: Any) -> spec.DeliveryProperties:
    given = {name: getattr(delivery, name) for name in spec.DeliveryProperties.__slots__}
    return spec.DeliveryProperties(**given | fields)


def header_of(message: Message, *, redelivered: bool) -> bytes:
    """The header segment with which a message is delivered.

    A dead letter keeps the exchange to which it was published (0-10 section delivery-properties, exchange).
    """
    wire = message.wire
    header = message.header if wire is WIRE or wire is WIRE_WITH_EMPTY_BODY else _foreign(message)
    if message.deaths:
        first, *others = _structs(header)
        delivery, _ = decode_struct32(first, 0)
        assert isinstance(delivery, spec.DeliveryProperties)
        delivery = _changed(delivery, routing_key=short_text(message.routing_key), ttl=None, expiration=None)
        header = encode_header(delivery, None, others)
    if redelivered:
        flags = header[_FLAGS_AT] | _REDELIVERED
        header = b"".join((header[:_FLAGS_AT], flags.to_bytes(), header[_FLAGS_AT + 1 :]))
    return header


def _foreign(message: Message) -> bytes:
    """A header segment with the properties of a message that came with another protocol."""
    properties = cast("NeutralWire", message.wire).properties(message)
    timestamp = seconds(properties.timestamp)
    delivery = spec.DeliveryProperties(
        priority=properties.priority,
        delivery_mode=spec.MessageDeliveryMode.PERSISTENT
        if properties.persistent
        else spec.MessageDeliveryMode.NON_PERSISTENT,
        ttl=None if properties.ttl_ms is None else min(properties.ttl_ms, _MOST_TTL),
        timestamp=timestamp,
        exchange=short_text(message.deaths[-1].exchange if message.deaths else message.exchange),
        routing_key=short_text(message.routing_key),
    )
    headers = {short_key(name): portable(value, uuids=True) for name, value in properties.headers.items()}
    if properties.type is not None:
        headers[TYPE] = properties.type
    message_id = _uuid(properties.message_id)
    if message_id is None and properties.message_id is not None:
        headers[MESSAGE_ID] = properties.message_id
    correlation_id = properties.correlation_id
    kept = headers.pop(CORRELATION_ID, None) if correlation_id is None else None
    if isinstance(kept, bytes):
        correlation_id = kept
    reply_to = properties.reply_to
    given = spec.MessageProperties(
        content_length=len(message.body),
        message_id=message_id,
        correlation_id=None if correlation_id is None else correlation_id[:_MOST_CORRELATION],
        reply_to=None if reply_to is None else spec.ReplyTo(exchange=reply_to[0], routing_key=reply_to[1]),
        content_type=short_text(properties.content_type),
        content_encoding=short_text(properties.content_encoding),
        user_id=properties.user_id,
        app_id=properties.app_id,
        application_headers=headers or None,
    )
    try:
        return encode_header(delivery, given)
    except EncodeError:  # headers of another protocol that this one cannot write
        given.application_headers = None
        return encode_header(delivery, given)


def _uuid(text: str | None) -> UUID | None:
    try:
        return None if text is None else UUID(text)
    except ValueError:
        return None
