"""A client of 0-9-1 without sockets: frames in, methods out, joined to a connection of the broker."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

from amqp_core.broker.logins import Logins
from amqp_core.broker.model.memory import Memory
from amqp_core.broker.model.virtual_host import VirtualHost
from amqp_core.broker.v0_9.connection import ServerConnection
from amqp_core.protocol_header import HEADERS_0_9
from amqp_core.v0_9 import spec
from amqp_core.v0_9._codec import decode_method, encode_header, encode_method
from amqp_core.v0_9.framing import BODY, METHOD, encode_content, encode_method_frame, parse_frame

if TYPE_CHECKING:
    from collections.abc import Callable

FRAME_MAX = 131072
BLOCKABLE = {"capabilities": {"connection.blocked": True}}
_T = TypeVar("_T")


def method(channel: int, value: spec.Method) -> bytes:
    """The frame of a method."""
    return encode_method_frame(channel, encode_method(value), FRAME_MAX)


def publish(body: bytes, key: str = "q", channel: int = 1, *, missing: int = 0, **properties: Any) -> bytes:
    """The frames of a message, of whose body so many bytes at the end are ``missing``."""
    payload = encode_method(spec.BasicPublish(exchange="", routing_key=key))
    header = encode_header(spec.BasicProperties(**properties), len(body) + missing)
    return b"".join(encode_content(channel, payload, header, body, FRAME_MAX))


class World:
    """A broker without sockets; ``now`` is its time."""

    def __init__(self, memory_limit: float = math.inf) -> None:
        self.now = 1_700_000_000.0
        self.memory = Memory(memory_limit)
        self.host = VirtualHost("/", self.memory)

    def connect(self, properties: dict[str, Any] | None = None, **settings: Any) -> Peer:
        """A client that has logged in and opened channel 1."""
        return Peer(self, BLOCKABLE if properties is None else properties, settings)


class Peer:
    """One client.

    Attributes:
        methods: received methods with their channels.
        bodies: received bodies.
    """

    def __init__(self, world: World, properties: dict[str, Any], settings: dict[str, Any]) -> None:
        hosts: dict[str, VirtualHost] = {"/": world.host}
        clock: Callable[[], float] = lambda: world.now  # noqa: E731 - short
        self.server = ServerConnection(
            version="0-9-1", hosts=hosts, logins=Logins(), clock=clock, wake=lambda: None, **settings
        )
        self.methods: list[tuple[int, spec.Method]] = []
        self.bodies: list[bytes] = []
        self.send(
            HEADERS_0_9["0-9-1"],
            method(0, spec.ConnectionStartOk(properties, "PLAIN", b"\0guest\0guest", "en_US")),
            method(0, spec.ConnectionTuneOk(2047, FRAME_MAX, 60)),
            method(0, spec.ConnectionOpen("/")),
            method(1, spec.ChannelOpen()),
        )

    def send(self, *parts: bytes | spec.Method) -> None:
        """Send frames, and methods on channel 1, in one piece; read the answers."""
        self.server.receive(b"".join(each if isinstance(each, bytes) else method(1, each) for each in parts))
        self.read()

    def read(self) -> None:
        """Read what the broker has sent, once."""
        data, at = self.server.take_bytes(), 0
        self.server.written()
        while (parsed := parse_frame(data, at, FRAME_MAX)) is not None:
            frame, at = parsed
            if frame.type == METHOD:
                self.methods.append((frame.channel, decode_method(frame.payload)))
            elif frame.type == BODY:
                self.bodies.append(frame.payload)
        assert at == len(data)

    def relieve(self) -> None:
        """What the server does at times."""
        self.server.relieve()
        self.read()

    def received(self, kind: type[_T]) -> list[_T]:
        """All received methods of a kind."""
        return [each for _, each in self.methods if isinstance(each, kind)]
