"""Find the header and body of every message transfer in a block of frames: ``bytes`` in, lists of positions out.

The one loop over messages on the way from frames to columns; what follows it works on whole columns. Functions only, so
that the same file runs compiled. Nothing of the contents is decoded and no object is made per message.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple

from amqp_core.errors import DecodeError

# Octets of a value by type code: the high four bits say it (0-10 section 3.2), so that types unknown here are skipped
# too. -1, -2, -4: a size of so many octets precedes the value. -9: such a code does not exist.
_CLASS_WIDTHS: Final = (1, 2, 4, 8, 16, 32, 64, 128, -1, -2, -4, -9, 5, 9, -9, 0)
WIDTHS: Final[tuple[int, ...]] = tuple([_CLASS_WIDTHS[code >> 4] for code in range(256)])
"""Octets of a value by its type code; -1, -2, -4: preceded by a size of so many octets; -9: no such code."""

_frame = Struct(">BBHxBH").unpack_from  # flags, type, size, track, channel
_short = Struct(">HHI").unpack_from  # flags and type, size, reserved + track + channel


class Located(NamedTuple):
    """Positions of the parts of every transfer in a block; the lists have one entry per transfer.

    The header segment is ``data[head_begin:head_end]`` (empty if there is none). The body is
    ``data[head_end + 12 : end]`` when its one frame follows the header, empty when ``end`` is ``head_end``, and
    otherwise in the pieces that ``odd`` names.
    """

    data: bytes
    """The block; behind it the header segments that came in several frames, joined."""
    head_begin: list[int]
    head_end: list[int]
    end: list[int]
    """End of the transfer in ``data``."""
    odd: dict[int, list[int]]
    """Begin and end of each piece of a body, by index, for transfers that are not a header frame and a body frame."""
    joined: bool
    """Some header segment lies behind the block, so that positions are not in order."""
    broken: dict[int, str]
    """Why the transfer with this index cannot be decoded; its header and body are empty."""


def locate(frames: bytes) -> Located:
    """Walk the frames of a block.

    Controls, frames of other channels and other commands are skipped; the channel is that of the first transfer.

    Raises:
        DecodeError: the frames do not fit together, so that transfers cannot be told apart from there on.
    """
    head_begin: list[int] = []
    head_end: list[int] = []
    ends: list[int] = []
    odd: dict[int, list[int]] = {}
    broken: dict[int, str] = {}
    behind: list[bytes] = []
    add_begin, add_end, add = head_begin.append, head_end.append, ends.append
    length = len(frames)
    total = length
    starts_with = frames.startswith
    command = b"\xff"  # no frame of a transfer begins so
    size_of_command = 0
    channel = -1
    route = -1
    at = 0
    while at < length:
        # The usual transfer: command frame as before, header in one frame, body in one or none.
        try:
            while starts_with(command, at):
                head = at + size_of_command
                kind, size, where = _short(frames, head)
                body = head + size
                if where != route or size < 12:
                    break
                if kind == 0x0302:
                    kind, size, where = _short(frames, body)
                    if kind != 0x0703 or where != route or size < 12:
                        break
                    end = body + size
                elif kind == 0x0702:
                    end = body
                else:
                    break
                if end > length:
                    break
                add_begin(head + 12)
                add_end(body)
                add(end)
                at = end
        except struct_error:  # the data ends inside a frame header
            pass
        if at >= length:
            break
        if at + 12 > length:
            raise DecodeError("the block ends inside a frame header", at)
        flags, kind, size, track, where = _frame(frames, at)
        if size < 12 or at + size > length:
            raise DecodeError(f"a frame of {size} bytes does not fit the block", at)
        if track & 15 != 1 or flags & 0x0A != 0x0A or frames[at + 12 : at + 14] != b"\x04\x01" or size < 14:
            at += size  # a control, or a frame of another command
            continue
        if channel < 0:
            channel = where
            route = 0x10000 | where
        elif where != channel:
            at += size
            continue
        if flags & 5 == 1:
            command, size_of_command = frames[at : at + size], size
        heads, pieces, begin, at, reason = _assembly(frames, at, channel)
        index = len(ends)
        if reason:
            broken[index] = reason
            heads, pieces = [], []
        header = 0
        if len(heads) == 1:
            header = len(heads[0])
        elif heads:
            begin = total
            joined = b"".join(heads)
            header = len(joined)
            total += header
            behind.append(joined)
        add_begin(begin)
        add_end(begin + header)
        add(at)
        if pieces != [begin + header + 12, at] and (pieces or at != begin + header):
            odd[index] = pieces
    data = b"".join((frames, *behind)) if behind else frames
    return Located(data, head_begin, head_end, ends, odd, bool(behind), broken)


def _assembly(frames: bytes, at: int, channel: int) -> tuple[list[bytes], list[int], int, int, str]:
    """One transfer, frame by frame.

    Gives the pieces of its header, begin and end of each piece of its body, begin of the last piece of the header, its
    end, and what is wrong.
    """
    heads: list[bytes] = []
    pieces: list[int] = []
    begin = at
    reason = ""
    length = len(frames)
    opening = True
    last = 1
    while True:
        if at + 12 > length:
            raise DecodeError("the block ends inside a transfer", at)
        flags, kind, size, track, where = _frame(frames, at)
        end = at + size
        if size < 12 or end > length:
            raise DecodeError(f"a frame of {size} bytes does not fit the block", at)
        if track & 15 == 1 and where == channel:
            if not opening and flags & 0x0A == 0x0A:
                raise DecodeError("a transfer begins before the one before it has ended", at)
            opening = False
            if kind == 2:
                heads.append(frames[at + 12 : end])
                begin = at + 12
            elif kind == 3:
                pieces += (at + 12, end)
            if kind < last or kind > 3:
                reason = f"a frame of type {kind} follows one of type {last} inside a transfer"
            last = kind
            if flags & 5 == 5:
                return heads, pieces, begin, end, reason
        at = end
