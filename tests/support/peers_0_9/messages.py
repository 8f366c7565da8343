"""What every peer publishes and reports."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Protocol, Self
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.support.fixtures import Broker

TIMEOUT_S = 120.0
"""Seconds to wait for the next message or confirm; it only bounds a failure."""


class PeerFailed(RuntimeError):
    """A peer could not do what it was to do; the text holds its words."""


@dataclass(frozen=True, kw_only=True)
class PeerMessage:
    """A message, to be published or received.

    Args:
        body: the content.
        routing_key: of basic.publish or basic.deliver.
        exchange: the same.
        properties: by their names in the specification with underscores, without those that are not set. ``timestamp``
            is in seconds, ``headers`` a dict of plain values: bool, int, float, Decimal, str, bytes, aware datetime,
            list, dict, None.
    """

    body: bytes = b""
    routing_key: str = ""
    exchange: str = ""
    properties: Mapping[str, object] = field(default_factory=dict)

    @property
    def headers(self) -> dict[str, object]:
        """The property ``headers``; empty if it is not set."""
        found = self.properties.get("headers", {})
        assert isinstance(found, dict)
        return found

    def with_properties(self, **changed: object) -> Self:
        """Return the same message with other properties; None removes one."""
        merged = {name: value for name, value in {**self.properties, **changed}.items() if value is not None}
        return replace(self, properties=merged)


@dataclass(frozen=True)
class Place:
    """A virtual host, and a login that may use it."""

    host: str
    port: int
    vhost: str
    username: str
    password: str = field(repr=False)

    @classmethod
    def of(cls, broker: Broker, vhost: str = "default", url: str | None = None) -> Self:
        """Return a virtual host of a broker; ``url`` of a listener with PLAIN, if that is not its first."""
        parts = urlsplit(url or broker.url(vhost))
        assert parts.hostname is not None
        assert parts.port is not None
        return cls(parts.hostname, parts.port, unquote(parts.path[1:]), broker.username, broker.password)


class Peer(Protocol):
    """A client that someone else wrote."""

    name: ClassVar[str]
    """What a test calls it."""
    cannot_write: ClassVar[frozenset[type]]
    """Types of values that it does not put into a table."""
    cannot_set: ClassVar[frozenset[str]]
    """Properties that it does not set."""
    always_sets: ClassVar[Mapping[str, object]]
    """Properties that it sets without a request, and to what."""

    def publish(self, place: Place, messages: Sequence[PeerMessage]) -> None:
        """Publish messages, mandatory and confirmed.

        Raises:
            PeerFailed: one was returned or not confirmed, or anything else.
        """

    def consume(self, place: Place, queue: str, count: int) -> list[PeerMessage]:
        """Receive and acknowledge the next ``count`` messages of a queue.

        Raises:
            PeerFailed: fewer came in time, or anything else.
        """

    def reading_of(self, message: PeerMessage) -> PeerMessage:
        """Return what ``consume`` is expected to report of a message: what the client gets wrong is in it."""


def plain(value: object) -> object:
    """Return a value of a table as :class:`PeerMessage` has it."""
    match value:
        case bytearray():
            return bytes(value)
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case list():
            return [plain(item) for item in value]
        case _:
            return value
