"""Owned batches of one queue: the state on the broker, changed in the transactions that accept messages.

The consumer's thread calls :meth:`TransactionalState.enter`, :meth:`~TransactionalState.run` and
:meth:`~TransactionalState.left`; other threads submit a :class:`Change` and wait for its outcome. Everything goes
through the session that receives: see :mod:`amqp_spark.state.queue`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from amqp_core.errors import ResourceLocked
from amqp_spark import crashpoints
from amqp_spark.datasource.exactly_once.owned_batches import Change, Entry, ends_of
from amqp_spark.datasource.exactly_once.recovery import KEEP_ALIVE_SECONDS, Consumer, recover
from amqp_spark.datasource.exactly_once.spool_cleaner import SpoolCleaner
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import SpoolError, StateError
from amqp_spark.state.queue import StateQueue, loaded
from amqp_spark.state.records import ConsumerState, OwnedBatch

if TYPE_CHECKING:
    from amqp_core.api import Client
    from amqp_spark.datasource.receive_buffer import QueueBuffer, ReceiveBuffer
    from amqp_spark.spool.spool import Spool

_log = logging.getLogger(__name__)

LOCK_SECONDS: Final = 5.0
"""How long to wait for a lock beyond the two heartbeats after which a broker gives up a silent holder."""


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """A transaction under way."""

    before: ConsumerState
    after: ConsumerState
    change: Change | None
    entries: list[Entry]
    dropped: list[Entry] = field(default_factory=list)


class TransactionalState:
    """The owned batches of one queue: the ``state`` as stored on the broker (None until it was taken), and its
    ``entries``, oldest first; both are changed under the lock of ``held``. ``first``: the state of the consumer's first
    queue, if it has several and this is not the first."""

    def __init__(
        self,
        consumer: Consumer,
        spool: Spool,
        held: ReceiveBuffer,
        buffer: QueueBuffer,
        first: TransactionalState | None = None,
    ) -> None:
        self.consumer = consumer
        self.spool = spool
        self.state: ConsumerState | None = None
        self.entries: list[Entry] = []
        self._disposal = SpoolCleaner(spool, consumer.shown)
        self._first = first
        self._held = held
        self._lock = held.changed
        self._clock = held.clock
        self._buffer = buffer
        self._owner: StateQueue | None = None
        self._change: Change | None = None
        self._attempt: _Attempt | None = None
        self._drop_wanted = False
        self._refused_since: float | None = None

    # --- from any thread, under the lock

    @property
    def held_bytes(self) -> int:
        """Bytes of owned batches that are in memory."""
        return sum(entry.held_bytes for entry in self.entries)

    def ask(self, change: Change) -> None:
        """Submit a change to the consumer's thread. Only one at a time: wait until it is done."""
        assert self._change is None
        self._change = change

    def drop_finished(self) -> bool:
        """Request to drop finished batches, without another change; return whether there are any."""
        self._drop_wanted = any(entry.finished for entry in self.entries)
        return self._drop_wanted

    def wait_for_disposal(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds until the files of dropped batches are deleted. Not under the lock."""
        self._disposal.wait(timeout)

    # --- on the consumer's thread

    def enter(self, client: Client) -> bool:
        """Take lock and state on a new session; False if another session holds the lock: try again on another one.
        StateError: the lock was not released in time, or the state is not valid for this consumer."""
        if not self._first_has_recovered(client):
            return False
        owner = StateQueue(client, self.consumer.names)
        try:
            owner.lock()
        except ResourceLocked as error:
            self._refused(error)
            return False
        self._refused_since = None
        crashpoints.reached(crashpoints.LOCK_TAKEN)
        if self.state is None:
            state = recover(self.consumer, client, owner, self.spool)
            with self._lock:
                self.state = state
                self.entries = [Entry(batch) for batch in state.owned]
                self._lock.notify_all()
        else:
            self._resume(owner)
        self._owner = owner
        return True

    def is_asked(self) -> bool:
        """Whether there is a change to make, or a finished batch to drop. Under the lock."""
        return self._change is not None or self._drop_wanted

    def run(self, *, finish: bool) -> bool:
        """Make the requested change; return whether there was any. ``finish``: drop finished batches in any case."""
        assert self._owner is not None
        with self._lock:
            change = self._change
            if change is not None and change.incarnation not in {None, self._buffer.incarnation}:
                self._settle(change, committed=False)  # its ids belong to a session that is gone
                change = None
            finished = [entry for entry in self.entries if entry.finished]
            if change is None and not (finished and (finish or self._drop_wanted)):
                return False
            self._drop_wanted = False
            attempt = self._attempted(change, finished)
        self._attempt = attempt
        begun = self._clock()
        try:
            self._owner.swap(
                attempt.after.dump(), accept=() if change is None else change.accept, sent=lambda: _sent(attempt)
            )
        except StateError:  # nothing was committed
            self._attempt = None
            self._dropped(attempt)
            raise
        self._attempt = None
        if change is not None:
            change.seconds = self._clock() - begun
        self._committed(attempt)
        return True

    def left(self) -> None:
        """Handle the end of the session."""
        self._owner = None
        self._refused_since = None

    # --- inside

    def _first_has_recovered(self, client: Client) -> bool:
        """Wait until the consumer's first queue has recovered; False when the query ends.

        A start that is refused there must not leave state on other queues for which the next start would be refused.
        """
        while self._first is not None:
            with self._lock:
                if self._first.state is not None:
                    break
                if self._held.stopping:
                    return False
                self._lock.wait(KEEP_ALIVE_SECONDS)
            client.sync()
        return True

    def _refused(self, error: ResourceLocked) -> None:
        now = self._clock()
        limit = 2 * self.consumer.heartbeat + LOCK_SECONDS
        if self._refused_since is None:
            self._refused_since = now
            _log.warning(
                "%s: another query holds the lock; waiting up to %.0f s for it, since that query may have been killed",
                self.consumer.shown, limit,
            )  # fmt: skip
        if now - self._refused_since >= limit:
            reason = f"another query has held the lock {self.consumer.names.lock!r} for more than {limit:.0f} s"
            remedy, owner = "Stop it, or give one of them another id", self.consumer.shown
            raise StateError(SparkCondition.STATE_IN_USE(owner=owner, reason=reason, remedy=remedy)) from error

    def _resume(self, owner: StateQueue) -> None:
        """Check after a reconnect that the state is unchanged, with or without the transaction that was under way."""
        body = owner.take()
        attempt, self._attempt = self._attempt, None
        if body is None:
            raise StateError(
                SparkCondition.CONSUMER_STATE_DELETED(consumer=self.consumer.shown, state=self.consumer.names.state)
            )
        found = loaded(self.consumer.names, ConsumerState.load, body)
        if attempt is not None and found == attempt.after:
            self._committed(attempt)
        elif found == self.state:
            if attempt is not None:
                self._dropped(attempt)
        else:
            self._attempt = attempt
            ours = self.state.epoch if self.state else 0
            raise StateError(
                SparkCondition.CONSUMER_REPLACED(consumer=self.consumer.shown, found=found.epoch, ours=ours)
            )

    def _attempted(self, change: Change | None, finished: list[Entry]) -> _Attempt:
        before = self.state
        assert before is not None
        kept = [entry for entry in self.entries if not entry.finished]
        epoch, sequence = before.epoch, before.sequence
        if change is not None and change.relabelled is not None:
            kept, epoch = change.relabelled, before.epoch + 1
        if change is not None and change.entry is not None:
            kept = [*kept, change.entry]
        if kept:
            sequence = max(sequence, kept[-1].batch.sequence + 1)
        mark = finished[-1].batch.mark if finished else before.finished
        if change is not None and change.finished is not None:
            mark = change.finished
        after = replace(
            before, epoch=epoch, sequence=sequence, finished=mark, owned=tuple(entry.batch for entry in kept)
        )
        return _Attempt(before=before, after=after, change=change, entries=kept, dropped=finished)

    def _committed(self, attempt: _Attempt) -> None:
        change = attempt.change
        if change is not None:
            crashpoints.reached(crashpoints.TX_COMMITTED)
        with self._lock:
            self.state = attempt.after
            self.entries = attempt.entries
            if change is not None:
                if change.entry is not None:
                    self._buffer.take_out(change.entry.batch.end, change.size)
                self._settle(change, committed=True)
            self._lock.notify_all()
        if attempt.dropped:
            crashpoints.reached(crashpoints.FINISH_CONFIRMED)
        for entry in attempt.dropped:
            self._disposal.delete(entry.batch.file)

    def _dropped(self, attempt: _Attempt) -> None:
        if attempt.change is not None:
            with self._lock:
                self._settle(attempt.change, committed=False)

    def _settle(self, change: Change, *, committed: bool) -> None:
        change.committed, change.done = committed, True
        if self._change is change:
            self._change = None
        self._lock.notify_all()


def _sent(attempt: _Attempt) -> None:
    if attempt.change is not None:
        crashpoints.reached(crashpoints.TX_SENT)
    if attempt.dropped:
        crashpoints.reached(crashpoints.FINISH_SENT)


class BatchPart:
    """One queue's part of a batch: measured, then written, then owned."""

    def __init__(self, owner: TransactionalState, buffer: QueueBuffer, end: int, size: int, turn: int) -> None:
        state = owner.state
        assert state is not None
        self.owner = owner
        held = buffer.copy(buffer.planned, end)
        batch = OwnedBatch(
            epoch=state.epoch, sequence=state.sequence, begin=buffer.planned, end=end, nbytes=size, file="", checksum=""
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
                _log.warning("%s: a file without an owner stays: %s", self.owner.consumer.shown, error)
