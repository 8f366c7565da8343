"""Blocks of received transfers: frames exactly as received, with the end of each transfer, not decoded."""

from __future__ import annotations

from array import array
from operator import sub
from typing import TYPE_CHECKING

from amqp_core.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# Chunks smaller than this, on average over as many as _MANY, are joined: each costs some 40 bytes besides its own.
_SMALL_CHUNK = 4096
_MANY = 256


class Block:
    """A run of transfers. Immutable after it was handed on; any thread may read it.

    Attributes:
        frames: raw frames, as received; other frames may lie between transfers and must be skipped.
        ends: end offset in ``frames`` of each transfer (``array("I")``).
        first_id: unbounded command id of the first transfer; the others have consecutive ids. -1 until a session has
            numbered it.
        changes: indices of the transfers, in order, that may have another destination than the previous one. Found by
            comparing command frames; the first transfer is not included.
        largest: bytes of the largest transfer, frame headers included.
        sync: whether the sender may have requested an immediate completion report for a transfer.
    """

    __slots__ = ("changes", "ends", "first_id", "frames", "largest", "sync")

    def __init__(
        self,
        frames: bytes,
        ends: array[int],
        first_id: int = -1,
        changes: Sequence[int] | None = None,
        largest: int = 0,
    ) -> None:
        self.frames = frames
        self.ends = ends
        self.first_id = first_id
        self.changes = range(1, len(ends)) if changes is None else changes
        self.largest = largest or max(ends[0], max(map(sub, ends[1:], ends), default=0))
        self.sync = False

    @property
    def count(self) -> int:
        """Number of transfers in the block."""
        return len(self.ends)

    @property
    def nbytes(self) -> int:
        """Bytes of frames."""
        return len(self.frames)

    def part(self, first: int, last: int, start: int, end: int) -> Block:
        """Return a new block of the transfers ``[first, last)``, whose frames lie from ``start`` to ``end``."""
        ends = array("I", [each - start for each in self.ends[first:last]])
        return Block(self.frames[start:end], ends, self.first_id + first)

    def __repr__(self) -> str:
        return f"Block({len(self.ends)} transfers from id {self.first_id}, {len(self.frames)} bytes)"


def runs(block: Block, name_of: Callable[[bytes, int], str]) -> Iterator[tuple[str, Block]]:
    """Cut a block into runs of transfers to one destination each, in order, up to an unreadable name.

    Args:
        block: the transfers.
        name_of: the destination of the transfer that begins at an offset in frames; it may raise DecodeError.
    """
    frames, ends = block.frames, block.ends
    first = start = 0
    current = name_of(frames, 0)
    for index in block.changes:
        end = ends[index - 1]
        try:
            following = name_of(frames, end)
        except DecodeError:
            yield current, block.part(first, index, start, end)
            raise
        if following != current:
            yield current, block.part(first, index, start, end)
            first, start, current = index, end, following
    yield current, block if not first else block.part(first, len(ends), start, ends[-1])


class Pieces:
    """Bytes that arrive piece by piece and are joined once. Not thread-safe."""

    __slots__ = ("_dropping", "_list", "_since", "_solid", "nbytes")

    def __init__(self) -> None:
        self._list: list[bytes] = []
        self._dropping = False
        self.nbytes = 0
        self._solid = 0  # number of pieces at the front that are not small, or are joined already
        self._since = 0  # bytes of the pieces after them

    def add(self, piece: bytes) -> None:
        """Append a piece."""
        if not piece:
            return
        self.nbytes += len(piece)
        if self._dropping:
            return
        self._list.append(piece)
        self._since += len(piece)
        if len(self._list) - self._solid >= _MANY:
            if self._since < _MANY * _SMALL_CHUNK:
                self._list[self._solid :] = [b"".join(self._list[self._solid :])]
            self._solid = len(self._list)
            self._since = 0

    def first(self) -> bytes:
        """Return the first piece; there must be one."""
        return self._list[0]

    def drop(self, kept: int) -> None:
        """Keep only the first ``kept`` bytes of the first piece, until :meth:`take`; the others are still counted."""
        self._list, self._dropping = [self._list[0][:kept]], True

    def take(self, last: bytes | memoryview) -> bytes:
        """Return all pieces and ``last``, joined, or what :meth:`drop` has kept; clear the pieces."""
        joined = self._list[0] if self._dropping else b"".join((*self._list, last))
        self._list, self._dropping = [], False
        self.nbytes = self._solid = self._since = 0
        return joined
