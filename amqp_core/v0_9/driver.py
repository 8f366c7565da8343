"""One AMQP 0-9-1 connection over a transport: its endpoint for the pump, and calls that wait for the broker.

An error of the connection or of the consuming channel ends the *incarnation*: every later call raises it. An error of
another channel is raised by calls on that channel, until it is opened again. Not thread-safe, except
:meth:`Driver.wake`.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from amqp_core.connection_states import Ended, Opened, Redirected, Role
from amqp_core.error_conditions import CoreCondition
from amqp_core.errors import AmqpError, ConnectionFailed, ProtocolError, ResourceLimitExceeded
from amqp_core.failover import Redirect
from amqp_core.pump import Pump
from amqp_core.sasl import SaslLogin
from amqp_core.transport import Transport, connection_lost, monotonic
from amqp_core.v0_9 import spec
from amqp_core.v0_9.channel import Channel, ChannelState, Received, Request
from amqp_core.v0_9.connection import CONSUMING, Connection
from amqp_core.v0_9.connection_events import (
    Blocked,
    DeliveriesReceived,
    DeliveryBegun,
    Event,
    FrameReceived,
    SecretUpdated,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    from amqp_core.address import ConnectOptions
    from amqp_core.blocks import Block
    from amqp_core.v0_9.channel import Content

    OnMethod = Callable[[spec.Method, Content | None], None]

PUBLISHING: Final = 2
"""The channel that publishes with confirms."""
ASKING: Final = 3
"""The channel of questions and topology: a passive declaration of what does not exist closes it."""

# Less than the 4,096 bytes that RabbitMQ and frame-min-size allow for connection.start-ok.
_MOST_NAME_BYTES = 1024

Answer = TypeVar("Answer", bound=spec.Method)


class ConnectionEndpoint:
    """A connection and its channels, as an endpoint for :class:`amqp_core.pump.Pump`. No I/O; not thread-safe.

    Attributes:
        is_open: whether the connection is open.
        redirect: host to which the peer redirected instead of opening the connection.
        blocked: reason of connection.blocked; ``None`` while the broker reads from the connection.
        secrets_updated: number of answers to connection.update-secret.
        channels: the channels, by number.
        on_block: called with each block of deliveries.
        on_begun: called with the first frames of an incomplete large delivery.
        on_method: called with every method of a channel that answers no request, and its content.
        on_blocked: called with the reason of connection.blocked, and with ``None`` at connection.unblocked.
    """

    def __init__(self, connection: Connection, max_message_bytes: int) -> None:
        self.connection = connection
        self.is_open = False
        self.redirect: str | None = None
        self.blocked: str | None = None
        self.secrets_updated = 0
        self.channels = {
            number: Channel(connection, number, max_message_bytes) for number in (CONSUMING, PUBLISHING, ASKING)
        }
        self.on_block: Callable[[Block], None] = _no_consumer
        self.on_begun: Callable[[bytes], None] = lambda _: None
        self.on_method: dict[int, OnMethod] = {}
        self.on_blocked: Callable[[str | None], None] = lambda _: None
        self.data_to_send = connection.data_to_send
        self.tick = connection.tick

    @property
    def error(self) -> AmqpError | None:
        """The error with which the broker closed the consuming channel."""
        return self.channels[CONSUMING].error

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

    def report(self, _: float) -> float:
        """Return infinity: there is nothing to be reported to the peer."""
        return math.inf

    def close(self, error: AmqpError) -> None:
        """Queue connection.close because of an error."""
        failed = isinstance(error, ProtocolError)
        code = spec.ReplyCode.UNEXPECTED_FRAME if failed else spec.ReplyCode.REPLY_SUCCESS
        self.connection.close(code, type(error).__name__)

    def _handle(self, event: Event) -> AmqpError | None:
        if isinstance(event, DeliveriesReceived):
            channel = self.channels[CONSUMING]
            if channel.state is ChannelState.OPEN:  # else they were under way when it was closed
                self.on_block(event.block)
        elif isinstance(event, DeliveryBegun):
            self.on_begun(event.frames)
        elif isinstance(event, FrameReceived):
            return self._receive_frame(event)
        elif isinstance(event, Blocked):
            self.blocked = event.reason
            self.on_blocked(event.reason)
        elif isinstance(event, SecretUpdated):
            self.secrets_updated += 1
        elif isinstance(event, Opened):
            self.is_open = True
        elif isinstance(event, Redirected):
            self.redirect = event.host
        else:
            return event.error or connection_lost("the broker", "it was closed")
        return None

    def _receive_frame(self, event: FrameReceived) -> AmqpError | None:
        number = event.frame.channel
        channel = self.channels.get(number)
        if channel is None:
            raise ProtocolError(f"a frame arrived on channel {number}, which was never opened")
        received = channel.receive(event.frame)
        if received is not None:
            handler = self.on_method.get(number)
            if handler is None:
                raise ProtocolError(f"{received.method.NAME} arrived on channel {number}, where it means nothing")
            handler(*received)
        return self.error


class Driver(Pump):
    """The pump of one connection, and the calls on its channels. Not thread-safe, except :meth:`wake`.

    Attributes:
        connection: the state machine.
        endpoint: the connection and its channels, with the handlers of what arrives.
        awaits_answer: whether a call waits for an answer, so that all deliveries before it are read.
        on_wait: called when such a wait begins.
    """

    def __init__(
        self, transport: Transport, connection: Connection, *, call_timeout_s: float, max_message_bytes: int
    ) -> None:
        self.endpoint = ConnectionEndpoint(connection, max_message_bytes)
        self.connection = connection
        self.awaits_answer = False
        self.on_wait: Callable[[], None] = lambda: None
        super().__init__(transport, self.endpoint, call_timeout_s=call_timeout_s)

    @classmethod
    def dial(
        cls,
        options: ConnectOptions,
        host: str,
        port: int,
        context: ssl.SSLContext | None,
        call_timeout_s: float,
        *,
        version: str = "0-9-1",
    ) -> Driver:
        """Connect to one host, log in and open the virtual host, within ``connect_timeout``.

        Raises Redirect if the broker asks to connect to another host (0-9).
        """
        started = monotonic()
        transport = Transport.connect(host, port, timeout=options.connect_timeout, context=context)
        try:
            name = options.client_name.encode()[:_MOST_NAME_BYTES].decode(errors="ignore")
            connection = Connection(
                Role.CLIENT,
                version=version,
                login=SaslLogin(options, loopback=transport.peer_is_loopback),
                virtual_host=options.virtual_host or "/",
                heartbeat=options.heartbeat,
                max_frame_size=options.max_frame_size,
                max_message_bytes=options.max_message_bytes,
                client_properties={
                    "product": name,
                    "platform": "Python",
                    "connection_name": f"{name}:{os.getpid()}",
                    "capabilities": dict.fromkeys(spec.CLIENT_CAPABILITIES, True),
                },
                scan_deliveries=True,
            )
            driver = cls(
                transport,
                connection,
                call_timeout_s=call_timeout_s,
                max_message_bytes=options.max_message_bytes,
            )
            driver._open(started + options.connect_timeout)
        except BaseException:
            transport.close()
            raise
        return driver

    def _open(self, deadline: float) -> None:
        endpoint = self.endpoint
        try:
            while not endpoint.is_open:
                self.pump_until(deadline, "the login to finish (connect timeout)")
                if endpoint.redirect is not None:
                    raise Redirect(endpoint.redirect)
        except ConnectionFailed as error:
            explained = self.connection.explain_loss()  # a reset: receive_eof was not called
            if explained is None:
                raise
            raise explained from error

    def close(self) -> bool:
        """Close cleanly. Unsettled messages go back to their queue. Idempotent.

        Return whether the broker has ended the connection, too.
        """
        self.end(self._say_goodbye)
        return self.connection.is_ended_by_peer

    def _say_goodbye(self, deadline: float) -> None:
        self.connection.close()
        while not self.is_broken():
            self.pump_until(deadline, "connection.close-ok")

    def discard(self) -> None:
        """As :meth:`Pump.discard`; a broker that blocks the connection reads nothing from it, and does not answer."""
        if self.endpoint.blocked is not None:
            self.transport.reset_on_close(True)
            self.abort()
        else:
            super().discard()

    def wait_for(self, done: Callable[[], bool], what: str, silence_timeout_s: float = 0.0) -> None:
        """As :meth:`Pump.wait_for`; deliveries that come before the answer may be dropped meanwhile."""
        self.awaits_answer = True
        try:
            self.on_wait()
            super().wait_for(done, what, silence_timeout_s)
        finally:
            self.awaits_answer = False

    def give_up(self, what: str) -> NoReturn:
        """As :meth:`Pump.give_up`; says that the broker has blocked the connection, if it has."""
        blocked = self.endpoint.blocked
        super().give_up(what if blocked is None else f"{what}; the broker has blocked this connection: {blocked}")

    def open_channel(self, number: int) -> None:
        """Open a channel, unless it is open; after an error of the channel, open it again.

        Raises:
            ResourceLimitExceeded: the broker allows fewer channels.
            AmqpError: the connection has ended.
        """
        self.check()
        channel = self.endpoint.channels[number]
        if channel.state is not ChannelState.CLOSED:
            return
        if number > self.connection.channel_max:
            most = self.connection.channel_max
            text = CoreCondition.CHANNELS_EXHAUSTED(most=most, channel=number)
            raise ResourceLimitExceeded(spec.ReplyCode.NOT_ALLOWED, None, text, spec.ChannelOpen.NAME)
        request = channel.open()
        self.flush_queued()
        self.wait_done(request)
        if request.error is not None:
            raise request.error

    def channel_error(self, number: int) -> AmqpError | None:
        """Return the error with which the broker closed a channel; ``None`` if it is open, or was never opened."""
        return self.endpoint.channels[number].error

    def check_channel(self, number: int) -> None:
        """Raise the error that ended the connection or the channel, if any."""
        self.check()
        error = self.channel_error(number)
        if error is not None:
            raise error

    def send(
        self, number: int, method: spec.Method, properties: spec.BasicProperties | None = None, body: bytes = b""
    ) -> None:
        """Send a method on an open channel without waiting; with its content if it has one."""
        self.check_channel(number)
        self.endpoint.channels[number].send(method, properties, body)
        self.flush_queued()

    def send_all(self, number: int, methods: Sequence[spec.Method]) -> None:
        """As :meth:`send`, for methods without content, in one write."""
        self.check_channel(number)
        channel = self.endpoint.channels[number]
        for method in methods:
            channel.send(method)
        self.flush_queued()

    def request(self, number: int, method: spec.Method) -> Request:
        """Send a synchronous method without waiting; return the request, which gets the answer."""
        self.check_channel(number)
        request = self.endpoint.channels[number].request(method)
        self.flush_queued()
        return request

    def flush_queued(self) -> None:
        """Send what is queued."""
        self.write()
        self.check()

    def call(self, number: int, method: spec.Method, kind: type[Answer], *, silence_timeout_s: float = 0.0) -> Answer:
        """Open the channel if necessary, send a synchronous method, and wait for its answer.

        Raises:
            CommandFailed: the broker refused it and closed the channel.
            ProtocolError: the answer is of another kind.
            DeadlineExceeded: the answer does not arrive within the call timeout.
            AmqpError: the connection has ended.
        """
        answer = self.ask(number, method, silence_timeout_s=silence_timeout_s).method
        if not isinstance(answer, kind):
            raise ProtocolError(f"the broker answered {method.NAME} with {answer.NAME}, where {kind.NAME} is due")
        return answer

    def ask(self, number: int, method: spec.Method, *, silence_timeout_s: float = 0.0) -> Received:
        """As :meth:`call`, for a method that may have several answers, or one with content.

        If the channel ends because of an earlier request, the method is sent again: the broker has not processed it.
        """
        while True:
            self.open_channel(number)
            request = self.request(number, method)
            self.wait_done(request, silence_timeout_s)
            if request.answer is not None:
                return request.answer
            if request.refused:
                assert request.error is not None
                raise request.error

    def wait_done(self, request: Request, silence_timeout_s: float = 0.0) -> None:
        """Wait until a request is answered, or its channel has ended.

        Raises:
            DeadlineExceeded: neither happens within the call timeout.
            AmqpError: the connection has ended.
        """
        self.wait_for(lambda: request.is_done, f"the answer to {request.method.NAME}", silence_timeout_s)

    def update_secret(self, secret: bytes, reason: str) -> None:
        """Replace the secret of the login, such as a token, and wait until the broker has taken it.

        Raises:
            DeadlineExceeded, ConnectionClosed, ...: no answer, or it is refused: the connection has ended.
        """
        self.check()
        due = self.endpoint.secrets_updated + 1
        self.connection.update_secret(secret, reason)
        self.flush_queued()
        self.wait_for(lambda: self.endpoint.secrets_updated >= due, "connection.update-secret-ok")

    def expect_silence(self, seconds: float) -> None:
        """Tolerate silence of the peer for ``seconds``, or until it is heard again."""
        since = self.heard_at
        self.allow_silence(seconds, lambda: self.heard_at > since)


def _no_consumer(block: Block) -> None:
    raise ProtocolError(f"the broker sent {len(block.ends)} message(s) where nothing consumes")
