"""What the consumer of one queue counts, for ``sources[].latestOffset`` of the progress of a query.

Work is done per block and never per message: a few additions. What the buffers know already is not counted again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqp_core.api import Block
    from amqp_spark.datasource.receive_buffer import QueueBuffer, ReceiveBuffer

MARK_SECONDS: Final = 1.0
"""Messages that arrive within this time have one time of arrival."""
MOST_MARKS: Final = 10_000
UNLIMITED: Final = (1 << 31) - 1
"""Credit from here on is no limit."""


class _Mark(NamedTuple):
    end: int
    """Position after the last message that arrived at this time."""
    time: float


class QueueCounters:
    """Counts of one consumer since its reader began. Changed and read under the lock of the buffers.

    Attributes:
        received: messages that arrived, those included that came again after a lost session.
        received_bytes: bytes of their frames.
        redelivered: messages that the broker had marked as delivered before, estimated: each block counts as its first
            message.
        rejected: messages that were rejected, since they did not fit the schema.
        repeated: messages that came, or come, again although Spark had them in a batch: possible duplicates.
        lost: sessions that were lost.
        credit: messages that the broker may still send; None: any number.
        committed, rolled_back: transactions of exactly-once that the broker has committed, or has not.
    """

    __slots__ = (
        "_marks",
        "committed",
        "credit",
        "lost",
        "received",
        "received_bytes",
        "redelivered",
        "rejected",
        "repeated",
        "rolled_back",
    )

    def __init__(self) -> None:
        self.received = self.received_bytes = self.redelivered = self.rejected = 0
        self.repeated = self.lost = self.committed = self.rolled_back = 0
        self.credit: int | None = 0
        self._marks: deque[_Mark] = deque()

    def arrived(self, blocks: Sequence[Block], end: int, now: float, *, again: bool) -> None:
        """Record blocks that arrived together, up to position ``end``; ``again``: the first was delivered before."""
        count = 0
        for block in blocks:
            count += len(block.ends)
            self.received_bytes += len(block.frames)
        self.received += count
        if again:
            self.redelivered += count
        marks = self._marks
        if marks and (now - marks[-1].time < MARK_SECONDS or len(marks) >= MOST_MARKS):
            marks[-1] = _Mark(end, marks[-1].time)
        else:
            marks.append(_Mark(end, now))

    def session_ended(self, buffer: QueueBuffer, *, repeats: bool) -> None:
        """Record the end of a session that had subscribed, before its buffer forgets what was not planned.

        ``repeats``: what the session has received and was not accepted comes again, whether it is in a batch or not.
        """
        self.lost += 1
        self.credit = 0
        if not repeats:
            return
        self.repeated += buffer.held_by_session - buffer.waiting
        while self._marks and self._marks[-1].end > buffer.planned:
            last = self._marks.pop()
            if not self._marks or self._marks[-1].end < buffer.planned:
                self._marks.append(_Mark(buffer.planned, last.time))

    def oldest_seconds(self, accepted: int, now: float) -> float:
        """Seconds since the arrival of the oldest message at or behind ``accepted``; 0 if there is none."""
        while self._marks and self._marks[0].end <= accepted:
            self._marks.popleft()
        return max(0.0, now - self._marks[0].time) if self._marks else 0.0

    def report(self, buffer: QueueBuffer, held: ReceiveBuffer) -> dict[str, object]:
        """The counts as they stand in the progress of the query (docs/monitoring.md)."""
        credit = self.credit
        return {
            "bufferBytes": held.budget_bytes,
            "credit": None if credit is None or credit >= UNLIMITED else credit,
            "heldBytes": held.bytes_of(buffer.queue),
            "lostSessions": self.lost,
            "oldestSeconds": round(self.oldest_seconds(buffer.accepted, held.clock()), 3),
            "received": self.received,
            "receivedBytes": self.received_bytes,
            "redelivered": self.redelivered,
            "rejected": self.rejected,
            "repeated": self.repeated,
            "waiting": buffer.waiting,
        }
