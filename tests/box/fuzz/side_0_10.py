"""What a client of 0-10 sends, and how what it gets is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_core.broker.v0_10.connection import ServerConnection
from amqp_core.errors import EncodeError
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import (
    decode_command,
    decode_control,
    decode_header,
    encode_command,
    encode_control,
    encode_header,
)
from amqp_core.v0_10.framing import (
    BODY,
    COMMAND,
    HEADER,
    PROTOCOL_HEADER,
    TRACK_COMMAND,
    TRACK_CONTROL,
    Assembler,
    encode_assembly,
    encode_control_frame,
    parse_frame,
)
from tests.box.fuzz.drawing import drawn
from tests.box.fuzz.mutating import Script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from tests.box.fuzz.places import Place

FRAME_MAX: Final = 65535
_FRAMING: Final = 12
_COMMANDS: Final = tuple(spec.COMMAND_TYPES.values())
_CONTROLS: Final = tuple(spec.CONTROL_TYPES.values())
_SERVED: Final = tuple(each for each in _COMMANDS if not each.NAME.startswith(("execution.", "file.", "stream.")))
"""What a client asks for; the others mostly end the session."""


def control(value: spec.Control, channel: int = 0) -> bytes:
    """The frame of a control."""
    return encode_control_frame(channel, encode_control(value))


def command(value: spec.Command, *content: tuple[int, bytes], channel: int = 0, sync: bool = True) -> bytes:
    """The frames of a command and its content."""
    segments = [(COMMAND, encode_command(value, sync)), *content]
    return b"".join(encode_assembly(channel, TRACK_COMMAND, segments, FRAME_MAX))


def publish(
    body: bytes, properties: spec.MessageProperties, key: str = "q", exchange: str = "", accept_mode: int = 0
) -> bytes:
    """The frames of a message."""
    delivery = spec.DeliveryProperties(routing_key=key, priority=3, ttl=60_000, delivery_mode=2)
    transfer = spec.MessageTransfer(destination=exchange, accept_mode=accept_mode, acquire_mode=0)
    content = (HEADER, encode_header(delivery, properties)), (BODY, body)
    return command(transfer, *content, sync=False)


def attach(name: bytes, channel: int = 0) -> bytes:
    """The frames that open a session."""
    point = control(spec.SessionCommandPoint(command_id=0, command_offset=0), channel)
    return control(spec.SessionAttach(name=name), channel) + point


def flow(destination: str, unit: int, value: int) -> bytes:
    """The frame that gives credit."""
    return command(spec.MessageFlow(destination=destination, unit=unit, value=value))


LOGIN: Final = [
    PROTOCOL_HEADER,
    control(spec.ConnectionStartOk({"a": 1}, "PLAIN", b"\0guest\0guest", "en_US")),
    control(spec.ConnectionTuneOk(channel_max=255, max_frame_size=FRAME_MAX, heartbeat=60)),
    control(spec.ConnectionOpen(virtual_host="/")),
]
SESSION: Final = [
    attach(b"one"),
    command(spec.ExchangeDeclare(exchange="e", type="topic", durable=True)),
    command(
        spec.QueueDeclare(queue="q", durable=True, alternate_exchange="e", arguments={"qpid.max_count": 50}), sync=True
    ),
    command(spec.ExchangeBind(queue="q", exchange="e", binding_key="a.*", arguments={"x": 1})),
    command(spec.ExchangeBound(exchange="e", queue="q", binding_key="a.*")),
    command(spec.MessageSubscribe(queue="q", destination="d", accept_mode=0, acquire_mode=0)),
    command(spec.MessageSetFlowMode(destination="d", flow_mode=1)),
    flow("d", 1, 100_000),
    flow("d", 0, 3),
    publish(b"x" * 300, spec.MessageProperties(content_type="text/plain", application_headers={"a": ["b", None]})),
    publish(b"", spec.MessageProperties(user_id=b"guest"), "a.b", "e"),
    publish(b"y", spec.MessageProperties(), "missing", accept_mode=1),
    command(spec.ExecutionSync()),
    control(spec.SessionFlush(expected=True, confirmed=True, completed=True)),
    command(spec.MessageAccept(transfers=[(0, 4)])),
    command(spec.MessageRelease(transfers=[(5, 5)], set_redelivered=True)),
    command(spec.MessageReject(transfers=[(6, 7)], code=0)),
    control(spec.SessionCompleted(commands=[(0, 6)], timely_reply=True)),
    control(spec.SessionKnownCompleted(commands=[(0, 3)])),
    command(spec.MessageSubscribe(queue="q", destination="b", accept_mode=0, acquire_mode=1)),
    command(spec.MessageFlush(destination="d")),
    command(spec.MessageAcquire(transfers=[(8, 9)])),
    command(spec.QueueQuery(queue="q")),
    command(spec.MessageCancel(destination="b")),
    attach(b"two", 1),
    command(spec.TxSelect(), channel=1),
    command(spec.QueueDeclare(queue="own", exclusive=True, auto_delete=True), channel=1),
    command(spec.TxCommit(), channel=1),
    control(spec.SessionDetach(name=b"one")),
    control(spec.ConnectionClose(reply_code=200, reply_text="")),
]


def _draw(chance: Random) -> bytes:
    channel = chance.choice((0, 0, 0, 0, 1, 2))
    while True:
        try:
            if chance.random() < 0.05:
                return control(drawn(chance.choice(_CONTROLS), chance), channel)
            content: list[tuple[int, bytes]] = []
            kind = chance.choice(_SERVED if chance.random() < 0.9 else _COMMANDS)
            if kind is spec.MessageTransfer:
                structs = drawn(spec.DeliveryProperties, chance), drawn(spec.MessageProperties, chance)
                content = [(HEADER, encode_header(*structs)), (BODY, b"v")]
            return command(drawn(kind, chance), *content, channel=channel, sync=chance.random() < 0.5)
        except EncodeError:  # a field is too small for what was drawn
            continue


def _resized(frame: bytes, change: Callable[[bytes], bytes]) -> bytes:
    if len(frame) <= _FRAMING or frame.startswith(b"AMQP"):
        return change(frame)
    payload = change(frame[_FRAMING:])
    return frame[:2] + (len(payload) + _FRAMING).to_bytes(2) + frame[4:_FRAMING] + payload


class Side010:
    """0-10."""

    name: Final = "0-10"

    def script(self, _: Random) -> Script:
        """A session that is right."""
        return Script(LOGIN, SESSION, (0, 1, 2, 0x0F, 0x7F, 0xFF), _draw, _resized)

    def connect(self, place: Place) -> ServerConnection:
        """A new connection to the broker."""
        return ServerConnection(
            hosts=place.hosts, logins=place.logins, names=place.names, clock=place.now, wake=lambda: None
        )

    def witness(self, place: Place) -> Witness010:
        """A client that is logged in, and subscribed to its own queue."""
        return Witness010(self.connect(place))

    def errors(self, answer: bytes) -> list[str]:
        """The errors in what the broker has sent to one client."""
        found = []
        for value in operations_in(answer):
            if isinstance(value, spec.ConnectionClose):
                if (code := spec.ConnectionCloseCode(value.reply_code or 0)) != spec.ConnectionCloseCode.NORMAL:
                    found.append(f"{value.NAME} {code.value}")
            elif isinstance(value, spec.ExecutionException):
                error = spec.ExecutionErrorCode(value.error_code or 0)
                assert error is not spec.ExecutionErrorCode.INTERNAL_ERROR, value.description
                found.append(f"{value.NAME} {error.value}")
            elif isinstance(value, spec.SessionDetached):
                if (reason := spec.SessionDetachCode(value.code or 0)) != spec.SessionDetachCode.NORMAL:
                    found.append(f"{value.NAME} {reason.value}")
            elif isinstance(value, spec.MessageReject):
                spec.MessageRejectCode(value.code or 0)
        return found


def operations_in(answer: bytes) -> Iterable[spec.Control | spec.Command]:
    """The controls and commands that the broker has sent; headers are decoded, too."""
    at, assembler = len(PROTOCOL_HEADER) if answer.startswith(b"AMQP") else 0, Assembler()
    while at < len(answer):
        parsed = parse_frame(answer, at, FRAME_MAX)
        assert parsed is not None, f"half a frame: {answer[at:][:100]!r}"
        frame, at = parsed
        assembly = assembler.receive(frame)
        if assembly is None:
            continue
        if assembly.track == TRACK_CONTROL:
            yield decode_control(assembly.operation)
        else:
            decode_header(assembly.header or b"")
            yield decode_command(assembly.operation)[0]


class Witness010:
    """A client that has nothing to do with the input."""

    queue: Final = "witness of 0-10"

    def __init__(self, adapter: ServerConnection) -> None:
        self.adapter = adapter
        opening = [attach(b"witness"), command(spec.QueueDeclare(queue=self.queue), sync=False)]
        subscribe = spec.MessageSubscribe(queue=self.queue, destination="w", accept_mode=1, acquire_mode=0)
        opening += [command(subscribe, sync=False)]
        opening += [command(spec.MessageSetFlowMode(destination="w", flow_mode=0), sync=False)]
        adapter.receive(b"".join(LOGIN + opening) + flow("w", 0, 0xFFFFFFFF) + flow("w", 1, 0xFFFFFFFF))
        adapter.take_bytes()

    def publish(self, queue: str, body: bytes) -> None:
        """Publish to a queue, with a confirm."""
        self.adapter.receive(publish(body, spec.MessageProperties(), queue))

    def check(self, body: bytes) -> str:
        """What is wrong, if not just this message has come and the publish was accepted; else nothing."""
        answer = self.adapter.take_bytes()
        operations = operations_in(answer)  # session.completed comes now and then, unasked
        kinds = sorted(type(each).__name__ for each in operations if not isinstance(each, spec.SessionCompleted))
        if kinds != ["MessageAccept", "MessageTransfer"] or body not in answer:
            return f"it got {kinds}: {answer!r:.500}"
        return "" if self.adapter.is_open and not self.adapter.is_closing else "its connection is closed"
