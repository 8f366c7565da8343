"""The connection state machine (0-10 section connection): bytes in, events out; no socket, no clock.

The two tables of ``connection_events``, one for each role, define all state transitions and the legal controls. Time is
an argument: :meth:`Connection.tick` receives the time and returns when to call it again. SASL is delegated: the client
role calls a ``login`` object, the server role an ``authenticate`` function; this module knows no mechanism.
"""

from __future__ import annotations

import re
from copy import copy
from typing import TYPE_CHECKING, Any, TypeVar

from amqp_core.address import DEFAULT_MAX_MESSAGE_BYTES
from amqp_core.connection_base import BaseConnection
from amqp_core.connection_states import Ended, Opened, Redirected, Role, State
from amqp_core.error_conditions import CoreCondition
from amqp_core.errors import (
    AmqpError,
    AuthenticationFailed,
    ConnectionClosed,
    DecodeError,
    LimitExceeded,
    LimitReached,
    ProtocolError,
    UsageError,
    VirtualHostRefused,
    given,
)
from amqp_core.protocol_header import is_stranger
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import check_required, decode_command, decode_control, encode_control
from amqp_core.v0_10.connection_events import (
    TRANSITIONS,
    CommandReceived,
    CommandUnknown,
    ControlReceived,
    Event,
    TransferBegun,
    TransfersReceived,
)
from amqp_core.v0_10.framing import (
    HEADER_SIZE,
    MAX_FRAME_SIZE,
    MIN_MAX_FRAME_SIZE,
    PROTOCOL_HEADER,
    TRACK_CONTROL,
    WHOLE,
    Assembler,
    Frame,
    encode_assembly,
    encode_control_frame,
    parse_frame,
)
from amqp_core.v0_10.scanner import Scanner
from amqp_core.write_primitives import cut_short

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from amqp_core.blocks import Block
    from amqp_core.sasl import Login
    from amqp_core.v0_10.framing import Assembly

# If transfers arrive as blocks, only results and dispositions are assembled here. The largest is the result of
# dtx.recover, with some 90 bytes for each prepared branch.
_COMMAND_LIMIT = 1 << 22
# channel-max in connection.tune-ok if the server sent no limit: the client has one session, on channel 0.
_CHANNELS_USED = 1
# In a control with ranges of command ids: its code, packing flags, the size of the set and another field.
_ROOM_BESIDES_RANGES = 16
_RANGE_SIZE = 8
# Most session.completed inside one message. A conforming peer sends few: about one for each sync bit.
_MOST_COMPLETIONS = 10_000
_INTERNAL_ERROR = 541
# 402 invalid-path: Broker-J for an unknown virtual host; 530 and 403 where the login may not use it
_ABOUT_VIRTUAL_HOST = frozenset({402, 403, 404, 530})
# qpidd, after the login: User connection denied by configured limit
_LIMIT_REACHED = re.compile(r"\bdenied by configured limit\b|\bconnection limit\b")
# qpidd, during the login, where Cyrus SASL cannot answer for now
_MAY_PASS = re.compile(r"\b(?:Transient failure, try again|Unable to perform authentication)\b")

_T = TypeVar("_T")


class Connection(BaseConnection[Event, Frame]):
    """One side of an AMQP 0-10 connection. Not thread-safe.

    Pass received bytes to :meth:`receive_data`, write the bytes that :meth:`data_to_send` returns, call :meth:`tick`
    with a monotonic time in seconds.

    Args:
        role: client (it uses login, virtual_host, client_properties) or server (authenticate, server_properties,
            mechanisms).
        heartbeat: seconds between heartbeats, requested (client) or offered at most (server); 0: no heartbeats.
        max_frame_size: the largest accepted frame, in bytes, 4096 to 65535; ``None``: 65535.
        max_message_bytes: the largest accepted message or command, in bytes of all its frames.
        authenticate: ``(mechanism, response) -> challenge``, ``None`` when the login is complete; raises
            AuthenticationFailed to refuse. ``State.CHECKING``: :meth:`login_checked` will say.
        forbids_virtual_host: why the login cannot open a virtual host of the server role; ``None``: it can.
        refuse: why the server role takes no more connections; an empty text, or no function: it does.
        scan_transfers: deliver transfers of channel 0 as blocks of raw frames (the fast path) instead of commands.

    Raises:
        UsageError: ``max_frame_size`` is outside its limits.
    """

    _protocol = "AMQP 0-10"
    _before_frames = frozenset({State.HEADER})

    def __init__(
        self,
        role: Role,
        *,
        login: Login | None = None,
        virtual_host: str = "",
        heartbeat: int = 0,
        max_frame_size: int | None = None,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        client_properties: dict[str, object] | None = None,
        mechanisms: Sequence[str] = ("ANONYMOUS",),
        authenticate: Callable[[str, bytes | None], bytes | State | None] | None = None,
        server_properties: dict[str, object] | None = None,
        forbids_virtual_host: Callable[[str], str | None] | None = None,
        refuse: Callable[[], str] | None = None,
        scan_transfers: bool = False,
    ) -> None:
        max_frame_size = MAX_FRAME_SIZE if max_frame_size is None else max_frame_size
        if not MIN_MAX_FRAME_SIZE <= max_frame_size <= MAX_FRAME_SIZE:
            reason = f"{MIN_MAX_FRAME_SIZE} to {MAX_FRAME_SIZE} bytes are allowed"
            raise UsageError(CoreCondition.ARGUMENT_INVALID(name=f"max_frame_size={max_frame_size}", reason=reason))
        super().__init__(
            role,
            State.HEADER,
            heartbeat=heartbeat,
            parse=parse_frame,
            # 0-10 section connection.tune, rule minimum: until max-frame-size is agreed, frames of up to 4096 bytes
            # must be taken, so that none larger may be sent. qpidd and Broker-J keep to it in both directions.
            received_limit=MIN_MAX_FRAME_SIZE,
            scanner=Scanner(0, max_message_bytes) if scan_transfers else None,
        )
        self.max_frame_size = max_frame_size
        self.virtual_host = virtual_host
        self.peer_properties: dict[str, object] = {}
        self._login = login
        self._authenticate = authenticate
        self._client_properties = client_properties or {}
        self._mechanisms = list(mechanisms)
        self.mechanism = ""
        self._server_properties = server_properties or {}
        self._forbids_virtual_host = forbids_virtual_host
        self._refuse = refuse
        # session.completed that arrived inside a transfer: the completed commands are later than its beginning
        self._completions: list[ControlReceived] = []
        if scan_transfers and max_message_bytes > _COMMAND_LIMIT:
            self._assembler = Assembler(_COMMAND_LIMIT)
        else:
            self._assembler = Assembler(max_message_bytes, option="max message bytes")
        self._logged_in = False
        self._sent_limit = MIN_MAX_FRAME_SIZE
        if role is Role.CLIENT:
            self._out.append(PROTOCOL_HEADER)

    def receive_eof(self) -> list[Event]:
        """Handle the end of the peer's data. During the exchange of headers, return an error with the data it sent."""
        if self.state is State.HEADER and self._tail:
            self.state = State.CLOSED
            return [Ended(self._refused("answered with"))]
        self.state = State.CLOSED
        return []

    def send_control(self, channel: int, control: spec.Control) -> None:
        """Queue a control of a session; split it if its set of commands does not fit the peer's max-frame-size.

        Raises:
            EncodeError: a required field is absent, a field does not fit its wire type, or the control does not fit one
                frame.
        """
        for part in _fitting(control, self._sent_limit - HEADER_SIZE):
            self._put_control(channel, part)

    def send_assembly(self, channel: int, segments: Sequence[tuple[int, bytes]]) -> None:
        """Queue a command with its segments (type, payload), cut to the peer's max-frame-size."""
        self._out.extend(encode_assembly(channel, 1, segments, self.max_frame_size))

    def close(self, reply_code: int = 200, reply_text: str = "") -> None:
        """Begin a clean close (connection.close).

        Args:
            reply_code: 200 is a normal close; others: 0-10 domain close-code.
            reply_text: the reason, at most 255 bytes of UTF-8.

        Raises:
            EncodeError: ``reply_text`` is too long.
        """
        if self.state in (State.CLOSED, State.CLOSE_OK):
            return
        if self.state is State.HEADER:
            self.state = State.CLOSED
            return
        self._control(spec.ConnectionClose(reply_code=reply_code, reply_text=reply_text))
        self.state = State.CLOSE_OK

    def _receive_first(self) -> bool:
        """Whether the whole header has arrived. The server answers it with its own and connection.start."""
        stranger = is_stranger(self._tail, PROTOCOL_HEADER)
        if stranger is None:
            return False
        if stranger:
            if self.role is Role.SERVER:
                self._out.append(PROTOCOL_HEADER)
            raise self._refused("offers")
        self._tail = self._tail[len(PROTOCOL_HEADER) :]
        if self.role is Role.CLIENT:
            self.state = State.START
        else:
            self._out.append(PROTOCOL_HEADER)
            self._control(
                spec.ConnectionStart(
                    server_properties=self._server_properties, mechanisms=self._mechanisms, locales=["en_US"]
                )
            )
            self.state = State.START_OK
        return True

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of commands and controls that have not arrived whole, where messages are not scanned."""
        return self._assembler.unfinished_bytes

    def _scanned(self, block: Block) -> list[Event]:
        events: list[Event] = [TransfersReceived(block), *self._completions]
        self._completions.clear()
        return events

    def _begun(self, frames: bytes) -> TransferBegun:
        return TransferBegun(frames)

    def _hold_back(self, completion: ControlReceived) -> None:
        """Keep a completion that arrived inside a transfer until that has ended: it may end the credit for it."""
        if len(self._completions) >= _MOST_COMPLETIONS:
            raise LimitExceeded(f"the peer sends more than {_MOST_COMPLETIONS} session.completed inside one message")
        self._completions.append(completion)

    def _receive_frame(self, frame: Frame, events: list[Event]) -> None:
        if frame.channel and (self._scan is not None or self.state not in (State.OPEN, State.CLOSE_OK)):
            _check_other_channel(
                frame, "where there is no session" if self._scanning else "before the connection was open"
            )
        if frame.track != TRACK_CONTROL and self.state is not State.OPEN:  # its first frame: what follows takes memory
            if self.state is State.CLOSE_OK:
                return
            raise ProtocolError("a command arrived before the connection was open")
        assembly = self._assembler.receive(frame)
        if assembly is None:
            return
        if assembly.track == TRACK_CONTROL:
            control = _named(decode_control, assembly.operation, spec.CONTROL_TYPES)
            if control.CODE >> 8 == 1:
                self._connection_control(control, events)
            elif self.state is State.OPEN:
                received = ControlReceived(assembly.channel, control)
                if self._scan is not None and self._scan.amid and isinstance(control, spec.SessionCompleted):
                    self._hold_back(received)
                else:
                    events.append(received)
            elif self.state is not State.CLOSE_OK:
                raise ProtocolError(f"{control.NAME} arrived before the connection was open")
            return
        events.append(_received(assembly))

    def _connection_control(self, control: spec.Control, events: list[Event]) -> None:
        if isinstance(control, spec.ConnectionHeartbeat):
            return
        if isinstance(control, spec.ConnectionClose):
            self._control(spec.ConnectionCloseOk())
            self._say_last()
            error = self._explain_close(control)
            self.state = State.CLOSED
            events.append(Ended(error))
            return
        following = TRANSITIONS[self.role].get((self.state, type(control)))
        if following is None:
            if self.state is State.CLOSE_OK:
                return
            raise ProtocolError(f"{control.NAME} is not allowed while {self.state.name.lower()} is awaited")
        self.state = following
        handler = getattr(self, "_on_" + control.NAME.partition(".")[2].replace("-", "_"))
        event: Event | None = handler(control)
        if event is not None:
            events.append(event)

    def _explain_close(self, control: spec.ConnectionClose) -> AmqpError:
        code, text = control.reply_code or 0, control.reply_text or ""
        if self._login is not None:
            text = self._login.shown(text)
        said = given(text)
        if self.role is Role.CLIENT and _LIMIT_REACHED.search(text):
            return LimitReached(code, text)
        if (
            self.role is Role.CLIENT
            and not self._logged_in
            and self.state is State.SECURE_OR_TUNE
            and code != _INTERNAL_ERROR
            and not _MAY_PASS.search(text)
        ):
            return AuthenticationFailed(CoreCondition.LOGIN_REFUSED(mechanism=self.mechanism, reason=f"{code} {said}"))
        if self.role is Role.CLIENT and self.state is State.OPEN_OK and code in _ABOUT_VIRTUAL_HOST:
            return VirtualHostRefused(CoreCondition.VIRTUAL_HOST_REFUSED(vhost=self.virtual_host, code=code, text=said))
        return ConnectionClosed(code, text)

    def _fail(self, error: AmqpError, events: list[Event]) -> None:
        if self.state not in (State.CLOSED, State.HEADER):
            code = 320 if isinstance(error, AuthenticationFailed) else 501
            text = type(error).__name__
            if code == 320 and self.role is Role.SERVER:
                text = cut_short(f"the login with {given(self.mechanism)} was refused")
            self._control(spec.ConnectionClose(reply_code=code, reply_text=text))
            self._say_last()
        self.state = State.CLOSED
        self._tail = b""
        events.append(Ended(error))

    def _send_heartbeat(self) -> None:
        self._control(spec.ConnectionHeartbeat())

    def _control(self, control: spec.Control) -> None:
        self._put_control(0, control)

    def _put_control(self, channel: int, control: spec.Control) -> None:
        check_required(control)
        payload = encode_control(control)
        self._out.append(encode_control_frame(channel, payload, self._sent_limit, control.NAME))

    def _on_start(self, control: spec.ConnectionStart) -> None:
        self.peer_properties = control.server_properties or {}
        if self._login is None:
            reason = "a connection in the client role needs a login"
            raise UsageError(CoreCondition.CALL_NOT_ALLOWED(reason=reason))
        mechanisms = [str(name) for name in control.mechanisms or []]
        self.mechanism, response = self._login.choose(mechanisms)
        locales = [str(locale) for locale in control.locales or []]
        self._control(
            spec.ConnectionStartOk(
                client_properties=self._client_properties,
                mechanism=self.mechanism,
                response=response,
                locale=locales[0] if locales and "en_US" not in locales else "en_US",
            )
        )

    def _on_secure(self, control: spec.ConnectionSecure) -> None:
        assert self._login is not None
        self._control(spec.ConnectionSecureOk(response=self._login.respond(control.challenge or b"")))

    def _on_tune(self, control: spec.ConnectionTune) -> None:
        assert self._login is not None
        self._login.succeeded()
        self._logged_in = True
        # An answer above the offer makes Broker-J drop the connection silently.
        self.max_frame_size = min(self.max_frame_size, control.max_frame_size or MAX_FRAME_SIZE)
        if self.max_frame_size < MIN_MAX_FRAME_SIZE:
            raise ProtocolError(f"connection.tune offers frames of {self.max_frame_size} bytes; 4096 is the least")
        self._control(
            spec.ConnectionTuneOk(
                channel_max=control.channel_max or _CHANNELS_USED,
                max_frame_size=self.max_frame_size,
                heartbeat=self._agree_heartbeat(control),
            )
        )
        self._received_limit = self._sent_limit = self.max_frame_size
        self._control(spec.ConnectionOpen(virtual_host=self.virtual_host, insist=False))

    def _agree_heartbeat(self, tune: spec.ConnectionTune) -> int | None:
        """The heartbeat for connection.tune-ok, within the server's range; ``None``: no heartbeats.

        A server without heartbeat-min supports none (0-10 section connection.tune-ok, rule no-heartbeat-min); leaving
        out the field requests no heartbeats.
        """
        if tune.heartbeat_min is None or not self.heartbeat_s:
            self._heartbeat.interval_s = 0
            return None
        most = self.heartbeat_s if tune.heartbeat_max is None else min(self.heartbeat_s, tune.heartbeat_max)
        self._heartbeat.interval_s = max(tune.heartbeat_min, most)
        return self.heartbeat_s

    def _on_open_ok(self, _: spec.ConnectionOpenOk) -> Opened:
        return Opened()

    def _on_redirect(self, control: spec.ConnectionRedirect) -> Redirected:
        return Redirected(str(control.host or ""))

    def _on_close_ok(self, _: spec.ConnectionCloseOk) -> Ended:
        return Ended(None)

    def _on_start_ok(self, control: spec.ConnectionStartOk) -> None:
        self.peer_properties = control.client_properties or {}
        self.mechanism = control.mechanism or ""
        self._continue_login(control.response)

    def _on_secure_ok(self, control: spec.ConnectionSecureOk) -> None:
        self._continue_login(control.response)

    def _continue_login(self, response: bytes | None) -> None:
        challenge = self._authenticate(self.mechanism, response) if self._authenticate else None
        if challenge is State.CHECKING:
            self.state = State.CHECKING
        elif challenge is not None:
            assert isinstance(challenge, bytes)
            self._control(spec.ConnectionSecure(challenge=challenge))
        else:
            self._accept_login()

    def _accept_login(self) -> None:
        self._logged_in = True
        self.state = State.TUNE_OK
        self._control(
            spec.ConnectionTune(
                channel_max=255, max_frame_size=self.max_frame_size, heartbeat_min=0, heartbeat_max=self.heartbeat_s
            )
        )

    def _on_tune_ok(self, control: spec.ConnectionTuneOk) -> None:
        size = control.max_frame_size or self.max_frame_size
        if not MIN_MAX_FRAME_SIZE <= size <= self.max_frame_size:
            raise ProtocolError(
                f"connection.tune-ok asks for frames of {size} bytes; {self.max_frame_size} was offered"
            )
        self.max_frame_size = self._received_limit = self._sent_limit = size
        self._heartbeat.interval_s = control.heartbeat or 0

    def _on_open(self, control: spec.ConnectionOpen) -> Opened | None:
        self.virtual_host = control.virtual_host or ""
        forbidden = self._forbids_virtual_host(self.virtual_host) if self._forbids_virtual_host is not None else None
        if forbidden is not None:
            self.close(spec.ConnectionCloseCode.INVALID_PATH, cut_short(forbidden))
            return None
        if self._refuse is not None and (reason := self._refuse()):
            self.close(spec.ConnectionCloseCode.CONNECTION_FORCED, cut_short(reason))
            return None
        self._control(spec.ConnectionOpenOk())
        return Opened()


def _check_other_channel(frame: Frame, why_not: str) -> None:
    """Refuse a frame on a channel that has no session, unless it is a connection.close: that may name any channel."""
    close = spec.ConnectionClose.CODE.to_bytes(2)
    if frame.track != TRACK_CONTROL or frame.flags != WHOLE or frame.payload[:2] != close:
        raise ProtocolError(f"a frame arrived on channel {frame.channel}, {why_not}")


def _fitting(control: spec.Control, room: int) -> list[spec.Control]:
    """Split a control by its commands into controls whose payload fits into ``room`` bytes."""
    commands = getattr(control, "commands", None)
    most = (room - _ROOM_BESIDES_RANGES) // _RANGE_SIZE
    if not commands or len(commands) <= most:
        return [control]
    parts = []
    for start in range(0, len(commands), most):
        part: Any = copy(control)
        part.commands = commands[start : start + most]
        parts.append(part)
    return parts


def _received(assembly: Assembly) -> CommandReceived | CommandUnknown:
    """Decode a command. One that is not known is for the session to answer: the frames were in order."""
    code = assembly.operation[:2]
    if len(code) == 2 and int.from_bytes(code) not in spec.COMMAND_TYPES:
        return CommandUnknown(assembly.channel, int.from_bytes(code))
    command, sync = _named(decode_command, assembly.operation, spec.COMMAND_TYPES)
    return CommandReceived(assembly.channel, command, sync, assembly.header, assembly.body)


def _named(decode: Callable[[bytes], _T], operation: bytes, types: Mapping[int, type]) -> _T:
    """Decode; prefix an error with the name of the control or command."""
    try:
        return decode(operation)
    except DecodeError as error:
        known = types.get(int.from_bytes(operation[:2]))
        if known is None or known.NAME in error.reason:  # type: ignore[attr-defined]
            raise
        raise DecodeError(f"{known.NAME}: {error.reason}", error.offset) from error  # type: ignore[attr-defined]
