"""What a client of 0-9-1 or 0-9 sends, and how what it gets is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_core.broker.v0_9.connection import ServerConnection
from amqp_core.errors import EncodeError
from amqp_core.protocol_header import HEADERS_0_9
from amqp_core.v0_9 import spec
from amqp_core.v0_9._codec import decode_header, decode_method, encode_header, encode_method
from amqp_core.v0_9.framing import encode_content, encode_frame, encode_method_frame, parse_frame
from tests.box.fuzz.drawing import drawn
from tests.box.fuzz.mutating import Script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from tests.box.fuzz.places import Place

FRAME_MAX: Final = 131072
_FRAMING: Final = 8
_METHODS: Final = tuple(spec.METHOD_TYPES.values())
_ASKED: Final = (
    *(each for each in spec.RESPONSES if not each.NAME.startswith(("connection.", "channel."))),
    *(spec.BasicAck, spec.BasicNack, spec.BasicReject, spec.BasicRecoverAsync),
)
"""Requests within a channel; the others mostly end the connection."""
_QUIET: Final = frozenset({spec.ReplyCode.REPLY_SUCCESS})


def method(channel: int, value: spec.Method) -> bytes:
    """The frame of a method."""
    return encode_method_frame(channel, encode_method(value), FRAME_MAX)


def publish(
    body: bytes, properties: spec.BasicProperties, key: str = "q", exchange: str = "", *, mandatory: bool = True
) -> bytes:
    """The frames of a message."""
    payload = encode_method(spec.BasicPublish(exchange=exchange, routing_key=key, mandatory=mandatory))
    return b"".join(encode_content(1, payload, encode_header(properties, len(body)), body, FRAME_MAX))


def login(version: str = "0-9-1") -> list[bytes]:
    """What opens a connection."""
    client: dict[str, object] = {"capabilities": {"basic.nack": True, "consumer_cancel_notify": True}}
    return [
        HEADERS_0_9[version],
        method(0, spec.ConnectionStartOk(client, "PLAIN", b"\0guest\0guest", "en_US")),
        method(0, spec.ConnectionTuneOk(2047, FRAME_MAX, 60)),
        method(0, spec.ConnectionOpen("/")),
    ]


SESSION: Final = [
    method(1, spec.ChannelOpen()),
    method(1, spec.ConfirmSelect()),
    method(1, spec.ExchangeDeclare(exchange="e", type="topic", durable=True)),
    method(
        1, spec.QueueDeclare(queue="q", durable=True, arguments={"x-max-length": 50, "x-dead-letter-exchange": "e"})
    ),
    method(1, spec.QueueBind(queue="q", exchange="e", routing_key="a.*")),
    method(1, spec.ExchangeBind(destination="e", source="amq.topic", routing_key="#")),
    method(1, spec.BasicQos(prefetch_count=3)),
    method(1, spec.BasicConsume(queue="q", consumer_tag="c")),
    publish(b"x" * 300, spec.BasicProperties(headers={"a": 1, "b": ["x"]}, priority=1, expiration="60000")),
    publish(b"", spec.BasicProperties(), "a.b", "e"),
    publish(b"y", spec.BasicProperties(delivery_mode=2), "missing"),
    publish(b"z", spec.BasicProperties(delivery_mode=2, reply_to="q")),
    method(1, spec.BasicAck(1)),
    method(1, spec.BasicNack(2, requeue=True)),
    method(1, spec.BasicRecover(requeue=True)),
    method(1, spec.BasicGet(queue="q")),
    method(1, spec.ChannelFlow(active=False)),
    method(1, spec.QueuePurge(queue="q")),
    method(1, spec.BasicCancel(consumer_tag="c")),
    method(2, spec.ChannelOpen()),
    method(2, spec.TxSelect()),
    method(2, spec.TxCommit()),
    method(1, spec.ChannelClose(reply_code=200)),
    method(0, spec.ConnectionClose(reply_code=200)),
]


def _draw(chance: Random) -> bytes:
    channel = chance.choice((0, 1, 1, 1, 1, 2))
    if chance.random() < 0.2:
        message = publish(b"w" * chance.randrange(5), spec.BasicProperties(), chance.choice(("q", "a.b", "own")))
        try:
            header = encode_header(drawn(spec.BasicProperties, chance), 1)
            payload = encode_method(drawn(spec.BasicPublish, chance))
            return b"".join(encode_content(channel, payload, header, b"v", FRAME_MAX))
        except EncodeError:
            return message
    while True:
        try:
            kinds = _ASKED if chance.random() < 0.9 else _METHODS
            return method(channel, drawn(chance.choice(kinds), chance))
        except EncodeError:  # a field is too small for what was drawn
            continue


def _resized(frame: bytes, change: Callable[[bytes], bytes]) -> bytes:
    if len(frame) <= _FRAMING or frame.startswith(b"AMQP"):
        return change(frame)
    return encode_frame(frame[0], int.from_bytes(frame[1:3]), change(frame[7:-1]))


class Side09:
    """0-9-1, and every fourth time 0-9."""

    name: Final = "0-9-1"

    def script(self, chance: Random) -> Script:
        """A session that is right."""
        version = "0-9" if chance.random() < 0.25 else "0-9-1"
        return Script(login(version), SESSION, (0, 1, 2, 0x7F, 0xCE, 0xFF), _draw, _resized)

    def connect(self, place: Place, version: str = "0-9-1") -> ServerConnection:
        """A new connection to the broker."""
        return ServerConnection(
            version=version, hosts=place.hosts, logins=place.logins, clock=place.now, wake=lambda: None
        )

    def witness(self, place: Place) -> Witness09:
        """A client that is logged in, and subscribed to its own queue."""
        return Witness09(self.connect(place))

    def errors(self, answer: bytes) -> list[str]:
        """The errors in what the broker has sent to one client."""
        found = []
        for value in methods_in(answer):
            if isinstance(value, spec.ConnectionClose | spec.ChannelClose | spec.BasicReturn):
                code = spec.ReplyCode(value.reply_code)
                assert code is not spec.ReplyCode.INTERNAL_ERROR, f"{value.NAME}: {value.reply_text}"
                if code not in _QUIET:
                    found.append(f"{value.NAME} {code.value}")
        return found


def methods_in(answer: bytes) -> Iterable[spec.Method]:
    """The methods that the broker has sent; all else is decoded, too."""
    at = len(HEADERS_0_9["0-9-1"]) if answer.startswith(b"AMQP") else 0
    while at < len(answer):
        parsed = parse_frame(answer, at, FRAME_MAX)
        assert parsed is not None, f"half a frame: {answer[at:][:100]!r}"
        frame, at = parsed
        if frame.type == spec.FrameType.METHOD:
            yield decode_method(frame.payload)
        elif frame.type == spec.FrameType.HEADER:
            decode_header(frame.payload)


class Witness09:
    """A client that has nothing to do with the input."""

    queue: Final = "witness of 0-9-1"

    def __init__(self, adapter: ServerConnection) -> None:
        self.adapter = adapter
        opening = [method(1, spec.ChannelOpen()), method(1, spec.ConfirmSelect())]
        opening += [method(1, spec.QueueDeclare(queue=self.queue))]
        opening += [method(1, spec.BasicConsume(queue=self.queue, consumer_tag="w", no_ack=True))]
        adapter.receive(b"".join(login() + opening))
        adapter.take_bytes()
        self._published = 0

    def publish(self, queue: str, body: bytes) -> None:
        """Publish to a queue, with a confirm."""
        self.adapter.receive(publish(body, spec.BasicProperties(), queue))
        self._published += 1

    def check(self, body: bytes) -> str:
        """What is wrong, if not just this message has come and the publish was confirmed; else nothing."""
        answer = self.adapter.take_bytes()
        kinds = sorted(type(value).__name__ for value in methods_in(answer))
        if kinds != ["BasicAck", "BasicDeliver"] or body not in answer:
            return f"it got {kinds}: {answer!r:.500}"
        return "" if self.adapter.is_open and not self.adapter.is_closing else "its connection is closed"
