"""Messages as objects: for users of the client who do not need columns, and for what is published.

The fast way of Spark never makes one of these (see ``_columns``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from amqp_core.errors import DecodeError, ProtocolError
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import decode_command, decode_header
from amqp_core.v0_10.frames import parse_frame
from amqp_core.v0_10.segments import Assembler

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqp_core.v0_10.blocks import Block

_ANY_FRAME_SIZE = 65535


@dataclass(slots=True)
class Message:
    """A message: body and the two property structs (0-10 section message: delivery- and message-properties).

    Attributes:
        body: bytes; empty when there is no body segment.
        delivery: delivery-properties, with ``routing_key``, ``priority``, ``ttl`` in ms, ...
        properties: message-properties, with ``message_id``, ``content_type``, ``application_headers``, ...
        command_id: of the transfer that brought it, for ``accept``, ``reject``, ``release``; ``None`` if not received.
        destination: the subscription (received) or exchange (to be sent).
    """

    body: bytes = b""
    delivery: spec.DeliveryProperties = field(default_factory=spec.DeliveryProperties)
    properties: spec.MessageProperties = field(default_factory=spec.MessageProperties)
    command_id: int | None = None
    destination: str = ""

    @property
    def routing_key(self) -> str:
        """The routing key it was published with."""
        return self.delivery.routing_key or ""

    @property
    def headers(self) -> dict[str, object]:
        """The application headers."""
        return self.properties.application_headers or {}


def destination_of(frames: bytes, start: int) -> str:
    """Return the destination named by the transfer that begins at ``start``, without decoding anything else.

    Raises:
        DecodeError: a command frame that ends before its destination.
    """
    try:
        return _destination_at(frames, start)
    except IndexError:
        raise DecodeError("message.transfer: truncated before its destination", start) from None


def _destination_at(frames: bytes, pos: int) -> str:
    # controls may lie before the command frame; its arguments start after class, code and the session header
    while frames[pos + 5] & 15 != 1 or frames[pos + 12] != 4 or frames[pos + 13] != 1:
        pos += frames[pos + 2] << 8 | frames[pos + 3]
    args = pos + 12 + 2 + 1 + frames[pos + 14]
    if not frames[args] & 1:
        return ""
    length = frames[args + 2]
    return frames[args + 3 : args + 3 + length].decode("utf-8", "replace")


def messages_of(block: Block) -> Iterator[Message]:
    """Decode every transfer of a block.

    Raises:
        DecodeError: a header or command that is not what the specification says.
    """
    assembler = Assembler()
    pos = 0
    index = 0
    frames = block.frames
    while index < len(block.ends):
        parsed = parse_frame(frames, pos, _ANY_FRAME_SIZE)
        if parsed is None:
            raise ProtocolError(f"block of command id {block.first_id} ends inside a frame")
        frame, pos = parsed
        if frame.track != 1:
            continue
        assembly = assembler.receive(frame)
        if assembly is None:
            continue
        command, _ = decode_command(assembly.operation)
        if not isinstance(command, spec.MessageTransfer):
            continue
        delivery, properties, _ = decode_header(assembly.header) if assembly.header else (None, None, [])
        yield Message(
            body=assembly.body or b"",
            delivery=delivery or spec.DeliveryProperties(),
            properties=properties or spec.MessageProperties(),
            command_id=block.first_id + index,
            destination=command.destination or "",
        )
        index += 1
