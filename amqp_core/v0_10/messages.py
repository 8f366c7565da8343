"""Messages as objects: for users of the client that do not need columns, and for publishing.

The fast path of Spark creates none of them (see ``_scan.segments``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from amqp_core.error_conditions import CoreCondition
from amqp_core.errors import DecodeError, ProtocolError, UndecodableMessage, UsageError
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import decode_command, decode_header
from amqp_core.v0_10.framing import TRACK_COMMAND, Assembler, parse_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqp_core.blocks import Block

_ANY_FRAME_SIZE = 65535


@dataclass(slots=True)
class Message:
    """A message: body and the two property structs (0-10 section message: delivery- and message-properties).

    Not thread-safe: it can be changed.

    Attributes:
        body: bytes; empty when there is no body segment.
        delivery: delivery-properties, with ``routing_key``, ``priority``, ``ttl`` in ms, ...
        properties: message-properties, with ``message_id``, ``content_type``, ``application_headers``, ...
        command_id: id of its received transfer, for ``accept``, ``reject``, ``release``; ``None`` if not received.
        destination: the subscription (received) or exchange (to be sent).
    """

    body: bytes = b""
    delivery: spec.DeliveryProperties = field(default_factory=spec.DeliveryProperties)
    properties: spec.MessageProperties = field(default_factory=spec.MessageProperties)
    command_id: int | None = None
    destination: str = ""

    @property
    def transfer_id(self) -> int:
        """The command id of a received message.

        Raises:
            UsageError: it was not received.
        """
        if self.command_id is None:
            why = "a message that was not received has no command id, so it cannot be settled"
            raise UsageError(CoreCondition.CALL_NOT_ALLOWED(reason=why))
        return self.command_id

    @property
    def routing_key(self) -> str:
        """The routing key with which it was published."""
        return self.delivery.routing_key or ""

    @property
    def headers(self) -> dict[str, object]:
        """The application headers."""
        return self.properties.application_headers or {}


def messages_of(block: Block) -> Iterator[Message]:
    """Decode every transfer of a block; an undecodable one ends the iteration, unlike that of :func:`each_message`.

    Raises:
        UndecodableMessage: during the iteration; its ``command_id`` settles the transfer.
    """
    for message in each_message(block):
        if isinstance(message, UndecodableMessage):
            raise message
        yield message


def each_message(block: Block) -> Iterator[Message | UndecodableMessage]:
    """Decode every transfer of a block separately; for an undecodable one the error is yielded instead.

    The ids of the transfers are valid once the session has numbered the block. It raises no AmqpError.
    """
    start = 0
    for index, end in enumerate(block.ends):
        command_id = block.first_id + index
        try:
            yield _message(block.frames, start, end, command_id)
        except ProtocolError as error:
            yield UndecodableMessage(command_id, error.cause)
        start = end


def _message(frames: bytes, start: int, end: int, command_id: int) -> Message:
    """Decode the transfer whose frames are in ``frames[start:end]``, among frames of controls and other commands."""
    assembler = Assembler()
    pos = start
    while pos < end:
        parsed = parse_frame(frames, pos, _ANY_FRAME_SIZE)
        if parsed is None:
            break
        frame, pos = parsed
        assembly = assembler.receive(frame) if frame.track == TRACK_COMMAND else None
        if assembly is None:
            continue
        command, _ = decode_command(assembly.operation)
        if not isinstance(command, spec.MessageTransfer):
            continue
        delivery, properties, _ = decode_header(assembly.header) if assembly.header else (None, None, [])
        return Message(
            body=assembly.body or b"",
            delivery=delivery or spec.DeliveryProperties(),
            properties=properties or spec.MessageProperties(),
            command_id=command_id,
            destination=command.destination or "",
        )
    raise DecodeError("its frames end before it does", end)
