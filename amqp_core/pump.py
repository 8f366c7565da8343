"""Pump bytes between a transport and a protocol, with a deadline for every wait: the I/O loop of a blocking client.

A protocol supplies an :class:`Endpoint`, which does no I/O. The pump knows no protocol: it reads, writes, keeps
heartbeats and deadlines, tolerates announced silence, and ends the connection after the first error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Protocol

from amqp_core.error_conditions import CoreCondition
from amqp_core.errors import AmqpError, ConnectionFailed, DeadlineExceeded, UsageError, VersionRefused
from amqp_core.transport import Transport, connection_lost, monotonic

if TYPE_CHECKING:
    from collections.abc import Callable

_CLOSE_TIMEOUT_S = 5.0
# Interval of the checks while a silent peer is tolerated; heartbeats are still sent in time.
_SILENT_TICK_S = 0.5
# While more bytes than this wait for a peer that does not read, nothing is read from it: its data causes more answers.
_MOST_PENDING = 1 << 24
# The answer to a call arrives after the data under way: each time that so many bytes arrive, the wait starts anew.
_FLOWING_BYTES = 1 << 16


class Endpoint(Protocol):
    """One side of a connection and its session, without I/O: bytes in, bytes out. Used by the pump's thread only."""

    @property
    def is_open(self) -> bool:
        """Whether the login is finished, so that heartbeats may be due."""

    @property
    def error(self) -> AmqpError | None:
        """The error that ended the session, while the connection may continue; it is preferred to any later one."""

    def data_to_send(self) -> bytes:
        """Return and clear the bytes that wait to be written."""

    def receive(self, data: bytes) -> AmqpError | None:
        """Process received bytes; return or raise the error that ends the connection, if any."""

    def receive_eof(self) -> AmqpError | None:
        """Handle the end of the peer's data; return what it explains."""

    def tick(self, now: float, *, reading: bool) -> tuple[float | None, bool]:
        """Queue a heartbeat if it is due; return the time of the next call, and whether the peer is silent.

        As :meth:`amqp_core.heartbeat.Heartbeat.tick`.
        """

    def report(self, now: float) -> float:
        """Queue the reports to the peer that are due; return the latest time of the next call (infinite: none)."""

    def close(self, error: AmqpError) -> None:
        """Queue the close of the connection because of an error."""


class Pump:
    """A transport and an endpoint that work together; after the first error it stays broken. One *incarnation*.

    It owns the transport. Not thread-safe, except :meth:`wake`.

    Attributes:
        call_timeout_s: timeout of every call that waits for the broker, in seconds; ``inf``: none.
        reading: ``False`` while arriving data is deliberately left in the socket.
        heard_at: time of the latest received data, in monotonic seconds.
        received_bytes: bytes received so far.

    Raises:
        UsageError: ``call_timeout_s`` is no positive number.
    """

    def __init__(self, transport: Transport, endpoint: Endpoint, *, call_timeout_s: float) -> None:
        if not call_timeout_s > 0:  # or nan, with which a wait would not end, and not rest
            name = f"call_timeout_s={call_timeout_s}"
            raise UsageError(CoreCondition.ARGUMENT_INVALID(name=name, reason="a positive number is needed, or inf"))
        self.transport = transport
        self.call_timeout_s = call_timeout_s
        self.reading = True
        self.heard_at = monotonic()
        self.received_bytes = 0
        self._endpoint = endpoint
        self._broken: AmqpError | None = None
        self._closed = False
        self._next_tick: float | None = 0.0
        self._silence_allowed_until = 0.0
        self._silent_until = 0.0
        self._speaks_again: Callable[[], bool] | None = None
        self._woken = False
        self._stuck_at: float | None = None
        self._stuck_sent = 0
        self._publishes = False
        """Whether messages were written: those that the peer has not read must not be taken after an error."""

    def end(self, say_goodbye: Callable[[float], None]) -> None:
        """Close cleanly unless the connection is broken, in at most 5 s; then close the transport. Idempotent.

        ``say_goodbye`` runs the closing handshake of the protocol until the deadline that it is given.
        """
        if self._closed:
            return
        self._closed = True
        error = self._broken or self._endpoint.error
        try:
            if error is None:
                say_goodbye(monotonic() + _CLOSE_TIMEOUT_S)
        except AmqpError:
            pass  # the broker notices the closed socket in any case
        finally:
            self._broken = error or UsageError(CoreCondition.CLIENT_CLOSED())
            self.transport.close()

    def abort(self) -> None:
        """Drop the connection without a close handshake, as a crash would."""
        self._closed = True
        self._broken = self._broken or UsageError(CoreCondition.CLIENT_CLOSED())
        self.transport.close()

    def close(self) -> bool:
        """Close cleanly; a protocol calls :meth:`end` with its handshake, and returns whether it was completed."""
        self.end(lambda _: None)
        return False

    def discard(self) -> None:
        """Close cleanly if the peer answers within 5 s, else with a reset: data that it has not read is never sent."""
        self.transport.reset_on_close(True)
        if self.transport.pending_bytes:
            self.abort()
        else:
            self.close()

    def is_broken(self) -> bool:
        """Whether the connection has ended."""
        return self._broken is not None

    def check(self) -> None:
        """Raise the error that ended the connection or session, if it has ended."""
        if self._broken is not None:
            raise self._broken
        error = self._endpoint.error
        if error is not None:
            raise error

    def give_up(self, what: str) -> NoReturn:
        """End the connection because the wait for ``what`` took too long: raise DeadlineExceeded."""
        error = DeadlineExceeded(CoreCondition.DEADLINE_EXCEEDED(peer=self.transport.peer, what=what))
        self._break(error)
        raise error

    def wake(self) -> None:
        """Make a wait of the client's thread return early. May be called from any thread."""
        self.transport.wake()

    def wait_for(self, done: Callable[[], bool], what: str, silence_timeout_s: float = 0.0) -> None:
        """Do I/O until ``done`` returns true; give up when the call timeout has passed without much data.

        The peer may be silent for ``silence_timeout_s``, if that is longer than two heartbeats or the call timeout.
        """
        now = monotonic()
        deadline = now + max(self.call_timeout_s, silence_timeout_s)
        self._silence_allowed_until = now + silence_timeout_s
        try:
            seen = self.received_bytes
            while not done():
                if self.received_bytes - seen >= _FLOWING_BYTES:  # the answer arrives after the data under way
                    seen, deadline = self.received_bytes, max(deadline, monotonic() + self.call_timeout_s)
                self.pump_until(deadline, what)
        finally:
            self._silence_allowed_until = 0.0

    def allow_silence(self, seconds: float, until: Callable[[], bool]) -> None:
        """Tolerate silence of the peer for ``seconds``, or until ``until`` returns true.

        It may process a command on the thread that sends its heartbeats. Times of successive calls add up.
        """
        now = monotonic()
        begin = now if self._speaks_again is None or self._speaks_again() else self._silent_until
        self._speaks_again = until
        self._silent_until = max(now, begin) + seconds

    def pump_until(self, deadline: float, what: str) -> None:
        """Do one round of I/O; raise if the deadline has passed or the session has ended."""
        if monotonic() >= deadline:
            self.give_up(what)
        self.pump_once(deadline)

    def pump_once(self, until: float) -> None:
        """Do one round of I/O that waits no longer than ``until``; raise the error that ended the session, if any."""
        if self._round(until, reading=True):
            self._woken = True  # the wake-up was meant for a wait for messages: the next such wait must not be long
        self.check()

    def pump(self, deadline: float, *, reading: bool) -> bool:
        """Write, then read once, waiting for data until ``deadline``; return whether :meth:`wake` was called."""
        woken, self._woken = self._woken, False
        return self._round(0.0 if woken else deadline, reading=reading) or woken

    def poll(self) -> None:
        """Read arrived data without waiting; for a caller that only sends."""
        if self._round(0.0, reading=self.reading):
            self._woken = True
        self.check()

    def write(self, frames: memoryview | None = None) -> None:
        """Write the endpoint's data, then ``frames``, without waiting. :meth:`check` raises a failure."""
        try:
            self.transport.write(self._endpoint.data_to_send())
            if frames is not None:
                self._publishes = True
                self.transport.write(frames, bounded=True)
        except AmqpError as error:
            self._break_after_reading(error)

    def _round(self, deadline: float, *, reading: bool) -> bool:
        endpoint, transport = self._endpoint, self.transport
        if self.is_broken():
            return False
        woken = False
        try:
            now = monotonic()
            stuck = self._stuck_deadline(now)
            if stuck is not None:
                reading, deadline = False, min(deadline, stuck)
            data = transport.read() if reading else None
            if data is not None:
                self._receive(data)
                if self.is_broken():
                    return False
            limit = min(deadline, self._due(now, reading=reading))
            pending_bytes = transport.pending_bytes
            transport.write(endpoint.data_to_send())
            # Room to write is what the caller may wait for: it looks again before there is a wait for data.
            if data is None and transport.pending_bytes >= pending_bytes:
                woken = transport.wait(limit - now, reading=reading)
                data = transport.read() if reading else None
                if data is not None:
                    self._receive(data)
                    if not self.is_broken():
                        transport.write(endpoint.data_to_send())
        except AmqpError as error:
            self._break_after_reading(error)
        return woken

    def _due(self, now: float, *, reading: bool) -> float:
        """Do the work due at ``now``; return the time of the next one.

        Called after reading: a heartbeat that waits in the socket proves that the peer lives, however late it is read.
        """
        limit = self._endpoint.report(now)
        if not self._endpoint.is_open:
            return limit
        if self._next_tick is not None and now >= self._next_tick:
            self._next_tick, silent = self._endpoint.tick(now, reading=reading)
            if silent and self.is_silence_allowed(now):
                self._next_tick = now + _SILENT_TICK_S
            elif silent:
                raise connection_lost(self.transport.peer, "the peer was silent for two heartbeat intervals")
        return limit if self._next_tick is None else min(limit, self._next_tick)

    def is_silence_allowed(self, now: float) -> bool:
        """Whether the peer may be silent now, since it works on a command."""
        if now < self._silence_allowed_until:
            return True
        return self._speaks_again is not None and now < self._silent_until and not self._speaks_again()

    def _stuck_deadline(self, now: float) -> float | None:
        """Time at which to end the connection of a peer that sends but reads none of our answers; ``None`` if it reads.

        Published messages do not count: their publisher limits them and sets its own deadline.
        """
        transport = self.transport
        if transport.pending_own_bytes <= _MOST_PENDING:
            self._stuck_at = None
            return None
        if self._stuck_at is None or transport.sent_bytes != self._stuck_sent:
            self._stuck_at, self._stuck_sent = now, transport.sent_bytes
        elif now >= self._stuck_at + self.call_timeout_s:
            what = (
                f"it to read {transport.pending_own_bytes} bytes of answers; it sends, but has read nothing for "
                f"{self.call_timeout_s:g} s"
            )
            raise DeadlineExceeded(CoreCondition.DEADLINE_EXCEEDED(peer=transport.peer, what=what))
        return self._stuck_at + self.call_timeout_s

    def _receive(self, data: bytes) -> None:
        self.heard_at = monotonic()
        if data:
            self.received_bytes += len(data)
            error = self._process(data)
        else:
            reason = f"the peer closed it without a word{self._hint()}"
            error = self._endpoint.receive_eof() or connection_lost(self.transport.peer, reason)
        if error is not None:
            self._break(error)

    def _process(self, data: bytes) -> AmqpError | None:
        try:
            return self._endpoint.receive(data)
        except AmqpError:
            raise
        except BaseException as error:
            # What is not processed is gone: the ids of what comes later would be those of other messages.
            reason = f"a call was interrupted while it processed what had arrived ({type(error).__name__})"
            self._break(connection_lost(self.transport.peer, reason))
            raise

    def _hint(self) -> str:
        """Likely reason of a peer that closes before it has sent its protocol header, as Broker-J does."""
        if self.received_bytes:
            return ""
        if self.transport.is_tls:
            return " after the TLS handshake: it may want another client certificate"
        return ": it may want TLS (amqps://) on this port, or speak another protocol than AMQP"

    def _break_after_reading(self, error: AmqpError) -> None:
        """Process data that arrived before the transport failed: transfers, and perhaps the peer's reason to close."""
        if isinstance(error, ConnectionFailed):
            try:
                while self._broken is None and (data := self.transport.read()):
                    self._receive(data)
            except AmqpError as found:
                # Most often the data ends, or is broken, too, and the first error is the cause. But what says that a
                # message is gone which counts as delivered must not be lost with the connection.
                if not found.retryable:
                    error = found
        self._break(error)

    def _break(self, error: AmqpError) -> None:
        if self._broken is not None:
            return
        if isinstance(error, VersionRefused):  # the endpoint does not know which host of a list it is
            error = error.at(self.transport.peer)
        self._broken = self._endpoint.error or error
        try:
            self._endpoint.close(error)
            self.transport.write(self._endpoint.data_to_send())
        except AmqpError:
            pass
        if self._publishes and isinstance(error, ConnectionFailed | DeadlineExceeded):
            # A peer that only stood still would take what the kernel still holds, which is sent again elsewhere.
            self.transport.reset_on_close(True)
        self.transport.close()
