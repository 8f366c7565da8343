"""A message, and the history of its deaths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from amqp_core.broker.model.memory import MESSAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqp_core.broker.model.memory import Pool

DeathReason = Literal["rejected", "expired", "maxlen", "delivery_limit"]


class Wire(Protocol):
    """How a protocol reads its own messages."""

    def headers(self, message: Message) -> Mapping[str, object]:
        """Application headers of the message, decoded when asked for."""


@dataclass(frozen=True, slots=True)
class Death:
    """All deaths of a message in one queue for one reason.

    Args:
        exchange: the exchange it was published to before its first such death.
        routing_keys: its routing keys then.
        count: how often it died so.
        at: time of the first such death, as the ``now`` of the model.
    """

    queue: str
    reason: DeathReason
    exchange: str
    routing_keys: tuple[str, ...]
    count: int
    at: float


class Copies:
    """How many copies of a message dead-letter exchanges have made; all of these copies share it."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Message:
    """A message, shared by all queues that hold it, and therefore not changed once it is made.

    That is a convention and not enforced, which would double the cost of making one.

    Args:
        wire: reads ``header`` when a headers exchange asks.
        header: properties as the adapter wrote them, opaque to the model.
        persistent: it survives a restart in a durable queue.
        priority: 0 is the lowest; a queue caps it at its own highest.
        ttl_ms: milliseconds that it may wait in a queue; None: any time. 0: it is delivered at once or expires.
        deaths: the latest first. The adapter shows them to consumers; a message with deaths has lost the ttl that its
            ``header`` may still name.
        copies: counts its copies; None: it has not died yet.
    """

    __slots__ = (
        "body",
        "copies",
        "deaths",
        "exchange",
        "header",
        "persistent",
        "pool",
        "priority",
        "record",
        "routing_key",
        "size",
        "ttl_ms",
        "wire",
    )

    def __init__(
        self,
        wire: Wire,
        exchange: str,
        routing_key: str,
        header: bytes,
        body: bytes,
        *,
        persistent: bool = False,
        priority: int = 0,
        ttl_ms: int | None = None,
        deaths: tuple[Death, ...] = (),
        copies: Copies | None = None,
    ) -> None:
        self.pool: Pool | None = None
        """Where its memory is counted, if it is; it has no part in what the message is."""
        self.copies = copies
        self.wire = wire
        self.exchange = exchange
        self.routing_key = routing_key
        self.header = header
        self.body = body
        self.persistent = persistent
        self.priority = priority
        self.ttl_ms = ttl_ms
        self.deaths = deaths
        self.record = 0
        """Its number in the journal; 0: it has none."""
        self.size = len(header) + len(body)
        """Bytes of header and body: what credit and limits count."""

    def __del__(self) -> None:
        # Queues, transactions and branches share it: when the last of them drops it is known here alone.
        if self.pool is not None:
            self.pool.nbytes -= self.size + MESSAGE_BYTES

    def __repr__(self) -> str:
        return f"<message to {self.exchange!r} with key {self.routing_key!r}, {self.size} bytes>"


class _NoWire:
    """Of no protocol."""

    def headers(self, _: Message) -> Mapping[str, object]:
        return {}


NOTHING = Message(_NoWire(), "", "", b"", b"")
"""What is left of a message that has gone, where somebody may still remember it."""
