"""Messages of 0-9-1 in the model, and back: a header is kept as it came, and changed only for a message that died."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_core.broker.model.errors import Refusal, Refused
from amqp_core.broker.model.messages import Message
from amqp_core.typed_values import Datetime
from amqp_core.v0_9 import spec
from amqp_core.v0_9._codec import encode_header
from amqp_core.v0_9.channel import basic_properties

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqp_core.v0_9.channel import Content

_PERSISTENT = 2


class BasicWire:
    """Reads headers of class basic."""

    def headers(self, message: Message) -> Mapping[str, object]:
        """The application headers of a message."""
        return basic_properties(message.header).headers or {}


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
    if not expiration.isascii() or not expiration.isdigit():
        text = f"invalid expiration '{expiration}': it must be milliseconds in digits"
        raise Refused(Refusal.PRECONDITION_FAILED, text)
    return int(expiration)


def header_of(message: Message) -> bytes:
    """The payload of the content header with which a message is delivered."""
    if not message.deaths:
        return message.header
    properties = basic_properties(message.header)
    first = message.deaths[-1]
    headers = {
        **(properties.headers or {}),
        "x-death": [
            {
                "count": death.count,
                "reason": death.reason,
                "queue": death.queue,
                "time": Datetime(int(death.at)),
                "exchange": death.exchange,
                "routing-keys": list(death.routing_keys),
            }
            for death in message.deaths
        ],
        "x-first-death-queue": first.queue,
        "x-first-death-reason": first.reason,
        "x-first-death-exchange": first.exchange,
    }
    changed = {name: getattr(properties, name) for name in properties.__slots__} | {
        "headers": headers,
        "expiration": None,
    }
    return encode_header(spec.BasicProperties(**changed), len(message.body))
