"""pika, the blocking client in Python."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import pika
from pika.exceptions import AMQPError

from tests.support.peers_0_9.messages import TIMEOUT_S, PeerFailed, PeerMessage, Place, plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pika.adapters.blocking_connection import BlockingChannel

PROPERTIES = (
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)


@contextmanager
def channel(place: Place) -> Iterator[BlockingChannel]:
    """Open a channel of pika, for what a test does beside the messages: declare, bind, purge, delete."""
    login = pika.PlainCredentials(place.username, place.password)
    # No heartbeat: a test does not serve the connection while it looks at something else.
    parameters = pika.ConnectionParameters(place.host, place.port, place.vhost, login, heartbeat=0)
    connection = pika.BlockingConnection(parameters)
    # pika refuses confirms where a server announces no capabilities, as Broker-J does.
    connection._impl.server_capabilities.setdefault("publisher_confirms", True)
    connection._impl.server_capabilities.setdefault("basic.nack", True)
    try:
        yield connection.channel()
    finally:
        if connection.is_open:
            connection.close()


class PikaPeer:
    """pika. It writes no floats, and cuts those that it reads to integers (seen in 1.4)."""

    name: ClassVar[str] = "pika"
    cannot_write: ClassVar[frozenset[type]] = frozenset({float})
    cannot_set: ClassVar[frozenset[str]] = frozenset()
    always_sets: ClassVar[Mapping[str, object]] = {}

    def publish(self, place: Place, messages: Sequence[PeerMessage]) -> None:
        """Publish messages, mandatory and confirmed."""
        try:
            with channel(place) as opened:
                opened.confirm_delivery()
                for message in messages:
                    properties = pika.BasicProperties(**message.properties)
                    opened.basic_publish(
                        message.exchange, message.routing_key, message.body, properties, mandatory=True
                    )
        except AMQPError as error:  # NackError and UnroutableError, too
            raise PeerFailed(f"pika: {error!r}") from error

    def consume(self, place: Place, queue: str, count: int) -> list[PeerMessage]:
        """Receive and acknowledge the next ``count`` messages of a queue."""
        received: list[PeerMessage] = []
        try:
            with channel(place) as opened:
                opened.basic_qos(prefetch_count=100)
                for method, properties, body in opened.consume(queue, inactivity_timeout=TIMEOUT_S):
                    if method is None:
                        raise PeerFailed(f"pika: {len(received)} messages of {count} in {queue}")
                    received.append(_report(method, properties, body))
                    opened.basic_ack(method.delivery_tag)
                    if len(received) == count:
                        break
                opened.cancel()
        except AMQPError as error:
            raise PeerFailed(f"pika: {error!r}") from error
        return received

    def reading_of(self, message: PeerMessage) -> PeerMessage:
        """Return the message with the numbers that pika makes of floats."""
        if "headers" not in message.properties:
            return message
        return replace(message, properties={**message.properties, "headers": _cut(message.headers)})


def _report(method: Any, properties: Any, body: bytes) -> PeerMessage:
    given = {name: plain(getattr(properties, name)) for name in PROPERTIES}
    return PeerMessage(
        body=body,
        routing_key=method.routing_key,
        exchange=method.exchange,
        properties={name: value for name, value in given.items() if value is not None},
    )


def _cut(value: object) -> object:
    match value:
        case float():
            return int(value)
        case dict():
            return {key: _cut(item) for key, item in value.items()}
        case list():
            return [_cut(item) for item in value]
        case _:
            return value
