"""Messages of 0-9-1 in the model, and back: a header is kept as it came, and changed only for a message that died."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from amqp_core.broker.model.arguments import MOST_MS
from amqp_core.broker.model.errors import Refusal, Refused
from amqp_core.broker.model.messages import Message
from amqp_core.broker.properties import (
    CORRELATION_ID,
    MOST_HEADER_BYTES,
    TYPE,
    NeutralWire,
    Properties,
    portable,
    seconds,
    short_key,
    short_text,
    text_or_octets,
)
from amqp_core.errors import EncodeError
from amqp_core.typed_values import Datetime
from amqp_core.v0_9 import spec
from amqp_core.v0_9._codec import encode_header
from amqp_core.v0_9._read import read_table_typed
from amqp_core.v0_9.channel import basic_properties
from amqp_core.write_primitives import MOST_SHORT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqp_core.v0_9.channel import Content

_FLAGS_AT = 12  # behind class, weight and body size
_BEFORE_HEADERS = (0x80, 0x40)  # content-type, content-encoding
_PERSISTENT = 2
_NON_PERSISTENT = 1


class BasicWire:
    """Reads headers of class basic."""

    def headers(self, message: Message) -> Mapping[str, object]:
        """The application headers of a message."""
        return basic_properties(message.header).headers or {}

    def properties(self, message: Message) -> Properties:
        """All properties."""
        basic = basic_properties(message.header)
        return Properties(
            content_type=basic.content_type,
            content_encoding=basic.content_encoding,
            headers=basic.headers or {},
            persistent=message.persistent,
            priority=basic.priority,
            correlation_id=_bytes(basic.correlation_id),
            reply_to=("", basic.reply_to) if basic.reply_to else None,
            ttl_ms=message.ttl_ms,
            message_id=basic.message_id,
            timestamp=basic.timestamp,
            type=basic.type,
            user_id=_bytes(basic.user_id),
            app_id=_bytes(basic.app_id),
        )


WIRE = BasicWire()


def message_of(publish: spec.BasicPublish, content: Content, username: str) -> Message:
    """The message of a basic.publish.

    Raises:
        Refused: its expiration is no number, or its user-id is not the login's.
        DecodeError: the header is malformed.
    """
    properties = content.properties
    if properties.user_id not in (None, "", username):
        text = f"user_id property set to '{properties.user_id}' but authenticated user was '{username}'"
        raise Refused(Refusal.PRECONDITION_FAILED, text)
    return Message(
        WIRE,
        publish.exchange,
        publish.routing_key,
        content.header,
        content.body,
        persistent=properties.delivery_mode == _PERSISTENT,
        priority=properties.priority or 0,
        ttl_ms=_ttl(properties.expiration),
    )


def _ttl(expiration: str | None) -> int | None:
    if not expiration:
        return None
    if not expiration.isascii() or not expiration.isdigit() or int(expiration) > MOST_MS:
        text = f"invalid expiration '{expiration}': it must be milliseconds in digits, at most {MOST_MS}"
        raise Refused(Refusal.PRECONDITION_FAILED, text)
    return int(expiration)


def header_of(message: Message) -> bytes:
    """The payload of the content header with which a message is delivered.

    What cannot be written, or makes it longer than ``MOST_HEADER_BYTES``, is left out: the history of its deaths, and
    then all application headers. A header of 0-9-1 is as it came. It may be longer than a frame of the client, as with
    RabbitMQ, which cuts bodies only.
    """
    if message.wire is WIRE:
        if not message.deaths:
            return message.header
        basic = basic_properties(message.header)
    else:
        basic = _basic(cast("NeutralWire", message.wire).properties(message))
    fields = {name: getattr(basic, name) for name in basic.__slots__}
    choices: list[Mapping[str, Any] | None] = [basic.headers]
    if message.wire is WIRE and basic.headers:  # with the types that they came with, if this broker writes all of these
        choices.insert(0, read_table_typed(message.header, _headers_at(message.header))[0])
    if message.deaths:
        fields["expiration"] = None
        deaths = _death_headers(message)
        choices = [{**(each or {}), **deaths} for each in choices] + choices
    for headers in choices:
        try:
            header = encode_header(spec.BasicProperties(**fields | {"headers": headers}), len(message.body))
        except EncodeError:  # headers of another protocol that this one cannot write
            continue
        if len(header) <= MOST_HEADER_BYTES:
            return header
    return encode_header(spec.BasicProperties(**fields | {"headers": None}), len(message.body))


def _headers_at(header: bytes) -> int:
    """Where the table of application headers begins in a content header that has them: behind two short strings."""
    at = _FLAGS_AT + 2
    for flag in _BEFORE_HEADERS:
        if header[_FLAGS_AT] & flag:
            at += 1 + header[at]
    return at


def _death_headers(message: Message) -> dict[str, object]:
    first, last = message.deaths[-1], message.deaths[0]
    return {
        "x-death": [
            {
                "count": death.count,
                "reason": death.reason,
                "queue": death.queue,
                "time": Datetime(int(death.at)),
                "exchange": death.exchange,
                "routing-keys": [text_or_octets(key) for key in death.routing_keys],
            }
            for death in message.deaths
        ],
        "x-first-death-queue": first.queue,
        "x-first-death-reason": first.reason,
        "x-first-death-exchange": first.exchange,
        "x-last-death-queue": last.queue,
        "x-last-death-reason": last.reason,
        "x-last-death-exchange": last.exchange,
    }


def _basic(properties: Properties) -> spec.BasicProperties:
    """Properties of another protocol as those of class basic."""
    headers = {short_key(name): portable(value, uuids=False) for name, value in properties.headers.items()}
    kind = properties.type
    if kind is None and isinstance(headers.get(TYPE), str):
        kind = str(headers[TYPE])
    correlation = _text(properties.correlation_id)
    if properties.correlation_id is not None and correlation is None:
        headers[CORRELATION_ID] = properties.correlation_id
    reply_to = None
    if properties.reply_to is not None:
        reply_to = short_text("/".join(filter(None, properties.reply_to)))
    timestamp = seconds(properties.timestamp)
    return spec.BasicProperties(
        content_type=short_text(properties.content_type),
        content_encoding=short_text(properties.content_encoding),
        headers=cast("Any", headers) or None,
        delivery_mode=_PERSISTENT if properties.persistent else _NON_PERSISTENT,
        priority=properties.priority,
        correlation_id=correlation,
        reply_to=reply_to,
        expiration=None if properties.ttl_ms is None else str(properties.ttl_ms),
        message_id=short_text(properties.message_id),
        timestamp=timestamp if timestamp is None or timestamp >= 0 else None,
        type=short_text(kind),
        user_id=_text(properties.user_id),
        app_id=_text(properties.app_id),
    )


def _bytes(value: str | None) -> bytes | None:
    return None if value is None else value.encode()


def _text(value: bytes | None) -> str | None:
    """Bytes as a short string, if they are one."""
    if value is None or len(value) > MOST_SHORT:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
