"""Assign the deliveries of a block to subscriptions, by their consumer tag."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_core.blocks import runs
from amqp_core.errors import DecodeError
from amqp_core.v0_9.framing import FRAME_HEADER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqp_core.blocks import Block

_TAG_SIZE = FRAME_HEADER + 4  # behind class and code


def by_consumer_tag(block: Block) -> Iterator[tuple[str, Block]]:
    """Cut a block into runs of deliveries to one consumer each, in order, up to an unreadable tag."""
    return runs(block, consumer_tag_of)


def consumer_tag_of(frames: bytes, start: int) -> str:
    """Return the consumer tag of the delivery that begins at ``start``, without decoding anything else.

    Raises:
        DecodeError: the frames end before it does.
    """
    begin = start + _TAG_SIZE + 1
    if begin > len(frames) or begin + frames[begin - 1] > len(frames):
        raise DecodeError("basic.deliver: truncated before its consumer tag ends", start)
    return frames[begin : begin + frames[begin - 1]].decode("utf-8", "replace")
