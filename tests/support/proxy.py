"""A TCP proxy with faults on request, between a client and a real broker.

One thread moves the bytes of all connections. The test's thread orders faults on the lane that they should strike:
``proxy.to_client.cut(after(100))``. Orders without a trigger strike at once.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Self

from tests.support.process import wait_until
from tests.support.proxied import Fault, How, Pipe, ProxiedConnection, reset

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.triggers import Trigger

HOST = "127.0.0.1"


class Lane:
    """One direction of all connections of a proxy.

    Every order takes ``at``, a trigger for the offset in this direction of a connection where it strikes (None: now),
    and ``times``, the number of connections to strike (None: each, also future ones).
    """

    def __init__(self, proxy: FaultProxy, name: str) -> None:
        self.name = name
        self.faults: list[Fault] = []
        self._proxy = proxy

    def cut(self, at: Trigger | None = None, *, how: How = "fin", times: int | None = 1) -> Fault:
        """End the connection in both directions, by ``fin`` or by ``reset``; earlier bytes arrive.

        ``one-sided``: the client sees a reset, and the broker sees a silent client.
        """
        return self._order(f"cut by {how}", lambda pipe: pipe.connection.cut(how), at, times)

    def half_close(self, at: Trigger | None = None, *, times: int | None = 1) -> Fault:
        """End this direction by FIN and lose later bytes; the other direction continues."""
        return self._order("half-close", Pipe.half_close, at, times)

    def stall(self, at: Trigger | None = None, *, times: int | None = 1) -> Fault:
        """Pass and read nothing more, until :meth:`FaultProxy.resume`; the connection stays open."""
        return self._order("stall", Pipe.stall, at, times, stalls=True)

    def split(self, at: Trigger | None = None, *, size: int = 1, times: int | None = None) -> Fault:
        """Send pieces of ``size`` bytes from here on."""
        return self._order(f"split into {size}", lambda pipe: pipe.set_split(size), at, times)

    def coalesce(self, at: Trigger | None = None, *, quiet_s: float = 0.05, times: int | None = None) -> Fault:
        """Hold all bytes from here on, and send them together after ``quiet_s`` seconds without new ones."""
        return self._order("coalesce", lambda pipe: pipe.set_coalesce(quiet_s), at, times)

    def delay(self, seconds: float, at: Trigger | None = None, *, times: int | None = None) -> Fault:
        """Delay all bytes from here on by ``seconds``."""
        return self._order(f"delay {seconds:g} s", lambda pipe: pipe.set_delay(seconds), at, times)

    def inject(self, data: bytes, at: Trigger | None = None, *, times: int | None = 1) -> Fault:
        """Insert ``data``, which the sender did not send."""
        return self._order(f"inject {len(data)} bytes", lambda pipe: pipe.emit(data), at, times)

    def drop(self, count: int, at: Trigger | None = None, *, times: int | None = 1) -> Fault:
        """Drop the next ``count`` bytes; with :meth:`inject` at the same place they are replaced."""
        return self._order(f"drop {count} bytes", lambda pipe: pipe.drop(count), at, times)

    def _order(
        self,
        name: str,
        apply: Callable[[Pipe], None],
        at: Trigger | None,
        times: int | None,
        *,
        stalls: bool = False,
    ) -> Fault:
        if at is not None and not self._proxy.record:
            raise ValueError("triggers need a proxy that records")
        fault = Fault(f"{name} {self.name}", stalls, apply, at, times)
        self._proxy.run(lambda: self.faults.append(fault))
        return fault


class FaultProxy:
    """Listens on a port of its own and passes every connection on to ``target``.

    Args:
        target: host and port of the broker; :meth:`retarget` changes it for future connections.
        record: whether the passed bytes are kept, in ``connections``. Triggers need it.

    Attributes:
        port: to connect to, at ``127.0.0.1``.
        to_broker: the lane from clients to the broker.
        to_client: the lane from the broker to clients.
        connections: all connections ever made, in order.
    """

    def __init__(self, target: tuple[str, int], *, record: bool = True) -> None:
        self._target = target
        self.record = record
        self.to_broker = Lane(self, "to the broker")
        self.to_client = Lane(self, "to the client")
        self.connections: list[ProxiedConnection] = []
        self._selector = selectors.DefaultSelector()
        self._orders: deque[Callable[[], None]] = deque()
        self._wake_in, self._wake_out = socket.socketpair()
        for end in (self._wake_in, self._wake_out):
            end.setblocking(False)
        self._selector.register(self._wake_in, selectors.EVENT_READ, self._drain_wakes)
        self._listener: socket.socket | None = None
        self.port = self._listen(0)
        self._stopping = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._loop, name=f"fault-proxy-{self.port}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- for the test's thread ------------------------------------------------------------------------------

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to connect to."""
        return HOST, self.port

    @property
    def open_connections(self) -> int:
        """Number of open connections."""
        return sum(connection.open for connection in self.connections)

    def wait_for_connections(self, count: int, timeout_s: float = 30.0) -> None:
        """Wait until ``count`` connections have been made in all."""
        wait_until(lambda: len(self.connections) >= count, f"{count} connections", timeout_s)

    def cut_all(self, how: How = "reset") -> None:
        """End all open connections."""

        def cut() -> None:
            for connection in self._open():
                connection.cut(how)

        self.run(cut)

    def resume(self) -> None:
        """End every stall, of this and later connections."""

        def resume() -> None:
            for lane in (self.to_broker, self.to_client):
                lane.faults[:] = [fault for fault in lane.faults if not fault.stalls]
            for connection in self._open():
                for pipe in connection.pipes:
                    pipe.resume()

        self.run(resume)

    def clear(self) -> None:
        """Forget all faults; those that struck a connection keep their effect on it."""

        def clear() -> None:
            for lane in (self.to_broker, self.to_client):
                lane.faults.clear()

        self.run(clear)

    def retarget(self, target: tuple[str, int]) -> None:
        """Send future connections to another broker."""
        self._target = target

    def refuse(self) -> None:
        """Stop listening: the system refuses new connections, open ones continue."""

        def refuse() -> None:
            if self._listener is not None:
                self._selector.unregister(self._listener)
                self._listener.close()
                self._listener = None

        self.run(refuse)

    def listen_again(self) -> None:
        """Listen on the same port again after :meth:`refuse`."""

        def listen() -> None:
            if self._listener is None:
                self._listen(self.port)

        self.run(listen)

    def close(self) -> None:
        """End all connections and the thread.

        Raises:
            Exception: an error raised by a trigger in the thread of the proxy.
        """
        self._stopping = True
        self._wake()
        if self._thread.ident is not None:
            self._thread.join()
        for end in (self._wake_in, self._wake_out, self._listener):
            if end is not None:
                end.close()
        self._selector.close()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def run(self, order: Callable[[], None]) -> None:
        """Run a function in the proxy's thread, and wait until it is done."""
        done = threading.Event()

        def carry_out() -> None:
            order()
            for connection in self._open():
                for pipe in connection.pipes:
                    pipe.process(b"")  # an order without a trigger also strikes a silent connection
            done.set()

        if not self._thread.is_alive():
            order()
            return
        self._orders.append(carry_out)
        self._wake()
        while not done.wait(0.1):
            if not self._thread.is_alive():
                raise RuntimeError("the proxy's thread has ended") from self._failure

    # -- the proxy's thread ---------------------------------------------------------------------------------

    def _loop(self) -> None:
        try:
            while not self._stopping:
                for key, mask in self._selector.select(self._next_deadline()):
                    key.data(mask)
                while self._orders:
                    self._orders.popleft()()
                now = time.monotonic()
                for connection in self._open():
                    connection.tick(now)
        except BaseException as error:  # noqa: BLE001 - handed to the test's thread by close()
            self._failure = error
        finally:
            for connection in self.connections:
                connection.cut("reset")
                connection.forget()

    def _open(self) -> list[ProxiedConnection]:
        return [connection for connection in self.connections if connection.open]

    def _next_deadline(self) -> float | None:
        deadlines = [d for c in self._open() for p in c.pipes if (d := p.deadline) is not None]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _listen(self, port: int) -> int:
        self._listener = socket.create_server((HOST, port))
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        bound: int = self._listener.getsockname()[1]
        return bound

    def _accept(self, _mask: int) -> None:
        assert self._listener is not None
        client, _ = self._listener.accept()
        try:
            broker = socket.create_connection(self._target, 10)
        except OSError:
            reset(client)  # as when the broker behind a load balancer is gone
            return
        connection = ProxiedConnection(
            self._selector,
            client,
            broker,
            to_broker=self.to_broker.faults,
            to_client=self.to_client.faults,
            record=self.record,
        )
        self.connections.append(connection)
        connection.start()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: the thread is awake
            self._wake_out.send(b"\0")

    def _drain_wakes(self, _mask: int) -> None:
        self._wake_in.recv(4096)
