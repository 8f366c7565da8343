"""Drive a connection and its one session over a transport: the I/O loop of the blocking client.

Every wait has a deadline. After any error of the connection or session the driver stays broken, and every call raises
the first error; it is one *incarnation*. Not thread-safe, except :meth:`Driver.wake`.
"""

from __future__ import annotations

import math
import os
import uuid
from typing import TYPE_CHECKING, NoReturn

from amqp_core import sasl
from amqp_core.errors import (
    AmqpError,
    ConnectionFailed,
    ConnectionLost,
    DeadlineExceeded,
    ProtocolError,
    UsageError,
    VersionRefused,
)
from amqp_core.transport import Transport, monotonic
from amqp_core.v0_10 import spec
from amqp_core.v0_10.connection import (
    CommandReceived,
    CommandUnknown,
    Connection,
    ControlReceived,
    Ended,
    Event,
    Opened,
    Redirected,
    Role,
    State,
    TransferBegun,
    TransfersReceived,
)
from amqp_core.v0_10.results import result_of
from amqp_core.v0_10.session import Session, SessionState

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    from amqp_core.address import ConnectOptions
    from amqp_core.v0_10.blocks import Block
    from amqp_core.v0_10.results import Result

_CLOSE_TIMEOUT_S = 5.0
# Longest delay of an idle receiver's completion report; a busy one reports by count (session.COMPLETE_EVERY).
_COMPLETE_WITHIN_S = 1.0
# Interval of the checks while a silent peer is tolerated; heartbeats are still sent in time.
_SILENT_TICK_S = 0.5
# While more bytes than this wait for a peer that does not read, nothing is read from it: its data causes more answers.
_MOST_PENDING = 1 << 24
# The answer to a call arrives after the data under way: each time that so many bytes arrive, the wait starts anew.
_FLOWING_BYTES = 1 << 16
CHANNEL = 0
# What a session carries; all else concerns the connection, or changes the session's state.
_CARRIED = (CommandReceived, CommandUnknown, TransferBegun, TransfersReceived)


class _SaslLogin:
    """Answers the connection's SASL requests with ``amqp_core.sasl``; secrets stay inside."""

    def __init__(self, options: ConnectOptions, transport: Transport, *, tls: bool) -> None:
        self._options = options
        self._transport = transport
        self._tls = tls
        self._mechanism: sasl.Mechanism | None = None

    def choose(self, mechanisms: Sequence[str]) -> tuple[str, bytes | None]:
        options = self._options
        self._mechanism = sasl.choose(
            mechanisms,
            username=options.username,
            password=options.read_password(),
            tls=self._tls,
            loopback=self._transport.peer_is_loopback,
            allowed=options.sasl_mechanisms,
            client_certificate=options.tls_cert_file is not None,
            in_clear=options.in_clear,
        )
        return self._mechanism.name, self._mechanism.initial()

    def respond(self, challenge: bytes) -> bytes:
        if self._mechanism is None:
            raise ProtocolError("connection.secure arrived before a mechanism was chosen")
        return self._mechanism.respond(challenge)

    def succeeded(self) -> None:
        if self._mechanism is None:
            raise ProtocolError("connection.tune arrived before a mechanism was chosen")
        self._mechanism.finished()


class Driver:
    """A transport, a connection and a session that work together.

    Attributes:
        call_timeout_s: timeout of every call that waits for the broker, in seconds.
        reading: ``False`` while arriving data is deliberately left in the socket.
        heard_at: time of the latest received data, in monotonic seconds.
        redirect: the redirect that the peer sent instead of opening the connection.
        on_block: called with each block of transfers, numbered.
        on_begun: called with the first frames of an incomplete large transfer; raises if it is not allowed.
        on_command: called with every other command of the peer; until it is set they are kept in ``early``.
        early: commands that arrived in the same read as session.attached.
    """

    def __init__(self, transport: Transport, connection: Connection, *, call_timeout_s: float) -> None:
        self.transport = transport
        self.connection = connection
        self.session = Session(connection, CHANNEL, uuid.uuid4().bytes)
        self.call_timeout_s = call_timeout_s
        self.reading = True
        self.heard_at = monotonic()
        self.redirect: Redirected | None = None
        self._taken = 0  # bytes received
        self.on_block: Callable[[Block], None] = _ignore
        self.on_begun: Callable[[bytes], None] = _ignore
        self.early: list[spec.Command] = []
        self.on_command: Callable[[spec.Command], None] = self.early.append
        self._broken: AmqpError | None = None
        self._closed = False
        self._opened = False
        self._next_tick: float | None = 0.0
        self._silence_allowed_until = 0.0
        self._silent_command: int | None = None
        self._silent_until = 0.0
        self._woken = False
        self._told_at = 0.0
        self._stuck_at: float | None = None
        self._stuck_sent = 0

    @classmethod
    def dial(
        cls, options: ConnectOptions, host: str, port: int, context: ssl.SSLContext | None, call_timeout_s: float
    ) -> Driver:
        """Connect to one host, log in, open the virtual host and attach a session, within ``connect_timeout``."""
        started = monotonic()
        transport = Transport.connect(host, port, timeout=options.connect_timeout, context=context)
        connection = Connection(
            Role.CLIENT,
            login=_SaslLogin(options, transport, tls=context is not None),
            virtual_host=options.virtual_host,
            heartbeat=options.heartbeat,
            max_frame_size=options.max_frame_size,
            max_message_bytes=options.max_message_bytes,
            client_properties={
                "product": options.client_name,
                "platform": "Python",
                "qpid.client_process": options.client_name,
                "qpid.client_pid": os.getpid(),
            },
            scan_transfers=True,
        )
        driver = cls(transport, connection, call_timeout_s=call_timeout_s)
        try:
            driver._open(started + options.connect_timeout)
        except BaseException:
            transport.close()
            raise
        return driver

    def _open(self, deadline: float) -> None:
        while not self._opened and self.redirect is None:
            self.pump_until(deadline, "the login to finish (connectTimeout)")
        if self._opened:
            self.session.attach()
            while self.session.state is SessionState.ATTACHING:
                self.pump_until(deadline, "session.attached (connectTimeout)")
            self.check()

    def close(self) -> None:
        """Close cleanly: detach, then close. Messages not accepted go back to their queue. Idempotent."""
        if self._closed:
            return
        self._closed = True
        error = self._broken or self.session.error
        try:
            if error is None:
                deadline = monotonic() + _CLOSE_TIMEOUT_S
                self.session.detach()
                while self.session.state is SessionState.DETACHING:
                    self.pump_until(deadline, "session.detached")
                self.transport.reset_on_close(False)  # all that was sent has been read
                self.connection.close()
                while not self.is_broken():
                    self.pump_until(deadline, "connection.close-ok")
        except AmqpError:
            pass  # the broker notices the closed socket in any case
        finally:
            self._broken = error or UsageError("the client is closed")
            self.transport.close()

    def abort(self) -> None:
        """Drop the connection without a close handshake, as a crash would."""
        self._closed = True
        self._broken = self._broken or UsageError("the client is closed")
        self.transport.close()

    def discard(self) -> None:
        """Close cleanly if the peer answers within 5 s, else with a reset: data that it has not read is never sent."""
        self.transport.reset_on_close(True)
        if self.transport.pending_bytes:
            self.abort()
        else:
            self.close()

    def wake(self) -> None:
        """Make a wait of the client's thread return early. May be called from any thread."""
        self.transport.wake()

    def send(self, command: spec.Command, *, sync: bool = False) -> int:
        """Send a command without waiting; return its id."""
        self.check()
        command_id = self.session.send(command, sync=sync)
        self._write()
        self.check()
        return command_id

    def send_ready(self, frames: memoryview, count: int) -> int:
        """Send ``count`` encoded commands (whole assemblies) without a copy; return the first id.

        A transport failure is not raised here, so that the caller can record the ids first: :meth:`check` raises it.
        """
        self.check()
        first_id = self.session.number(count)
        self._write(frames)
        return first_id

    def send_questions(self, commands: Sequence[spec.Command]) -> list[int]:
        """Send commands that have results, in one write and without waiting; return their ids."""
        self.check()
        ids = [self.session.send(command, result=True) for command in commands]
        self._write()
        self.check()
        return ids

    def queue(self, command: spec.Command, *, sync: bool = False) -> int | None:
        """Queue a command for the next round of I/O; return its id, ``None`` if the session is ending."""
        if self._broken is None and self.session.error is None and self.session.state is SessionState.ATTACHED:
            return self.session.send(command, sync=sync)
        return None

    def flush_queued(self) -> None:
        """Send the queued commands."""
        self._write()
        self.check()

    def is_complete(self, command_id: int) -> bool:
        """Whether the peer has reported our command as completed."""
        return self.session.is_complete(command_id)

    def expect_silence(self, command_id: int, seconds: float) -> None:
        """Tolerate silence of the peer for ``seconds``, or until it has completed our command ``command_id``.

        It may process that command on the thread that sends its heartbeats. Times of successive calls add up.
        """
        now = monotonic()
        begin = now if self._silent_command is None or self.is_complete(self._silent_command) else self._silent_until
        self._silent_command = command_id
        self._silent_until = max(now, begin) + seconds

    def call(self, command: spec.Command, *, silence_timeout_s: float = 0.0) -> None:
        """Send a command with its sync bit set and wait until it is complete.

        Args:
            command: the command.
            silence_timeout_s: seconds for which the peer may be silent while it works on it, if that is longer than two
                heartbeats or the call timeout.
        """
        session = self.session
        command_id = self._call(command, session.is_complete, silence_timeout_s)
        session.forget_names(command_id + 1)

    def ask(self, command: spec.Command, kind: type[Result], *, silence_timeout_s: float = 0.0) -> Result:
        """Send a command that has a result with its sync bit set, and wait for the result.

        Args:
            command: the command.
            kind: type of its result (``spec.RESULT_TYPES``).
            silence_timeout_s: as in :meth:`call`.

        Raises:
            ProtocolError: it completed without a result, or the result is of another type.
        """
        command_id = self._call(command, self.is_answered, silence_timeout_s, result=True)
        return result_of(command, self.take_results([command_id], silence_timeout_s=silence_timeout_s)[0], kind)

    def is_answered(self, command_id: int) -> bool:
        """Whether a command that has a result was answered, or is completed without its result so far."""
        return command_id in self.session.results or self.session.is_complete(command_id)

    def take_results(self, command_ids: Sequence[int], *, silence_timeout_s: float = 0.0) -> list[object]:
        """Take the results of commands that are answered (:meth:`is_answered`), in ascending order of their ids.

        Returns:
            The results; ``None`` for a command without one.
        """
        session = self.session
        if any(command_id not in session.results for command_id in command_ids):
            self.call(
                spec.ExecutionSync(), silence_timeout_s=silence_timeout_s
            )  # a result may arrive after the completion
        results = [session.take_result(command_id) for command_id in command_ids]
        if command_ids:
            session.forget_names(command_ids[-1] + 1)
        return results

    def _call(
        self, command: spec.Command, done: Callable[[int], bool], silence_timeout_s: float, *, result: bool = False
    ) -> int:
        """Send a command with its sync bit set, wait until ``done(its id)``, and return the id."""
        self.check()
        command_id = self.session.send(command, sync=True, result=result)
        now = monotonic()
        deadline = now + max(self.call_timeout_s, silence_timeout_s)
        self._silence_allowed_until = now + silence_timeout_s
        try:
            seen = self._taken
            while not done(command_id):
                if self._taken - seen >= _FLOWING_BYTES:  # the answer arrives after the data under way
                    seen, deadline = self._taken, max(deadline, monotonic() + self.call_timeout_s)
                self.pump_until(deadline, f"the answer to {command.NAME}")
        finally:
            self._silence_allowed_until = 0.0
        return command_id

    def is_broken(self) -> bool:
        """Whether the connection has ended."""
        return self._broken is not None

    def check(self) -> None:
        """Raise the error that ended the connection or session, if it has ended."""
        if self._broken is not None:
            raise self._broken
        self.session.check()

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

    def give_up(self, what: str) -> NoReturn:
        """End the connection because the wait for ``what`` took too long.

        Raises:
            DeadlineExceeded: always.
        """
        error = DeadlineExceeded(f"no answer from {self.transport.peer} in time: waited for {what}")
        self._break(error)
        raise error

    def flush_completed(self) -> None:
        """Request the peer's completions with the next round (session.flush). Broker-J may not answer."""
        if self.session.state is SessionState.ATTACHED:
            self.session.flush(completed=True)

    def pump(self, deadline: float, *, reading: bool) -> bool:
        """Write, then read once, waiting for data until ``deadline``; return whether :meth:`wake` was called."""
        woken, self._woken = self._woken, False
        return self._round(0.0 if woken else deadline, reading=reading) or woken

    def poll(self) -> None:
        """Read arrived data without waiting; for a caller that only sends."""
        if self._round(0.0, reading=self.reading):
            self._woken = True
        self.check()

    def _round(self, deadline: float, *, reading: bool) -> bool:
        connection, transport = self.connection, self.transport
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
            transport.write(connection.data_to_send())
            if data is None:
                woken = transport.wait(limit - now, reading=reading)
                data = transport.read() if reading else None
                if data is not None:
                    self._receive(data)
                    if not self.is_broken():
                        transport.write(connection.data_to_send())
        except AmqpError as error:
            self._break_after_reading(error)
        return woken

    def _due(self, now: float, *, reading: bool) -> float:
        """Do the work due at ``now``; return the time of the next one.

        Called after reading: a heartbeat that waits in the socket proves that the peer lives, however late it is read.
        """
        limit = self._untold_deadline(now)
        if not self._opened:
            return limit
        if self._next_tick is not None and now >= self._next_tick:
            self._next_tick, silent = self.connection.tick(now, reading=reading)
            if silent and self._is_silence_allowed(now):
                self._next_tick = now + _SILENT_TICK_S
            elif silent:
                raise ConnectionLost(f"{self.transport.peer} was silent for two heartbeat intervals")
        return limit if self._next_tick is None else min(limit, self._next_tick)

    def _is_silence_allowed(self, now: float) -> bool:
        if now < self._silence_allowed_until:
            return True
        command_id = self._silent_command
        return command_id is not None and now < self._silent_until and not self.is_complete(command_id)

    def _stuck_deadline(self, now: float) -> float | None:
        """Time at which to end the connection of a peer that sends but reads none of our answers; ``None`` if it reads.

        Published messages do not count: their publisher limits them and sets its own deadline.

        Raises:
            DeadlineExceeded: that time has been reached.
        """
        transport = self.transport
        if transport.pending_own_bytes <= _MOST_PENDING:
            self._stuck_at = None
            return None
        if self._stuck_at is None or transport.sent_bytes != self._stuck_sent:
            self._stuck_at, self._stuck_sent = now, transport.sent_bytes
        elif now >= self._stuck_at + self.call_timeout_s:
            raise DeadlineExceeded(
                f"{transport.peer} sends, but has read nothing for {self.call_timeout_s:g} s, while "
                f"{transport.pending_own_bytes} bytes of answers wait for it; see what the broker is doing"
            )
        return self._stuck_at + self.call_timeout_s

    def _untold_deadline(self, now: float) -> float:
        """Report completion if it is due; return the latest time of the next report.

        Reports are few and large, since qpidd walks its whole list of unaccepted transfers for each one.
        """
        if not self.session.has_untold:
            self._told_at = now
        elif now - self._told_at >= _COMPLETE_WITHIN_S:
            self.session.tell_completed()
            self._told_at = now
        return self._told_at + _COMPLETE_WITHIN_S if self.session.has_untold else math.inf

    def _receive(self, data: bytes) -> None:
        self.heard_at = monotonic()
        self._taken += len(data)
        if not data:
            hint = self._hint() if self.connection.state is State.HEADER else ""
            ended = self.connection.receive_eof()
            error = next((event.error for event in ended if isinstance(event, Ended) and event.error), None)
            closed = ConnectionLost(f"{self.transport.peer} closed the connection without a word{hint}")
            self._break(self._named(error or closed))
            return
        for event in self.connection.receive_data(data):
            self._handle(event)

    def _named(self, error: AmqpError) -> AmqpError:
        """Add the peer's address to a VersionRefused: the state machine does not know which host of a list it is."""
        if isinstance(error, VersionRefused):
            return VersionRefused(f"{self.transport.peer}: {error}", error.offered)
        return error

    def _hint(self) -> str:
        """Likely reason of a peer that closes before it has sent its protocol header, as Broker-J does."""
        if self.transport.is_tls:
            return " after the TLS handshake: it may want another client certificate (tls.certFile, tls.keyFile)"
        return ": it may want TLS (amqps://) on this port"

    def _handle(self, event: Event) -> None:
        session = self.session
        if session.state is SessionState.DETACHED and isinstance(event, _CARRIED):
            return  # it was under way when the session ended
        if isinstance(event, TransfersReceived):
            session.receive_block(event.block)
            self.on_block(event.block)
        elif isinstance(event, ControlReceived):
            session.receive_control(event.control)
            if isinstance(event.control, spec.SessionDetach | spec.SessionDetached) and not self._closed:
                self._break(session.error or ConnectionLost("the session ended"))
        elif isinstance(event, CommandReceived):
            session.receive_command(event.command, sync=event.sync)
            self.on_command(event.command)
        elif isinstance(event, CommandUnknown):
            session.refuse_command(event.code)
        elif isinstance(event, TransferBegun):
            self.on_begun(event.frames)
        elif isinstance(event, Opened):
            self._opened = True
        elif isinstance(event, Redirected):
            self.redirect = event
        else:
            closed = ConnectionLost(f"the connection to {self.transport.peer} is closed")
            self._break(self._named(event.error or closed))

    def _write(self, frames: memoryview | None = None) -> None:
        try:
            self.transport.write(self.connection.data_to_send())
            if frames is not None:
                self.transport.write(frames, bounded=True)
        except AmqpError as error:
            self._break_after_reading(error)

    def _break_after_reading(self, error: AmqpError) -> None:
        """Process data that arrived before the transport failed: transfers, and perhaps the peer's reason to close."""
        if isinstance(error, ConnectionFailed):
            try:
                while self._broken is None and (data := self.transport.read()):
                    self._receive(data)
            except AmqpError:
                pass  # the end of the data, or the data is broken, too; the first error is the cause
        self._break(error)

    def _break(self, error: AmqpError) -> None:
        if self._broken is not None:
            return
        self._broken = self.session.error or error
        try:
            self.connection.close(501 if isinstance(error, ProtocolError) else 200, type(error).__name__)
            self.transport.write(self.connection.data_to_send())
        except AmqpError:
            pass
        self.transport.close()


def _ignore(_: object) -> None:
    """Do nothing: the default until the client sets its handler."""
