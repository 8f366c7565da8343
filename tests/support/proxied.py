"""The connections of a fault proxy: two sockets, two directions, and the effects of faults on each.

Everything here runs in the thread of :class:`tests.support.proxy.FaultProxy`.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.triggers import Trigger

_CHUNK = 65536
_MOST_PENDING = 4 * _CHUNK  # above this a slow receiver slows the sender, as a network does

How = Literal["fin", "reset", "one-sided"]
"""How a connection ends: by FIN, by a reset, or by a reset for the client alone, unnoticed by the broker."""


@dataclass(eq=False)
class Fault:
    """A fault that strikes once or on every connection."""

    name: str
    stalls: bool
    apply: Callable[[Pipe], None] = field(repr=False)
    trigger: Trigger | None = field(repr=False)
    times: int | None
    struck: threading.Event = field(default_factory=threading.Event, repr=False)

    def wait(self, timeout_s: float = 30.0) -> None:
        """Wait until the fault has struck; TimeoutError if it does not."""
        if not self.struck.wait(timeout_s):
            raise TimeoutError(f"the fault {self.name} did not strike in {timeout_s:g} s")


class ProxiedConnection:
    """One connection through the proxy.

    Attributes:
        open: whether both sockets are.
        to_broker, to_client: the two directions.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        client: socket.socket,
        broker: socket.socket,
        *,
        to_broker: list[Fault],
        to_client: list[Fault],
        record: bool,
    ) -> None:
        self.open = True
        self._selector = selector
        self._sockets = (client, broker)
        for end in self._sockets:
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.to_broker = Pipe(self, to_broker, client, broker, record=record)
        self.to_client = Pipe(self, to_client, broker, client, record=record)
        self.pipes = (self.to_broker, self.to_client)
        self._masks = dict.fromkeys(self._sockets, 0)

    def start(self) -> None:
        """Trigger the faults at offset 0."""
        for pipe in self.pipes:
            pipe.process(b"")

    @property
    def from_client(self) -> bytes:
        """Bytes sent by the client, before any faults."""
        return bytes(self.to_broker.stream)

    @property
    def from_broker(self) -> bytes:
        """Bytes sent by the broker, before any faults."""
        return bytes(self.to_client.stream)

    def cut(self, how: How) -> None:
        """End both sockets; pending bytes are sent first as far as the receiver accepts them."""
        if not self.open:
            return
        self.open = False
        for pipe in self.pipes:
            pipe.flush_now()
        for end in self._sockets:
            if self._masks[end]:
                self._selector.unregister(end)
            if how == "one-sided" and end is self._sockets[1]:
                continue
            if how == "fin":
                _finish(end)
            else:
                reset(end)

    def forget(self) -> None:
        """Close the socket that a one-sided cut has left open."""
        for end in self._sockets:
            reset(end)

    def tick(self, now: float) -> None:
        """Perform due actions, and register for the next possible operation of each socket."""
        for pipe in self.pipes:
            pipe.tick(now)
        if not self.open:
            return
        if all(pipe.finished for pipe in self.pipes):
            self.cut("fin")
            return
        for end in self._sockets:
            mask = 0
            for pipe in self.pipes:
                mask |= selectors.EVENT_READ if pipe.source is end and pipe.wants_read else 0
                mask |= selectors.EVENT_WRITE if pipe.target is end and pipe.pending else 0
            self._register(end, mask)

    def _register(self, end: socket.socket, mask: int) -> None:
        old, self._masks[end] = self._masks[end], mask
        if mask == old:
            return
        if not old:
            self._selector.register(end, mask, lambda ready: self._ready(end, ready))
        elif not mask:
            self._selector.unregister(end)
        else:
            self._selector.modify(end, mask, lambda ready: self._ready(end, ready))

    def _ready(self, end: socket.socket, mask: int) -> None:
        for pipe in self.pipes:
            if self.open and mask & selectors.EVENT_READ and pipe.source is end:
                pipe.read()
            if self.open and mask & selectors.EVENT_WRITE and pipe.target is end:
                pipe.write()


class Pipe:
    """One direction of one connection: source, faults, held-back bytes, target."""

    def __init__(
        self,
        connection: ProxiedConnection,
        faults: list[Fault],
        source: socket.socket,
        target: socket.socket,
        *,
        record: bool,
    ) -> None:
        self.connection = connection
        self.source = source
        self.target = target
        self.pending = bytearray()  # to be written as soon as the target accepts it
        self.stream = bytearray()  # all bytes read, if recording
        self.sends = 0  # number of pieces in which bytes were passed to the target
        self._faults = faults
        self._record = record
        self._count = 0  # bytes read
        self._passed = 0  # number of these bytes that went through the faults
        self._rest = b""  # read, but held before the faults by a stall
        self._had: set[Fault] = set()  # faults that struck this connection
        self._held = bytearray()
        self._held_until: float | None = None
        self._late: deque[tuple[float, bytes]] = deque()
        self._stalled = False
        self._split: int | None = None
        self._quiet_s: float | None = None
        self._delay_s = 0.0
        self._drop = 0
        self._lost = False  # half-closed: further bytes are read and discarded
        self._ended = False  # the source has sent its last byte
        self.finished = False  # and the end was passed to the target

    # -- state --

    @property
    def wants_read(self) -> bool:
        return not (self._ended or self._stalled) and len(self.pending) < _MOST_PENDING

    @property
    def deadline(self) -> float | None:
        due = [time_ for time_, _ in list(self._late)[:1]]
        if self._held_until is not None:
            due.append(self._held_until)
        return min(due, default=None)

    # -- effects of faults --

    def half_close(self) -> None:
        self.flush_now()
        self._lost = True
        with contextlib.suppress(OSError):
            self.target.shutdown(socket.SHUT_WR)

    def stall(self) -> None:
        self._stalled = True

    def resume(self) -> None:
        self._stalled = False

    def set_split(self, size: int) -> None:
        self._split = size

    def set_coalesce(self, quiet_s: float) -> None:
        self._quiet_s = quiet_s

    def set_delay(self, seconds: float) -> None:
        self._delay_s = seconds

    def drop(self, count: int) -> None:
        self._drop += count

    # -- moving bytes --

    def read(self) -> None:
        try:
            data = self.source.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:  # reset by the source: the target sees the same
            self.connection.cut("reset")
            return
        if not data:
            self._ended = True
            return
        self._count += len(data)
        if self._record:
            self.stream += data
        self.process(data)

    def process(self, data: bytes) -> None:
        """Pass data through the faults, up to the first one that stops it."""
        data, self._rest = self._rest + data, b""
        while self.connection.open:
            if self._stalled:
                self._rest = data
                return
            fault, offset = self._next_fault()
            if fault is None:
                self._pass(data)
                return
            before = max(0, offset - self._passed)
            self._pass(data[:before])
            data = data[before:]
            self._had.add(fault)
            if fault.times is not None:
                fault.times -= 1
            fault.apply(self)
            fault.struck.set()

    def _next_fault(self) -> tuple[Fault | None, int]:
        first: Fault | None = None
        first_offset = 0
        for fault in self._faults:
            if fault in self._had or fault.times == 0:
                continue
            if fault.trigger is None:
                offset: int | None = self._passed
            else:
                offset = fault.trigger(bytes(self.stream))
            if offset is not None and (first is None or offset < first_offset):
                first, first_offset = fault, offset
        return first, first_offset

    def _pass(self, data: bytes) -> None:
        self._passed += len(data)
        dropped = min(self._drop, len(data))
        self._drop -= dropped
        self.emit(data[dropped:])

    def emit(self, data: bytes) -> None:
        """Pass data towards the target, which may be slow."""
        if self._lost or not data:
            return
        if self._quiet_s is not None:
            self._held += data
            self._held_until = time.monotonic() + self._quiet_s
        elif self._delay_s:
            self._late.append((time.monotonic() + self._delay_s, data))
        else:
            self.pending += data

    def tick(self, now: float) -> None:
        if self._rest and not self._stalled:
            self.process(b"")
        if self._held_until is not None and (now >= self._held_until or self._ended):
            self.pending += self._held
            self._held.clear()
            self._held_until = None
        while self._late and self._late[0][0] <= now:
            self.pending += self._late.popleft()[1]
        waiting = self.pending or self._late or self._rest or self._held
        if self._ended and not waiting and not self.finished and self.connection.open:
            self.finished = True
            with contextlib.suppress(OSError):
                self.target.shutdown(socket.SHUT_WR)

    def write(self) -> None:
        try:
            sent = self.target.send(self.pending[: self._split or len(self.pending)])
        except BlockingIOError:
            return
        except OSError:
            self.connection.cut("reset")
            return
        del self.pending[:sent]
        self.sends += 1

    def flush_now(self) -> None:
        """Write as many bytes as the target accepts without waiting."""
        self.pending += self._held
        self._held.clear()
        self._held_until = None
        with contextlib.suppress(OSError):
            while self.pending:
                del self.pending[: self.target.send(self.pending)]


def _finish(end: socket.socket) -> None:
    # A close with unread data in the socket's buffer would be a reset.
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_WR)
    with contextlib.suppress(OSError):
        while end.recv(_CHUNK):
            pass
    end.close()


def reset(end: socket.socket) -> None:
    """Close a socket so that its peer sees a reset."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()
