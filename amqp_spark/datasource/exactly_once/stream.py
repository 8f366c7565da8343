"""Exactly-once: calls of Spark, mapped to batches that are owned before Spark receives them.

A batch is measured, written to the spool, and owned in one transaction that accepts its messages; then its end is
returned. So every batch that Spark has logged is in the spool, whatever happens to the broker's copy, and messages
that are not in the state are still on their queue.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from amqp_spark.datasource.exactly_once.receiver import OwningReceiver
from amqp_spark.datasource.micro_batch_stream import MicroBatchStream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqp_spark.compat import InputPartition
    from amqp_spark.connect import Connector
    from amqp_spark.datasource.partitions import Range
    from amqp_spark.datasource.receive_buffer import ConsumerOptions
    from amqp_spark.offsets import QueueOffset

_log = logging.getLogger(__name__)


class ExactlyOnceStream(MicroBatchStream):
    """One run of a reader with ``deliveryGuarantee=exactly-once``."""

    starts_late = True
    _receiver: OwningReceiver

    def _new_receiver(self, options: ConsumerOptions, connector: Connector) -> OwningReceiver:
        return OwningReceiver(self._options, options, connector=connector)

    def latest_offset(self, start: Mapping[str, object]) -> dict:  # type: ignore[type-arg]
        """As for other guarantees; additionally, plan the next batch while Spark works on this one."""
        self._receiver.no_more_ahead()
        end = super().latest_offset(start)
        if end != start:
            self._plan_ahead()
        return end

    def partitions(self, start: Mapping[str, object], end: Mapping[str, object]) -> list[InputPartition]:
        """As for other guarantees; additionally, check that this process still owns the batch."""
        partitions = super().partitions(start, end)
        self._receiver.assure()
        return partitions

    def _plan_ahead(self) -> None:
        options = self._options
        self._receiver.plan_ahead(
            max_messages=options.max_messages_per_trigger, max_bytes=options.max_bytes_per_trigger
        )

    def _offer(self, offsets: Mapping[str, QueueOffset], news: Mapping[str, QueueOffset]) -> dict:  # type: ignore[type-arg]
        end = super()._offer(offsets, news)
        self._receiver.assure()
        return end

    def _processed(self, offsets: Mapping[str, QueueOffset]) -> None:
        self._receiver.finish(offsets)

    def _planned_after(self, offsets: Mapping[str, QueueOffset]) -> dict[str, QueueOffset]:
        return self._receiver.unfinished()

    def _ranges(self, starts: Mapping[str, QueueOffset], ends: Mapping[str, QueueOffset]) -> list[Range]:
        ranges: list[Range] = []
        for queue, end in ends.items():
            if end != starts[queue]:
                ranges += self._receiver.owned_between(queue, starts[queue], end)
        return ranges

    def _assure(self) -> None:
        self._receiver.assure()

    def _unconfirmed(self) -> None:
        _log.warning(
            "the broker did not confirm in time that the last batches are finished: they stay in the state and the "
            "spool until the query is started again, which does not read them twice"
        )
