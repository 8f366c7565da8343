"""Sockets and time of the embedded broker: one asyncio loop, one port for all protocols."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from amqp_core.broker.arrival import Arrival
from amqp_core.broker.login_checks import LoginChecks
from amqp_core.broker.logins import Logins
from amqp_core.broker.memory_limit import default_memory_limit
from amqp_core.broker.model.memory import Memory
from amqp_core.broker.model.virtual_host import VirtualHost
from amqp_core.broker.peer import CLOSE_SECONDS, Peer
from amqp_core.broker.store.database import StoreError
from amqp_core.broker.store.store import Store
from amqp_core.broker.v0_9.connection import ServerConnection as Connection09
from amqp_core.broker.v0_9.wire import WIRE as WIRE_09
from amqp_core.broker.v0_10.connection import ServerConnection as Connection010
from amqp_core.broker.v0_10.names import SessionNames
from amqp_core.broker.v0_10.wire import WIRE as WIRE_010
from amqp_core.broker.v0_10.wire import WIRE_WITH_EMPTY_BODY
from amqp_core.protocol_header import HEADERS_0_9
from amqp_core.v0_10.framing import PROTOCOL_HEADER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from ssl import SSLContext

    from amqp_core.broker.adapter import Adapter
    from amqp_core.broker.model.messages import Wire

_log = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
VERSIONS: Final = {header: version for version, header in HEADERS_0_9.items()}
WIRES: Final[dict[str, Wire]] = {"0-9": WIRE_09, "0-10": WIRE_010, "0-10 with empty body": WIRE_WITH_EMPTY_BODY}
EXPIRY_SECONDS: Final = 0.05
"""Messages and queues may expire so much late; no consumer gets what is over."""
RELIEF_SECONDS: Final = 0.05
"""Time between two looks whether publishers that are stopped may go on."""
MOST_CONNECTIONS: Final = 2000
LOGINS_BESIDE: Final = 100
"""Clients that may be about to log in while there are as many connections as allowed."""


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
        self._arrivals: set[Arrival] = set()
        self._peers: set[Peer] = set()
        self._dirty: set[Peer] = set()
        self._flushing = False
        self._timer: asyncio.TimerHandle | None = None
        self._restrained: set[Peer] = set()
        self._relief: asyncio.TimerHandle | None = None
        self._server: asyncio.Server | None = None
        self._gone: asyncio.Event | None = None
        """Set when the last client is gone; None: the broker does not stop yet."""
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
        self._server = await loop.create_server(lambda: Peer(self) if tls is None else Arrival(self, tls), host, port)
        self._expect()
        port = self._server.sockets[0].getsockname()[1]
        assert isinstance(port, int)
        return port

    async def stop(self) -> None:
        """Stop listening, end all connections, and close the store."""
        for timer in (self._timer, self._relief):
            if timer is not None:
                timer.cancel()
        self._gone = asyncio.Event()
        if self._server is not None:
            self._server.close()
        for arrival in list(self._arrivals):
            arrival.abort()
        peers = list(self._peers)
        for peer in peers:
            peer.give_no_more()
        for peer in peers:
            peer.stop_consuming()
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
                await self._closed(self._server)
            self.login_checks.stop()
            if self._store is not None:
                self._store.close()

    async def _closed(self, server: asyncio.Server) -> None:
        """Wait until all sockets are closed, those of clients first: asyncio waits for them since Python 3.12 only."""
        gone = self._gone
        assert gone is not None
        if not self._peers:
            gone.set()
        try:
            await asyncio.wait_for(gone.wait(), CLOSE_SECONDS)
        except TimeoutError:
            for peer in list(self._peers):  # they do not read what is still to be written
                peer.abort()
            await gone.wait()
        await server.wait_closed()

    # --- for connections

    def adapter(self, header: bytes, peer: Peer) -> Adapter:
        """The adapter of the protocol that a header names; a stranger is answered with the header of 0-9-1."""
        if header == PROTOCOL_HEADER:
            return Connection010(
                hosts=self.hosts,
                logins=self.logins,
                names=self.session_names,
                clock=self.now,
                wake=lambda: self.wake(peer),
                peer=peer.name,
                caller=peer.caller,
                checks=self.login_checks,
                refuse=self.refuse,
            )
        return Connection09(
            version=VERSIONS.get(header, "0-9-1"),
            hosts=self.hosts,
            logins=self.logins,
            clock=self.now,
            wake=lambda: self.wake(peer),
            peer=peer.name,
            caller=peer.caller,
            checks=self.login_checks,
            refuse=self.refuse,
        )

    def arrived(self, arrival: Arrival) -> bool:
        """A client of TLS has connected; return whether it may begin its handshake."""
        if self._gone is not None or self._is_crowded():
            return False
        self._arrivals.add(arrival)
        return True

    def handshake_ended(self, arrival: Arrival) -> None:
        """It is done, or has failed."""
        self._arrivals.discard(arrival)

    def joined(self, peer: Peer) -> None:
        """A client has connected, and its handshake is done."""
        # it may have been accepted before the end began, or the failure was noted
        is_refused = self._gone is not None or self.failure is not None or self._is_crowded()
        self._peers.add(peer)
        if is_refused:
            peer.abort()

    def _is_crowded(self) -> bool:
        """Whether too many clients are connected for another one that is about to log in; the log says so."""
        if len(self._peers) + len(self._arrivals) < self._max_connections + LOGINS_BESIDE:
            return False
        _log.warning("too many clients are connected; another connection ends")
        return True

    def left(self, peer: Peer) -> None:
        """A client is gone."""
        self._peers.discard(peer)
        self._dirty.discard(peer)
        self._restrained.discard(peer)
        if self._gone is not None and not self._peers:
            self._gone.set()

    def refuse(self) -> str:
        """Why no more connections are taken; empty: they are."""
        if sum(peer.is_open for peer in self._peers) < self._max_connections:
            return ""
        reason = f"connection limit ({self._max_connections}) is reached; raise --max-connections"
        _log.warning("a connection is refused: %s", reason)
        return reason

    def restrain(self, peer: Peer) -> None:
        """A client publishes what there is no room for: look at times whether it may go on."""
        self._restrained.add(peer)
        if self._relief is None:
            self._relief = asyncio.get_running_loop().call_later(RELIEF_SECONDS, self._relieve)

    def wake(self, peer: Peer) -> None:
        """Write what a connection has to say, after the present event."""
        self._dirty.add(peer)
        self.wake_up()

    def wake_up(self) -> None:
        """Write what has changed, after the present event."""
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False  # first of all: an error must not end all writing
        now = self.now()
        for host in self.hosts.values():
            host.effort.next_turn(now)
        dirty, self._dirty = self._dirty, set()
        try:
            self._write(dirty)
        except StoreError as error:
            self._fail(error)
            return
        for peer in dirty:
            peer.written()
        self._expect()
        if self._has_unfinished:
            self.wake_up()

    @property
    def _has_unfinished(self) -> bool:
        """Whether selectors have more to do, after other clients had their turn."""
        return any(host.effort.has_unfinished for host in self.hosts.values())

    def _write(self, peers: Iterable[Peer]) -> None:
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
        self._timer = None  # first of all: an error must not end all expiry
        now = self.now()
        dues = [due for host in self.hosts.values() if (due := host.expire(now)) is not None]
        if dues:
            delay = max(EXPIRY_SECONDS, min(dues) - now)
            self._timer = asyncio.get_running_loop().call_later(delay, self._expire)
        if self._has_unfinished or (self._store is not None and self._store.is_behind):
            self.wake_up()


def _nothing() -> None:
    """Nobody waits for a failure."""
