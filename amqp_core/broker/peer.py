"""The socket of one client of the embedded broker."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from amqp_core.address import format_address, is_loopback
from amqp_core.broker.login import Caller
from amqp_core.broker.tls import common_name

if TYPE_CHECKING:
    from amqp_core.broker.adapter import Adapter
    from amqp_core.broker.server import Server

_log = logging.getLogger(__name__)

HEADER_BYTES: Final = 8
LOGIN_SECONDS: Final = 10.0
"""Time that a client has until its connection is open."""
CLOSE_SECONDS: Final = 5.0
"""Time that a client has to answer connection.close."""
LINGER_SECONDS: Final = 30.0
"""Time that a client has to read what was written before the end of its connection."""
MOST_UNREAD_BYTES: Final = 4 << 20
"""Bytes that a client has not read, above which it is not read either. Deliveries end at a quarter of that."""


class Peer(asyncio.Protocol):
    """The socket of one client: bytes for its adapter, and time. For the event loop alone."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._connection: Adapter | None = None
        self._first = b""
        self._timer: asyncio.TimerHandle | None = None
        self.name = "?"
        """Its address, for the log."""
        self.caller = Caller(loopback=False)
        self._beating = False
        self._closing = False
        self._bytes = b""
        self._in_transit = 0
        self._is_lost = False

    @property
    def is_open(self) -> bool:
        """Whether it has logged in and opened a virtual host, and is not gone."""
        return self._connection is not None and self._connection.is_open and not self._connection.is_over

    @property
    def is_restrained(self) -> bool:
        """Whether it publishes what there is no room for."""
        return self._connection is not None and self._connection.is_restrained and not self._connection.is_over

    def relieve(self) -> None:
        """Let its publishers go on if there is room again."""
        if self._connection is not None:
            self._connection.relieve()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected; with TLS, bytes may have come before, and it may be gone already."""
        assert isinstance(transport, asyncio.Transport)
        if self._is_lost:
            return
        self._transport = transport
        host, port = transport.get_extra_info("peername")[:2]
        self.name = format_address(host, port)
        self.caller = Caller(is_loopback(host), common_name(transport.get_extra_info("peercert")))
        self._server.joined(self)
        self._timer = asyncio.get_running_loop().call_later(LOGIN_SECONDS, self._too_slow)
        if self._first:
            self.data_received(b"")

    def data_received(self, data: bytes) -> None:
        """Bytes have come; the first of all name the protocol."""
        if self._connection is None:
            self._first += data
            if self._transport is None or len(self._first) < HEADER_BYTES:
                return
            data, self._first = self._first, b""
            self._connection = self._server.adapter(data[:HEADER_BYTES], self)
        self._connection.receive(data)
        self._server.wake(self)

    def eof_received(self) -> bool:
        """The client has closed its side: close this one, too."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed, from whichever side."""
        self._is_lost = True
        if self._timer is not None:
            self._timer.cancel()
        self._server.left(self)
        self._server.memory.transit -= self._in_transit
        if self._connection is not None:
            self._connection.lost()
            if self._connection.username:
                _log.info("%s: disconnected%s", self.name, f" ({exc})" if exc else "")
            self._server.wake_up()

    def pause_writing(self) -> None:
        """The socket takes no more bytes."""
        if self._connection is not None:
            self._connection.paused = True

    def resume_writing(self) -> None:
        """The socket takes bytes again."""
        if self._connection is not None:
            self._connection.paused = False
            self._server.wake(self)

    def take_bytes(self) -> None:
        """Take what is to be written now."""
        if self._connection is not None:
            self._bytes += self._connection.take_bytes()

    def write(self) -> None:
        """Write what was taken."""
        data, self._bytes = self._bytes, b""
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def written(self) -> None:
        """Go on with what waited for the write, and note when the next heartbeat is due."""
        connection, transport = self._connection, self._transport
        if connection is None or transport is None or transport.is_closing():
            return
        if connection.is_over:
            transport.close()
            # there are no heartbeats any more, if there ever were: a client that does not read would stay for ever
            asyncio.get_running_loop().call_later(LINGER_SECONDS, self.abort)
            return
        connection.written()
        self._count(connection, transport)
        self._read_or_stall(connection, transport)
        if connection.is_restrained:
            self._server.restrain(self)
        if connection.is_closing and not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_later(CLOSE_SECONDS, self.abort)
        if connection.is_open and not self._beating:
            self._beating = True
            self._tick()

    def _count(self, connection: Adapter, transport: asyncio.Transport) -> None:
        in_transit = transport.get_write_buffer_size() + connection.unfinished_bytes
        self._server.memory.transit += in_transit - self._in_transit
        self._in_transit = in_transit

    def _read_or_stall(self, connection: Adapter, transport: asyncio.Transport) -> None:
        stalled = connection.is_stalled or transport.get_write_buffer_size() > MOST_UNREAD_BYTES
        if stalled == transport.is_reading():
            if stalled:
                transport.pause_reading()
            else:
                transport.resume_reading()
            connection.is_read = not stalled

    def give_no_more(self) -> None:
        """Deliver nothing more: it ends soon, and others end with it."""
        if self._connection is not None:
            self._connection.give_no_more()

    def stop_consuming(self) -> None:
        """Cancel its consumers: it ends soon, and others end with it."""
        if self._connection is not None:
            self._connection.stop_consuming()

    def shut_down(self) -> None:
        """End the connection because the broker stops (320, connection-forced)."""
        if self._connection is not None:
            self._connection.shut_down()

    def close(self) -> None:
        """Close the socket when all is written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the socket at once."""
        if self._transport is not None:
            self._transport.abort()

    def _tick(self) -> None:
        connection = self._connection
        assert connection is not None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = time.monotonic()
        following = connection.tick(now)
        if connection.is_over:
            self.abort()
        elif following is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, following - now), self._beat)

    def _beat(self) -> None:
        self._timer = None
        self._tick()
        self._server.wake(self)

    def _too_slow(self) -> None:
        self._timer = None
        if self._connection is None or not self._connection.is_open:
            _log.warning("%s: no login within %g s; the connection ends", self.name, LOGIN_SECONDS)
            self.abort()
