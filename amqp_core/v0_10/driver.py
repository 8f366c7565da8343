"""One AMQP 0-10 session over a transport: its endpoint for the pump, and calls that wait for the broker.

After any error of the connection or session the driver stays broken, and every call raises the first error; it is one
*incarnation*. Not thread-safe, except :meth:`Driver.wake`.
"""

from __future__ import annotations

import math
import os
import uuid
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from amqp_core.connection_states import Ended, Opened, Redirected, Role
from amqp_core.errors import AmqpError, ProtocolError
from amqp_core.failover import Redirect
from amqp_core.pump import Pump
from amqp_core.sasl import SaslLogin
from amqp_core.transport import Transport, connection_lost, monotonic
from amqp_core.v0_10 import spec
from amqp_core.v0_10.connection import Connection
from amqp_core.v0_10.connection_events import (
    CommandReceived,
    CommandUnknown,
    ControlReceived,
    Event,
    TransferBegun,
    TransfersReceived,
)
from amqp_core.v0_10.session import Session, SessionState

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    from amqp_core.address import ConnectOptions
    from amqp_core.blocks import Block

# Longest delay of an idle receiver's completion report; a busy one reports by count (session.COMPLETE_EVERY).
_COMPLETE_WITHIN_S = 1.0
CHANNEL = 0
# What a session carries; all else concerns the connection, or changes the session's state.
_CARRIED = (CommandReceived, CommandUnknown, TransferBegun, TransfersReceived)

Result = TypeVar("Result", bound=spec.Struct)


class SessionEndpoint:
    """A connection and its session, as an endpoint for :class:`amqp_core.pump.Pump`. No I/O; not thread-safe.

    Attributes:
        is_open: whether the connection is open.
        redirect: host to which the peer redirected instead of opening the connection.
        on_block: called with each block of transfers, numbered.
        on_begun: called with the first frames of an incomplete large transfer; raises if it is not allowed.
        on_command: called with every other command of the peer; until it is set they are kept in ``early``.
        early: commands that arrived in the same read as session.attached.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.session = Session(connection, CHANNEL, uuid.uuid4().bytes)
        self.is_open = False
        self.redirect: str | None = None
        self.on_block: Callable[[Block], None] = _ignore
        self.on_begun: Callable[[bytes], None] = _ignore
        self.early: list[spec.Command] = []
        self.on_command: Callable[[spec.Command], None] = self.early.append
        self.data_to_send = connection.data_to_send
        self.tick = connection.tick
        self._told_at = 0.0

    @property
    def error(self) -> AmqpError | None:
        """The error that ended the session."""
        return self.session.error

    def receive(self, data: bytes) -> AmqpError | None:
        """Process received bytes, and return the error that ends the connection, if any."""
        for event in self.connection.receive_data(data):
            error = self._handle(event)
            if error is not None:
                return error
        return None

    def receive_eof(self) -> AmqpError | None:
        """Handle the end of the peer's data."""
        ended = self.connection.receive_eof()
        return next((event.error for event in ended if isinstance(event, Ended)), None)

    def report(self, now: float) -> float:
        """Report completion if it is due; return the latest time of the next report.

        Reports are few and large, since qpidd walks its whole list of unaccepted transfers for each one.
        """
        if not self.session.has_untold:
            self._told_at = now
        elif now - self._told_at >= _COMPLETE_WITHIN_S:
            self.session.tell_completed()
            self._told_at = now
        return self._told_at + _COMPLETE_WITHIN_S if self.session.has_untold else math.inf

    def close(self, error: AmqpError) -> None:
        """Queue connection.close because of an error."""
        self.connection.close(501 if isinstance(error, ProtocolError) else 200, type(error).__name__)

    def _handle(self, event: Event) -> AmqpError | None:
        session = self.session
        if session.state is SessionState.DETACHED and isinstance(event, _CARRIED):
            return None  # it was under way when the session ended
        if isinstance(event, TransfersReceived):
            session.receive_block(event.block)
            self.on_block(event.block)
        elif isinstance(event, ControlReceived):
            if isinstance(event.control, spec.SessionAttach):  # else a new session would be that of the peer
                raise ProtocolError(f"{event.control.NAME} arrived, which is for the client to send")
            session.receive_control(event.control)
            if isinstance(event.control, spec.SessionDetach | spec.SessionDetached):
                return session.error
        elif isinstance(event, CommandReceived):
            session.receive_command(event.command, sync=event.sync)
            self.on_command(event.command)
        elif isinstance(event, CommandUnknown):
            session.refuse_command(event.code)
        elif isinstance(event, TransferBegun):
            self.on_begun(event.frames)
        elif isinstance(event, Opened):
            self.is_open = True
        elif isinstance(event, Redirected):
            self.redirect = event.host
        else:
            return event.error or connection_lost("the broker", "it was closed")
        return None


class Driver(Pump):
    """The pump of one session, and the calls on it. Not thread-safe, except :meth:`wake`.

    Attributes:
        connection, session: the state machines.
        endpoint: both of them, with the handlers of what arrives.
    """

    def __init__(self, transport: Transport, connection: Connection, *, call_timeout_s: float) -> None:
        self.endpoint = SessionEndpoint(connection)
        self.connection = connection
        self.session = self.endpoint.session
        super().__init__(transport, self.endpoint, call_timeout_s=call_timeout_s)

    @classmethod
    def dial(
        cls, options: ConnectOptions, host: str, port: int, context: ssl.SSLContext | None, call_timeout_s: float
    ) -> Driver:
        """Connect to one host, log in, open the virtual host and attach a session, within ``connect_timeout``.

        Raises Redirect if the broker asks to connect to another host.
        """
        started = monotonic()
        transport = Transport.connect(host, port, timeout=options.connect_timeout, context=context)
        try:
            connection = Connection(
                Role.CLIENT,
                login=SaslLogin(options, loopback=transport.peer_is_loopback),
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
            driver._open(started + options.connect_timeout)
        except BaseException:
            transport.close()
            raise
        return driver

    def _open(self, deadline: float) -> None:
        endpoint = self.endpoint
        while not endpoint.is_open:
            self.pump_until(deadline, "the login to finish (connect timeout)")
            if endpoint.redirect is not None:
                raise Redirect(endpoint.redirect)
        self.session.attach()
        while self.session.state is SessionState.ATTACHING:
            self.pump_until(deadline, "session.attached (connect timeout)")
        self.check()

    def close(self) -> bool:
        """Close cleanly: detach, then close. Messages not accepted go back to their queue. Idempotent.

        Return whether the broker has ended the connection, too.
        """
        self.end(self._say_goodbye)
        return self.connection.is_ended_by_peer

    def _say_goodbye(self, deadline: float) -> None:
        self.session.detach()
        while self.session.state is SessionState.DETACHING:
            self.pump_until(deadline, "session.detached")
        self.transport.reset_on_close(False)  # all that was sent has been read
        self.connection.close()
        while not self.is_broken():
            self.pump_until(deadline, "connection.close-ok")

    def send(self, command: spec.Command, *, sync: bool = False) -> int:
        """Send a command without waiting; return its id."""
        self.check()
        command_id = self.session.send(command, sync=sync)
        self.flush_queued()
        return command_id

    def send_ready(self, frames: memoryview, count: int) -> int:
        """Send ``count`` encoded commands (whole assemblies) without a copy; return the first id.

        A transport failure is not raised here, so that the caller can record the ids first: :meth:`check` raises it.
        """
        self.check()
        first_id = self.session.number(count)
        self.write(frames)
        return first_id

    def send_questions(self, commands: Sequence[spec.Command]) -> list[int]:
        """Send commands that have results, in one write and without waiting; return their ids."""
        self.check()
        ids = [self.session.send(command, result=True) for command in commands]
        self.flush_queued()
        return ids

    def queue(self, command: spec.Command, *, sync: bool = False) -> int | None:
        """Queue a command for the next round of I/O; return its id, ``None`` if the session is ending."""
        if not self.is_broken() and self.session.error is None and self.session.state is SessionState.ATTACHED:
            return self.session.send(command, sync=sync)
        return None

    def flush_queued(self) -> None:
        """Send the queued commands."""
        self.write()
        self.check()

    def flush_completed(self) -> None:
        """Request the peer's completions with the next round (session.flush). Broker-J may not answer."""
        if self.session.state is SessionState.ATTACHED:
            self.session.flush(completed=True)

    def is_complete(self, command_id: int) -> bool:
        """Whether the peer has reported our command as completed."""
        return self.session.is_complete(command_id)

    def expect_silence(self, command_id: int, seconds: float) -> None:
        """Tolerate silence of the peer for ``seconds``, or until it has completed our command ``command_id``."""
        self.allow_silence(seconds, partial(self.is_complete, command_id))

    def call(self, command: spec.Command, *, silence_timeout_s: float = 0.0) -> None:
        """Send a command with its sync bit set and wait until it is complete, as :meth:`wait_for`."""
        session = self.session
        command_id = self._call(command, session.is_complete, silence_timeout_s)
        session.forget_names(command_id + 1)

    def ask(self, command: spec.Command, kind: type[Result], *, silence_timeout_s: float = 0.0) -> Result:
        """Send a command with its sync bit set, and wait for its result, as :func:`result_of` returns it."""
        command_id = self._call(command, self.is_answered, silence_timeout_s, result=True)
        return result_of(command, self.take_results([command_id], silence_timeout_s=silence_timeout_s)[0], kind)

    def is_answered(self, command_id: int) -> bool:
        """Whether a command that has a result was answered, or is completed without its result so far."""
        return command_id in self.session.results or self.session.is_complete(command_id)

    def take_results(self, command_ids: Sequence[int], *, silence_timeout_s: float = 0.0) -> list[object]:
        """Take the results of answered commands, in ascending order of their ids; ``None`` for one without a result."""
        session = self.session
        if any(command_id not in session.results for command_id in command_ids):
            # a result may arrive after the completion
            self.call(spec.ExecutionSync(), silence_timeout_s=silence_timeout_s)
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
        self.wait_for(partial(done, command_id), f"the answer to {command.NAME}", silence_timeout_s)
        return command_id


def result_of(command: spec.Command, value: object, kind: type[Result]) -> Result:
    """Return the result of a command (execution.result); raise ProtocolError if it is absent or of another type."""
    if isinstance(value, kind):
        return value
    given = getattr(value, "NAME", "nothing")
    raise ProtocolError(f"the broker answered {command.NAME} with {given}, where {kind.NAME} is due")


def _ignore(_: object) -> None:
    """Do nothing: the default until the client sets its handler."""
