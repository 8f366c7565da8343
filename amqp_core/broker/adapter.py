"""What the server needs of a connection, whichever protocol it speaks: bytes in, bytes out, no I/O."""

from __future__ import annotations

from typing import Final, Protocol

PRODUCT: Final = "amqp_core broker"
HEARTBEAT_S: Final = 60
MOST_PENDING_BYTES: Final = 1 << 20
"""Bytes for a client that are not written yet, above which it gets no more messages."""


class Adapter(Protocol):
    """One connection of a client. Not thread-safe.

    Attributes:
        username: name of the login; empty before it.
        is_over: whether the connection can be dropped when all is written.
        paused: whether the socket takes no more bytes at present; the server sets it.
    """

    username: str
    is_over: bool
    paused: bool

    @property
    def is_open(self) -> bool:
        """Whether the client has opened a virtual host."""

    @property
    def is_closing(self) -> bool:
        """Whether the client has to answer connection.close."""

    @property
    def is_stalled(self) -> bool:
        """Whether nothing more is to be read until the client has read what was sent."""

    def receive(self, data: bytes) -> None:
        """Process received bytes."""

    def take_bytes(self) -> bytes:
        """Return what is to be written now, and forget it."""

    def written(self) -> None:
        """The socket takes more: go on with what waited for it."""

    def tick(self, now: float) -> float | None:
        """Send a heartbeat if one is due; return the time of the next call. A client that is silent is given up."""

    def lost(self) -> None:
        """The connection is gone: return what it held."""

    def shut_down(self) -> None:
        """Tell the client that the broker stops."""
