"""Batches that were accepted, as the reader serves them: from memory, or from their file of the spool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from amqp_spark.datasource.queue_buffer import HeldBlock, QueueBuffer
from amqp_spark.offsets import QueueOffset

if TYPE_CHECKING:
    from amqp_spark.spool.spool import Spool
    from amqp_spark.state.records import OwnedBatch


@dataclass(slots=True, eq=False)
class Entry:
    """An owned batch.

    Attributes:
        batch: what the state message says of it.
        held: its bytes, under its positions; ``None`` while they are in the spool only.
        finished: Spark has committed it; it is dropped from the state with the next transaction.
        turn: what was planned together is offered together. 0 for what an earlier process has planned.
    """

    batch: OwnedBatch
    held: QueueBuffer | None = None
    finished: bool = False
    turn: int = 0

    @property
    def offset(self) -> QueueOffset:
        """Its end, as Spark logs it."""
        return QueueOffset(self.batch.end, self.batch.epoch)

    @property
    def held_bytes(self) -> int:
        """Bytes in memory; those of a batch that Spark has to ask for yet, too, so that there is room for it."""
        if self.held is None:
            return 0 if self.finished else self.batch.nbytes
        return self.held.held_bytes

    def finish(self) -> None:
        """Spark has committed it, and never asks for it again."""
        self.finished, self.held = True, None


def load(batch: OwnedBatch, spool: Spool) -> QueueBuffer:
    """The bytes of a batch from its file, verified, under the positions that the state message gives them."""
    spooled = spool.read(batch.file, batch.checksum)
    held = QueueBuffer(spooled.header.queue, accepted=batch.begin, planned=batch.end, received=batch.end)
    held.ranges[batch.end] = batch.begin
    held.blocks.append(HeldBlock(batch.begin, batch.count, 0, 0, spooled.frames, spooled.ends))
    held.held_bytes = len(spooled.frames)
    return held


def ends_of(held: QueueBuffer) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Where each transfer of :meth:`QueueBuffer.copy` ends in the concatenation of its parts."""
    found: list[np.ndarray[tuple[int], np.dtype[np.uint64]]] = []
    before = 0
    for block in held.blocks:
        first, last = max(held.accepted, block.begin), min(held.planned, block.end)
        ends = np.frombuffer(block.ends, dtype=f"u{block.ends.itemsize}")[first - block.begin : last - block.begin]
        shifted = ends.astype(np.uint64) + np.uint64(before) - np.uint64(block.offset(first))
        found.append(shifted)
        before = int(shifted[-1])
    return np.concatenate(found)
