"""The state machine of one channel (0-9-1 section channel): frames in, methods with their content out. No I/O.

It joins a method with its content (header and body frames), answers what the peer may ask of a channel, and assigns
answers to synchronous requests, which a peer answers in their order. Deliveries of the consuming channel do not pass
here: they arrive as blocks (see :mod:`amqp_core.v0_9.scanner`).
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

from amqp_core.address import DEFAULT_MAX_MESSAGE_BYTES
from amqp_core.error_conditions import CoreCondition
from amqp_core.errors import DecodeError, LimitExceeded, ProtocolError, UsageError
from amqp_core.v0_9 import spec
from amqp_core.v0_9._codec import decode_header, decode_method
from amqp_core.v0_9.error_codes import command_failure
from amqp_core.v0_9.framing import BODY, HEADER, METHOD

if TYPE_CHECKING:
    from amqp_core.errors import AmqpError
    from amqp_core.v0_9.connection import Connection
    from amqp_core.v0_9.framing import Frame

# What a piece of a body takes besides its bytes.
_PIECE_BYTES: Final = 48
_OPENING = (spec.ChannelOpen, spec.ChannelOpenOk)
_ANSWERS = frozenset(kind for kinds in spec.RESPONSES.values() for kind in kinds)


def basic_properties(header: bytes) -> spec.BasicProperties:
    """Decode the properties in the payload of a content header.

    Raises:
        DecodeError: it is malformed, or of another class.
    """
    properties, _ = decode_header(header)
    if not isinstance(properties, spec.BasicProperties):
        raise DecodeError(f"a content header of class {properties.CLASS_ID} follows a method of class basic")
    return properties


class ChannelState(Enum):
    """State of a channel. Immutable: any thread may use it."""

    CLOSED = auto()
    OPENING = auto()
    OPEN = auto()
    CLOSING = auto()


class ChannelMode(Enum):
    """What a channel was selected for, until it is closed. Immutable: any thread may use it."""

    PLAIN = auto()
    TRANSACTIONS = auto()
    CONFIRMS = auto()


_ANY_MODE: Final = frozenset(ChannelMode)
_MODES: Final[dict[type[spec.Method], frozenset[ChannelMode]]] = {
    spec.TxSelect: frozenset({ChannelMode.PLAIN, ChannelMode.TRANSACTIONS}),
    spec.TxCommit: frozenset({ChannelMode.TRANSACTIONS}),
    spec.TxRollback: frozenset({ChannelMode.TRANSACTIONS}),
    spec.ConfirmSelect: frozenset({ChannelMode.PLAIN, ChannelMode.CONFIRMS}),
}
"""Modes in which a method is allowed (0-9-1 section tx; RabbitMQ refuses what is not listed, 406)."""
_MODE_NAMES: Final = {
    ChannelMode.PLAIN: "which is not transactional",
    ChannelMode.TRANSACTIONS: "which is transactional",
    ChannelMode.CONFIRMS: "which has confirms",
}


class WrongMode(ProtocolError):
    """A method arrived that the mode of the channel does not allow; a server may close the channel alone.

    Attributes:
        method: the method.
    """

    def __init__(self, method: spec.Method, reason: str) -> None:
        super().__init__(reason)
        self.method = method


class ChannelMisused(ProtocolError):
    """A method arrived on a channel that is not open, or channel.open on one that is (504, channel-error)."""


class Content(NamedTuple):
    """Content of a method: payload of its header frame, and its body. Immutable: any thread may use it."""

    header: bytes
    body: bytes

    @property
    def properties(self) -> spec.BasicProperties:
        """The properties.

        Raises:
            DecodeError: the header is malformed.
        """
        return basic_properties(self.header)


class Received(NamedTuple):
    """A method and its content, ``None`` if it has none. Immutable: any thread may use it."""

    method: spec.Method
    content: Content | None


class Request:
    """A synchronous method that was sent. Not thread-safe.

    Attributes:
        method: the method.
        answer: its answer, once that has arrived.
        error: the error that ended the channel before.
        refused: whether it is the one that the peer refused. Those behind it the peer has not processed.
    """

    __slots__ = ("answer", "error", "method", "refused")

    def __init__(self, method: spec.Method) -> None:
        self.method = method
        self.answer: Received | None = None
        self.error: AmqpError | None = None
        self.refused = False

    @property
    def is_done(self) -> bool:
        """Whether it was answered, or never will be."""
        return self.answer is not None or self.error is not None


class Channel:
    """One side of a channel; both roles. Not thread-safe.

    Args:
        connection: the connection, which takes its frames.
        number: the channel, 1 to 65535.
        max_message_bytes: bytes of the largest body that is joined here.

    Attributes:
        state: its state.
        mode: transactions or confirms; a channel has at most one of them (tx.select, confirm.select).
        error: the error with which the peer closed it; :meth:`open` clears it.
        active: whether the peer wants content (channel.flow).
    """

    def __init__(self, connection: Connection, number: int, max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES) -> None:
        self.number = number
        self.state = ChannelState.CLOSED
        self.mode = ChannelMode.PLAIN
        self.error: AmqpError | None = None
        self.active = True
        self._connection = connection
        self._most = max_message_bytes
        self._is_over = False  # the peer has closed it, and may not know yet that it was closed
        self._requests: deque[Request] = deque()
        self._method: spec.Method | None = None  # whose content is under way
        self._header: bytes | None = None
        self._body: list[bytes] = []
        self._size = self._missing = 0

    @property
    def unfinished_bytes(self) -> int:
        """Bytes that a content takes which has not arrived whole."""
        if self._header is None:
            return 0
        return len(self._header) + self._size - self._missing + _PIECE_BYTES * len(self._body)

    def open(self) -> Request:
        """Open the channel (channel.open), for the first time or again.

        Raises:
            UsageError: it is open.
        """
        if self.state is not ChannelState.CLOSED:
            raise _not_now(f"channel {self.number} is {self.state.name.lower()} already")
        self._requests.clear()
        self._forget_content()
        self.error, self.active, self.mode = None, True, ChannelMode.PLAIN
        self.state = ChannelState.OPENING
        return self._request(spec.ChannelOpen())

    def send(self, method: spec.Method, properties: spec.BasicProperties | None = None, body: bytes = b"") -> None:
        """Queue a method; with ``properties`` and ``body`` if it is one with content.

        Raises:
            UsageError: the channel is closed or closing, or has another mode.
            EncodeError: a value does not fit its wire type.
        """
        if self.state in (ChannelState.CLOSED, ChannelState.CLOSING):
            raise _not_now(f"channel {self.number} is {self.state.name.lower()}")
        mode = self.mode
        if mode not in _MODES.get(type(method), _ANY_MODE):
            raise _not_now(f"{method.NAME} is not allowed on channel {self.number}, {_MODE_NAMES[mode]}")
        self._connection.send_method(self.number, method, properties, body)
        self._select(method)

    def request(self, method: spec.Method) -> Request:
        """Queue a synchronous method; its :class:`Request` gets the answer.

        Raises:
            UsageError, EncodeError: as :meth:`send`.
        """
        self.send(method)
        return self._expect(method)

    def close(self, reply_code: int = 200, reply_text: str = "", method: spec.Method | None = None) -> Request:
        """Begin to close the channel (channel.close); what arrives before the answer is dropped.

        ``method``: the method of the peer that is the reason.

        Raises:
            UsageError: it is closed or closing.
        """
        if self.state in (ChannelState.CLOSED, ChannelState.CLOSING):
            raise _not_now(f"channel {self.number} is {self.state.name.lower()}")
        self._end_requests(_not_now(f"channel {self.number} was closed"))
        self._forget_content()
        self.state = ChannelState.CLOSING
        class_id, method_id = divmod(method.CODE, 1 << 16) if method is not None else (0, 0)
        return self._request(spec.ChannelClose(reply_code, reply_text, class_id, method_id))

    def receive(self, frame: Frame) -> Received | None:
        """Process a frame of this channel; return the method that it completes, unless the channel handles it.

        Raises:
            ProtocolError: the frame is not allowed now; an answer was not due.
            LimitExceeded: a body is larger than allowed.
            DecodeError: the method, or the size in the header, is malformed.
        """
        if frame.type == METHOD:
            return self._receive_method(frame)
        if self.state is ChannelState.CLOSING or self._is_over:
            return None
        if self._method is None or self.state is not ChannelState.OPEN:
            raise ProtocolError(f"a frame of type {frame.type} on channel {self.number} belongs to no method")
        if frame.type == HEADER and self._header is None:
            return self._receive_header(frame.payload)
        if frame.type == BODY and self._header is not None:
            return self._receive_body(frame.payload)
        raise ProtocolError(f"a frame of type {frame.type} is out of order in the content of {self._method.NAME}")

    def _receive_method(self, frame: Frame) -> Received | None:
        method = decode_method(frame.payload)
        if self._method is not None:
            raise ProtocolError(f"{method.NAME} arrived inside the content of {self._method.NAME}")
        if isinstance(method, spec.ChannelClose):
            self._closed(method)
            return None
        if self.state is ChannelState.CLOSING or (self._is_over and not isinstance(method, _OPENING)):
            self._receive_late(method)
            return None
        if isinstance(method, spec.ChannelOpen):
            self._opened_by_peer(method)
            return None
        if self.state is ChannelState.CLOSED:
            raise ChannelMisused(f"{method.NAME} arrived on channel {self.number}, which is not open")
        if self.mode not in _MODES.get(type(method), _ANY_MODE):
            raise WrongMode(method, f"{method.NAME} arrived on channel {self.number}, {_MODE_NAMES[self.mode]}")
        self._select(method)
        if isinstance(method, spec.ChannelFlow):
            self.active = method.active
            self._connection.send_method(self.number, spec.ChannelFlowOk(active=method.active))
            return None
        if method.CODE in spec.CONTENT_CODES:
            self._method = method
            return None
        return self._complete(Received(method, None))

    def _select(self, method: spec.Method) -> None:
        """Change the mode if the method does that."""
        if isinstance(method, spec.TxSelect):
            self.mode = ChannelMode.TRANSACTIONS
        elif isinstance(method, spec.ConfirmSelect):
            self.mode = ChannelMode.CONFIRMS

    def _receive_late(self, method: spec.Method) -> None:
        """Drop what came after one side began to close the channel: Broker-J confirms messages after its close."""
        if self.state is ChannelState.CLOSING and isinstance(method, spec.ChannelCloseOk):
            self.state = ChannelState.CLOSED
            self._requests.popleft().answer = Received(method, None)

    def _opened_by_peer(self, method: spec.ChannelOpen) -> None:
        if self.state is not ChannelState.CLOSED:
            raise ChannelMisused(f"{method.NAME} arrived on channel {self.number}, which is open")
        self._forget_content()
        self.error, self.active, self.mode = None, True, ChannelMode.PLAIN
        self.state = ChannelState.OPEN
        self._is_over = False
        self._connection.send_method(self.number, spec.ChannelOpenOk())

    def _closed(self, method: spec.ChannelClose) -> None:
        if self.state is ChannelState.CLOSED:
            raise ChannelMisused(f"{method.NAME} arrived on channel {self.number}, which is not open")
        self._connection.send_method(self.number, spec.ChannelCloseOk())
        if self.state is ChannelState.CLOSING:
            return  # both sides close it: our close will be answered, too
        self.state = ChannelState.CLOSED
        self._is_over = True
        self.error = command_failure(method.reply_code, method.reply_text, method.class_id, method.method_id)
        if self._requests:
            self._requests[0].refused = True
        self._end_requests(self.error)

    def _receive_header(self, payload: bytes) -> Received | None:
        assert self._method is not None
        size = int.from_bytes(payload[4:12]) if len(payload) >= 12 else 0
        if size > self._most:
            raise LimitExceeded(f"the body of {self._method.NAME} has {size} bytes; {self._most} are the most")
        self._header, self._missing, self._size = payload, size, size
        return self._content_complete() if not size else None

    def _receive_body(self, payload: bytes) -> Received | None:
        assert self._method is not None
        if not payload or len(payload) > self._missing:
            raise ProtocolError(
                f"{len(payload)} bytes of a body arrived where {self._method.NAME} lacks {self._missing}"
            )
        self._body.append(payload)
        self._missing -= len(payload)
        return self._content_complete() if not self._missing else None

    def _content_complete(self) -> Received | None:
        assert self._method is not None
        assert self._header is not None
        received = Received(self._method, Content(self._header, b"".join(self._body)))
        self._forget_content()
        return self._complete(received)

    def _complete(self, received: Received) -> Received | None:
        """Give an answer to its request; return every other method."""
        kind = type(received.method)
        if kind not in _ANSWERS:
            return received
        due = self._requests[0] if self._requests else None
        if due is None or kind not in spec.RESPONSES[type(due.method)]:
            waits = f"{due.method.NAME} waits for its answer" if due else "nothing was asked"
            raise ProtocolError(f"{received.method.NAME} arrived on channel {self.number}, where {waits}")
        if kind is spec.ChannelOpenOk:
            self.state = ChannelState.OPEN
            self._is_over = False
        self._requests.popleft().answer = received
        return None

    def _request(self, method: spec.Method) -> Request:
        self._connection.send_method(self.number, method)
        return self._expect(method)

    def _expect(self, method: spec.Method) -> Request:
        request = Request(method)
        self._requests.append(request)
        return request

    def _end_requests(self, error: AmqpError) -> None:
        for request in self._requests:
            request.error = error
        self._requests.clear()

    def _forget_content(self) -> None:
        self._method = self._header = None
        self._body = []
        self._size = self._missing = 0


def _not_now(reason: str) -> UsageError:
    return UsageError(CoreCondition.CALL_NOT_ALLOWED(reason=reason))
