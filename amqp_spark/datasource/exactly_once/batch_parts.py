"""One queue's part of a batch, moved from the buffer of the queue into the spool and the state."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from amqp_spark.datasource.exactly_once.entries import Entry, ends_of
from amqp_spark.datasource.exactly_once.transactional_state import Change
from amqp_spark.errors import SpoolError
from amqp_spark.state.records import OwnedBatch

if TYPE_CHECKING:
    from amqp_spark.datasource.exactly_once.transactional_state import TransactionalState
    from amqp_spark.datasource.queue_buffer import QueueBuffer

_log = logging.getLogger(__name__)


class BatchPart:
    """One queue's part of a batch: measured, then written, then owned."""

    def __init__(self, owner: TransactionalState, buffer: QueueBuffer, end: int, size: int, turn: int) -> None:
        state = owner.state
        assert state is not None
        self.owner = owner
        held = buffer.copy(buffer.planned, end)
        batch = OwnedBatch(
            epoch=state.epoch,
            sequence=state.sequence,
            begin=buffer.planned,
            end=end,
            nbytes=size,
            file="",
            checksum="",
        )
        self.change = Change(
            entry=Entry(batch, held, turn=turn),
            size=size,
            accept=held.ids(batch.begin, end),
            incarnation=buffer.incarnation,
        )
        self.count = batch.count
        self._held = held
        self._file = ""

    def write(self) -> None:
        """Write it into the spool."""
        entry = self.change.entry
        assert entry is not None
        batch = entry.batch
        written = self.owner.spool.write(
            epoch=batch.epoch,
            sequence=batch.sequence,
            begin=batch.begin,
            parts=self._held.parts(batch.begin, batch.end),
            ends=ends_of(self._held),
        )
        self._file = written.file
        entry.batch = replace(batch, file=written.file, checksum=written.checksum)

    def discard(self) -> None:
        """Delete its file: the batch is not owned, and the broker has its messages."""
        if self._file:
            try:
                self.owner.spool.delete(self._file)
            except SpoolError as error:
                _log.warning("%s: a file that nobody owns stays: %s", self.owner.consumer.shown, error)
