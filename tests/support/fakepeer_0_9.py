"""A scripted server of AMQP 0-9-1: as :mod:`tests.support.fakepeer`, with the state machines of 0-9-1.

def script(peer: Peer) -> None:
    peer.open()
    peer.published()
    peer.ack(1)
    peer.silent()
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from amqp_core.address import ConnectOptions
from amqp_core.connection_states import Ended, Opened, Role
from amqp_core.v0_9 import spec
from amqp_core.v0_9.channel import Channel, Content, basic_properties
from amqp_core.v0_9.client import Client
from amqp_core.v0_9.connection import Connection
from amqp_core.v0_9.connection_events import Event, FrameReceived
from amqp_core.v0_9.driver import PUBLISHING
from tests.support import fakepeer
from tests.support.fakepeer import HOST, ClientGone

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from amqp_core.v0_9.framing import Frame

_DEADLINE_S = 60.0
_M = TypeVar("_M", bound=spec.Method)

RABBITMQ: dict[str, object] = {
    "product": "RabbitMQ",
    "version": "4.3.6",
    "capabilities": dict.fromkeys(spec.Capability, True),
}


class Published(NamedTuple):
    """A message that the client published: its sequence number, the method, its content."""

    tag: int
    method: spec.BasicPublish
    content: Content


class Peer(fakepeer.PeerSocket):
    """The server's end of one connection.

    Attributes:
        answers: what answers a method, by its type; confirm.select is answered.
        acking: whether each message is acked when it arrives.
        methods: every method received, with its channel, in order.
        messages: every message published, in order.
        on_frame: called with every frame of a channel.
        ended: the event that ended the connection, once it has.
    """

    def __init__(self, sock: socket.socket, settings: dict[str, Any]) -> None:
        self.connection = Connection(
            Role.SERVER, **({"server_properties": RABBITMQ, "mechanisms": ["ANONYMOUS"]} | settings)
        )
        super().__init__(sock, self.connection.data_to_send)
        self.channels: dict[int, Channel] = {}
        self.answers: dict[type, spec.Method] = {spec.ConfirmSelect: spec.ConfirmSelectOk()}
        self.acking = False
        self.methods: list[tuple[int, spec.Method]] = []
        self.messages: list[Published] = []
        self.ended: Ended | None = None
        self.on_frame: Callable[[Frame], object] = lambda _frame: None
        self._tag = 0
        self._opened = False
        self._unseen: deque[Published] = deque()

    # -------------------------------------------------------------------------------------------- usual operation
    def open(self) -> None:
        """Let the client log in and open the connection."""
        self.until(lambda: self._opened, "connection.open")

    def serve(self) -> None:
        """Answer until the client closes the connection."""
        self.until(lambda: self.ended is not None, "the end of the connection", gone_is_fine=True)

    def published(self, count: int = 1) -> Published:
        """Wait for this many more messages; return the last."""
        for _ in range(count - 1):
            self.published()
        self.until(lambda: bool(self._unseen), "basic.publish")
        return self._unseen.popleft()

    def expect(self, kind: type[_M]) -> _M:
        """Wait until a method of a kind has arrived; return the latest."""
        self.until(lambda: any(isinstance(method, kind) for _, method in self.methods), kind.NAME)
        return cast("_M", [method for _, method in self.methods if isinstance(method, kind)][-1])

    def send(
        self,
        method: spec.Method,
        properties: spec.BasicProperties | None = None,
        body: bytes = b"",
        *,
        channel: int = PUBLISHING,
    ) -> None:
        """Send a method, with its content if it has one."""
        self.connection.send_method(channel, method, properties, body)
        self.flush()

    def flow(self, *, active: bool) -> None:
        """Stop or resume the channel that publishes."""
        self.channels[PUBLISHING].request(spec.ChannelFlow(active=active))
        self.flush()

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        """Confirm a message, or all up to it."""
        self.send(spec.BasicAck(tag, multiple))

    def nack(self, tag: int, *, multiple: bool = False) -> None:
        """Refuse a message, or all up to it."""
        self.send(spec.BasicNack(tag, multiple))

    def give_back(self, message: Published, **changes: Any) -> None:
        """Return a message as unroutable."""
        properties = changes.pop("properties", None) or basic_properties(message.content.header)
        body = changes.pop("body", message.content.body)
        fields = {"exchange": message.method.exchange, "routing_key": message.method.routing_key} | changes
        self.send(spec.BasicReturn(reply_code=312, reply_text="NO_ROUTE", **fields), properties, body)

    def refuse(self, code: int, text: str, kind: type[spec.Method] = spec.BasicPublish) -> None:
        """Close the channel that publishes because of a method."""
        self._tag = 0
        self.channels[PUBLISHING].close(code, text)
        self.connection.data_to_send()  # channel.close with no method: it is made again below
        class_id, method_id = divmod(kind.CODE, 1 << 16)
        close = spec.ChannelClose(reply_code=code, reply_text=text, class_id=class_id, method_id=method_id)
        self.send(close)

    # ---------------------------------------------------------------------------------------------- below the protocol

    def read_raw(self, size: int) -> bytes:
        """Return at most this many bytes that arrive next, unseen by the state machines."""
        return self.sock.recv(size)

    def until(self, condition: Callable[[], bool], what: str, *, gone_is_fine: bool = False) -> None:
        """Read until a condition holds."""
        deadline = time.monotonic() + _DEADLINE_S
        self.flush()
        while not condition():
            if not gone_is_fine and time.monotonic() > deadline:
                raise TimeoutError(f"the script waited {_DEADLINE_S:g} s for {what}")
            try:
                data = self.sock.recv(1 << 16)
            except ConnectionError:
                data = b""
            if not data:
                if gone_is_fine:
                    return
                raise ClientGone(f"the client closed the connection while the script waited for {what}")
            for event in self.connection.receive_data(data):
                self._handle(event)
            self.flush()

    def _handle(self, event: Event) -> None:
        if isinstance(event, Opened):
            self._opened = True
        elif isinstance(event, Ended):
            self.ended = event
        elif isinstance(event, FrameReceived):
            self.on_frame(event.frame)
            number = event.frame.channel
            channel = self.channels.setdefault(number, Channel(self.connection, number))
            received = channel.receive(event.frame)
            if received is not None:
                self._method(number, received.method, received.content)

    def _method(self, channel: int, method: spec.Method, content: Content | None) -> None:
        self.methods.append((channel, method))
        if isinstance(method, spec.BasicPublish):
            assert content is not None
            self._tag += 1
            message = Published(self._tag, method, content)
            self.messages.append(message)
            self._unseen.append(message)
            if self.acking:
                self.ack(self._tag)
        answer = self.answers.get(type(method))
        if answer is not None:
            self.connection.send_method(channel, answer)


def serve(peer: Peer) -> None:
    """The script of a correct broker without queues: it confirms everything."""
    peer.acking = True
    peer.open()
    peer.serve()


class FakePeer(fakepeer.FakePeer):
    """As :class:`tests.support.fakepeer.FakePeer`, for AMQP 0-9-1."""

    def connect(self, *, call_timeout_s: float = 30.0, **options: Any) -> Client:  # type: ignore[override]
        """Connect a client, which is closed at the end of the ``with`` block."""
        hosts = ((HOST, self.port),)
        options = {"hosts": hosts, "connect_timeout": 30.0, "heartbeat": 0} | options
        client = Client.connect(ConnectOptions(**cast("Any", options)), call_timeout_s=call_timeout_s)
        self._clients.append(client)
        return client

    def _run(self, script: Any, sock: socket.socket) -> None:
        script(Peer(sock, dict(self._settings)))
