"""Positions of the segments of one message.transfer in its frames.

Used by the column decoder of Spark, which processes whole blocks at once, for transfers that do not have the usual form
of one command frame, one header frame and one body frame. No contents are decoded.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from amqp_core.errors import DecodeError

# Bytes of a value by type code: the high four bits determine it (0-10 section 3.2), so that unknown types are skipped,
# too. -1, -2, -4: a size of so many bytes precedes the value. -9: such a code does not exist.
_CLASS_WIDTHS: Final = (1, 2, 4, 8, 16, 32, 64, 128, -1, -2, -4, -9, 5, 9, -9, 0)
WIDTHS: Final[tuple[int, ...]] = tuple([_CLASS_WIDTHS[code >> 4] for code in range(256)])
"""Bytes of a value by its type code; -1, -2, -4: preceded by a size of so many bytes; -9: no such code."""

_frame = Struct(">BBHxBH").unpack_from  # flags, type, size, track, channel


class Segments(NamedTuple):
    """Begin and end of each piece of the header segment, and of each piece of the body segment."""

    header: list[int]
    body: list[int]


def locate(frames: bytes, begin: int, end: int) -> Segments:
    """Locate the segments in the frames from ``begin`` to ``end``, which hold one transfer of channel 0.

    Controls, frames of other channels and other commands are skipped.

    Args:
        frames: the frames of a block.
        begin, end: byte offsets of the transfer in ``frames``.

    Raises:
        DecodeError: the frames are not one transfer.
    """
    header: list[int] = []
    body: list[int] = []
    last = 0  # type of the previous frame; 0 outside of the transfer
    whole = False
    at = begin
    while at < end:
        if at + 12 > end:
            raise DecodeError("the frames of a transfer end inside a frame header", at)
        flags, kind, size, track, channel = _frame(frames, at)
        if size < 12 or at + size > end:
            raise DecodeError(f"a frame of {size} bytes does not fit the frames of its transfer", at)
        start, at = at, at + size
        if track & 15 != 1 or channel:
            continue
        if flags & 0x0A == 0x0A:
            if last:
                raise DecodeError("a transfer begins before the one before it has ended", start)
            if size < 14 or frames[start + 12 : start + 14] != b"\x04\x01":
                continue
            if whole:
                raise DecodeError("a second transfer follows", start)
        elif not last:
            continue  # of another command
        if kind < last or not 1 <= kind <= 3:
            raise DecodeError(f"a frame of type {kind} follows one of type {last} inside a transfer", start)
        last = kind
        if kind == 2:
            header += (start + 12, at)
        elif kind == 3:
            body += (start + 12, at)
        if flags & 5 == 5:
            last, whole = 0, True
    if not whole:
        raise DecodeError("the frames of a transfer end before it does", end)
    return Segments(header, body)
