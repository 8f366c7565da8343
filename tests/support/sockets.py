"""Tests transports against plain sockets."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqp_core.transport import Transport

HOST = "127.0.0.1"


def read(transport: Transport, size: int) -> bytes:
    """Wait for this many bytes."""
    data, deadline = b"", time.monotonic() + 10
    while len(data) < size:
        assert time.monotonic() < deadline
        part = transport.read()
        assert part != b"", "the stream ended"
        data += part or b""
        if part is None:
            transport.wait(1)
    return data


def reset(peer: socket.socket) -> None:
    """Close with a TCP reset."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    peer.close()


def wait_on(transport: Transport) -> None:
    """Read and wait until the transport fails."""
    while True:
        transport.wait(10)
        transport.read()
