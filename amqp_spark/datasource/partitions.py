"""Partitions, sent from the reader to a task: the message bytes, or the endpoint to pull them from."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition

from amqp_spark.arrow.decode import Chunk, joined
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import TransferError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from threading import Condition

    from amqp_spark.datasource.block_server import Endpoint
    from amqp_spark.datasource.receive_buffer import QueueBuffer

SMALL_BATCH_BYTES: Final = 1 << 20
"""Below this a batch is one inline partition: pulling costs as much as it saves, and every task costs 10 ms or more."""
LEAST_PIECE_BYTES: Final = SMALL_BATCH_BYTES // 2
"""A range is not cut into smaller partitions than this."""
INLINE_PIECE_BYTES: Final = 16 << 20
"""Target size of an inline partition."""
INLINE_LIMIT_BYTES: Final = 64 << 20
"""Spark crashes near 80 MB in one partition."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Consecutive transfers of a queue, with their bytes."""

    queue: str
    epoch: int
    begin: int
    chunk: Chunk = field(repr=False)
    skipped: tuple[int, ...] = ()
    """Positions for which no row is made."""


@dataclass(frozen=True)
class InlinePartition(InputPartition):
    """A part of a batch with its bytes. With ``mode=REJECT``, rejects are reported to ``endpoint``."""

    slices: tuple[Slice, ...]
    endpoint: Endpoint | None = None

    value = None


@dataclass(frozen=True)
class PullPartition(InputPartition):
    """A part of a batch that the task fetches from the reader process. No row is made for positions in ``skipped``."""

    endpoint: Endpoint
    queue: str
    epoch: int
    begin: int
    end: int
    skipped: tuple[int, ...] = ()

    value = None


@dataclass(frozen=True, slots=True)
class Range:
    """Planned transfers of one queue, ``[begin, end)``. No row is made for positions in ``skipped``."""

    queue: str
    epoch: int
    begin: int
    end: int
    skipped: tuple[int, ...] = ()

    def skipped_in(self, begin: int, end: int) -> tuple[int, ...]:
        """Skipped positions in ``[begin, end)``."""
        return tuple(position for position in self.skipped if begin <= position < end)


class PlannedRanges:
    """The bytes of planned ranges; methods may be called from any thread. ``buffer_of`` returns the buffer with the
    range of a queue and an epoch that ends at a position, or raises OffsetError."""

    def __init__(self, lock: Condition, buffer_of: Callable[[str, int, int], QueueBuffer]) -> None:
        self._lock = lock
        self._buffer_of = buffer_of

    def bytes_of(self, queue: str, epoch: int, begin: int, end: int) -> int:
        """Bytes of a planned range."""
        with self._lock:
            return self._buffer_of(queue, epoch, end).bytes_of(begin, end)

    def cut(self, queue: str, epoch: int, begin: int, end: int, pieces: int) -> list[tuple[int, int, int]]:
        """Cut a planned range into pieces of about equal bytes: begin, end, bytes."""
        with self._lock:
            return self._buffer_of(queue, epoch, end).cut(begin, end, pieces)

    def chunks(self, queue: str, epoch: int, begin: int, end: int) -> list[Chunk]:
        """The transfers of a planned range, one chunk per block received."""
        with self._lock:
            return self._buffer_of(queue, epoch, end).chunks(begin, end)

    def reject(self, queue: str, epoch: int, positions: Sequence[int], text: str) -> None:
        """Record positions that did not fit the schema; they are rejected when Spark has committed the batch."""
        with self._lock:
            self._buffer_of(queue, epoch, 0).reject(positions, text)


def inline_partitions(
    planned: PlannedRanges, ranges: Sequence[Range], *, pieces: int, endpoint: Endpoint | None
) -> list[InlinePartition]:
    """Partitions with the bytes of a batch: one if it is small, else at most ``pieces`` per queue (more where they
    would be too large to send)."""
    sizes = [planned.bytes_of(each.queue, each.epoch, each.begin, each.end) for each in ranges]
    if sum(sizes) < SMALL_BATCH_BYTES:
        slices = tuple(part for each in ranges for part in _slices(planned, each, each.begin, each.end))
        return [InlinePartition(slices, endpoint)] if slices else []
    partitions = []
    for each, size in zip(ranges, sizes, strict=True):
        wanted = max(_pieces(size, pieces), -(-size // INLINE_PIECE_BYTES))
        for begin, end, length in planned.cut(each.queue, each.epoch, each.begin, each.end, wanted):
            if length > INLINE_LIMIT_BYTES:
                raise TransferError(
                    SparkCondition.MESSAGE_TOO_LARGE_INLINE(queue=each.queue, size=length, limit=INLINE_LIMIT_BYTES)
                )
            partitions.append(InlinePartition(tuple(_slices(planned, each, begin, end)), endpoint))
    return partitions


def pull_partitions(
    planned: PlannedRanges, ranges: Sequence[Range], *, pieces: int, endpoint: Endpoint
) -> list[PullPartition]:
    """Partitions that refer to a batch: at most ``pieces`` per queue, of about equal bytes."""
    partitions = []
    for each in ranges:
        wanted = _pieces(planned.bytes_of(each.queue, each.epoch, each.begin, each.end), pieces)
        partitions += [
            PullPartition(endpoint, each.queue, each.epoch, begin, end, each.skipped_in(begin, end))
            for begin, end, _size in planned.cut(each.queue, each.epoch, each.begin, each.end, wanted)
        ]
    return partitions


def _pieces(size: int, most: int) -> int:
    return max(1, min(most, size // LEAST_PIECE_BYTES))


def _slices(planned: PlannedRanges, whole: Range, begin: int, end: int) -> Iterator[Slice]:
    """A piece of a range: one slice, more if its connections had different protocols."""
    chunks = planned.chunks(whole.queue, whole.epoch, begin, end)
    for _, group in groupby(chunks, attrgetter("protocol")):
        chunk = joined(list(group))
        upto = begin + chunk.transfers
        yield Slice(whole.queue, whole.epoch, begin, chunk, whole.skipped_in(begin, upto))
        begin = upto
