"""The connection state machine (0-9-1 section connection): bytes in, events out; no socket, no clock.

The two tables of ``connection_events``, one for each role, define the legal methods of channel 0 in each state. Frames
of other channels are handed on, see :mod:`amqp_core.v0_9.channel`. Time is an argument of :meth:`Connection.tick`. SASL
is delegated: the client role calls a ``login`` object, the server role an ``authenticate`` function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_core.address import DEFAULT_MAX_MESSAGE_BYTES
from amqp_core.connection_base import BaseConnection
from amqp_core.connection_states import Ended, Opened, Redirected, Role, State
from amqp_core.error_conditions import CoreCondition, reason
from amqp_core.errors import (
    AmqpError,
    AuthenticationFailed,
    ProtocolError,
    UsageError,
    VersionRefused,
    given,
)
from amqp_core.protocol_header import HEADERS_0_9, is_stranger
from amqp_core.server_version import version_of
from amqp_core.v0_9 import spec
from amqp_core.v0_9._codec import decode_method, encode_header, encode_method
from amqp_core.v0_9.connection_events import (
    TRANSITIONS,
    Blocked,
    DeliveriesReceived,
    DeliveryBegun,
    Event,
    FrameReceived,
    SecretUpdated,
)
from amqp_core.v0_9.framing import (
    HEARTBEAT,
    HEARTBEAT_FRAME,
    METHOD,
    MIN_MAX_FRAME_SIZE,
    OVERHEAD,
    Frame,
    encode_content,
    encode_method_frame,
    parse_frame,
)
from amqp_core.v0_9.refusals import closed, explain_close
from amqp_core.v0_9.scanner import Scanner
from amqp_core.write_primitives import cut_short

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from amqp_core.blocks import Block
    from amqp_core.sasl import Login

CONSUMING: Final = 1
"""The channel whose deliveries arrive as blocks."""
DEFAULT_FRAME_MAX: Final = 131072
MOST_CHANNELS: Final = 2047

# A frame of connection.start begins so: a method, on channel 0.
_FIRST_OCTETS = bytes((METHOD, 0, 0))
_HEADER_SIZE = 8
# Frames that RabbitMQ takes before connection.tune from 4.1 on, since the password may be a long token. Before, and by
# the specification, these are of frame-min-size; it resets the connection at a larger one.
_LONG_LOGIN = 8192


def takes_long_logins(server_properties: Mapping[str, object]) -> bool:
    """Whether a server takes frames of 8,192 bytes before the size is agreed."""
    return server_properties.get("product") == "RabbitMQ" and version_of(server_properties) >= (4, 1)


class Connection(BaseConnection[Event, Frame]):
    """One side of an AMQP 0-9-1 or 0-9 connection. Not thread-safe.

    Pass received bytes to :meth:`receive_data`, write the bytes that :meth:`data_to_send` returns, call :meth:`tick`
    with a monotonic time in seconds.

    Args:
        role: client (it uses login, virtual_host, client_properties) or server (authenticate, server_properties,
            mechanisms, channel_max).
        version: ``0-9-1`` or ``0-9``: the protocol header.
        heartbeat: seconds between heartbeats, requested (client) or offered (server); 0: no heartbeats.
        max_frame_size: frame-max, the largest frame in bytes, at least 4096; ``None``: as the server offers, and
            131,072 if it sets no limit; no more than a message may have.
        max_message_bytes: the largest accepted message, in bytes of all its frames.
        channel_max: the greatest channel that the server role offers.
        authenticate: ``(mechanism, response) -> challenge``, ``None`` when the login is complete; raises
            AuthenticationFailed to refuse. ``State.CHECKING``: :meth:`login_checked` will say.
        forbids_virtual_host: why the login cannot open a virtual host of the server role; ``None``: it can.
        refuse: why the server role takes no more connections; an empty text, or no function: it does.
        scan_deliveries: deliveries of channel 1 come as blocks of raw frames (the fast path) instead of frames.

    Raises:
        UsageError: ``max_frame_size`` is too small.

    Attributes:
        state: what is awaited.
        max_frame_size: as wished, then as agreed with the peer.
        channel_max: the greatest channel, as agreed.
        peer_properties: properties of the peer from connection.start or connection.start-ok.
    """

    _before_frames = frozenset({State.HEADER, State.START})

    def __init__(
        self,
        role: Role,
        *,
        version: str = "0-9-1",
        login: Login | None = None,
        virtual_host: str = "/",
        heartbeat: int = 0,
        max_frame_size: int | None = None,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        channel_max: int = MOST_CHANNELS,
        client_properties: dict[str, object] | None = None,
        mechanisms: Sequence[str] = ("PLAIN",),
        authenticate: Callable[[str, bytes], bytes | State | None] | None = None,
        server_properties: dict[str, object] | None = None,
        forbids_virtual_host: Callable[[str], str | None] | None = None,
        refuse: Callable[[], str] | None = None,
        scan_deliveries: bool = False,
    ) -> None:
        if max_frame_size is not None and max_frame_size < MIN_MAX_FRAME_SIZE:
            reason = f"at least {MIN_MAX_FRAME_SIZE} bytes are needed"
            raise UsageError(CoreCondition.ARGUMENT_INVALID(name=f"max_frame_size={max_frame_size}", reason=reason))
        super().__init__(
            role,
            State.START if role is Role.CLIENT else State.HEADER,
            heartbeat=heartbeat,
            parse=parse_frame,
            # 0-9-1 section connection.tune, frame-max: until it is agreed, frames of up to frame-min-size must be
            # taken. Servers do not heed that where they tell what they are and can (connection.start).
            received_limit=DEFAULT_FRAME_MAX if role is Role.CLIENT else MIN_MAX_FRAME_SIZE,
            scanner=Scanner(CONSUMING, max_message_bytes) if scan_deliveries else None,
        )
        self.version = version
        self._protocol = f"AMQP {version}"
        self.max_frame_size = max_frame_size or DEFAULT_FRAME_MAX
        self.channel_max = channel_max
        self.virtual_host = virtual_host
        self.peer_properties: dict[str, object] = {}
        self._wished_frame_size = max_frame_size
        # A frame is held until it is whole: one that is no message must not take more memory than the largest message.
        self._most_unwished = max(DEFAULT_FRAME_MAX, max_message_bytes)
        self._login = login
        self._authenticate = authenticate
        self._client_properties = client_properties or {}
        self._mechanisms = list(mechanisms)
        self.mechanism = ""
        self._server_properties = server_properties or {}
        self._forbids_virtual_host = forbids_virtual_host
        self._refuse = refuse
        self._sent_limit = MIN_MAX_FRAME_SIZE
        if role is Role.CLIENT:
            self._out.append(HEADERS_0_9[version])

    @property
    def peer_capabilities(self) -> dict[str, object]:
        """The table ``capabilities`` in the properties of the peer (an extension); names: :class:`spec.Capability`."""
        capabilities = self.peer_properties.get("capabilities")
        return capabilities if isinstance(capabilities, dict) else {}

    def receive_eof(self) -> list[Event]:
        """Handle the end of the peer's data. Returns the reason if it is known.

        A server that answers with another protocol header closes the connection after it. RabbitMQ before 3.0, or one
        that was told so, closes without a word when it refuses a login.
        """
        state, self.state = self.state, State.CLOSED
        begun = self._tail[: len(_FIRST_OCTETS)]
        is_cut = state is State.START and _FIRST_OCTETS.startswith(begun)  # inside connection.start: it was lost
        if state in (State.HEADER, State.START) and begun and not is_cut:
            return [Ended(self._refused("answered with"))]
        error = self.explain_loss(state)
        return [Ended(error)] if error else []

    def explain_loss(self, state: State | None = None) -> AmqpError | None:
        """The error that the end of the connection in this state means, without a word of the peer; often ``None``."""
        product = str(self.peer_properties.get("product", ""))
        told = self.peer_capabilities.get(spec.Capability.AUTHENTICATION_FAILURE_CLOSE)
        silent = product == "RabbitMQ" and not told
        if (state or self.state) is not State.SECURE_OR_TUNE or not silent:
            return None
        reason = "it closed the connection without a word, as this server does then"
        return AuthenticationFailed(CoreCondition.LOGIN_REFUSED(mechanism=self.mechanism, reason=reason))

    def send_method(
        self, channel: int, method: spec.Method, properties: spec.BasicProperties | None = None, body: bytes = b""
    ) -> None:
        """Queue a method; one that has content with its properties and body.

        Raises:
            EncodeError: a field does not fit its wire type; the method, or the content header, does not fit one frame.
        """
        payload = encode_method(method)
        if method.CODE not in spec.CONTENT_CODES:
            self._out.append(encode_method_frame(channel, payload, self._sent_limit, method.NAME))
            return
        header = encode_header(properties or spec.BasicProperties(), len(body))
        self._out.extend(encode_content(channel, payload, header, body, self._sent_limit))

    def send_content(self, channel: int, method: spec.Method, header: bytes, body: bytes) -> None:
        """Queue a method with content whose header frame has the payload ``header``, of any size, as it was received.

        Raises:
            EncodeError: a field does not fit its wire type; the method does not fit one frame.
        """
        payload = encode_method(method)
        self._out.extend(encode_content(channel, payload, header, body, self._sent_limit, any_header=True))

    def update_secret(self, secret: bytes, reason: str) -> None:
        """Queue connection.update-secret (an extension of RabbitMQ); the answer is :class:`SecretUpdated`.

        Raises:
            UsageError: the connection is not open.
        """
        if self.state is not State.OPEN:
            raise UsageError(CoreCondition.CALL_NOT_ALLOWED(reason="the connection is not open"))
        self.send_method(0, spec.ConnectionUpdateSecret(new_secret=secret, reason=reason))

    def redirect(self, host: str) -> None:
        """Answer connection.open with connection.redirect (0-9); for the server role, instead of what is queued."""
        self._out.clear()
        self.send_method(0, spec.ConnectionRedirect(host=host, known_hosts=host))
        self.state = State.CLOSED

    def close(self, reply_code: int = 200, reply_text: str = "", method: spec.Method | None = None) -> None:
        """Begin a clean close (connection.close).

        Args:
            reply_code: 200 is a normal close; others: 0-9-1 section constants.
            reply_text: the reason, at most 255 bytes of UTF-8.
            method: the method of the peer that is the reason.

        Raises:
            EncodeError: ``reply_text`` is too long.
        """
        if self.state in (State.CLOSED, State.CLOSE_OK):
            return
        if self.state in (State.HEADER, State.START):
            self.state = State.CLOSED
            return
        class_id, method_id = divmod(method.CODE, 1 << 16) if method is not None else (0, 0)
        self.send_method(0, spec.ConnectionClose(reply_code, reply_text, class_id, method_id))
        self.state = State.CLOSE_OK

    def _receive_first(self) -> bool:
        """Whether the peer's first bytes are those of this protocol: its header, or the frame of connection.start.

        A server answers the header with connection.start, or with the header of a version that it prefers.
        """
        if self.role is Role.CLIENT:
            if self._tail.startswith(_FIRST_OCTETS):
                return True
            if _FIRST_OCTETS.startswith(self._tail):
                return False
            if is_stranger(self._tail, bytes(_HEADER_SIZE)):
                raise self._refused("answered with")
            return False
        stranger = is_stranger(self._tail, HEADERS_0_9[self.version])
        if stranger is None:
            return False
        if stranger:
            self._out.append(HEADERS_0_9[self.version])
            raise self._refused("offers")
        self._tail = self._tail[_HEADER_SIZE:]
        self.send_method(
            0,
            spec.ConnectionStart(
                version_major=spec.MAJOR,
                version_minor=spec.MINOR,
                server_properties=self._server_properties,
                mechanisms=" ".join(self._mechanisms).encode(),
                locales=b"en_US",
            ),
        )
        self.state = State.START_OK
        return True

    def drop_under_way(self) -> None:
        """See :meth:`.BlockScanner.drop_under_way`."""
        if self._scan is not None:
            self._scan.drop_under_way()

    def _scanned(self, block: Block) -> tuple[Event, ...]:
        return (DeliveriesReceived(block),)

    def _begun(self, frames: bytes) -> DeliveryBegun:
        return DeliveryBegun(frames)

    def _receive_frame(self, frame: Frame, events: list[Event]) -> None:
        if frame.type == HEARTBEAT:
            return
        if frame.channel:
            if self.state is State.OPEN:
                events.append(FrameReceived(frame))
            elif self.state is not State.CLOSE_OK:
                raise ProtocolError(f"a frame arrived on channel {frame.channel} before the connection was open")
            return
        if frame.type != METHOD:
            raise ProtocolError(f"a frame of type {frame.type} arrived on channel 0")
        self._connection_method(decode_method(frame.payload), events)

    def _connection_method(self, method: spec.Method, events: list[Event]) -> None:
        if isinstance(method, spec.ConnectionClose):
            self.send_method(0, spec.ConnectionCloseOk())
            self._say_last()
            error = self._explain_close(method)
            self.state = State.CLOSED
            events.append(Ended(error))
            return
        following = TRANSITIONS[self.role].get((self.state, type(method)))
        if following is None:
            if self.state is State.CLOSE_OK:
                return
            raise ProtocolError(f"{method.NAME} is not allowed while {self.state.name.lower()} is awaited")
        self.state = following
        handler = getattr(self, "_on_" + method.NAME.partition(".")[2].replace("-", "_"))
        event: Event | None = handler(method)
        if event is not None:
            events.append(event)

    def _explain_close(self, method: spec.ConnectionClose) -> AmqpError:
        text = method.reply_text
        if self._login is not None:
            text = self._login.shown(text)
        if self.role is Role.SERVER:
            return closed(method, text)
        return explain_close(method, text, self.state, mechanism=self.mechanism, virtual_host=self.virtual_host)

    def _fail(self, error: AmqpError, events: list[Event]) -> None:
        if isinstance(error, AuthenticationFailed) and self.role is Role.SERVER:
            self._refuse_login()
        elif self.state not in (State.CLOSED, State.HEADER, State.START):
            refused = isinstance(error, AuthenticationFailed)
            code = spec.ReplyCode.ACCESS_REFUSED if refused else spec.ReplyCode.FRAME_ERROR
            # a client reads it: without the advice, which is for those who run the broker
            text = cut_short(f"{code.name} - {reason(error)}") if self.role is Role.SERVER else type(error).__name__
            self.send_method(0, spec.ConnectionClose(reply_code=code, reply_text=text))
            self._say_last()
        self.state = State.CLOSED
        self._tail = b""
        events.append(Ended(error))

    def _refuse_login(self) -> None:
        """As RabbitMQ: with a method only where the client expects it; 0-9-1 itself has the socket closed instead."""
        if self.peer_capabilities.get(spec.Capability.AUTHENTICATION_FAILURE_CLOSE) is not True:
            return
        text = (
            f"ACCESS_REFUSED - Login was refused using authentication mechanism {given(self.mechanism)}. "
            "For details see the broker logfile."
        )
        self.send_method(0, spec.ConnectionClose(spec.ReplyCode.ACCESS_REFUSED, cut_short(text)))

    def _send_heartbeat(self) -> None:
        self._out.append(HEARTBEAT_FRAME)

    def _on_start(self, method: spec.ConnectionStart) -> None:
        self.peer_properties = method.server_properties
        if (method.version_major, method.version_minor) != (spec.MAJOR, spec.MINOR):
            offered = f"AMQP {method.version_major}-{method.version_minor}"
            raise VersionRefused(offered, f"AMQP {self.version}", "answered with")
        if self._login is None:
            reason = "a connection in the client role needs a login"
            raise UsageError(CoreCondition.CALL_NOT_ALLOWED(reason=reason))
        mechanisms = method.mechanisms.decode("utf-8", "replace").split()
        self.mechanism, response = self._login.choose(mechanisms)
        if takes_long_logins(method.server_properties):
            self._sent_limit = _LONG_LOGIN
        locales = method.locales.decode("utf-8", "replace").split()
        self.send_method(
            0,
            spec.ConnectionStartOk(
                client_properties=self._client_properties,
                mechanism=self.mechanism,
                response=response or b"",
                locale=locales[0] if locales and "en_US" not in locales else "en_US",
            ),
        )

    def _on_secure(self, method: spec.ConnectionSecure) -> None:
        assert self._login is not None
        self.send_method(0, spec.ConnectionSecureOk(response=self._login.respond(method.challenge)))

    def _on_tune(self, method: spec.ConnectionTune) -> None:
        assert self._login is not None
        self._login.succeeded()
        # RabbitMQ resets the connection without a word if an answer is above its offer, or 0 where it has a limit.
        offered = method.frame_max or max(DEFAULT_FRAME_MAX, self._wished_frame_size or 0)
        if offered < MIN_MAX_FRAME_SIZE:
            raise ProtocolError(f"connection.tune offers frames of {offered} bytes; {MIN_MAX_FRAME_SIZE} is the least")
        self.max_frame_size = min(self._wished_frame_size or self._most_unwished, offered)
        self.channel_max = min(method.channel_max or MOST_CHANNELS, MOST_CHANNELS)
        # A server that offers 0 asks for no heartbeats, but sends and expects those that the client asks for.
        wished = self.heartbeat_s
        self._heartbeat.interval_s = min(wished, method.heartbeat) if method.heartbeat else wished
        self.send_method(
            0,
            spec.ConnectionTuneOk(
                channel_max=self.channel_max, frame_max=self.max_frame_size, heartbeat=self.heartbeat_s
            ),
        )
        self._received_limit = self._sent_limit = self.max_frame_size
        self.send_method(0, spec.ConnectionOpen(virtual_host=self.virtual_host))

    def _on_open_ok(self, _: spec.ConnectionOpenOk) -> Opened:
        return Opened()

    def _on_redirect(self, method: spec.ConnectionRedirect) -> Redirected:
        return Redirected(method.host)

    def _on_blocked(self, method: spec.ConnectionBlocked) -> Blocked:
        return Blocked(method.reason or "no reason given")

    def _on_unblocked(self, _: spec.ConnectionUnblocked) -> Blocked:
        return Blocked(None)

    def _on_update_secret_ok(self, _: spec.ConnectionUpdateSecretOk) -> SecretUpdated:
        return SecretUpdated()

    def _on_update_secret(self, _: spec.ConnectionUpdateSecret) -> None:
        self.send_method(0, spec.ConnectionUpdateSecretOk())

    def _on_close_ok(self, _: spec.ConnectionCloseOk) -> Ended:
        return Ended(None)

    def _on_start_ok(self, method: spec.ConnectionStartOk) -> None:
        self.peer_properties = method.client_properties
        self.mechanism = method.mechanism
        self._continue_login(method.response)

    def _on_secure_ok(self, method: spec.ConnectionSecureOk) -> None:
        self._continue_login(method.response)

    def _continue_login(self, response: bytes) -> None:
        challenge = self._authenticate(self.mechanism, response) if self._authenticate else None
        if challenge is State.CHECKING:
            self.state = State.CHECKING
        elif challenge is not None:
            assert isinstance(challenge, bytes)
            self.send_method(0, spec.ConnectionSecure(challenge=challenge))
        else:
            self._accept_login()

    def _accept_login(self) -> None:
        self.state = State.TUNE_OK
        self.send_method(
            0,
            spec.ConnectionTune(
                channel_max=self.channel_max, frame_max=self.max_frame_size, heartbeat=self.heartbeat_s
            ),
        )

    def _on_tune_ok(self, method: spec.ConnectionTuneOk) -> None:
        size = method.frame_max or self.max_frame_size
        if not MIN_MAX_FRAME_SIZE <= size <= self.max_frame_size:
            raise ProtocolError(
                f"connection.tune-ok asks for frames of {size} bytes; {self.max_frame_size} was offered"
            )
        if method.channel_max > self.channel_max:
            raise ProtocolError(
                f"connection.tune-ok asks for {method.channel_max} channels; {self.channel_max} were offered"
            )
        self.max_frame_size = self._sent_limit = size
        # frame-max counts the whole frame; some clients take it for that of the payload, and RabbitMQ bears with them.
        self._received_limit = size + OVERHEAD
        self.channel_max = method.channel_max or self.channel_max
        self._heartbeat.interval_s = method.heartbeat

    def _on_open(self, method: spec.ConnectionOpen) -> Opened | None:
        self.virtual_host = method.virtual_host
        forbidden = self._forbids_virtual_host(self.virtual_host) if self._forbids_virtual_host is not None else None
        if forbidden is not None:
            self.close(spec.ReplyCode.NOT_ALLOWED, cut_short(f"NOT_ALLOWED - {forbidden}"), method)
            return None
        if self._refuse is not None and (reason := self._refuse()):
            self.close(spec.ReplyCode.NOT_ALLOWED, cut_short(f"NOT_ALLOWED - {reason}"), method)
            return None
        self.send_method(0, spec.ConnectionOpenOk())
        return Opened()
