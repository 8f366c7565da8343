"""Messages that are delivered again, and what identifies them (an extension of RabbitMQ: quorum queues count).

A message keeps its identity from one delivery to the next, whatever the broker adds to its headers or changes in their
order. Two messages that a publisher makes equal, byte for byte, have one identity.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from amqp_core.api import Identity
from amqp_core.blocks import Block
from amqp_core.errors import UndecodableMessage
from amqp_core.v0_9.framing import FRAME_HEADER
from amqp_core.v0_9.messages import DELIVERY_COUNT, each_message, earlier_deliveries

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from amqp_core.api import Block as AnyBlock
    from amqp_core.v0_9.messages import Message

DIGEST_BYTES: Final = 16
COUNTS: Final = (DELIVERY_COUNT, "x-acquired-count")
"""Headers in which the broker counts returns. RabbitMQ 4.3 counts some in the second one only: those of basic.nack, and
of messages that it takes back after consumer_timeout. So the sum grows with every return."""
BROKERS_OWN: Final = frozenset(COUNTS)
"""Headers that the broker changes with each delivery."""
_CONSUMER_TAG: Final = FRAME_HEADER + 4
_DELIVERY_TAG_SIZE: Final = 8


def redelivered(block: AnyBlock) -> list[int]:
    """Indices of the deliveries of a block that have the bit redelivered; a broken one is left out."""
    frames, start, found = block.frames, 0, []
    size = len(frames)
    for index, end in enumerate(block.ends):
        tag = start + _CONSUMER_TAG
        flags = tag + 1 + frames[tag] + _DELIVERY_TAG_SIZE if tag < size else size
        if flags < end and frames[flags] & 1:
            found.append(index)
        start = end
    return found


def returned(block: AnyBlock) -> list[int]:
    """As :func:`redelivered`; nothing if no delivery of a sample has a count of returns.

    So the usual block costs little.
    """
    return redelivered(block) if earlier_deliveries(block, COUNTS) else []


def first_is_redelivered(block: AnyBlock) -> bool:
    """Whether the first delivery of a block has the bit redelivered; False if that cannot be told at once."""
    frames, tag = block.frames, _CONSUMER_TAG
    flags = tag + 1 + frames[tag] + _DELIVERY_TAG_SIZE if tag < len(frames) else len(frames)
    return flags < len(frames) and bool(frames[flags] & 1)


def identities(block: AnyBlock, indices: Sequence[int] | None = None) -> Iterator[Identity | None]:
    """The identities of deliveries of a block, of all or of those with ``indices``; ``None``: it cannot be decoded."""
    assert isinstance(block, Block)
    for index in range(len(block.ends)) if indices is None else indices:
        begin = block.ends[index - 1] if index else 0
        (message,) = each_message(block.part(index, index + 1, begin, block.ends[index]))
        yield None if isinstance(message, UndecodableMessage) else identity(message)


def identity(message: Message) -> Identity:
    """The identity of a received message.

    A message that was not delivered before has been returned 0 times. RabbitMQ 4 adds no count to it, so that one which
    is there was set by its publisher, such as a bridge that has read it from another queue.
    """
    properties = message.properties
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    headers = {name: value for name, value in message.headers.items() if name not in BROKERS_OWN}
    others = [getattr(properties, name) for name in properties.__slots__ if name != "headers"]
    names = (name.encode("utf-8", "surrogateescape") for name in (message.exchange, message.routing_key))
    for part in (*names, message.body, _text((others, headers))):
        digest.update(len(part).to_bytes(8) + part)
    counts = (message.headers.get(name) for name in COUNTS if message.redelivered)
    deliveries = sum(count for count in counts if isinstance(count, int))
    return Identity(digest.digest(), deliveries, named=properties.message_id is not None)


def _text(value: object) -> bytes:
    return repr(_ordered(value)).encode("utf-8", "backslashreplace")


def _ordered(value: object) -> object:
    """The value with all tables in the order of their names: the broker may change it."""
    if isinstance(value, dict):
        return [(name, _ordered(value[name])) for name in sorted(value)]
    if isinstance(value, list | tuple):
        return [_ordered(each) for each in value]
    return value
