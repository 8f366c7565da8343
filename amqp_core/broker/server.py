"""Sockets and time of the embedded broker: one asyncio loop, one port for all protocols."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from amqp_core.address import format_address, is_loopback
from amqp_core.broker.login import Caller
from amqp_core.broker.login_checks import LoginChecks
from amqp_core.broker.logins import Logins
from amqp_core.broker.memory_limit import default_memory_limit
from amqp_core.broker.model.memory import Memory
from amqp_core.broker.model.virtual_host import VirtualHost
from amqp_core.broker.store.database import StoreError
from amqp_core.broker.store.store import Store
from amqp_core.broker.tls import common_name
from amqp_core.broker.v0_9.connection import ServerConnection as Connection09
from amqp_core.broker.v0_9.wire import WIRE as WIRE_09
from amqp_core.broker.v0_10.connection import ServerConnection as Connection010
from amqp_core.broker.v0_10.names import SessionNames
from amqp_core.broker.v0_10.wire import WIRE as WIRE_010
from amqp_core.v0_9.connection import HEADERS
from amqp_core.v0_10.framing import PROTOCOL_HEADER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from ssl import SSLContext

    from amqp_core.broker.adapter import Adapter
    from amqp_core.broker.model.messages import Wire

_log = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
VERSIONS: Final = {header: version for version, header in HEADERS.items()}
WIRES: Final[dict[str, Wire]] = {"0-9": WIRE_09, "0-10": WIRE_010}
HEADER_BYTES: Final = 8
LOGIN_SECONDS: Final = 10.0
"""Time that a client has until its connection is open."""
CLOSE_SECONDS: Final = 5.0
"""Time that a client has to answer connection.close."""
EXPIRY_SECONDS: Final = 0.05
"""Messages and queues may expire so much late; no consumer gets what is over."""
RELIEF_SECONDS: Final = 0.05
"""Time between two looks whether publishers that are stopped may go on."""
MOST_CONNECTIONS: Final = 2000
LOGINS_BESIDE: Final = 100
"""Clients that may be about to log in while there are as many connections as allowed."""
MOST_UNREAD_BYTES: Final = 4 << 20
"""Bytes that a client has not read, above which it is not read either. Deliveries end at a quarter of that."""


class Server:
    """The broker: virtual hosts, and the connections to them. Everything runs in one event loop.

    Args:
        hosts: names of the virtual hosts.
        logins: who may log in.
        store: file that keeps what is durable; None: everything is in memory. The virtual hosts in it are served, too.
        memory_limit: bytes of messages above which publishers are stopped; None: 40 % of the machine's memory.
        max_connections: connections that may be open at a time.

    Raises:
        StoreError: the store cannot be used.
    """

    def __init__(
        self,
        hosts: Iterable[str] = ("/",),
        logins: Logins | None = None,
        store: str | Path | None = None,
        *,
        memory_limit: int | None = None,
        max_connections: int = MOST_CONNECTIONS,
    ) -> None:
        self._begin = time.time() - time.monotonic()
        self.memory = Memory(default_memory_limit() if memory_limit is None else memory_limit)
        self._max_connections = max_connections
        self._store = None if store is None else Store(store, WIRES, now=self.now(), memory=self.memory)
        self.hosts: dict[str, VirtualHost] = {} if self._store is None else self._store.hosts
        for name in hosts:
            self.add_host(name)
        self.logins = logins or Logins()
        self.login_checks = LoginChecks()
        self.failure: StoreError | None = None
        """Why the broker has stopped by itself."""
        self.session_names = SessionNames()
        self._peers: set[_Peer] = set()
        self._dirty: set[_Peer] = set()
        self._flushing = False
        self._timer: asyncio.TimerHandle | None = None
        self._restrained: set[_Peer] = set()
        self._relief: asyncio.TimerHandle | None = None
        self._server: asyncio.Server | None = None
        self._on_failure: Callable[[], None] = _nothing

    def add_host(self, name: str) -> VirtualHost:
        """The virtual host of that name; a new one if there is none."""
        if name not in self.hosts:
            self.hosts[name] = VirtualHost(name, self.memory) if self._store is None else self._store.host(name)
        return self.hosts[name]

    def now(self) -> float:
        """Time of the model: seconds since 1970 that never go back."""
        return self._begin + time.monotonic()

    async def start(
        self,
        port: int = 0,
        on_failure: Callable[[], None] | None = None,
        *,
        host: str = HOST,
        tls: SSLContext | None = None,
    ) -> int:
        """Listen on a port, 0: a free one; return it.

        Args:
            on_failure: called when the store cannot be written any more: see ``failure``, and call ``stop``.
            host: the address to listen on.
            tls: clients have to use TLS.

        Raises:
            OSError: address or port cannot be used.
            StoreError: the store cannot be written.
        """
        self._on_failure = on_failure or _nothing
        self._commit()
        loop = asyncio.get_running_loop()
        patience = None if tls is None else LOGIN_SECONDS
        self._server = await loop.create_server(
            lambda: _Peer(self), host, port, ssl=tls, ssl_handshake_timeout=patience, ssl_shutdown_timeout=patience
        )
        self._expect()
        port = self._server.sockets[0].getsockname()[1]
        assert isinstance(port, int)
        return port

    async def stop(self) -> None:
        """Stop listening, end all connections, and close the store."""
        for timer in (self._timer, self._relief):
            if timer is not None:
                timer.cancel()
        if self._server is not None:
            self._server.close()
        peers = list(self._peers)
        for peer in peers:
            peer.shut_down()
        try:
            self._write(peers)
        except StoreError as error:
            self._fail(error)
        finally:
            for peer in peers:
                peer.close()
            if self._server is not None:
                await self._server.wait_closed()
            self.login_checks.stop()
            if self._store is not None:
                self._store.close()

    # --- for connections

    def joined(self, peer: _Peer) -> None:
        """A client has connected."""
        self._peers.add(peer)
        if len(self._peers) > self._max_connections + LOGINS_BESIDE:
            _log.warning("%s: too many clients are connected; the connection ends", peer.name)
            peer.abort()

    def left(self, peer: _Peer) -> None:
        """A client is gone."""
        self._peers.discard(peer)
        self._dirty.discard(peer)
        self._restrained.discard(peer)

    def refuse(self) -> str:
        """Why no more connections are taken; empty: they are."""
        if sum(peer.is_open for peer in self._peers) < self._max_connections:
            return ""
        reason = f"{self._max_connections} connections are open, which are the most; raise --max-connections"
        _log.warning("a connection is refused: %s", reason)
        return reason

    def restrain(self, peer: _Peer) -> None:
        """A client publishes what there is no room for: look at times whether it may go on."""
        self._restrained.add(peer)
        if self._relief is None:
            self._relief = asyncio.get_running_loop().call_later(RELIEF_SECONDS, self._relieve)

    def wake(self, peer: _Peer) -> None:
        """Write what a connection has to say, after the present event."""
        self._dirty.add(peer)
        self.wake_up()

    def wake_up(self) -> None:
        """Write what has changed, after the present event."""
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        dirty, self._dirty = self._dirty, set()
        try:
            self._write(dirty)
        except StoreError as error:
            self._fail(error)
            return
        for peer in dirty:
            peer.written()
        self._expect()

    def _write(self, peers: Iterable[_Peer]) -> None:
        """Write to clients what they have to know, after the changes that it follows from are on the disk.

        So one commit serves all that has arrived meanwhile, from whichever client, and no confirmation, delivery or
        completion is ahead of the store.
        """
        for peer in peers:
            peer.take_bytes()
        self._commit()
        for peer in peers:
            peer.write()

    def _commit(self) -> None:
        if self._store is not None and self.failure is None:
            self._store.commit()

    def _fail(self, error: StoreError) -> None:
        """The memory is ahead of the store: end all connections without another word, and stop."""
        if self.failure is None:
            self.failure = error
            _log.error("%s", error)
            for peer in list(self._peers):
                peer.abort()
            self._on_failure()

    def _relieve(self) -> None:
        self._relief = None
        for peer in list(self._restrained):
            peer.relieve()
            self.wake(peer)
        restrained, self._restrained = self._restrained, set()
        for peer in restrained:
            if peer.is_restrained:
                self.restrain(peer)

    def _expect(self) -> None:
        """Look soon at what has a new end by time; not at once, since many messages with an end may come."""
        if not any(host.has_new_expiry for host in self.hosts.values()):
            return
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + EXPIRY_SECONDS:
                return
            self._timer.cancel()
        self._timer = loop.call_later(EXPIRY_SECONDS, self._expire)

    def _expire(self) -> None:
        """Let messages and queues expire, and come back when the next ones do."""
        now = self.now()
        dues = [due for host in self.hosts.values() if (due := host.expire(now)) is not None]
        self._timer = None
        if dues:
            delay = max(EXPIRY_SECONDS, min(dues) - now)
            self._timer = asyncio.get_running_loop().call_later(delay, self._expire)
        if self._store is not None and self._store.is_behind:
            self.wake_up()


def _nothing() -> None:
    """Nobody waits for a failure."""


class _Peer(asyncio.Protocol):
    """The socket of one client."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._connection: Adapter | None = None
        self._first = b""
        self._timer: asyncio.TimerHandle | None = None
        self._name = "?"
        self._caller = Caller(loopback=False)
        self._beating = False
        self._closing = False
        self._bytes = b""
        self._in_transit = 0

    @property
    def name(self) -> str:
        """Its address, for the log."""
        return self._name

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
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        host, port = transport.get_extra_info("peername")[:2]
        self._name = format_address(host, port)
        self._caller = Caller(is_loopback(host), common_name(transport.get_extra_info("peercert")))
        self._server.joined(self)
        self._timer = asyncio.get_running_loop().call_later(LOGIN_SECONDS, self._too_slow)

    def data_received(self, data: bytes) -> None:
        if self._connection is None:
            self._first += data
            if len(self._first) < HEADER_BYTES:
                return
            data, self._first = self._first, b""
            self._connection = self._adapter(data[:HEADER_BYTES])
        self._connection.receive(data)
        self._server.wake(self)

    def _adapter(self, header: bytes) -> Adapter:
        """The adapter of the protocol that a header names; a stranger is answered with the header of 0-9-1."""
        server = self._server
        if header == PROTOCOL_HEADER:
            return Connection010(
                hosts=server.hosts,
                logins=server.logins,
                names=server.session_names,
                clock=server.now,
                wake=lambda: server.wake(self),
                peer=self._name,
                caller=self._caller,
                checks=server.login_checks,
                refuse=server.refuse,
            )
        return Connection09(
            version=VERSIONS.get(header, "0-9-1"),
            hosts=server.hosts,
            logins=server.logins,
            clock=server.now,
            wake=lambda: server.wake(self),
            peer=self._name,
            caller=self._caller,
            checks=server.login_checks,
            refuse=server.refuse,
        )

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._server.left(self)
        self._server.memory.transit -= self._in_transit
        if self._connection is not None:
            self._connection.lost()
            if self._connection.username:
                _log.info("%s: disconnected%s", self._name, f" ({exc})" if exc else "")
            self._server.wake_up()

    def pause_writing(self) -> None:
        if self._connection is not None:
            self._connection.paused = True

    def resume_writing(self) -> None:
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
            _log.warning("%s: no login within %g s; the connection ends", self._name, LOGIN_SECONDS)
            self.abort()
