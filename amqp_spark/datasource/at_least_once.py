"""At-least-once: accept messages after Spark has committed their batch.

At-most-once has the same policy: there the broker forgets each message as it transfers it (accept-mode none), so that
nothing is left to accept.
"""

from __future__ import annotations

import contextlib
import random
import time
from typing import TYPE_CHECKING

from amqp_spark.conditions import SparkCondition
from amqp_spark.datasource import commit_log
from amqp_spark.datasource.micro_batch_stream import key
from amqp_spark.datasource.partitions import Range
from amqp_spark.datasource.receiver import Receiver
from amqp_spark.errors import OffsetError
from amqp_spark.offsets import QueueOffset, parse_offsets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqp_spark.connect import Connector
    from amqp_spark.datasource.receive_buffer import QueueBuffer
    from amqp_spark.options import SourceOptions


def new_epoch() -> int:
    """A number unique to this run: milliseconds since 1970 and 20 random bits, so that later runs have greater ones."""
    return time.time_ns() // 1_000_000 << 20 | random.SystemRandom().getrandbits(20)


class AtLeastOncePolicy:
    """See :class:`.DeliveryPolicy`. Planned batches are in the receive buffer, under positions of this run's epoch."""

    starts_late = False
    unconfirmed = "the broker did not confirm the last accept in time: it may send those messages again"

    def __init__(self, options: SourceOptions, connector: Connector) -> None:
        self.receiver = Receiver(options, connector)
        self.plan, self.sync = self.receiver.plan, self.receiver.sync
        self._options = options
        self._epoch = new_epoch()

    def committed(self, offsets: Mapping[str, QueueOffset]) -> None:
        """Accept everything up to these offsets."""
        self.receiver.accept(self._ours(offsets))

    def uncommitted(self, offsets: Mapping[str, QueueOffset]) -> dict[str, QueueOffset]:
        """See :class:`.DeliveryPolicy`."""
        ours = self._ours(offsets)
        return {
            queue: QueueOffset(position, self._epoch)
            for queue, position in self.receiver.planned().items()
            if position > ours.get(queue, 0)
        }

    def most_messages(self, max_messages: int | None) -> int | None:
        """See :class:`.DeliveryPolicy`: only the option bounds a batch."""
        return max_messages

    def ranges(self, starts: Mapping[str, QueueOffset], ends: Mapping[str, QueueOffset]) -> list[Range]:
        """The ranges of a batch. A range of an earlier epoch is empty: the broker sends it again."""
        _refuse_owned(ends)
        held = self.receiver.held
        with held.changed:
            return [
                Range(queue, self._epoch, held.buffers[queue].begin_of(offset.position), offset.position)
                for queue, offset in ends.items()
                if offset.epoch == self._epoch and offset != starts[queue]
            ]

    def buffer_of(self, queue: str, epoch: int, _end: int) -> QueueBuffer:
        """See :class:`.DeliveryPolicy`."""
        if epoch != self._epoch or queue not in self.receiver.held.buffers:
            reason = f"its epoch is {epoch}, that of the reader {self._epoch}"
            raise OffsetError(SparkCondition.BATCH_NOT_HELD(queue=queue, reason=reason))
        return self.receiver.held.buffers[queue]

    def epoch_of(self, _queue: str) -> int:
        """The epoch of this run."""
        return self._epoch

    def assure(self) -> None:
        """Ranges may always be served: if this session is gone, their messages come again in another batch."""

    def asked(self) -> None:
        """Nothing is planned between two calls."""

    def answered(self, *, batch: bool) -> None:
        """Nothing is planned between two calls."""

    def stop(self, uncommitted: set[str]) -> None:
        """Accept the last batch if the checkpoint records its commit: Spark makes no further call when it stops."""
        location = self._options.query_checkpoint
        for end in commit_log.last_committed(location) if location is not None and uncommitted else ():
            # Epochs are unique per run: no other query's log contains an end that this run has offered.
            with contextlib.suppress(OffsetError):
                offsets = parse_offsets(end, self._options.queues)
                if key(offsets) in uncommitted:
                    self.committed(offsets)
        self.receiver.stop()

    def _ours(self, offsets: Mapping[str, QueueOffset]) -> dict[str, int]:
        """The positions of this epoch. Messages of an earlier epoch are on the broker, or were accepted."""
        _refuse_owned(offsets)
        planned = self.receiver.planned()
        ours = {queue: offset.position for queue, offset in offsets.items() if offset.epoch == self._epoch}
        for queue, position in ours.items():
            if position > planned[queue]:
                reason = f"Spark is at position {position} of this run, which has planned up to {planned[queue]}"
                raise OffsetError(SparkCondition.BATCH_NOT_HELD(queue=queue, reason=reason))
        return ours


def _refuse_owned(offsets: Mapping[str, QueueOffset]) -> None:
    """Refuse offsets of exactly-once: their messages are in the spool, and the broker does not send them again."""
    for queue, offset in offsets.items():
        if offset.is_owned:
            raise OffsetError(SparkCondition.CHECKPOINT_OF_EXACTLY_ONCE(queue=queue))
