"""One connection of the embedded broker over AMQP 0-9-1 or 0-9: bytes in, calls of the model, bytes out. No I/O."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from amqp_core.address import DEFAULT_MAX_MESSAGE_BYTES
from amqp_core.broker.adapter import HEARTBEAT_S, HERE, SERVER_PROPERTIES, Adapter
from amqp_core.broker.login import Check
from amqp_core.broker.v0_9.blocking import Blocking
from amqp_core.broker.v0_9.channel import ServerChannel
from amqp_core.broker.v0_9.login import PASSWORDS
from amqp_core.connection_states import Ended, Opened, Role, State
from amqp_core.errors import AmqpError, LimitExceeded, given
from amqp_core.printable import printable
from amqp_core.v0_9 import spec
from amqp_core.v0_9.channel import ChannelMisused
from amqp_core.v0_9.connection import Connection
from amqp_core.v0_9.connection_events import Event, FrameReceived
from amqp_core.v0_9.framing import METHOD
from amqp_core.write_primitives import cut_short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from amqp_core.broker.login import Caller
    from amqp_core.broker.login_checks import LoginChecks
    from amqp_core.broker.logins import Logins
    from amqp_core.broker.model.memory import Restraint
    from amqp_core.broker.model.virtual_host import VirtualHost
    from amqp_core.errors import AuthenticationFailed
    from amqp_core.v0_9.framing import Frame

_log = logging.getLogger(__name__)

# Classes access, file, stream, dtx, tunnel and message of the older versions.
_UNSERVED: Final = (30, 70, 80, 100, 110, 120)
CAPABILITIES: Final = (
    spec.Capability.PUBLISHER_CONFIRMS,
    spec.Capability.EXCHANGE_EXCHANGE_BINDINGS,
    spec.Capability.BASIC_NACK,
    spec.Capability.CONSUMER_CANCEL_NOTIFY,
    spec.Capability.CONNECTION_BLOCKED,
    spec.Capability.CONSUMER_PRIORITIES,
    spec.Capability.AUTHENTICATION_FAILURE_CLOSE,
    spec.Capability.PER_CONSUMER_QOS,
    spec.Capability.DIRECT_REPLY_TO,
)


class ServerConnection(Adapter):
    """One connection; arguments as of ``Adapter``. Not thread-safe.

    Args:
        version: ``0-9-1`` or ``0-9``.
        refuse: why no more connections are taken; empty: they are.
    """

    def __init__(
        self,
        *,
        version: str,
        hosts: Mapping[str, VirtualHost],
        logins: Logins,
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
        self._channels: dict[int, ServerChannel] = {}
        self._doom: tuple[spec.ReplyCode, str] | None = None
        """Why the connection must be closed."""
        self._is_closed = False
        """Whether this side has closed it."""
        self._blocking = Blocking(self)
        self.protocol = Connection(
            Role.SERVER,
            version=version,
            heartbeat=HEARTBEAT_S,
            mechanisms=self._login.mechanisms,
            authenticate=self._authenticate,
            forbids_virtual_host=self._forbids,
            refuse=refuse,
            server_properties=SERVER_PROPERTIES | {"capabilities": dict.fromkeys(CAPABILITIES, True)},
        )

    @property
    def is_congested(self) -> bool:
        """Whether the client gets no more messages until it has read what was sent."""
        return self._doom is not None or super().is_congested

    @property
    def is_closing(self) -> bool:
        """Whether the client has to answer connection.close."""
        return self.protocol.state is State.CLOSE_OK

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of messages that have not arrived whole."""
        return sum(channel.state.unfinished_bytes for channel in self._channels.values())

    def shut_down(self) -> None:
        """Tell the client that the broker stops."""
        self.lost()
        self.protocol.close(spec.ReplyCode.CONNECTION_FORCED, "CONNECTION_FORCED - the broker stops")

    def knows(self, capability: spec.Capability) -> bool:
        """Whether the client announces a capability."""
        return self.protocol.peer_capabilities.get(capability) is True

    def receive(self, data: bytes) -> None:
        """Process received bytes."""
        events = self.protocol.receive_data(data)
        if events and isinstance(events[-1], Ended):
            self._brake.end()
        self._process(events)

    def _process(self, events: list[Event]) -> None:
        for event in self._brake.let_through(events):
            if isinstance(event, Ended):
                self._confirm()  # it is written before connection.close-ok
                self._ended(event.error)
            elif self._is_closed:  # what comes behind an error is dropped (0-9-1 section connection.close)
                continue
            elif isinstance(event, FrameReceived):
                self._receive_frame(event.frame)
            elif isinstance(event, Opened):
                self._opened(self.protocol.virtual_host)
        self._confirm()
        unfinished = self.unfinished_bytes
        if unfinished > self._most_unfinished() and not self.is_closing:
            self._give_up(f"messages of {unfinished} bytes have begun on its channels and not ended")

    def take_bytes(self) -> bytes:
        """Return what is to be written now, and forget it."""
        self._pending = self._answers = 0
        if self._doom is not None:
            (code, text), self._doom = self._doom, None
            self.close(code, text)
            self._end_channels()
        return self.protocol.data_to_send()

    def lost(self) -> None:
        """The connection is gone: end its channels, and return what it held."""
        if self.is_over and not self._channels:
            return
        self.is_over = True
        self._end_channels()
        if self._host is not None:
            self._host.close(self, now=self.now)
            self._host = None

    # --- for channels

    def send_method(self, channel: int, method: spec.Method) -> None:
        """Queue a method."""
        self.protocol.send_method(channel, method)
        self._wake()

    def stop_publisher(self, channel: ServerChannel, restraints: Iterable[Restraint]) -> None:
        """A channel has published what has no room for more."""
        self._blocking.stop(channel.state, restraints)
        self._brake.pull_for_publisher()
        self._wake()

    def answer_content(self, channel: int, method: spec.Method, header: bytes, body: bytes) -> None:
        """Queue a method with its content that the client has asked for."""
        self.send_content(channel, method, header, body)
        self._answered(len(body) + len(header))

    def send_content(self, channel: int, method: spec.Method, header: bytes, body: bytes) -> None:
        """Queue a method with its content."""
        self.protocol.send_content(channel, method, header, body)
        self._pending += len(body) + len(header) + 64
        self._wake()

    def close(self, code: spec.ReplyCode, text: str, method: spec.Method | None = None) -> None:
        """Close the connection with an error (connection.close): nothing is delivered to it any more."""
        _log.warning("%s: %s", self.peer, printable(given(text)))
        self._confirm()
        self.protocol.close(code, cut_short(text), method)
        self._is_closed = True
        self._brake.drop()
        self.stop_consuming()
        self._wake()

    def doom(self, code: spec.ReplyCode, text: str) -> None:
        """Close the connection with an error after the present event: in it, the model calls and must not be called."""
        self._doom = code, text
        self._wake()

    # --- internals

    def _confirm(self) -> None:
        """Confirm what was published on all channels."""
        for channel in self._channels.values():
            channel.confirm()

    def _resume(self) -> None:
        for channel in list(self._channels.values()):
            channel.wake()

    def _beat(self, now: float) -> tuple[float | None, bool]:
        return self.protocol.tick(now, reading=self.is_read and not self.is_stalled)

    def _has_restraints(self) -> bool:
        return bool(self._blocking)

    def _relieve(self) -> str | None:
        self._blocking.relieve()
        return self._blocking.reason if self._blocking.is_critical else None

    def _holds_messages(self) -> bool:
        return any(channel.holds_messages for channel in self._channels.values())

    def _give_up(self, text: str) -> None:
        self.close(spec.ReplyCode.RESOURCE_ERROR, f"RESOURCE_ERROR - {text}")
        self._end_channels()

    def stop_consuming(self) -> None:
        """Cancel all consumers for good; what they hold stays held."""
        self.give_no_more()
        for channel in self._channels.values():
            channel.stop_consuming()

    def _end_channels(self) -> None:
        self.give_no_more()
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.give_back()
        for channel in channels.values():
            channel.end()

    def _authenticate(self, mechanism: str, response: bytes) -> bytes | State | None:
        answer = self._log_in(mechanism, response)
        return State.CHECKING if isinstance(answer, Check) else answer

    def _login_checked(self, error: AuthenticationFailed | None) -> None:
        for event in self.protocol.login_checked(error):
            if isinstance(event, Ended):
                self._ended(event.error)

    def _receive_frame(self, frame: Frame) -> None:
        """Process a frame of a channel."""
        channel = self._channels.get(frame.channel)
        if channel is None:
            if frame.channel > self.protocol.channel_max:
                self.close(
                    spec.ReplyCode.CHANNEL_ERROR, f"CHANNEL_ERROR - channel {frame.channel} is above channel-max"
                )
                return
            channel = self._channels[frame.channel] = ServerChannel(self, frame.channel)
        try:
            channel.receive(frame)
        except ChannelMisused as error:
            self.close(spec.ReplyCode.CHANNEL_ERROR, f"CHANNEL_ERROR - {error}")
        except LimitExceeded as error:
            self.close(spec.ReplyCode.CONTENT_TOO_LARGE, f"CONTENT_TOO_LARGE - {error}")
        except AmqpError as error:
            if frame.type == METHOD and int.from_bytes(frame.payload[:2]) in _UNSERVED:
                text = f"class {int.from_bytes(frame.payload[:2])} is not served"
                self.close(spec.ReplyCode.NOT_IMPLEMENTED, f"NOT_IMPLEMENTED - {text}")
            else:
                self.close(spec.ReplyCode.UNEXPECTED_FRAME, f"UNEXPECTED_FRAME - {error}")
