"""Positions of header and body of each transfer of a chunk.

The receiver sends the end of each transfer beside the frames, so all transfers of a chunk are located in a few steps.
Transfers other than the usual three frames are walked one by one, so that a damaged one affects only itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from amqp_core.v0_10._scan import segments
from amqp_spark.arrow.columns.dialect import AMQP_0_10
from amqp_spark.arrow.columns.located import Finder, Located, Places, one_by_one, opened
from amqp_spark.arrow.columns.wire import Wire, padded

if TYPE_CHECKING:
    import numpy.typing as npt

    from amqp_spark.arrow.columns.located import Chunk
    from amqp_spark.arrow.columns.wire import Mask, Positions

# The first eight bytes of a frame header as one number: flags, type, size, reserved, track, channel.
_SIZE: Final = np.uint64(0x0000FFFF00000000)
_BESIDE_SIZE: Final = np.uint64(0xFFFF0000FFFFFFFF)
_COMMAND: Final = np.uint64(0x0B01_0000_0001_0000)
_HEADER: Final = np.uint64(0x0302_0000_0001_0000)
_LAST_HEADER: Final = np.uint64(0x0702_0000_0001_0000)
_BODY: Final = np.uint64(0x0703_0000_0001_0000)
_CLASS, _CODE = 4, 1  # of message.transfer: two reads of one byte cost less than one of two


def locate(chunk: Chunk) -> Located:
    """Find header and body of every transfer.

    Raises:
        DecodeError: the ends of the transfers are not those of these frames.
    """
    frames, begin, end = opened(chunk)
    head, body, usual = _three_frames(Wire(padded(frames, 0)), begin, end)
    places = Places(head + 12, body, np.minimum(body + 12, end), end, end)
    if usual.all():
        return Located(Wire(padded(frames, int(body.max(initial=0)))), places, {}, {})
    return one_by_one(frames, begin, places, ~usual, Finder(segments, AMQP_0_10))


def _three_frames(wire: Wire, begin: Positions, end: Positions) -> tuple[Positions, Positions, Mask]:
    """Begin and end of the header frame, and whether the frames are the usual ones.

    That is, one frame for the command, one for the header, and one or none for the body.
    """
    beside, size = _frame_head(wire, begin)
    usual = (beside == _COMMAND) & (size >= 14)
    usual &= (wire.size(1, begin + 12) == _CLASS) & (wire.size(1, begin + 13) == _CODE)
    head = begin + size
    beside, size = _frame_head(wire, head)
    usual &= size >= 12
    after = head + size
    with_body, alone = beside == _HEADER, beside == _LAST_HEADER
    beside, size = _frame_head(wire, after)
    with_body &= (beside == _BODY) & (size >= 12) & (after + size == end)
    return head, after, usual & (with_body | (alone & (after == end)))


def _frame_head(wire: Wire, at: Positions) -> tuple[npt.NDArray[np.uint64], Positions]:
    """The first eight bytes of a frame header with the size masked out, and the size."""
    raw = wire.read(">u8", at).astype(np.uint64)
    return raw & _BESIDE_SIZE, ((raw & _SIZE) >> np.uint64(32)).astype(np.int64)
