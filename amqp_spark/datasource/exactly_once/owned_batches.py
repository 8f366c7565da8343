"""Accepted batches: owned by the state, and served from memory or from their file in the spool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from amqp_spark.datasource.receive_buffer import HeldBlock, QueueBuffer
from amqp_spark.offsets import QueueOffset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqp_spark.spool.spool import Spool
    from amqp_spark.state.records import OwnedBatch, ReadPosition


@dataclass(slots=True, eq=False)
class Entry:
    """An owned batch.

    Attributes:
        batch: its record in the state message.
        held: its bytes, under its positions; ``None`` while they are in the spool only.
        finished: Spark has committed it; the next transaction drops it from the state.
    """

    batch: OwnedBatch
    held: QueueBuffer | None = None
    finished: bool = False

    @property
    def offset(self) -> QueueOffset:
        """Its end, as Spark logs it."""
        return QueueOffset(self.batch.end, self.batch.epoch)

    @property
    def held_bytes(self) -> int:
        """Bytes in memory, plus those of a batch that Spark has yet to ask for, so that room is reserved for it."""
        if self.held is None:
            return 0 if self.finished else self.batch.nbytes
        return self.held.held_bytes

    def finish(self) -> None:
        """Mark it as committed by Spark, which never asks for it again, and free its bytes."""
        self.finished, self.held = True, None


@dataclass(slots=True, kw_only=True, eq=False)
class Change:
    """A requested transaction: it owns one more batch, or relabels all of them, which raises the epoch once more.
    ``accept`` has the inclusive ranges of command ids of the ``entry``, of this ``incarnation``; ``finished`` is the
    mark to set; ``forget``: there is none. ``done``: its outcome (``committed``) is known, and how long it took."""

    entry: Entry | None = None
    size: int = 0
    accept: Sequence[tuple[int, int]] = ()
    incarnation: int | None = None
    relabelled: list[Entry] | None = None
    finished: ReadPosition | None = None
    forget: bool = False
    seconds: float = 0.0
    done: bool = False
    committed: bool = False


def load(batch: OwnedBatch, spool: Spool) -> QueueBuffer:
    """Load the bytes of a batch from its file, verified, under the positions given by the state message."""
    spooled = spool.read(batch.file, batch.checksum)
    held = QueueBuffer(spooled.header.queue, accepted=batch.begin, planned=batch.end, received=batch.end)
    held.ranges[batch.end] = batch.begin
    protocol = spooled.header.protocol
    held.blocks.append(HeldBlock(batch.begin, batch.count, 0, 0, spooled.frames, spooled.ends, protocol))
    held.held_bytes = len(spooled.frames)
    return held


def ends_of(held: QueueBuffer) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """End of each transfer of :meth:`QueueBuffer.copy` in the concatenation of its parts."""
    found: list[np.ndarray[tuple[int], np.dtype[np.uint64]]] = []
    before = 0
    for block in held.blocks:
        first, last = max(held.accepted, block.begin), min(held.planned, block.end)
        ends = np.frombuffer(block.ends, dtype=f"u{block.ends.itemsize}")[first - block.begin : last - block.begin]
        shifted = ends.astype(np.uint64) + np.uint64(before) - np.uint64(block.offset(first))
        found.append(shifted)
        before = int(shifted[-1])
    return np.concatenate(found)
