"""Messages as objects: for users of the client that do not need columns, and for publishing.

The fast path of Spark creates none of them (see :mod:`amqp_core.v0_9._scan`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from amqp_core.error_conditions import CoreCondition
from amqp_core.errors import DecodeError, ProtocolError, UndecodableMessage, UsageError
from amqp_core.v0_9 import spec
from amqp_core.v0_9._codec import decode_method
from amqp_core.v0_9._scan import parts
from amqp_core.v0_9.channel import basic_properties
from amqp_core.v0_9.framing import BODY, FRAME_HEADER, HEADER, METHOD, parse_frame

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from amqp_core.api import Block as AnyBlock
    from amqp_core.blocks import Block

_ANY_FRAME_SIZE = 1 << 33
_CONSUMER_TAG = FRAME_HEADER + 4
"""Offset of the consumer tag in the frame of basic.deliver: behind the class and the method."""
_DELIVERY_TAG_SIZE = 8
DELIVERY_COUNT = "x-delivery-count"
"""Header of quorum queues: how often a message was returned."""
SAMPLE = 32
"""Most deliveries of a block whose count is looked at, besides the first."""


@dataclass(slots=True)
class Message:
    """A message: body, properties, and where it comes from or goes to (0-9-1 section basic).

    Not thread-safe: it can be changed.

    Attributes:
        body: bytes; may be empty.
        properties: ``message_id``, ``content_type``, ``headers``, ``expiration`` as text in ms, ...
        exchange: the exchange; empty is the default exchange, which routes by queue name.
        routing_key: the routing key with which it was published; each octet that is not UTF-8 is a surrogate (PEP 383).
        redelivered: whether it was delivered before.
        delivery_tag: settles a received message, in ``accept``, ``reject``, ``release``; ``None`` if not received.
        consumer_tag: the subscription of a received message; empty for one that :meth:`Client.get` returned.
    """

    body: bytes = b""
    properties: spec.BasicProperties = field(default_factory=spec.BasicProperties)
    exchange: str = ""
    routing_key: str = ""
    redelivered: bool = False
    delivery_tag: int | None = None
    consumer_tag: str = ""

    @property
    def transfer_id(self) -> int:
        """The delivery tag of a received message.

        Raises:
            UsageError: it was not received.
        """
        if self.delivery_tag is None:
            why = "a message that was not received has no delivery tag, so it cannot be settled"
            raise UsageError(CoreCondition.CALL_NOT_ALLOWED(reason=why))
        return self.delivery_tag

    @property
    def headers(self) -> dict[str, object]:
        """The application headers."""
        return self.properties.headers or {}


def earlier_deliveries(block: AnyBlock, headers: Sequence[str] = (DELIVERY_COUNT,)) -> int:
    """Greatest header ``x-delivery-count`` of a sample of the deliveries of a block; 0 if they have none.

    Of other ``headers``, the greatest sum.

    The sample is even, has the first and the last one, and is bounded. Of its messages, only the content headers of
    those that are marked as redelivered are decoded. It raises no AmqpError.
    """
    ends = block.ends
    last = len(ends) - 1
    step = last // SAMPLE + 1
    starts = ((index, ends[index - 1] if index else 0) for index in {0, *range(last, 0, -step)})
    return max(_delivery_count(block.frames, start, ends[index], headers) for index, start in starts)


def _delivery_count(frames: bytes, start: int, end: int, names: Sequence[str]) -> int:
    try:
        flags = start + _CONSUMER_TAG + 1 + frames[start + _CONSUMER_TAG] + _DELIVERY_TAG_SIZE
        if not frames[flags] & 1:  # the bit redelivered
            return 0
        _, (begin, end), _ = parts(frames, start, end)
        header = frames[begin:end]
        headers = basic_properties(header).headers if any(name.encode() in header for name in names) else None
    except (ProtocolError, IndexError):  # a message behind a frame of another channel is left out
        return 0
    counts = (headers.get(name) for name in names) if headers else ()
    return sum(count for count in counts if isinstance(count, int))


def each_message(block: Block) -> Iterator[Message | UndecodableMessage]:
    """Decode every delivery of a block separately; for an undecodable one the error is yielded instead.

    It raises no AmqpError.
    """
    start = 0
    for index, end in enumerate(block.ends):
        try:
            yield _message(block.frames, start, end)
        except ProtocolError as error:
            yield UndecodableMessage(block.first_id + index, error.cause)
        start = end


def _message(frames: bytes, start: int, end: int) -> Message:
    """Decode the delivery whose frames are in ``frames[start:end]``, among frames of other channels."""
    deliver: spec.BasicDeliver | None = None
    properties: spec.BasicProperties | None = None
    channel = -1
    body: list[bytes] = []
    pos = start
    while pos < end:
        parsed = parse_frame(frames, pos, _ANY_FRAME_SIZE)
        if parsed is None:
            break
        frame, pos = parsed
        if deliver is None and frame.type == METHOD:
            method = decode_method(frame.payload)
            if isinstance(method, spec.BasicDeliver):
                deliver, channel = method, frame.channel
        elif frame.channel == channel and frame.type == HEADER:
            properties = basic_properties(frame.payload)
        elif frame.channel == channel and frame.type == BODY:
            body.append(frame.payload)
    if deliver is None or properties is None:
        raise DecodeError("its frames end before it does", end)
    return Message(
        body=b"".join(body),
        properties=properties,
        exchange=deliver.exchange,
        routing_key=deliver.routing_key,
        redelivered=deliver.redelivered,
        delivery_tag=deliver.delivery_tag,
        consumer_tag=deliver.consumer_tag,
    )
