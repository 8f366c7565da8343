"""Positions of content header and body of each delivery of a chunk.

The receiver sends the end of each delivery beside the frames, so all deliveries of a chunk are located in a few steps.
Deliveries other than the usual three frames are walked one by one, so that a damaged one affects only itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from amqp_core.v0_9._scan import DELIVER, parts
from amqp_core.v0_9.framing import BODY, FRAME_HEADER, HEADER, METHOD, OVERHEAD
from amqp_spark.arrow.columns.dialect import AMQP_0_9
from amqp_spark.arrow.columns.located import Finder, Located, Places, one_by_one, opened
from amqp_spark.arrow.columns.wire import Wire, padded

if TYPE_CHECKING:
    import numpy.typing as npt

    from amqp_spark.arrow.columns.located import Chunk
    from amqp_spark.arrow.columns.wire import Mask, Positions

    Numbers = npt.NDArray[np.uint64]

CONTENT_SIZE: Final = 4
"""Where the size of the body is in a content header: behind class and weight."""
CONTENT_FLAGS: Final = 12
CONTENT_PROPERTIES: Final = 14
_LEAST_METHOD: Final = 16
_LOW: Final = np.uint64(0xFFFF_FFFF)
_CHANNEL: Final = np.uint64(0xFFFF)


def locate(chunk: Chunk) -> Located:
    """Find content header and body of every delivery.

    Raises:
        DecodeError: the ends of the deliveries are not those of these frames.
    """
    frames, begin, end = opened(chunk)
    places, usual = _three_frames(Wire(padded(frames, 0)), begin, end)
    if usual.all():
        wire = Wire(padded(frames, int(places.head_end.max(initial=0))), dialect=AMQP_0_9)
        return Located(wire, places, {}, {})
    return one_by_one(frames, begin, places, ~usual, Finder(_header_and_body, AMQP_0_9))


def _header_and_body(frames: bytes, begin: int, end: int) -> tuple[list[int], list[int]]:
    _, header, body = parts(frames, begin, end)
    return header, body


def _three_frames(wire: Wire, begin: Positions, end: Positions) -> tuple[Places, Mask]:
    """Where the parts are, and whether the frames are the usual ones: method, content header, and one or no body."""
    kind, channel, size = _frame_head(wire, begin)
    usual = (kind == METHOD) & (size >= _LEAST_METHOD) & (wire.size(4, begin + FRAME_HEADER) == DELIVER)
    head = begin + OVERHEAD + size
    kind, again, size = _frame_head(wire, head)
    usual &= (kind == HEADER) & (again == channel) & (size >= CONTENT_PROPERTIES)
    head_begin = head + FRAME_HEADER
    head_end = head_begin + size
    announced = wire.read(">u8", head_begin + CONTENT_SIZE).astype(np.uint64)
    after = head_end + 1
    kind, again, size = _frame_head(wire, after)
    with_body = (kind == BODY) & (again == channel) & (announced == size.astype(np.uint64))
    with_body &= after + OVERHEAD + size == end
    usual &= with_body | ((announced == 0) & (after == end))
    body_begin = np.minimum(after + FRAME_HEADER, end)
    body_end = np.maximum(body_begin, end - 1)
    return Places(head_begin, head_end, body_begin, body_end, end), usual


def _frame_head(wire: Wire, at: Positions) -> tuple[Numbers, Numbers, Positions]:
    """Type, channel and size of the frames."""
    raw = wire.read(">u8", at).astype(np.uint64)
    return raw >> np.uint64(56), raw >> np.uint64(40) & _CHANNEL, (raw >> np.uint64(8) & _LOW).astype(np.int64)
