"""Chunks of transfers as sent to a task, and the positions of header and body of each transfer.

The receiver sends the end of each transfer beside the frames, so all transfers of a chunk are located in a few steps.
Transfers other than the usual three frames are walked one by one, so that a damaged one affects only itself.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from amqp_core.errors import DecodeError
from amqp_core.v0_10._scan import segments
from amqp_spark.arrow.v0_10.decode.properties import Wire, padded

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from amqp_spark.arrow.v0_10.decode.arrays import Array
    from amqp_spark.arrow.v0_10.decode.properties import Mask, Positions

_END: Final = ">u4"
# The first eight bytes of a frame header as one number: flags, type, size, reserved, track, channel.
_SIZE: Final = np.uint64(0x0000FFFF00000000)
_BESIDE_SIZE: Final = np.uint64(0xFFFF0000FFFFFFFF)
_COMMAND: Final = np.uint64(0x0B01_0000_0001_0000)
_HEADER: Final = np.uint64(0x0302_0000_0001_0000)
_LAST_HEADER: Final = np.uint64(0x0702_0000_0001_0000)
_BODY: Final = np.uint64(0x0703_0000_0001_0000)
_TRANSFER: Final = 0x0401
_Places: TypeAlias = "tuple[Positions, Positions, Positions, Positions]"
"""As in :class:`Located`: ``head_begin``, ``head_end``, ``body_begin``, ``end``."""


class Chunk(NamedTuple):
    """Consecutive whole transfers as received, and the end of each in ``frames``: 32 bits, big-endian."""

    frames: bytes | memoryview
    ends: bytes

    @classmethod
    def of(cls, frames: bytes | memoryview, ends: npt.ArrayLike, begin: int = 0) -> Chunk:
        """Make a chunk from ends that count from ``begin`` bytes before the frames."""
        return cls(frames, (np.asarray(ends, np.int64) - begin).astype(_END).tobytes())


def joined(chunks: Sequence[Chunk]) -> Chunk:
    """Join several chunks into one, in memory of its own."""
    if len(chunks) == 1 and isinstance(chunks[0].frames, bytes):
        return chunks[0]
    before = accumulate((len(chunk.frames) for chunk in chunks), initial=0)
    ends = [np.frombuffer(chunk.ends, _END) + np.uint32(start) for chunk, start in zip(chunks, before, strict=False)]
    return Chunk(b"".join([chunk.frames for chunk in chunks]), np.concatenate(ends).astype(_END).tobytes())


class Located(NamedTuple):
    """Positions of the parts of every transfer in a chunk; the arrays have one entry per transfer.

    The header segment is ``wire.data[head_begin:head_end]`` (empty if there is none). The body is
    ``wire.data[body_begin:end]``, or in the pieces that ``odd`` names.
    """

    wire: Wire
    """The chunk, followed by the joined header segments that came in several frames."""
    head_begin: Positions
    head_end: Positions
    body_begin: Positions
    end: Positions
    """End of the transfer in the chunk."""
    odd: dict[int, list[int]]
    """Begin and end of each piece of a body that came in several frames, by index."""
    broken: dict[int, str]
    """Why the transfer with this index cannot be decoded; its header and body are empty."""

    def transfer(self, row: int) -> bytes:
        """The frames of one transfer."""
        return self.wire.data[self.end[row - 1] if row else 0 : self.end[row]]

    def bodies(self, rows: range) -> Array:
        """The bodies of these transfers as BINARY, if some came in pieces: each byte is copied once."""
        data = memoryview(self.wire.data)
        bounds = [self.odd.get(row) or [int(self.body_begin[row]), int(self.end[row])] for row in rows]
        sizes = (sum(each[1::2]) - sum(each[::2]) for each in bounds)
        offsets = np.array(list(accumulate(sizes, initial=0)), np.int32)  # OverflowError from 2 GiB on
        raw = np.empty(int(offsets[-1]), np.uint8)
        whole, at = raw.data, 0
        for each in bounds:
            for begin, end in zip(each[::2], each[1::2], strict=True):
                whole[at : at + end - begin] = data[begin:end]
                at += end - begin
        buffers = [None, pa.py_buffer(offsets.data), pa.py_buffer(raw.data)]
        return pa.Array.from_buffers(pa.binary(), len(rows), buffers)


def locate(chunk: Chunk) -> Located:
    """Find header and body of every transfer.

    Raises:
        DecodeError: the ends of the transfers are not those of these frames.
    """
    frames = bytes(chunk.frames)
    end = np.frombuffer(chunk.ends, _END).astype(np.int64)
    begin = np.zeros_like(end)
    begin[1:] = end[:-1]
    if len(end) and ((end <= begin).any() or end[-1] > len(frames)):
        raise DecodeError("the ends of the transfers do not fit the frames", 0)
    head, body, usual = _three_frames(Wire(padded(frames, 0)), begin, end)
    places = head + 12, body, np.minimum(body + 12, end), end
    if usual.all():
        return Located(Wire(padded(frames, int(body.max(initial=0)))), *places, {}, {})
    return _with_unusual(frames, begin, places, np.flatnonzero(~usual).tolist())


def _three_frames(wire: Wire, begin: Positions, end: Positions) -> tuple[Positions, Positions, Mask]:
    """Begin and end of the header frame, and whether the frames are the usual ones.

    That is, one frame for the command, one for the header, and one or none for the body.
    """
    beside, size = _frame_head(wire, begin)
    usual = (beside == _COMMAND) & (size >= 14) & (wire.read(">u2", begin + 12) == _TRANSFER)
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


def _with_unusual(frames: bytes, begin: Positions, places: _Places, rows: list[int]) -> Located:
    """Locate these transfers one by one."""
    head_begin, head_end, body_begin, end = places
    odd: dict[int, list[int]] = {}
    broken: dict[int, str] = {}
    behind: list[bytes] = []
    total = len(frames)
    for row in rows:
        first, last = int(begin[row]), int(end[row])
        try:
            header, body = segments(frames, first, last)
        except DecodeError as error:
            broken[row] = error.reason
            header, body = [], []
        if len(header) > 2:
            whole = _pieces(frames, header)
            behind.append(whole)
            header = [total, total := total + len(whole)]
        head_begin[row], head_end[row] = header or (first, first)
        body_begin[row] = last
        if body[1:] == [last]:
            body_begin[row] = body[0]
        elif body:
            odd[row] = body
    data = b"".join((frames, *behind)) if behind else frames
    return Located(Wire(padded(data, int(head_end.max())), ordered=not behind), *places, odd, broken)


def _pieces(frames: bytes, bounds: list[int]) -> bytes:
    return b"".join([frames[begin:end] for begin, end in zip(bounds[::2], bounds[1::2], strict=True)])
