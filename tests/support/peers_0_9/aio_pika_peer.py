"""aio-pika, the asynchronous client in Python, on aiormq and pamqp."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

import aio_pika
from aio_pika.exceptions import AMQPError

from tests.support.peers_0_9.messages import TIMEOUT_S, PeerFailed, PeerMessage, Place, plain

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

_PROPERTIES = (
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "message_id",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)


class AioPikaPeer:
    """aio-pika. It has no cluster-id, and makes up a message-id for a message without one."""

    name: ClassVar[str] = "aio-pika"
    cannot_write: ClassVar[frozenset[type]] = frozenset()
    cannot_set: ClassVar[frozenset[str]] = frozenset({"cluster_id"})
    always_sets: ClassVar[Mapping[str, object]] = {"headers": {}, "delivery_mode": 1, "priority": 0}

    def publish(self, place: Place, messages: Sequence[PeerMessage]) -> None:
        """Publish messages, mandatory and confirmed."""

        async def publish(channel: AbstractChannel) -> None:
            default = channel.default_exchange
            for message in messages:
                exchange = await channel.get_exchange(message.exchange, ensure=False) if message.exchange else default
                await exchange.publish(_written(message), message.routing_key, mandatory=True, timeout=TIMEOUT_S)

        _run(place, publish)

    def consume(self, place: Place, queue: str, count: int) -> list[PeerMessage]:
        """Receive and acknowledge the next ``count`` messages of a queue."""
        received: list[PeerMessage] = []

        async def consume(channel: AbstractChannel) -> None:
            await channel.set_qos(prefetch_count=100)
            source = await channel.get_queue(queue, ensure=False)
            async with source.iterator(timeout=TIMEOUT_S) as deliveries:
                async for delivery in deliveries:
                    received.append(_report(delivery))
                    await delivery.ack()
                    if len(received) == count:
                        break

        _run(place, consume)
        return received

    def reading_of(self, message: PeerMessage) -> PeerMessage:
        """Return the message: aio-pika reads all there is. One without headers and the like looks as if it had some."""
        return message.with_properties(**{**self.always_sets, **message.properties})


def _run(place: Place, work: Callable[[AbstractChannel], Awaitable[None]]) -> None:
    async def connected() -> None:
        connection = await aio_pika.connect(
            host=place.host,
            port=place.port,
            virtualhost=place.vhost,
            login=place.username,
            password=place.password,
            timeout=TIMEOUT_S,
        )
        async with connection:
            # aiormq fails with a KeyError where a server announces no capabilities, as Broker-J does.
            assert connection.transport is not None
            announced = connection.transport.connection.server_properties
            announced.setdefault("capabilities", {"publisher_confirms": True})
            await work(await connection.channel(publisher_confirms=True, on_return_raises=True))

    try:
        asyncio.run(connected())
    except (AMQPError, TimeoutError) as error:
        raise PeerFailed(f"aio-pika: {error!r}") from error


def _written(message: PeerMessage) -> aio_pika.Message:
    given: dict[str, Any] = dict(message.properties)
    if "expiration" in given:
        given["expiration"] = int(given["expiration"]) / 1000  # seconds, of which aio-pika makes milliseconds again
    given["headers"] = _as_bytearrays(message.headers)
    return aio_pika.Message(message.body, **given)


def _as_bytearrays(value: Any) -> Any:
    match value:
        case bytes():
            return bytearray(value)
        case dict():
            return {key: _as_bytearrays(item) for key, item in value.items()}
        case list():
            return [_as_bytearrays(item) for item in value]
        case _:
            return value


def _report(delivery: AbstractIncomingMessage) -> PeerMessage:
    given: dict[str, object] = {name: plain(getattr(delivery, name)) for name in _PROPERTIES}
    if not delivery.cluster_id:  # pamqp reads an empty one where there is none
        del given["cluster_id"]
    if delivery.delivery_mode is not None:
        given["delivery_mode"] = int(delivery.delivery_mode)
    if delivery.expiration is not None:
        assert isinstance(delivery.expiration, float)
        given["expiration"] = str(round(delivery.expiration * 1000))
    if delivery.timestamp is not None:
        given["timestamp"] = int(delivery.timestamp.timestamp())
    return PeerMessage(
        body=delivery.body,
        routing_key=delivery.routing_key or "",
        exchange=delivery.exchange or "",
        properties={name: value for name, value in given.items() if value is not None},
    )
