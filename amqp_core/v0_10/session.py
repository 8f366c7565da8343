"""The session state machine (0-10 section session and execution): commands in both directions, ids, completion.

It does no I/O: it sends to a ``Wire`` (the connection), and received data is passed to the ``receive_*`` methods.
Command ids are unbounded ints here (see ``serial``). Both directions are alike in the specification and in this class.

Completion of our commands: the peer reports cumulative sets, which are merged. A caller waits for an id.
Completion of the peer's commands: each is completed when it arrives (other commands accept transfers), and this is
reported to the peer at the latest every ``COMPLETE_EVERY`` commands: Broker-J keeps each uncompleted command and stops
for good at 65,536 of them.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from amqp_core.error_conditions import CoreCondition
from amqp_core.errors import AmqpError, DecodeError, ProtocolError, SessionDetached, UsageError
from amqp_core.sequence_numbers import RangeSet, unwrap, unwrap_ranges, wire_ranges, wrap
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import check_required, encode_command
from amqp_core.v0_10.error_codes import command_failure
from amqp_core.v0_10.framing import BODY, COMMAND, HEADER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from amqp_core.blocks import Block

COMPLETE_EVERY = 4096
# Ask for known-completed at times, so that the reported set does not grow forever.
_TIMELY_REPLY_EVERY = 16
# A range of serial numbers must stay below 2**31; the peer knows the oldest ids long before that.
_WIDEST_RANGE = 1 << 30

# Most names of synchronous commands that are kept; a command that waits for an answer is never so far behind.
_MOST_NAMES = 4096

_NAMES = {cls.CODE: cls.NAME for cls in spec.COMMAND_TYPES.values()}


class Wire(Protocol):
    """Output of a session, which calls it on its own thread only."""

    def send_control(self, channel: int, control: spec.Control) -> None:
        """Queue a control."""

    def send_assembly(self, channel: int, segments: Sequence[tuple[int, bytes]]) -> None:
        """Queue a command with its segments."""


class SessionState(Enum):
    """State of the session (0-10 section session: attach and detach). Immutable: any thread may use it."""

    NEW = auto()
    ATTACHING = auto()
    ATTACHED = auto()
    DETACHING = auto()
    DETACHED = auto()


# (state, control received) -> next state, for the controls that change it.
TRANSITIONS: dict[tuple[SessionState, type], SessionState] = {
    (SessionState.NEW, spec.SessionAttach): SessionState.ATTACHED,
    (SessionState.ATTACHING, spec.SessionAttached): SessionState.ATTACHED,
    (SessionState.ATTACHING, spec.SessionDetached): SessionState.DETACHED,
    (SessionState.ATTACHED, spec.SessionDetach): SessionState.DETACHED,
    (SessionState.ATTACHED, spec.SessionDetached): SessionState.DETACHED,
    (SessionState.DETACHING, spec.SessionDetached): SessionState.DETACHED,
    (SessionState.DETACHING, spec.SessionDetach): SessionState.DETACHED,
    # both sides requested the detach: the answer to ours arrives after we have answered theirs
    (SessionState.DETACHED, spec.SessionDetached): SessionState.DETACHED,
}


class Session:
    """One side of a session (0-10 section session). Not thread-safe.

    Its name is unique per user on the broker. Other values of ``first_id`` than 0 test the wrap.

    Args:
        tells_known: whether session.completed is always answered with session.known-completed; else only where the
            peer asks for it (timely-reply).
    """

    def __init__(self, wire: Wire, channel: int, name: bytes, *, first_id: int = 0, tells_known: bool = True) -> None:
        self.channel = channel
        self.name = name
        self.state = SessionState.NEW
        self.error: AmqpError | None = None
        self.timeout_s = 0
        self.next_id = first_id
        """Id of the next command that we send."""
        self.received_next = first_id
        """Id of the next command that the peer sends."""
        self.results: dict[int, object] = {}
        self.completions = 0
        """Number of completion reports of the peer."""
        self.first_id = first_id
        self._received_first = first_id
        self._wire = wire
        self._tells_known = tells_known
        self.completed = RangeSet()
        """The ids of our commands that the peer has completed."""
        self._names: dict[int, str] = {}
        self._wanted: set[int] = set()  # our commands whose results will be taken
        self._known_below = first_id
        self._told_below = first_id
        self._told_count = 0
        self._handlers: dict[type, Callable[[Any], None]] = {
            spec.SessionCompleted: self._peer_completed,
            spec.SessionKnownCompleted: self._on_known_completed,
            spec.SessionFlush: self._answer_flush,
            spec.SessionCommandPoint: self._on_command_point,
            spec.SessionGap: self._peer_gap,
            spec.SessionRequestTimeout: self._on_request_timeout,
            spec.SessionTimeout: self._on_timeout,
        }

    def attach(self, *, force: bool = False) -> None:
        """Send session.attach and the command point, without which no broker takes commands.

        Args:
            force: take the name over from a session that is attached with it.

        Raises:
            UsageError: the session was attached before.
        """
        if self.state is not SessionState.NEW:
            reason = f"a session that is {self.state.name.lower()} cannot be attached again"
            raise UsageError(CoreCondition.CALL_NOT_ALLOWED(reason=reason))
        self.state = SessionState.ATTACHING
        self._control(spec.SessionAttach(name=self.name, force=force))
        self._command_point()

    def request_timeout(self, seconds: int) -> None:
        """Ask that the peer keeps the session's state for so long after a detach (session.request-timeout).

        The answer, in seconds, is in ``timeout_s``.

        Raises:
            EncodeError: ``seconds`` is not from 0 to 2**32 - 1.
        """
        self._control(spec.SessionRequestTimeout(timeout=seconds))

    def detach(self) -> None:
        """Send session.detach."""
        if self.state in (SessionState.ATTACHED, SessionState.ATTACHING):
            self.state = SessionState.DETACHING
            self._control(spec.SessionDetach(name=self.name))

    def flush(self, *, expected: bool = False, confirmed: bool = False, completed: bool = False) -> None:
        """Ask the peer for its session state (session.flush). Broker-J may not answer: wait with sync instead."""
        self._control(spec.SessionFlush(expected=expected, confirmed=confirmed, completed=completed))

    def gap(self, low: int, high: int) -> None:
        """Announce that our commands ``low`` to ``high`` will never be sent (session.gap)."""
        self._control(spec.SessionGap(commands=wire_ranges([(low, high)])))

    def receive_control(self, control: spec.Control) -> None:
        """Process a control of the session class.

        Raises:
            ProtocolError: the state does not allow it, or its ids of commands are not possible.
        """
        following = TRANSITIONS.get((self.state, type(control)))
        handler = self._handlers.get(type(control))
        if following is not None:
            was, self.state = self.state, following
            self._changed_state(was, control)
        elif isinstance(control, spec.SessionAttach | spec.SessionAttached | spec.SessionDetach | spec.SessionDetached):
            raise ProtocolError(f"{control.NAME} is not allowed while the session is {self.state.name.lower()}")
        elif self.state in (SessionState.NEW, SessionState.ATTACHING):
            raise ProtocolError(f"{control.NAME} arrived before the session was attached")
        elif handler is not None and self.state is not SessionState.DETACHED:
            handler(control)
        # session.expected and session.confirmed concern resuming and replay, which no known broker supports

    def _on_known_completed(self, control: spec.SessionKnownCompleted) -> None:
        for _, high in unwrap_ranges(control.commands or [], self.received_next):
            if high < self.received_next:
                self._known_below = max(self._known_below, high + 1)

    def _on_command_point(self, control: spec.SessionCommandPoint) -> None:
        if control.command_offset:
            raise ProtocolError("session.command-point inside a command: no session is resumed here")
        point = unwrap(control.command_id or 0, self.received_next)
        if point == self.received_next:
            return
        if self.received_next != self._received_first:
            raise ProtocolError(f"session.command-point {point} where command {self.received_next} is next")
        self.received_next = self._received_first = self._known_below = self._told_below = point

    def _on_request_timeout(self, control: spec.SessionRequestTimeout) -> None:
        self.timeout_s = control.timeout or 0
        self._control(spec.SessionTimeout(timeout=self.timeout_s))

    def _on_timeout(self, control: spec.SessionTimeout) -> None:
        self.timeout_s = control.timeout or 0

    def _changed_state(self, was: SessionState, control: spec.Control) -> None:
        if isinstance(control, spec.SessionAttach):
            self.name = control.name or self.name
            self._control(spec.SessionAttached(name=self.name))
            self._command_point()
        elif isinstance(control, spec.SessionDetach):
            self._control(spec.SessionDetached(name=self.name, code=0))
        if (
            isinstance(control, spec.SessionDetach | spec.SessionDetached)
            and was in (SessionState.ATTACHING, SessionState.ATTACHED)
            and self.error is None
        ):
            code = control.code if isinstance(control, spec.SessionDetached) else 0
            self.error = SessionDetached(code or 0, self.name)

    def _peer_completed(self, control: spec.SessionCompleted) -> None:
        for low, high in unwrap_ranges(control.commands or [], self.next_id):
            # ids that were never sent cannot be complete: ignore them
            self.completed.add(max(low, self.first_id), min(high, self.next_id - 1))
        self.completions += 1
        if self.state is SessionState.ATTACHED and (self._tells_known or control.timely_reply):
            # an exact echo needs no state (rule stateless), and no delay that timely-reply would end
            self._control(spec.SessionKnownCompleted(commands=control.commands or []))

    def _peer_gap(self, control: spec.SessionGap) -> None:
        for low, high in unwrap_ranges(control.commands or [], self.received_next):
            if low <= self.received_next <= high:
                self.received_next = high + 1
            elif low > self.received_next:
                # no known broker sends a gap; counting ids past a later one would be wrong
                raise ProtocolError(f"session.gap from {low} on while command {self.received_next} is next")

    def _answer_flush(self, control: spec.SessionFlush) -> None:
        if control.expected:
            # an empty set means that this side has no state of the session (rule commands-empty-means-new-session)
            known = self.received_next > self._received_first
            expected = [(self.received_next, self.received_next)] if known else []
            self._control(spec.SessionExpected(commands=wire_ranges(expected)))
        if control.confirmed:
            self._control(spec.SessionConfirmed(commands=self._unknown_to_peer()))
        if control.completed:
            self._tell_completed()

    def send(
        self,
        command: spec.Command,
        *,
        sync: bool = False,
        result: bool = False,
        header: bytes | None = None,
        body: bytes | None = None,
    ) -> int:
        """Send a command, with its encoded header and its body; return its id.

        Args:
            command: the command; its required fields must be set.
            sync: ask the peer to complete it, and to report that, at once (0-10 session header: sync).
            result: keep its result (execution.result) until :meth:`take_result`, even if the command completes before
                the result arrives.
            header: encoded header segment.
            body: body segment.

        Raises:
            EncodeError: a required field is absent, or a field does not fit its wire type; nothing is sent.
            CommandFailed, SessionDetached: the session has ended.
            UsageError: before :meth:`attach`, or after :meth:`detach`.
        """
        self._check_sending()
        check_required(command)
        segments = [(COMMAND, encode_command(command, sync))]
        if header is not None:
            segments.append((HEADER, header))
        if body is not None:
            segments.append((BODY, body))
        command_id = self.next_id
        self.next_id = command_id + 1
        if result:
            self._wanted.add(command_id)
        if sync or result:
            self._names[command_id] = command.NAME
            if len(self._names) > _MOST_NAMES:  # of commands without a waiting caller
                self.forget_names(command_id - _MOST_NAMES)
        self._wire.send_assembly(self.channel, segments)
        return command_id

    def number(self, count: int) -> int:
        """Assign ids to ``count`` encoded commands that are sent without the session; return the first id.

        Raises:
            CommandFailed, SessionDetached: the session has ended.
            UsageError: before :meth:`attach`, or after :meth:`detach`.
        """
        self._check_sending()
        first_id = self.next_id
        self.next_id = first_id + count
        return first_id

    def is_complete(self, command_id: int) -> bool:
        """Whether the peer has reported our command as completed."""
        return command_id in self.completed

    def incomplete(self) -> int:
        """Number of our commands that the peer has not reported as completed."""
        return self.next_id - self.first_id - self.completed.count()

    def check(self) -> None:
        """Raise the error that ended the session, if an error has ended it.

        Raises:
            CommandFailed: the peer refused a command (execution.exception).
            SessionDetached: the peer detached the session (session.detach, session.detached).
        """
        if self.error is not None:
            raise self.error

    def receive_command(self, command: spec.Command, *, sync: bool) -> int:
        """Number a command of the peer, handle it if it is of the execution class, and return its id.

        Raises:
            ProtocolError: the session is not attached, or an execution.result names no command.
        """
        self._check_receiving(command.NAME)
        command_id = self.received_next
        self.received_next = command_id + 1
        if isinstance(command, spec.ExecutionResult):
            if command.command_id is None:
                raise ProtocolError("execution.result arrived without the id of the command that it answers")
            answered = unwrap(command.command_id, self.next_id)
            if answered in self._wanted:
                self.results[answered] = command.value
        elif isinstance(command, spec.ExecutionException):
            self._exception(command)
        if sync or isinstance(command, spec.ExecutionSync):
            self._tell_completed()
        else:
            self._tell_completed_in_time()
        return command_id

    def refuse_command(self, code: int) -> NoReturn:
        """Answer a command of the peer that is not known here with execution.exception, and end the session.

        It is not completed: nothing of it was done (0-10 section execution.error-code: not-implemented).

        Raises:
            DecodeError: always; the caller has to end the connection with it.
            ProtocolError: the session is not attached.
        """
        text = f"unknown command 0x{code:04x}"
        self._check_receiving(text)
        if self.state is SessionState.ATTACHED and self.error is None:
            exception = spec.ExecutionException(
                error_code=spec.ExecutionErrorCode.NOT_IMPLEMENTED,
                command_id=wrap(self.received_next),
                class_code=code >> 8,
                command_code=code & 0xFF,
                description=text,
            )
            self.send(exception)
            self.detach()
        raise DecodeError(text)

    def receive_block(self, block: Block) -> None:
        """Number the transfers of a block (message.transfer).

        Raises:
            ProtocolError: the session is not attached.
        """
        self._check_receiving(spec.MessageTransfer.NAME)
        block.first_id = self.received_next
        self.received_next += len(block.ends)
        if block.sync:
            self._tell_completed()
        else:
            self._tell_completed_in_time()

    @property
    def has_untold(self) -> bool:
        """Whether the completion of any received command is unreported."""
        return self._told_below < self.received_next

    def tell_completed(self) -> None:
        """Report completion now (session.completed) if any is unreported.

        Do not call it for every few transfers: qpidd walks its whole list of unaccepted transfers for each report.
        """
        if self.has_untold and self.state is SessionState.ATTACHED:
            self._tell_completed()

    def _tell_completed_in_time(self) -> None:
        if self.received_next - self._told_below >= COMPLETE_EVERY:
            self._tell_completed()

    def _tell_completed(self) -> None:
        self._told_count += 1
        timely = self._told_count % _TIMELY_REPLY_EVERY == 0
        self._control(spec.SessionCompleted(commands=self._unknown_to_peer(), timely_reply=timely))
        self._told_below = self.received_next

    def _unknown_to_peer(self) -> list[tuple[int, int]]:
        """Wire ranges of received, and so completed, commands that no known-completed of the peer has listed."""
        self._known_below = max(self._known_below, self.received_next - _WIDEST_RANGE)
        if self._known_below == self.received_next:
            return []
        return wire_ranges([(self._known_below, self.received_next - 1)])

    def _exception(self, exception: spec.ExecutionException) -> None:
        command_id = None if exception.command_id is None else unwrap(exception.command_id, self.next_id)
        code = (exception.class_code or 0) << 8 | (exception.command_code or 0)
        name = _NAMES.get(code) or (self._names.get(command_id) if command_id is not None else None)
        # the first exception is the cause; later ones only follow from it
        if self.error is None:
            self.error = command_failure(exception.error_code or 0, command_id, exception.description or "", name)

    def _check_sending(self) -> None:
        self.check()
        if self.state not in (SessionState.ATTACHED, SessionState.ATTACHING):
            reason = f"a session that is {self.state.name.lower()} takes no commands"
            raise UsageError(CoreCondition.CALL_NOT_ALLOWED(reason=reason))

    def _check_receiving(self, name: str) -> None:
        if self.state not in (SessionState.ATTACHED, SessionState.DETACHING):
            raise ProtocolError(f"{name} arrived while the session is {self.state.name.lower()}")

    def take_result(self, command_id: int) -> object:
        """Return the result of a command (execution.result), ``None`` if it did not arrive; a later one is dropped."""
        self._wanted.discard(command_id)
        return self.results.pop(command_id, None)

    def forget_names(self, below: int) -> None:
        """Forget the names of completed synchronous commands."""
        for command_id in [command_id for command_id in self._names if command_id < below]:
            del self._names[command_id]

    def _command_point(self) -> None:
        self._control(spec.SessionCommandPoint(command_id=wrap(self.next_id), command_offset=0))

    def _control(self, control: spec.Control) -> None:
        self._wire.send_control(self.channel, control)
