"""Chunks of transfers as sent to a task, and the positions of the parts of each transfer."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import numpy as np
import pyarrow as pa

from amqp_core.errors import DecodeError
from amqp_spark.arrow.columns.wire import Wire, padded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from amqp_spark.arrow.columns.arrays import Array
    from amqp_spark.arrow.columns.dialect import Dialect
    from amqp_spark.arrow.columns.wire import Mask, Positions

_END: Final = ">u4"


class Chunk(NamedTuple):
    """Consecutive whole transfers as received, and the end of each in ``frames``: 32 bits, big-endian.

    ``protocol`` is that of the connection, see :attr:`amqp_core.api.Client.protocol`.
    """

    frames: bytes | memoryview
    ends: bytes
    protocol: str = "0-10"
    size: int | None = None
    """How many bytes of ``frames`` count; all if it is None."""

    @classmethod
    def of(cls, frames: bytes | memoryview, ends: npt.ArrayLike, begin: int = 0, *, protocol: str = "0-10") -> Chunk:
        """Make a chunk from ends that count from ``begin`` bytes before the frames."""
        return cls(frames, (np.asarray(ends, np.int64) - begin).astype(_END).tobytes(), protocol)

    @property
    def transfers(self) -> int:
        """Number of transfers."""
        return len(self.ends) // 4


def joined(chunks: Sequence[Chunk], room: bytearray | None = None) -> Chunk:
    """Join several chunks of one protocol into one, in memory of its own or in ``room``."""
    if len(chunks) == 1 and isinstance(chunks[0].frames, bytes):
        return chunks[0]
    before = accumulate((len(chunk.frames) for chunk in chunks), initial=0)
    ends = [np.frombuffer(chunk.ends, _END) + np.uint32(start) for chunk, start in zip(chunks, before, strict=False)]
    whole = Chunk(b"", np.concatenate(ends).astype(_END).tobytes(), chunks[0].protocol)
    if room is None:
        return whole._replace(frames=b"".join([chunk.frames for chunk in chunks]))
    size = sum(len(chunk.frames) for chunk in chunks)
    parts = [np.frombuffer(chunk.frames, np.uint8) for chunk in chunks]
    np.concatenate(parts, out=np.frombuffer(room, np.uint8, size))
    return whole._replace(frames=cast("bytes", room), size=size)  # it is only read until it is used again


class Finder(NamedTuple):
    """How one transfer is located."""

    find: Callable[[bytes, int, int], tuple[list[int], list[int]]]
    """Finds begin and end of each piece of the header and of the body of the transfer between two positions."""
    dialect: Dialect


class Places(NamedTuple):
    """Positions of the parts of every transfer in a chunk; one entry per transfer.

    The header is ``data[head_begin:head_end]`` (empty if there is none), the body ``data[body_begin:body_end]``.
    """

    head_begin: Positions
    head_end: Positions
    body_begin: Positions
    body_end: Positions
    end: Positions
    """End of the transfer in the chunk."""


class Located(NamedTuple):
    """Where the parts of every transfer in a chunk are."""

    wire: Wire
    """The chunk, followed by the joined headers that came in several frames."""
    places: Places
    odd: dict[int, list[int]]
    """Begin and end of each piece of a body that came in several frames, by index."""
    broken: dict[int, str]
    """Why the transfer with this index cannot be decoded; its header and body are empty."""

    def transfer(self, row: int) -> bytes:
        """The frames of one transfer."""
        return bytes(self.wire.data[self.places.end[row - 1] if row else 0 : self.places.end[row]])

    def bodies(self, rows: range) -> Array:
        """The bodies of these transfers as BINARY, if some came in pieces: each byte is copied once."""
        data = memoryview(self.wire.data)
        begins, ends = self.places.body_begin, self.places.body_end
        bounds = [self.odd.get(row) or [int(begins[row]), int(ends[row])] for row in rows]
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


def opened(chunk: Chunk) -> tuple[bytes, Positions, Positions]:
    """The frames of a chunk, and begin and end of every transfer in them.

    Raises:
        DecodeError: the ends of the transfers are not those of these frames.
    """
    size = len(chunk.frames) if chunk.size is None else chunk.size
    frames = bytes(chunk.frames) if isinstance(chunk.frames, memoryview) else chunk.frames
    end = np.frombuffer(chunk.ends, _END).astype(np.int64)
    begin = np.zeros_like(end)
    begin[1:] = end[:-1]
    if len(end) and ((end <= begin).any() or end[-1] > size):
        raise DecodeError("the ends of the transfers do not fit the frames", 0)
    return frames, begin, end


def one_by_one(frames: bytes, begin: Positions, places: Places, unusual: Mask, finder: Finder) -> Located:
    """Locate the unusual transfers one by one; all others are where ``places`` says."""
    places = places._replace(body_end=places.body_end.copy())
    head_begin, head_end, body_begin, body_end, end = places
    odd: dict[int, list[int]] = {}
    broken: dict[int, str] = {}
    behind: list[bytes] = []
    total = len(frames)
    for row in np.flatnonzero(unusual).tolist():
        first, last = int(begin[row]), int(end[row])
        try:
            header, body = finder.find(frames, first, last)
        except DecodeError as error:
            broken[row] = error.reason
            header, body = [], []
        if len(header) > 2:
            whole = _pieces(frames, header)
            behind.append(whole)
            header = [total, total := total + len(whole)]
        head_begin[row], head_end[row] = header or (first, first)
        body_begin[row] = body_end[row] = last
        if len(body) == 2:
            body_begin[row], body_end[row] = body
        elif body:
            odd[row] = body
    data = b"".join((frames, *behind)) if behind else frames
    return Located(
        Wire(padded(data, int(head_end.max())), ordered=not behind, dialect=finder.dialect), places, odd, broken
    )


def _pieces(frames: bytes, bounds: list[int]) -> bytes:
    return b"".join([frames[begin:end] for begin, end in zip(bounds[::2], bounds[1::2], strict=True)])
