"""What the clients of all protocols have in common: one connection, and calls that only concern its driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

from amqp_core.error_conditions import CoreCondition
from amqp_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqp_core.api import Block, Identity, LogEntry, Ready
    from amqp_core.transport import Transport


class _Connection(Protocol):
    peer_properties: dict[str, object]
    mechanism: str
    max_frame_size: int

    @property
    def heartbeat_s(self) -> int: ...

    @property
    def under_way_bytes(self) -> int: ...


class _Driver(Protocol):
    reading: bool
    transport: Transport

    @property
    def connection(self) -> _Connection: ...

    def close(self) -> bool: ...

    def abort(self) -> None: ...

    def discard(self) -> None: ...

    def poll(self) -> None: ...

    def wake(self) -> None: ...


DriverT = TypeVar("DriverT", bound=_Driver)


class BaseClient(Generic[DriverT]):
    """A client on the driver of one connection. Not thread-safe, except :meth:`wake`."""

    def __init__(self, driver: DriverT) -> None:
        self._driver = driver

    @property
    def heartbeat_s(self) -> float:
        """Seconds between heartbeats, as agreed with the broker (connection.tune-ok); 0: no heartbeats."""
        return self._driver.connection.heartbeat_s

    @property
    def peer(self) -> str:
        """``host:port`` of the broker."""
        return self._driver.transport.peer

    @property
    def server_properties(self) -> dict[str, object]:
        """The broker's properties from connection.start."""
        return self._driver.connection.peer_properties

    @property
    def mechanism(self) -> str:
        """The SASL mechanism of the login."""
        return self._driver.connection.mechanism

    @property
    def max_frame_size(self) -> int:
        """Bytes of the largest frame, as agreed with the broker (connection.tune-ok)."""
        return self._driver.connection.max_frame_size

    @property
    def is_blocked(self) -> bool:
        """Whether the broker reads nothing of what is sent, since its memory or disk is low (connection.blocked): it
        answers nothing then. AMQP 0-10 has no such state."""
        return False

    @property
    def under_way_bytes(self) -> int:
        """Bytes of the message of which a large part has arrived, as many as are known of; 0 if there is none.

        AMQP 0-9-1 announces the size of a body (section 2.3.5.2); of 0-10 only the bytes that have arrived count.
        """
        return self._driver.connection.under_way_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> bool:
        """Close cleanly in at most 5 s (connection.close). Idempotent; raises no error of the broker.

        Messages that were not accepted go back to their queue.

        Returns:
            Whether the broker has ended the connection, too. Else it may keep these messages, as long as it takes the
            connection for alive.
        """
        return self._driver.close()

    def abort(self) -> None:
        """Drop the connection without a close handshake, as a crash would. Idempotent; raises no error."""
        self._driver.abort()

    def discard(self) -> None:
        """End after a failure, so that partly sent data is not processed later: cleanly within 5 s, else by a reset.

        Raises no error of the broker.
        """
        self._driver.discard()

    def log_entry(self, block: Block, index: int) -> LogEntry | None:
        """Return ``None``: there are no logs."""

    def earlier_deliveries(self, block: Block) -> int:
        """Return 0: messages do not report how often they were delivered."""
        return 0

    def redelivered(self, _block: Block) -> list[int]:
        """Return nothing: not asked of this protocol."""
        return []

    def returned(self, _block: Block) -> list[int]:
        """Return nothing: no queue counts what is returned to it."""
        return []

    def identities(self, _block: Block, _indices: Sequence[int] | None = None) -> list[Identity | None]:
        """Refused: messages do not report how often they were delivered.

        Raises:
            UsageError: always.
        """
        raise _not_counted("Identities of messages")

    def pass_barrier(self, queue: str) -> Ready | None:
        """Refused, as :meth:`identities`.

        Raises:
            UsageError: always.
        """
        raise _not_counted(f"A barrier of queue {queue!r}")

    def service(self) -> None:
        """Read arrived data and send a heartbeat if one is due, without waiting; for a client that is not in use.

        Raises:
            AmqpError: the connection, session or consuming channel has ended.
        """
        self._driver.poll()

    def wake(self) -> None:
        """Make a wait of the client's thread return early. May be called from any thread."""
        self._driver.wake()

    def read_at_most(self, nbytes: int) -> None:
        """Take at most so many bytes at once from the socket; 256 KiB is the default."""
        self._driver.transport.read_bytes = nbytes

    def pause_reading(self, paused: bool) -> None:  # noqa: FBT001 - a switch
        """Leave arriving data in the socket, which slows down the broker; heartbeats are still sent.

        While paused, a silent peer is not taken for lost. Calls that wait for an answer still read.
        """
        self._driver.reading = not paused


def _not_counted(what: str) -> UsageError:
    reason = "no queue counts its deliveries"
    return UsageError(CoreCondition.NOT_SUPPORTED(what=what, protocol="0-10", reason=reason, action="Use transactions"))
