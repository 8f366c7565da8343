"""The small client interface that the source needs, so that every protocol version can stand behind it.

``amqp_core.v0_10.client`` implements it for AMQP 0-10. Nothing here is peculiar to one wire: a transfer has a command
id that its session settles it by, credit counts transfers, and a block carries transfers exactly as received.
A client is one incarnation: after a failure it is closed and another one is connected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from amqp_core.address import ConnectOptions

if TYPE_CHECKING:
    from amqp_spark.state.names import Names


class Block(Protocol):
    """Transfers with consecutive command ids, as raw frames."""

    @property
    def frames(self) -> bytes:
        """Whole assemblies exactly as received; may be interleaved with frames that are no transfer."""

    @property
    def ends(self) -> Sequence[int]:
        """The end offset of each transfer in ``frames``."""

    @property
    def first_id(self) -> int:
        """Command id of the first transfer, counted on without end: it does not wrap within a client."""

    @property
    def largest(self) -> int:
        """Bytes of the largest transfer."""


class QueueInfo(Protocol):
    """What a broker says about a queue."""

    @property
    def message_count(self) -> int | None:
        """Messages in the queue; whether those held by consumers count depends on the broker."""

    @property
    def subscriber_count(self) -> int | None:
        """Consumers of the queue."""


class Subscription(Protocol):
    """A flow of transfers from one queue, as far as there is credit."""

    @property
    def credit(self) -> int:
        """Messages that may still come."""

    @property
    def credit_bytes(self) -> float:
        """Bytes of messages that may still come; infinite where one of any size may."""

    def renew(self, messages: int, nbytes: int | None = None) -> None:
        """Replace the credit, without waiting: so many messages of together so many bytes, or of any size.

        What was under way still comes, and counts as credit until the broker has answered.
        """

    def take_blocks(self, timeout: float) -> Sequence[Block]:
        """Wait until transfers came, ``timeout`` seconds passed, or the client was woken; may return none."""

    def take_arrived(self) -> Sequence[Block]:
        """The transfers that came while the client waited for something else."""

    def probe(self) -> None:
        """Replace all credit by one message's, and wait until it has come or there is none; credit is 0 then."""


class StateOwner(Protocol):
    """A state message and its lock, on the session of one client; see :class:`amqp_spark.state.queue.StateQueue`."""

    def lock(self) -> None:
        """Take the lock; ResourceLocked when somebody else has it, and the session is over."""

    def exists(self) -> bool:
        """Whether there is a state."""

    def take(self) -> bytes | None:
        """Acquire the state message; None when there never was one."""

    def create(self, body: bytes) -> None:
        """Put the first one there."""

    def swap(
        self, body: bytes, *, accept: Sequence[tuple[int, int]] = (), sent: Callable[[], None] | None = None
    ) -> None:
        """Replace it and accept transfers of this session, in one transaction. StateError: nothing was committed; any
        other error: that is not known."""


class Client(Protocol):
    """One connection with one session. Not thread-safe except ``wake``."""

    @property
    def counts_held_messages(self) -> bool:
        """Whether ``message_count`` includes messages that consumers hold (Broker-J) or not (qpidd)."""

    @property
    def heartbeat_s(self) -> float:
        """Seconds between heartbeats, as the broker agreed to; 0 is none."""

    def query_queue(self, name: str) -> QueueInfo | None:
        """Ask about a queue; None when it does not exist."""

    def declare_queue(self, name: str, *, durable: bool) -> None:
        """Create the queue unless it exists."""

    def bind(self, queue: str, exchange: str, key: str) -> None:
        """Bind the queue to an exchange."""

    def subscribe(
        self, queue: str, *, accept: bool, acquire: bool, exclusive: bool, selector: str | None
    ) -> Subscription:
        """Start a subscription without credit. No ``accept``: settled when sent; no ``acquire``: browse."""

    def accept(self, ranges: Sequence[tuple[int, int]], *, patience_s: float = 0.0) -> None:
        """Accept transfers by inclusive ranges of command ids; the broker may be silent so long over it."""

    def reject(self, ranges: Sequence[tuple[int, int]], *, text: str, patience_s: float = 0.0) -> None:
        """Reject transfers: to the alternate exchange of the queue, if it has one. As :meth:`accept`."""

    def owner(self, names: Names) -> StateOwner:
        """The state that exactly-once keeps under these names. Nothing is asked or done yet."""

    def sync(self, *, patience_s: float = 0.0) -> None:
        """Wait until the broker has done everything that was sent before; it may be silent so long."""

    def service(self) -> None:
        """Read what is there and send a heartbeat if one is due, without waiting."""

    def pause_reading(self, paused: bool) -> None:  # noqa: FBT001  one switch, named by its method
        """Stop taking transfers from the socket (back-pressure); heartbeats keep going out."""

    def wake(self) -> None:
        """From any thread: let a waiting ``take_blocks`` return."""

    def close(self) -> None:
        """Close in order. What was not accepted goes back to its queue."""


Connector = Callable[[ConnectOptions], Client]
"""Makes the connection of one incarnation, walking the host list once."""

Positions = Mapping[str, int]
"""Per queue, the number of transfers received in an epoch up to some point."""
