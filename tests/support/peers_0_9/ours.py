"""This project's client, behind the interface of the peers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from amqp_core.address import ConnectOptions
from amqp_core.typed_values import Datetime
from amqp_core.v0_9 import spec
from amqp_core.v0_9.client import Client
from amqp_core.v0_9.messages import Message
from tests.support.peers_0_9.messages import TIMEOUT_S, PeerFailed, PeerMessage, Place
from tests.support.peers_0_9.pika_peer import PROPERTIES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Ours:
    """The client of this project."""

    name: ClassVar[str] = "ours"
    cannot_write: ClassVar[frozenset[type]] = frozenset()
    cannot_set: ClassVar[frozenset[str]] = frozenset()
    always_sets: ClassVar[Mapping[str, object]] = {}

    def __init__(self, protocol: str = "0-9-1") -> None:
        self._protocol = protocol

    def connect(self, place: Place) -> Client:
        """Return a connected client."""
        options = ConnectOptions(
            hosts=((place.host, place.port),),
            virtual_host=place.vhost,
            username=place.username,
            password=place.password,
            protocol=self._protocol,
        )
        return Client.connect(options, call_timeout_s=TIMEOUT_S)

    def publish(self, place: Place, messages: Sequence[PeerMessage]) -> None:
        """Publish messages, mandatory and confirmed."""
        with self.connect(place) as client:
            for message in messages:
                given: dict[str, Any] = dict(message.properties)
                if "headers" in given:
                    given["headers"] = _with_times(message.headers)
                properties = spec.BasicProperties(**given)
                client.publish(Message(message.body, properties, message.exchange, message.routing_key))
            client.confirm()

    def consume(self, place: Place, queue: str, count: int) -> list[PeerMessage]:
        """Receive and acknowledge the next ``count`` messages of a queue."""
        received: list[PeerMessage] = []
        with self.connect(place) as client:
            subscription = client.subscribe(queue, max_unsettled=100)
            while len(received) < count:
                message = subscription.take_one(timeout=TIMEOUT_S)
                if message is None:
                    raise PeerFailed(f"{len(received)} messages of {count} in {queue}")
                received.append(_report(message))
                client.accept([(message.transfer_id, message.transfer_id)])
            client.sync()
        return received

    def reading_of(self, message: PeerMessage) -> PeerMessage:
        """Return the message: our client reads all there is."""
        return message


def _with_times(value: object) -> object:
    match value:
        case datetime():
            return Datetime(value.timestamp())
        case dict():
            return {key: _with_times(item) for key, item in value.items()}
        case list():
            return [_with_times(item) for item in value]
        case _:
            return value


def _plain(value: object) -> object:
    match value:
        case Datetime():
            return datetime.fromtimestamp(value, UTC)
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case list():
            return [_plain(item) for item in value]
        case _:
            return value


def _report(message: Message) -> PeerMessage:
    given = {name: _plain(getattr(message.properties, name)) for name in PROPERTIES}
    properties = {name: value for name, value in given.items() if value is not None}
    if "timestamp" in properties:
        properties["timestamp"] = int(message.properties.timestamp or 0)
    return PeerMessage(
        body=message.body, routing_key=message.routing_key, exchange=message.exchange, properties=properties
    )
