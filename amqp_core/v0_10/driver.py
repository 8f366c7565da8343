"""Drives a connection and its one session over a transport: the pump under the blocking client.

Everything that waits has a deadline. After any error of the connection or session the driver is broken for good and
says so with the first error; it is one *incarnation*. Not thread-safe, except :meth:`Driver.wake`.
"""

from __future__ import annotations

import math
import os
import uuid
from typing import TYPE_CHECKING

from amqp_core import sasl
from amqp_core.errors import AmqpError, ConnectionLost, DeadlineExceeded, ProtocolError, UsageError
from amqp_core.transport import Transport, monotonic
from amqp_core.v0_10 import spec
from amqp_core.v0_10.connection import (
    CommandReceived,
    Connection,
    ControlReceived,
    Ended,
    Event,
    Opened,
    Redirected,
    Role,
    TransfersReceived,
)
from amqp_core.v0_10.session import Session, SessionState

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    from amqp_core.address import ConnectOptions
    from amqp_core.v0_10.blocks import Block

_CLOSE_TIMEOUT_S = 5.0
# An idle receiver reports completion this late at most; a busy one does so by count (session.COMPLETE_EVERY).
_COMPLETE_WITHIN_S = 1.0
_CHANNEL = 0


class _SaslLogin:
    """Joins the connection's questions to ``amqp_core.sasl``; secrets stay inside."""

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
            plain_in_clear=options.plain_in_clear,
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
        call_timeout_s: the deadline of every call that waits for the broker, in seconds.
        reading: ``False`` while what arrives is deliberately left in the socket.
        redirect: where the peer sent us instead of opening the connection.
        on_block: called with each block of transfers, numbered.
        on_command: called with every other command of the peer.
    """

    def __init__(self, transport: Transport, connection: Connection, *, call_timeout_s: float) -> None:
        self.transport = transport
        self.connection = connection
        self.session = Session(connection, _CHANNEL, uuid.uuid4().bytes)
        self.call_timeout_s = call_timeout_s
        self.reading = True
        self.redirect: Redirected | None = None
        self.on_block: Callable[[Block], None] = _ignore
        self.on_command: Callable[[spec.Command], None] = _ignore
        self._broken: AmqpError | None = None
        self._closed = False
        self._opened = False
        self._next_tick: float | None = 0.0
        self._told_at = 0.0

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
        """End in order: detach and close. What was received and not accepted goes back to its queue. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._broken is None:
                deadline = monotonic() + _CLOSE_TIMEOUT_S
                self.session.detach()
                while self.session.state is SessionState.DETACHING and self._broken is None:
                    self.pump_until(deadline, "session.detached")
                self.connection.close()
                while self._broken is None:
                    self.pump_until(deadline, "connection.close-ok")
        except AmqpError:
            pass  # the broker notices the closed socket all the same
        finally:
            self._broken = self._broken or UsageError("the client is closed")
            self.transport.close()

    def abort(self) -> None:
        """Drop the connection without a word, as a crash would."""
        self._closed = True
        self._broken = self._broken or UsageError("the client is closed")
        self.transport.close()

    def wake(self) -> None:
        """Make a wait of the thread that uses the client return early. May be called from any thread."""
        self.transport.wake()

    def send(self, command: spec.Command, *, header: bytes | None = None, body: bytes | None = None) -> int:
        """Send a command without waiting; return its id."""
        self.check()
        command_id = self.session.send(command, header=header, body=body)
        self.transport.write(self.connection.data_to_send())
        return command_id

    def call(self, command: spec.Command, *, result: bool = False) -> object:
        """Send a command with its sync bit set and wait until it is complete, and for its result if it has one."""
        self.check()
        session = self.session
        command_id = session.send(command, sync=True)
        deadline = monotonic() + self.call_timeout_s
        while command_id not in session.results if result else not session.is_complete(command_id):
            self.pump_until(deadline, f"the answer to {command.NAME}")
        session.forget_names(command_id + 1)
        return session.results.pop(command_id, None)

    def check(self) -> None:
        """Raise what ended the connection or session, if anything did."""
        if self._broken is not None:
            raise self._broken
        self.session.check()

    def pump_until(self, deadline: float, what: str) -> None:
        """One round of input and output; raise when the deadline has passed or the session has ended."""
        if monotonic() >= deadline:
            error = DeadlineExceeded(f"no answer from {self.transport.peer} in time: waited for {what}")
            self._break(error)
            raise error
        self.pump(deadline, reading=True)
        self.check()

    def pump(self, deadline: float, *, reading: bool) -> bool:
        """Write, then read once what is there, waiting for it until ``deadline``; return whether somebody woke us."""
        connection, transport = self.connection, self.transport
        now = monotonic()
        if self._next_tick is not None and now >= self._next_tick:
            self._next_tick, silent = connection.tick(now, reading=reading)
            if silent:
                self._break(ConnectionLost(f"{self.transport.peer} was silent for two heartbeat intervals"))
                return False
            if self._next_tick is None and not self._opened:
                self._next_tick = now  # heartbeats are agreed on while the connection opens
        woken = False
        try:
            data = transport.read() if reading else None
            if data is None:
                limit = min(deadline, self._untold_deadline(now))
                if self._next_tick is not None and self._opened:
                    limit = min(limit, self._next_tick)
                transport.write(connection.data_to_send())
                woken = transport.wait(limit - now, reading=reading)
                data = transport.read() if reading else None
            if data is not None:
                self._receive(data)
                transport.write(connection.data_to_send())
        except AmqpError as error:
            self._break(error)
        return woken

    def _untold_deadline(self, now: float) -> float:
        """When completion is to be reported at the latest; reports it if that is now.

        Few large reports, since each one costs qpidd a walk through its whole list of unaccepted transfers.
        """
        if not self.session.has_untold:
            self._told_at = now
        elif now - self._told_at >= _COMPLETE_WITHIN_S:
            self.session.tell_completed()
            self._told_at = now
        return self._told_at + _COMPLETE_WITHIN_S if self.session.has_untold else math.inf

    def _receive(self, data: bytes) -> None:
        if not data:
            ended = self.connection.receive_eof()
            error = next((event.error for event in ended if isinstance(event, Ended) and event.error), None)
            self._break(error or ConnectionLost(f"{self.transport.peer} closed the connection without a word"))
            return
        for event in self.connection.receive_data(data):
            self._handle(event)

    def _handle(self, event: Event) -> None:
        if isinstance(event, TransfersReceived):
            self.session.receive_block(event.block)
            self.on_block(event.block)
        elif isinstance(event, ControlReceived):
            if event.channel == _CHANNEL:
                self.session.receive_control(event.control)
                if isinstance(event.control, spec.SessionDetach | spec.SessionDetached) and not self._closed:
                    self._break(self.session.error or ConnectionLost("the session ended"))
        elif isinstance(event, CommandReceived):
            if event.channel == _CHANNEL:
                self.session.receive_command(event.command, sync=event.sync)
                self.on_command(event.command)
        elif isinstance(event, Opened):
            self._opened = True
            self._next_tick = 0.0
        elif isinstance(event, Redirected):
            self.redirect = event
        else:
            self._break(event.error or ConnectionLost(f"the connection to {self.transport.peer} is closed"))

    def _break(self, error: AmqpError) -> None:
        if self._broken is None:
            self._broken = self.session.error or error
            try:
                self.transport.write(self.connection.data_to_send())
            except AmqpError:
                pass
            self.transport.close()


def _ignore(_: object) -> None:
    """Stand in until the client has said what to do with what arrives."""
