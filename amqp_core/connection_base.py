"""What the connection state machines of all protocols have in common: they take bytes frame by frame until messages are
scanned, keep what waits to be written, and send heartbeats. No socket, no clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from amqp_core.blocks import Block
from amqp_core.connection_states import Role, State
from amqp_core.errors import AmqpError, AuthenticationFailed, ProtocolError, VersionRefused
from amqp_core.heartbeat import Heartbeat
from amqp_core.protocol_header import describe_stranger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from amqp_core.scanning import BlockScanner

EventT = TypeVar("EventT")
FrameT = TypeVar("FrameT")


class BaseConnection(ABC, Generic[EventT, FrameT]):
    """One end of a connection. Not thread-safe.

    Args:
        role: of this end.
        state: what is awaited first.
        heartbeat: wished seconds between heartbeats; 0: none.
        parse: reads a frame, which has at most so many bytes, at a place of a buffer; returns it and its end, or None
            if a part is missing.
        received_limit: bytes of the largest frame that is taken before a limit is agreed.
        scanner: of messages, which are then not read frame by frame once the connection is open.

    Attributes:
        role: of this end.
        state: what is awaited.
    """

    _protocol: str
    """For errors."""
    _before_frames: ClassVar[frozenset[State]]
    """The states in which frames are not read yet."""

    def __init__(
        self,
        role: Role,
        state: State,
        *,
        heartbeat: int,
        parse: Callable[[bytes, int, int], tuple[FrameT, int] | None],
        received_limit: int,
        scanner: BlockScanner | None,
    ) -> None:
        self.role = role
        self.state = state
        self._heartbeat = Heartbeat(heartbeat)
        self._parse = parse
        self._received_limit = received_limit
        self._scan = scanner
        self._scanning = False
        self._failed = False  # at an error of the peer that was found here
        self._tail = b""
        self._out: list[bytes] = []
        self._last = b""  # written behind all else

    @property
    def heartbeat_s(self) -> int:
        """Seconds between heartbeats: wished at first, then as agreed with the peer; 0: no heartbeats."""
        return self._heartbeat.interval_s

    @property
    def under_way_bytes(self) -> int:
        """See :attr:`.BlockScanner.under_way_bytes`; 0 where messages are not scanned."""
        return 0 if self._scan is None else self._scan.under_way_bytes

    @property
    def is_ended_by_peer(self) -> bool:
        """Whether the peer has ended the connection, or has answered its end; not where this side has given it up."""
        return self.state is State.CLOSED and not self._failed

    def data_to_send(self) -> bytes:
        """Return and clear the bytes that wait to be written.

        In the server role connection.close-ok, or the connection.close of an error of the peer, is behind all that the
        caller has sent about the events before it.
        """
        if self._last:
            self._out.append(self._last)
            self._last = b""
        data = b"".join(self._out)
        self._out.clear()
        if data:
            self._heartbeat.sent = True
        return data

    def receive_data(self, data: bytes) -> list[EventT]:
        """Process received bytes; return their events, in order.

        A protocol violation ends the connection: the last event is then :class:`.Ended` with the error, after the
        events of all complete data before it, and a connection.close for the peer waits to be sent. The same holds for
        errors of the login. So no AmqpError is raised.
        """
        events: list[EventT] = []
        if self.state is State.CLOSED:
            return events
        if data:
            self._heartbeat.received = True
        try:
            if self.state in self._before_frames:
                self._tail += data
                data = b""
                if not self._receive_first():
                    return events
            self._receive_frames(data, events)
        except AmqpError as error:
            self._failed = True
            self._fail(error, events)
        return events

    def login_checked(self, error: AuthenticationFailed | None) -> list[EventT]:
        """For the server role: the login that ``authenticate`` left open is complete, or refused. Return its events."""
        events: list[EventT] = []
        if self.state is State.CHECKING:
            if error is None:
                self._accept_login()
            else:
                self._fail(error, events)
        return events

    def tick(self, now: float, *, reading: bool = True) -> tuple[float | None, bool]:
        """Send a heartbeat if one is due; return the time of the next call, and whether the peer is silent.

        As :meth:`amqp_core.heartbeat.Heartbeat.tick`.
        """
        due, following, silent = self._heartbeat.tick(now, reading=reading, is_open=self.state is State.OPEN)
        if due:
            self._send_heartbeat()
        return following, silent

    def _say_last(self) -> None:
        """What was queued last ends the connection. A server has yet to answer, or confirm, what came before."""
        if self.role is Role.SERVER:
            self._last = self._out.pop()

    def _refused(self, how: str) -> VersionRefused:
        return VersionRefused(describe_stranger(self._tail), self._protocol, how)

    def _receive_frames(self, data: bytes, events: list[EventT]) -> None:
        if self._scanning:
            self._scan_frames(data, events)
            return
        buffer = self._tail + data if self._tail else data
        pos = 0
        try:
            while (parsed := self._parse(buffer, pos, self._received_limit)) is not None:
                frame, pos = parsed
                self._receive_frame(frame, events)
                if self._scan is not None and self.state is State.OPEN:
                    self._scanning = True
                    self._tail = b""
                    rest, buffer, pos = buffer[pos:], b"", 0
                    self._scan_frames(rest, events)
                    return
                if self.state is State.CLOSED:
                    break
        finally:
            self._tail = buffer[pos:]

    def _scan_frames(self, data: bytes, events: list[EventT]) -> None:
        scanner = self._scan
        assert scanner is not None
        for item in scanner.feed(data, self._received_limit):
            if isinstance(item, Block):
                if self.state is State.OPEN:
                    events += self._scanned(item)
            else:
                parsed = self._parse(item, 0, len(item))  # the scanner has seen to its limit
                if parsed is None:
                    raise ProtocolError("a frame was cut off")
                self._receive_frame(parsed[0], events)
            if self.state is State.CLOSED:
                return
        if scanner.error is not None:
            raise scanner.error
        if scanner.begun and self.state is State.OPEN:
            events.append(self._begun(scanner.begun))

    @abstractmethod
    def _receive_first(self) -> bool:
        """Whether what comes before the first frame has arrived, after it was answered; VersionRefused: from a peer of
        another protocol."""

    @abstractmethod
    def _receive_frame(self, frame: FrameT, events: list[EventT]) -> None:
        """Process a frame that is not one of a scanned message."""

    @abstractmethod
    def _scanned(self, block: Block) -> Iterable[EventT]:
        """The events of a block of messages."""

    @abstractmethod
    def _begun(self, frames: bytes) -> EventT:
        """The event of a large message of which a part has arrived: its first frames."""

    @abstractmethod
    def _accept_login(self) -> None:
        """Go on after the login."""

    @abstractmethod
    def _send_heartbeat(self) -> None:
        """Queue a heartbeat."""

    @abstractmethod
    def _fail(self, error: AmqpError, events: list[EventT]) -> None:
        """End the connection because of an error of the peer."""
