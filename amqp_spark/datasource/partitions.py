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
TASKS_TOGETHER: Final = 32
"""The small ranges of many queues are together in about so many partitions, or in fewer of the least size: each task
costs as much as decoding some MiB."""
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

    def part(self, begin: int, end: int) -> Range:
        """The transfers ``[begin, end)`` of it."""
        return Range(self.queue, self.epoch, begin, end, self.skipped_in(begin, end))


@dataclass(frozen=True)
class PullPartition(InputPartition):
    """A part of a batch that the task fetches from the reader process."""

    endpoint: Endpoint
    ranges: tuple[Range, ...]

    value = None


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
    planned: PlannedRanges,
    ranges: Sequence[Range],
    sizes: Sequence[int],
    *,
    pieces: int,
    endpoint: Endpoint | None,
) -> list[InlinePartition]:
    """Partitions with the bytes of a batch, whose ranges have these ``sizes`` in bytes: one if it is small, else at
    most ``pieces`` per queue (more where they would be too large to send), and small ranges together."""
    if sum(sizes) < SMALL_BATCH_BYTES:
        tasks = [(list(ranges), sum(sizes))] if ranges else []
    else:
        tasks = _tasks(planned, ranges, sizes, lambda size: max(_pieces(size, pieces), -(-size // INLINE_PIECE_BYTES)))
    partitions = []
    for task, size in tasks:
        if size > INLINE_LIMIT_BYTES:  # one message is larger than its piece should be
            raise TransferError(
                SparkCondition.MESSAGE_TOO_LARGE_INLINE(queue=task[0].queue, size=size, limit=INLINE_LIMIT_BYTES)
            )
        slices = tuple(part for each in task for part in _slices(planned, each))
        partitions.append(InlinePartition(slices, endpoint))
    return partitions


def pull_partitions(
    planned: PlannedRanges, ranges: Sequence[Range], sizes: Sequence[int], *, pieces: int, endpoint: Endpoint
) -> list[PullPartition]:
    """Partitions that refer to a batch, whose ranges have these ``sizes`` in bytes: at most ``pieces`` per queue, of
    about equal bytes, and small ranges together."""
    tasks = _tasks(planned, ranges, sizes, lambda size: _pieces(size, pieces))
    return [PullPartition(endpoint, tuple(task)) for task, _size in tasks]


def _tasks(
    planned: PlannedRanges, ranges: Sequence[Range], sizes: Sequence[int], pieces: Callable[[int], int]
) -> list[tuple[list[Range], int]]:
    """Divide a batch: into ``pieces`` of each range by its size, and small ranges of several queues together; each with
    its bytes."""
    most = min(INLINE_PIECE_BYTES, max(LEAST_PIECE_BYTES, sum(sizes) // TASKS_TOGETHER))
    tasks: list[tuple[list[Range], int]] = []
    together: list[Range] = []
    filled = 0
    for each, size in zip(ranges, sizes, strict=True):
        if size > most:
            cuts = planned.cut(each.queue, each.epoch, each.begin, each.end, pieces(size))
            tasks += [([each.part(begin, end)], length) for begin, end, length in cuts]
            continue
        if together and filled + size > most:
            tasks.append((together, filled))
            together, filled = [], 0
        together.append(each)
        filled += size
    return [*tasks, (together, filled)] if together else tasks


def _pieces(size: int, most: int) -> int:
    return max(1, min(most, size // LEAST_PIECE_BYTES))


def _slices(planned: PlannedRanges, part: Range) -> Iterator[Slice]:
    """The transfers of a range: one slice, more if its connections had different protocols."""
    begin = part.begin
    chunks = planned.chunks(part.queue, part.epoch, begin, part.end)
    for _, group in groupby(chunks, attrgetter("protocol")):
        chunk = joined(list(group))
        upto = begin + chunk.transfers
        yield Slice(part.queue, part.epoch, begin, chunk, part.skipped_in(begin, upto))
        begin = upto
