"""Received transfers: of one queue, with positions and planned ranges; of all queues, within one byte budget.

No I/O. A buffer is called under the lock of :class:`ReceiveBuffer`. Positions count the transfers of a queue in one
epoch from 0; a range ``[begin, end)`` is identified by its end. Always ``accepted <= planned <= received``: transfers
below ``accepted`` are freed, ``[accepted, planned)`` belongs to batches, ``[planned, received)`` waits to be planned.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from amqp_spark.arrow.decode import Chunk
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import OffsetError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from amqp_core.api import Block
    from amqp_spark.datasource.flow_control import Room

MOST_CHUNK_BYTES: Final = 1 << 30
"""Largest chunk, although a single transfer may be larger: ends of transfers are sent as 32 bits."""
LOOK_SECONDS: Final = 0.5
"""How long queues with a known large message go before queues that only probe for one."""


class Settlement(NamedTuple):
    """Accepts and rejects to send on the session of one incarnation, for transfers that Spark has processed."""

    incarnation: int
    accept: list[tuple[int, int]]
    """Inclusive ranges of command ids."""
    reject: list[tuple[tuple[int, int], str]]
    """A range of one command id, and the reason."""


@dataclass(slots=True)
class HeldBlock:
    """A block as received, with the position of its first transfer. ``count`` shrinks when a reconnect cuts it."""

    begin: int
    count: int
    incarnation: int
    first_id: int
    frames: bytes | memoryview
    ends: array[int]
    protocol: str = "0-10"

    @property
    def end(self) -> int:
        """Position after the last transfer."""
        return self.begin + self.count

    def offset(self, position: int) -> int:
        """Byte offset in ``frames`` where the transfer at ``position`` begins."""
        index = position - self.begin
        return self.ends[index - 1] if index else 0

    def ids(self, begin: int, end: int) -> tuple[int, int]:
        """The inclusive range of command ids of ``[begin, end)``."""
        return self.first_id + begin - self.begin, self.first_id + end - 1 - self.begin


@dataclass(slots=True)
class ByteCount:
    """Bytes that are held over all queues: a sum over hundreds of them is too slow, as each of them asks for it."""

    total: int = 0


@dataclass(slots=True)
class QueueBuffer:
    """The transfers held of one queue in one epoch, or of one batch of it. ``count``: where their bytes count, too."""

    queue: str
    count: ByteCount | None = None
    blocks: deque[HeldBlock] = field(default_factory=deque)
    accepted: int = 0
    planned: int = 0
    received: int = 0
    incarnation: int = 0
    held_bytes: int = 0
    """Bytes of the blocks held; a block counts until its last transfer is accepted, since its memory is freed then."""
    waiting_bytes: int = 0
    """Bytes of ``[planned, received)``."""
    ranges: dict[int, int] = field(default_factory=dict)
    """End of a planned range -> its begin."""
    rejected: dict[int, str] = field(default_factory=dict)
    """Position -> reason, as executors reported it."""

    @property
    def waiting(self) -> int:
        """Number of transfers received and not planned."""
        return self.received - self.planned

    @property
    def held_by_session(self) -> int:
        """Number of transfers that the current incarnation received and that were not accepted."""
        held = 0
        for block in reversed(self.blocks):
            if block.incarnation != self.incarnation:
                break
            held += block.end - max(block.begin, self.accepted)
        return held

    def _hold(self, nbytes: int) -> None:
        """Count bytes that are held from now on, or no longer (negative)."""
        self.held_bytes += nbytes
        if self.count is not None:
            self.count.total += nbytes

    def new_incarnation(self, *, keep_waiting: bool = False) -> int:
        """Begin an incarnation after a session ended; return its number. Planned ranges stay.

        Transfers that were not planned are dropped, since the broker sends them again. ``keep_waiting``: it does not
        (accept-mode none, or the queue is gone).
        """
        self.incarnation += 1
        if not keep_waiting:
            while self.blocks and self.blocks[-1].begin >= self.planned:
                self._hold(-len(self.blocks.pop().frames))
            if self.blocks:
                self.blocks[-1].count = min(self.blocks[-1].count, self.planned - self.blocks[-1].begin)
                if self.blocks[-1].end <= self.accepted:  # no accept will come that frees it
                    self._hold(-len(self.blocks.pop().frames))
            self.received = self.planned
            self.waiting_bytes = 0
        return self.incarnation

    def append(self, block: Block, protocol: str = "0-10") -> None:
        """Add a block that the current incarnation received with a protocol."""
        ends = block.ends if isinstance(block.ends, array) else array("I", block.ends)
        held = HeldBlock(self.received, len(ends), self.incarnation, block.first_id, block.frames, ends, protocol)
        self.blocks.append(held)
        self.received += len(ends)
        self._hold(len(block.frames))
        self.waiting_bytes += ends[-1]

    def cut_off(self, position: int) -> list[tuple[int, int]]:
        """Drop the transfers from ``position`` on, none of which is planned; return their ids as inclusive ranges.

        Their bytes are held as long as those of a transfer of the same block.
        """
        position = max(position, self.planned)
        dropped: list[tuple[int, int]] = []
        while self.blocks and self.blocks[-1].end > position:
            block = self.blocks[-1]
            begin = max(position, block.begin)
            dropped.append(block.ids(begin, block.end))
            self.waiting_bytes -= block.offset(block.end) - block.offset(begin)
            block.count = begin - block.begin
            if not block.count:
                self._hold(-len(self.blocks.pop().frames))
        self.received = min(self.received, position)
        return dropped[::-1]

    def measure(self, begin: int, max_messages: int | None, max_bytes: int) -> tuple[int, int]:
        """Measure the longest range from ``begin`` on within both bounds: its end and its bytes."""
        left = self.received - begin if max_messages is None else min(self.received - begin, max_messages)
        end, room = begin, max_bytes
        for block in self._blocks_from(begin):
            if left <= 0:
                break
            first = end - block.begin
            last = min(block.count, first + left)
            start = block.offset(end)
            fit = bisect_right(block.ends, start + room, first, last)
            if fit == first:
                break
            room -= block.ends[fit - 1] - start
            left -= fit - first
            end = block.begin + fit
            if fit < last:
                break
        return end, max_bytes - room

    def fix(self, end: int, size: int) -> None:
        """Plan ``[planned, end)`` of ``size`` bytes as one batch."""
        self.ranges[end] = self.planned
        self.planned = end
        self.waiting_bytes -= size

    def copy(self, begin: int, end: int) -> QueueBuffer:
        """Return a new buffer with ``[begin, end)`` as its one planned range, without copying bytes."""
        copied = QueueBuffer(self.queue, accepted=begin, planned=end, received=end, ranges={end: begin})
        for block in self._blocks_from(begin):
            if block.begin >= end:
                break
            copied.blocks.append(replace(block))
            copied._hold(len(block.frames))
        return copied

    def take_out(self, end: int, size: int) -> None:
        """Remove ``[planned, end)`` of ``size`` bytes: it is accepted, and held elsewhere from now on.

        The session that received it may be gone; then its transfers are no longer held here.
        """
        if end <= self.received:
            self.fix(end, size)
            self.accept(end)
        else:
            self.accepted = self.planned = self.received = end

    def ids(self, begin: int, end: int) -> list[tuple[int, int]]:
        """The inclusive ranges of command ids of ``[begin, end)``."""
        found: list[tuple[int, int]] = []
        for block in self._blocks_from(begin):
            if block.begin >= end:
                break
            add_range(found, *block.ids(max(begin, block.begin), min(end, block.end)))
        return found

    def first_waiting_bytes(self) -> int:
        """Bytes of the first transfer that is not planned; 0 if there is none."""
        for block in self._blocks_from(self.planned):
            return block.ends[self.planned - block.begin] - block.offset(self.planned)
        return 0

    def protocol_before(self, position: int) -> str | None:
        """The protocol of the connection that received the last transfer before a position; ``None``: not held."""
        index = bisect_left(self.blocks, position, key=attrgetter("begin"))
        return self.blocks[index - 1].protocol if index else None

    def begin_of(self, end: int) -> int:
        """Begin of the planned range that ends at ``end``; OffsetError if that range is not held (any more)."""
        try:
            return self.ranges[end]
        except KeyError:
            raise self._not_held(f"no batch ends at position {end}") from None

    def _not_held(self, reason: str) -> OffsetError:
        reason = f"{reason} (accepted up to {self.accepted}, planned up to {self.planned})"
        return OffsetError(SparkCondition.BATCH_NOT_HELD(queue=self.queue, reason=reason))

    def parts(self, begin: int, end: int) -> list[memoryview]:
        """The frames of a planned range, without copying; one part per block. OffsetError if it is not held."""
        return [
            memoryview(block.frames)[block.offset(first) : block.offset(last)]
            for block, first, last in self._held_range(begin, end)
        ]

    def chunks(self, begin: int, end: int) -> list[Chunk]:
        """The result of :meth:`parts` with the ends of the transfers; one chunk per block, more if it is very large."""
        found: list[Chunk] = []
        for block, first_position, last_position in self._held_range(begin, end):
            first, last = first_position - block.begin, last_position - block.begin
            ends = np.frombuffer(block.ends, f"u{block.ends.itemsize}")
            while first < last:
                start = block.offset(block.begin + first)
                stop = max(first + 1, bisect_right(block.ends, start + MOST_CHUNK_BYTES, first, last))
                frames = memoryview(block.frames)[start : block.ends[stop - 1]]
                found.append(Chunk.of(frames, ends[first:stop], start, protocol=block.protocol))
                first = stop
        return found

    def _held_range(self, begin: int, end: int) -> list[tuple[HeldBlock, int, int]]:
        """The blocks of a planned range, each with the first and the end position of its part of the range."""
        if not self.accepted <= begin <= end <= self.planned:
            raise self._not_held(f"positions {begin} to {end} are not in it")
        found: list[tuple[HeldBlock, int, int]] = []
        for block in self._blocks_from(begin):
            if block.begin >= end:
                break
            found.append((block, max(begin, block.begin), min(end, block.end)))
        return found

    def cut(self, begin: int, end: int, pieces: int) -> list[tuple[int, int, int]]:
        """Cut a planned range between transfers, into at most ``pieces`` of about equal size: begin, end, bytes."""
        cuts: list[tuple[int, int, int]] = []
        left = self.bytes_of(begin, end)
        while begin < end:
            sharing = pieces - len(cuts)
            stop, size = (end, left) if sharing <= 1 else self.measure(begin, end - begin, -(-left // sharing))
            if stop == begin:  # a transfer larger than the share
                stop, size = begin + 1, self.bytes_of(begin, begin + 1)
            cuts.append((begin, stop, size))
            left -= size
            begin = stop
        return cuts

    def bytes_of(self, begin: int, end: int) -> int:
        """Bytes of the frames of a range."""
        return sum(len(part) for part in self.parts(begin, end))

    def reject(self, positions: Iterable[int], text: str) -> None:
        """Record positions that an executor could not turn into rows. Idempotent; accepted transfers stay accepted."""
        for position in positions:
            if self.accepted <= position < self.planned:
                self.rejected.setdefault(position, text)

    def accept(self, position: int) -> list[Settlement]:
        """Free everything below ``position``, which Spark has processed; return the settlements to send."""
        settlements: list[Settlement] = []
        position = min(position, self.planned)
        # Filtered once and not for every block: the lock is held, and heartbeats wait for it.
        refused = deque(sorted(at for at in self.rejected if at < position))
        while self.accepted < position:
            block = self.blocks[0]
            upto = min(position, block.end)
            if not settlements or settlements[-1].incarnation != block.incarnation:
                settlements.append(Settlement(block.incarnation, [], []))
            self._settle(block, upto, refused, settlements[-1])
            self.accepted = upto
            if upto == block.end:
                self._hold(-len(block.frames))
                self.blocks.popleft()
        for end in [end for end in self.ranges if end <= self.accepted]:
            del self.ranges[end]
        return settlements

    def _settle(self, block: HeldBlock, upto: int, refused: deque[int], into: Settlement) -> None:
        begin = self.accepted
        while refused and refused[0] < upto:
            position = refused.popleft()
            if position > begin:
                add_range(into.accept, *block.ids(begin, position))
            into.reject.append((block.ids(position, position + 1), self.rejected.pop(position)))
            begin = position + 1
        if begin < upto:
            add_range(into.accept, *block.ids(begin, upto))

    def _blocks_from(self, position: int) -> Iterator[HeldBlock]:
        """The blocks from the one that holds ``position`` on. There may be one for each message, and hundreds of
        thousands: where messages come one by one, and a batch is rare."""
        return islice(self.blocks, bisect_right(self.blocks, position, key=attrgetter("end")), None)


class Turns:
    """Queues whose next message is larger than their share of the budget: one at a time gets credit for one message.

    So no queue waits forever while the budget has room, and the buffer exceeds the budget by one message at most.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._line: deque[str] = deque()
        self._idle: set[str] = set()
        self._looked_at = float("-inf")
        """When an idle queue last had its turn."""

    def take(self, queue: str, *, idle: bool = False) -> str:
        """Join the line; return the queue whose turn it is. ``idle``: the queue only probes for a message; queues with
        a known message go first, unless no idle queue had a turn for ``LOOK_SECONDS``."""
        if queue not in self._line:
            at = len(self._line)
            # If no idle queue had a turn for long, one idle queue stays ahead of each of the others.
            kept = 1 if self._clock() - self._looked_at < LOOK_SECONDS else 2
            while not idle and at > 1 and all(each in self._idle for each in islice(self._line, at - kept, at)):
                at -= 1
            self._line.insert(at, queue)
            if idle:
                self._idle.add(queue)
        return self._line[0]

    def is_free_for(self, queue: str) -> bool:
        """Whether no other queue has the turn."""
        return not self._line or self._line[0] == queue

    def waits(self, queue: str) -> bool:
        """Whether a queue stands in the line."""
        return queue in self._line

    def leave(self, queue: str) -> str | None:
        """Leave the line; return the queue whose turn begins now, if any."""
        if queue not in self._line:
            return None
        was_first = self._line[0] == queue
        if was_first and queue in self._idle:
            self._looked_at = self._clock()
        self._idle.discard(queue)
        self._line.remove(queue)
        return self._line[0] if was_first and self._line else None

    def is_contended(self) -> bool:
        """Whether other queues wait behind the one whose turn it is."""
        return len(self._line) > 1


class ReceiveBuffer:
    """Transfers held by all consumers of a query, within one byte budget, under one lock.

    ``changed`` is notified of every change.
    """

    def __init__(self, queues: Sequence[str], budget_bytes: int, clock: Callable[[], float]) -> None:
        self.changed = threading.Condition(threading.RLock())
        self._count = ByteCount()
        self.buffers = {queue: QueueBuffer(queue, self._count) for queue in queues}
        self.budget_bytes = budget_bytes
        self.clock = clock
        self.stopping = False
        self.last_call = clock()
        """When Spark last called: the backlog is not surveyed while a query makes no calls."""
        self._wanted: tuple[int, int | None] = 0, None
        self.turns = Turns(clock)
        self.wake: dict[str, Callable[[], None]] = {}
        """Wakes the thread of a queue."""
        self._elsewhere: dict[str, int] = {}
        """Bytes of queues that are held elsewhere, and count against the budget."""
        self.rooms: dict[str, Room] = {}
        """What the consumers of queues may hold that are limited in another way than by credit."""
        self.awaited: dict[str, int] = {}
        """Bytes that may arrive, or without credit have arrived, on queues whose threads wait for an answer of the
        broker: they cannot be paused."""

    def want(self, nbytes: int, messages: int | None = None) -> None:
        """Suppress wake-ups until this many bytes, or messages, wait to be planned: each wake-up slows receiving."""
        self._wanted = nbytes, messages

    def is_enough(self) -> bool:
        """Whether as many bytes or messages as wanted wait to be planned."""
        nbytes, messages = self._wanted
        if self.waiting_bytes >= nbytes or (messages is not None and self.waiting >= messages):
            return True
        return self.has_full_queue()

    def enough_bytes(self, max_bytes: int) -> int:
        """Bytes at which a batch of at most ``max_bytes`` need not wait: half of the budget stays free to receive."""
        return max(1, min(max_bytes, self.budget_bytes // 2))

    def has_full_queue(self) -> bool:
        """Whether half of what the consumer of a queue may hold waits to be planned: the rest comes meanwhile."""
        for queue, room in self.rooms.items():
            buffer = self.buffers[queue]
            if room.messages is not None and 2 * buffer.waiting >= room.messages:
                return True
            if 2 * buffer.waiting_bytes >= room.nbytes:
                return True
        return False

    @property
    def waiting(self) -> int:
        """Messages received over all queues and not planned."""
        return sum(buffer.waiting for buffer in self.buffers.values())

    @property
    def bytes(self) -> int:
        """Bytes held over all queues: received and not accepted, or owned and not finished."""
        return self._count.total

    def bytes_of(self, queue: str) -> int:
        """Bytes held of one queue, as :attr:`bytes`."""
        return self.buffers[queue].held_bytes + self._elsewhere.get(queue, 0)

    def hold_elsewhere(self, queue: str, nbytes: int) -> None:
        """Set the bytes of a queue that are held elsewhere."""
        self._count.total += nbytes - self._elsewhere.get(queue, 0)
        self._elsewhere[queue] = nbytes

    @property
    def waiting_bytes(self) -> int:
        """Bytes received over all queues and not planned."""
        return sum(buffer.waiting_bytes for buffer in self.buffers.values())


def add_range(ranges: list[tuple[int, int]], first: int, last: int) -> None:
    """Append an inclusive range, merged with the last one if it follows it directly."""
    if ranges and ranges[-1][1] + 1 == first:
        ranges[-1] = (ranges[-1][0], last)
    else:
        ranges.append((first, last))
