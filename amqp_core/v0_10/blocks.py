"""Blocks: runs of received message.transfer as raw frames, and the scanner that cuts a byte stream into them.

A block is what travels from the receiver to whoever decodes: frames exactly as they were received, holding whole
transfers whose command ids follow each other. Nothing in it has been decoded.
"""

from __future__ import annotations

from array import array
from operator import sub
from typing import TYPE_CHECKING

from amqp_core.errors import LimitExceeded
from amqp_core.v0_10._scan import IN_TRANSFER, OUTSIDE, scan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqp_core.errors import ProtocolError

# From this many bytes on, the walked part of an incomplete message is set aside instead of being copied with every
# chunk that arrives: a message of 100 MiB would otherwise be copied 400 times.
_ASIDE_BYTES = 1 << 18
# A frame's offset in a block must fit array("I"); no broker known takes a message anywhere near this.
_LARGEST_MESSAGE = (1 << 32) - (1 << 20)


class Block:
    """A run of transfers.

    Attributes:
        frames: raw frames, as received; controls and other commands may lie between and must be skipped.
        ends: end offset in ``frames`` of each transfer (``array("I")``).
        first_id: unbounded command id of the first transfer; the others follow without a gap. -1 until a session
            has numbered it.
        largest: bytes of the largest transfer, frame headers included.
    """

    __slots__ = ("ends", "first_id", "frames", "largest")

    def __init__(self, frames: bytes, ends: array[int], first_id: int = -1) -> None:
        self.frames = frames
        self.ends = ends
        self.first_id = first_id
        self.largest = max(ends[0], max(map(sub, ends[1:], ends), default=0))

    @property
    def count(self) -> int:
        """How many transfers are in the block."""
        return len(self.ends)

    @property
    def nbytes(self) -> int:
        """Bytes of frames."""
        return len(self.frames)

    def part(self, first: int, last: int, start: int, end: int) -> Block:
        """Return the transfers ``[first, last)``, which lie from ``start`` to ``end``, as a block of their own."""
        ends = array("I", [each - start for each in self.ends[first:last]])
        return Block(self.frames[start:end], ends, self.first_id + first)

    def __repr__(self) -> str:
        return f"Block({len(self.ends)} transfers from id {self.first_id}, {len(self.frames)} bytes)"


class Scanner:
    """Cuts the frames of one channel into blocks of transfers and single other frames, in order of arrival."""

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._rest = b""
        self._start = 0
        self._inside = OUTSIDE
        self._aside: list[bytes] = []
        self._aside_bytes = 0
        self.error: ProtocolError | None = None

    def feed(self, chunk: bytes, max_frame_size: int) -> Iterator[Block | bytes]:
        """Take the next bytes; yield blocks, and every other frame as its bytes.

        ``error`` is set when the iteration ends at a broken frame; what was yielded before it is valid.
        """
        data = self._rest + chunk if self._rest else chunk
        found = scan(data, self._start, self._channel, max_frame_size, self._inside)
        self._inside, self.error = found.inside, found.error
        aside, self._aside, self._aside_bytes = self._aside, [], 0
        ends = found.ends
        begin = done = 0
        if aside and ends:
            # the transfer that was set aside ends in this chunk; frames of `others` before it are yielded below
            frames = b"".join((*aside, data[: ends[0]]))
            aside_block: Block | None = Block(frames, array("I", (len(frames),)))
        else:
            aside_block = None
        for first, end, index in found.others:
            if index > done:
                if aside_block is not None:
                    yield aside_block
                    aside_block, done, begin = None, 1, ends[0]
                if index > done:
                    yield _block(data, begin, ends[done:index])
                    begin, done = ends[index - 1], index
            yield data[first:end]
            if data[first + 5] & 15 == 1:
                begin = end  # a command is never inside a transfer; controls may be, and stay in its bytes
        if aside_block is not None:
            yield aside_block
            done, begin = 1, ends[0]
        if done < len(ends):
            yield _block(data, begin, ends[done:])
        self._keep(data, found.begin, found.next, aside if not ends else [])

    def _keep(self, data: bytes, begin: int, following: int, aside: list[bytes]) -> None:
        if self._inside == IN_TRANSFER and (aside or following - begin >= _ASIDE_BYTES):
            self._aside = aside
            aside.append(data[begin:following])
            self._aside_bytes = sum(map(len, aside))
            if self._aside_bytes > _LARGEST_MESSAGE:
                self.error = LimitExceeded(f"a message of more than {_LARGEST_MESSAGE} bytes is being sent by the peer")
            self._rest, self._start = data[following:], 0
        else:
            self._rest, self._start = data[begin:], following - begin


def _block(data: bytes, begin: int, ends: list[int]) -> Block:
    if begin:
        return Block(data[begin : ends[-1]], array("I", [end - begin for end in ends]))
    frames = data if ends[-1] == len(data) else data[: ends[-1]]
    return Block(frames, array("I", ends))
