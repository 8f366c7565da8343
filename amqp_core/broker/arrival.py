"""The sockets of clients whose TLS handshake is not done: they count as clients that are about to log in."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from amqp_core.broker.peer import LOGIN_SECONDS, Peer

if TYPE_CHECKING:
    from ssl import SSLContext

    from amqp_core.broker.server import Server


class Arrival(asyncio.Protocol):
    """The socket of one client of TLS, from its connection to the end of its handshake. For the event loop alone.

    asyncio can do the handshake before it calls a protocol at all: such sockets would have no bound, and each takes a
    buffer of 256 KiB.

    Args:
        server: knows it until the handshake is done, and the client then.
        tls: certificate and authorities.
    """

    def __init__(self, server: Server, tls: SSLContext) -> None:
        self._server = server
        self._tls = tls
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.pause_reading()  # the first bytes are for the handshake
        if self._server.arrived(self):
            self._task = asyncio.get_running_loop().create_task(self._secure(transport))
        else:
            self.abort()

    def abort(self) -> None:
        """Close the socket at once."""
        if self._transport is not None:
            self._transport.abort()

    async def _secure(self, transport: asyncio.Transport) -> None:
        peer = Peer(self._server)
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport,
                peer,
                self._tls,
                server_side=True,
                ssl_handshake_timeout=LOGIN_SECONDS,
                ssl_shutdown_timeout=LOGIN_SECONDS,
            )
        except OSError:  # no TLS, a certificate that is refused, the time is over
            transport.abort()
            return
        finally:
            self._server.handshake_ended(self)
        if secured is not None:
            peer.connection_made(secured)
