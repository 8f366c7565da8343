"""One connection of a client that speaks 0-10: bytes in, calls of the model, bytes out. No I/O."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from amqp_core.address import DEFAULT_MAX_MESSAGE_BYTES
from amqp_core.broker.adapter import HEARTBEAT_S, HERE, SERVER_PROPERTIES, Adapter
from amqp_core.broker.login import Check, plain
from amqp_core.broker.v0_10.filters import FEATURE
from amqp_core.broker.v0_10.session import ServerSession
from amqp_core.connection_states import Ended, Opened, Role, State
from amqp_core.errors import AmqpError, given
from amqp_core.printable import printable
from amqp_core.v0_10 import spec
from amqp_core.v0_10.connection import Connection
from amqp_core.v0_10.connection_events import CommandReceived, CommandUnknown, ControlReceived, Event
from amqp_core.v0_10.framing import BODY, COMMAND, HEADER
from amqp_core.v0_10.session import SessionState
from amqp_core.write_primitives import cut_short

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from amqp_core.broker.login import Caller
    from amqp_core.broker.login_checks import LoginChecks
    from amqp_core.broker.logins import Logins
    from amqp_core.broker.model.virtual_host import VirtualHost
    from amqp_core.broker.v0_10.names import SessionNames
    from amqp_core.errors import AuthenticationFailed

_log = logging.getLogger(__name__)

PASSWORDS: Final = {"PLAIN": plain}
MOST_CHANNEL: Final = 255
"""The greatest channel (connection.tune, channel-max)."""
# What a transfer takes beside header and body: three frames, and the command.
_OVERHEAD: Final = 64


class ServerConnection(Adapter):
    """One connection; arguments as of ``Adapter``. Not thread-safe.

    Args:
        names: of the sessions of all connections.
        refuse: why no more connections are taken; empty: they are.
    """

    def __init__(
        self,
        *,
        hosts: Mapping[str, VirtualHost],
        logins: Logins,
        names: SessionNames,
        clock: Callable[[], float],
        wake: Callable[[], None],
        peer: str = "",
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        caller: Caller = HERE,
        checks: LoginChecks | None = None,
        refuse: Callable[[], str] | None = None,
    ) -> None:
        super().__init__(
            hosts=hosts,
            logins=logins,
            clock=clock,
            wake=wake,
            peer=peer,
            max_message_bytes=max_message_bytes,
            passwords=PASSWORDS,
            caller=caller,
            checks=checks,
        )
        self.names = names
        self._sessions: dict[int, ServerSession] = {}
        self._failing: list[ServerSession] = []
        self.protocol = Connection(
            Role.SERVER,
            heartbeat=HEARTBEAT_S,
            max_message_bytes=max_message_bytes,
            mechanisms=self._login.mechanisms,
            authenticate=self._authenticate,
            forbids_virtual_host=lambda name: self._forbids(host_name(name)),
            refuse=refuse,
            server_properties={**SERVER_PROPERTIES, "qpid.features": [FEATURE]},
        )

    @property
    def is_closing(self) -> bool:
        """Whether the client has to answer connection.close."""
        return self.protocol.state is State.CLOSE_OK

    @property
    def is_stalled(self) -> bool:
        """Whether nothing more is to be read at present; also while a command waits (message.flush)."""
        return super().is_stalled or any(session.is_stalled for session in self._sessions.values())

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of messages that have not arrived whole."""
        return self.protocol.unfinished_bytes

    def receive(self, data: bytes) -> None:
        """Process received bytes."""
        events = self.protocol.receive_data(data)
        if events and isinstance(events[-1], Ended):
            self._brake.end()
        self._process(events)

    def _process(self, events: list[Event]) -> None:
        for event in self._brake.let_through(events):
            if self.is_over or (self.is_closing and not isinstance(event, Ended)):
                continue
            try:
                self._receive(event)
            except AmqpError as error:  # frames, ids or headers that are not possible
                self.close(spec.ConnectionCloseCode.FRAMING_ERROR, str(error))
        for session in self._sessions.values():
            session.tell_accepted()
        self._end_failing()
        unfinished = self.unfinished_bytes
        if unfinished > self._most_unfinished() and not (self.is_closing or self.is_over):
            self._give_up(f"messages of {unfinished} bytes have begun on its channels and not ended")

    def take_bytes(self) -> bytes:
        """Return what is to be written now, and forget it."""
        self._end_failing()
        self._pending = self._answers = 0
        return self.protocol.data_to_send()

    def lost(self) -> None:
        """The connection is gone: end its sessions, and return what they held."""
        self.is_over = True
        self._end_sessions()
        self._host = None

    def shut_down(self) -> None:
        """Tell the client that the broker stops."""
        self.lost()
        self.protocol.close(spec.ConnectionCloseCode.CONNECTION_FORCED, "the broker stops")

    # --- for sessions

    def send_control(self, channel: int, control: spec.Control) -> None:
        """Queue a control."""
        self.protocol.send_control(channel, control)

    def send_assembly(self, channel: int, segments: Sequence[tuple[int, bytes]]) -> None:
        """Queue a command of the broker, such as a result that the client has asked for."""
        self.protocol.send_assembly(channel, segments)
        self._answered(sum(len(payload) for _, payload in segments) + _OVERHEAD)

    def resume_later(self) -> None:
        """Look again after the next write whether more can be delivered."""
        self._starved = True
        self._wake()

    def pull_brake(self) -> None:
        """Read no more: a publisher does not stop."""
        self._brake.pull_for_publisher()

    def send_transfer(self, channel: int, command: bytes, header: bytes, body: bytes | None) -> None:
        """Queue a transfer; ``None``: it has no body segment."""
        segments = [(COMMAND, command), (HEADER, header)]
        if body is not None:
            segments.append((BODY, body))
            self._pending += len(body)
        self.protocol.send_assembly(channel, segments)
        self._pending += len(header) + _OVERHEAD
        self._wake()

    def fail_later(self, session: ServerSession) -> None:
        """End a session with the error that it has noted, outside the present call of the model."""
        self._failing.append(session)
        self._wake()

    def close(self, code: spec.ConnectionCloseCode, text: str) -> None:
        """Close the connection with an error (connection.close)."""
        _log.warning("%s: %s", self.peer, printable(given(text)))
        self._end_sessions()
        self.protocol.close(code, cut_short(text))
        self._brake.drop()
        self._wake()

    def stop_consuming(self) -> None:
        """Cancel all subscriptions for good; what they hold stays held."""
        self.give_no_more()
        for session in self._sessions.values():
            session.stop_consuming()

    # --- internals

    def _end_sessions(self) -> None:
        self.give_no_more()
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            session.give_back()
        for session in sessions.values():
            session.end()

    def _resume(self) -> None:
        try:
            for session in list(self._sessions.values()):
                session.wake()
                session.tell_accepted()
        except AmqpError as error:
            self.close(spec.ConnectionCloseCode.FRAMING_ERROR, str(error))
        self._wake()

    def _beat(self, now: float) -> tuple[float | None, bool]:
        return self.protocol.tick(now, reading=self.is_read and not self.is_stalled)

    def _has_restraints(self) -> bool:
        return any(session.flow.is_stopped for session in self._sessions.values())

    def _relieve(self) -> str | None:
        reason = None
        for session in self._sessions.values():
            session.flow.relieve()
            if session.flow.restraints.is_critical:
                reason = session.flow.restraints.reason
        return reason

    def _holds_messages(self) -> bool:
        return any(session.holds_messages for session in self._sessions.values())

    def _give_up(self, text: str) -> None:
        self.close(spec.ConnectionCloseCode.CONNECTION_FORCED, text)

    def _authenticate(self, mechanism: str, response: bytes | None) -> bytes | State | None:
        answer = self._log_in(mechanism, response)
        return State.CHECKING if isinstance(answer, Check) else answer

    def _login_checked(self, error: AuthenticationFailed | None) -> None:
        for event in self.protocol.login_checked(error):
            self._receive(event)

    def _receive(self, event: Event) -> None:
        if isinstance(event, Opened):
            self._opened(host_name(self.protocol.virtual_host))
        elif isinstance(event, Ended):
            for each in list(self._sessions.values()):
                with suppress(AmqpError):  # it ends anyway
                    each.hurry()
                each.tell_accepted()  # it is written before connection.close-ok
            self._ended(event.error)
        elif isinstance(event, ControlReceived):
            self._receive_control(event.channel, event.control)
        elif isinstance(event, CommandReceived | CommandUnknown):
            session = self._sessions.get(event.channel)
            if session is None:
                self._not_attached(event.channel)
            else:
                session.receive(event)

    def _receive_control(self, channel: int, control: spec.Control) -> None:
        session = self._sessions.get(channel)
        if isinstance(control, spec.SessionAttach):
            self._attach(channel, control, session)
        elif session is not None:
            session.receive_control(control)
            if session.state.state is SessionState.DETACHED:
                self._sessions.pop(channel, None)
        elif isinstance(control, spec.SessionDetach):
            self._not_attached(channel)
        # others are under way since before the client learned that there is no session

    def _attach(self, channel: int, control: spec.SessionAttach, present: ServerSession | None) -> None:
        name = control.name or b""
        if channel > MOST_CHANNEL:
            text = f"channel {channel} is above channel-max, {MOST_CHANNEL}"
            self.close(spec.ConnectionCloseCode.FRAMING_ERROR, text)
            return
        if present is not None and present.state.state is SessionState.ATTACHED:
            self._detached(channel, name, spec.SessionDetachCode.TRANSPORT_BUSY)
            return
        holder = self.names.holder(self.username, name)
        if holder is not None:
            if not control.force:
                self._detached(channel, name, spec.SessionDetachCode.SESSION_BUSY)
                return
            holder.taken_over()
        session = self._sessions[channel] = ServerSession(self, channel, name)
        session.receive_control(control)

    def detached(self, channel: int, session: ServerSession) -> None:
        """A session is detached by this side."""
        if self._sessions.get(channel) is session:
            del self._sessions[channel]
        self._detached(channel, session.state.name, spec.SessionDetachCode.SESSION_BUSY)
        self._wake()

    def _not_attached(self, channel: int) -> None:
        self._detached(channel, b"", spec.SessionDetachCode.NOT_ATTACHED)

    def _detached(self, channel: int, name: bytes, code: spec.SessionDetachCode) -> None:
        self.protocol.send_control(channel, spec.SessionDetached(name=name, code=code))

    def _end_failing(self) -> None:
        while self._failing:
            self._failing.pop().fail_now()


def host_name(virtual_host: str) -> str:
    """The name of the virtual host in connection.open: an empty one is ``/``, and a slash before another is dropped."""
    if virtual_host in ("", "/"):
        return "/"
    return virtual_host.removeprefix("/")
