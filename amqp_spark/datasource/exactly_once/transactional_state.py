"""Owned batches of one queue: the state on the broker, changed in the transactions that accept messages.

Quorum queues of RabbitMQ have no such transactions: :mod:`.quorum_state` takes their place.

The consumer's thread calls :meth:`TransactionalState.enter`, :meth:`~TransactionalState.run` and
:meth:`~TransactionalState.left`; other threads submit a :class:`Change` and wait for its outcome. Everything goes
through the session that receives: see :mod:`amqp_spark.state.queue`.
"""

from __future__ import annotations

import logging
from array import array
from collections import deque
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from amqp_core.blocks import Block
from amqp_core.errors import ResourceLocked
from amqp_spark import crashpoints
from amqp_spark.datasource.exactly_once.owned_batches import Change, Entry, ends_of
from amqp_spark.datasource.exactly_once.quorum_queue import check_quorum, warn_of_limit
from amqp_spark.datasource.exactly_once.quorum_state import YOUNG_SECONDS, QuorumState
from amqp_spark.datasource.exactly_once.recovery import Consumer, delete_rubbish, recover
from amqp_spark.datasource.exactly_once.sole_consumer import PATIENCE_SECONDS
from amqp_spark.datasource.exactly_once.spool_cleaner import SpoolCleaner
from amqp_spark.datasource.exactly_once.waiting import KEEP_ALIVE_SECONDS
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import ConsumerStalled, SpoolError, StateError
from amqp_spark.state.queue import StateQueue, loaded
from amqp_spark.state.records import ConsumerState, OwnedBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqp_core.api import Block as AnyBlock
    from amqp_core.api import Client
    from amqp_spark.datasource.exactly_once.recovery import StateStore
    from amqp_spark.datasource.receive_buffer import QueueBuffer, ReceiveBuffer
    from amqp_spark.spool.spool import Spool

_log = logging.getLogger(__name__)

LOCK_SECONDS: Final = 5.0
"""How long to wait for a lock beyond the two heartbeats after which a broker gives up a silent holder."""
WARNING_SECONDS: Final = 60.0


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
        self._owner: StateStore | None = None
        self._quorum: QuorumState | None = None
        self._change: Change | None = None
        self._attempt: _Attempt | None = None
        self._drop_wanted = False
        self._unowned: Sequence[str] = ()
        """Batches in the spool that the state did not own at the start."""
        self._refused_since: float | None = None
        self._arrivals: deque[tuple[int, float]] = deque()
        """Positions that were received at some times, from the last one before the first message that waits on."""
        self._next_warning = float("-inf")
        self._shared = self._has_resumed = False
        self._entered_at = float("-inf")

    # --- from any thread, under the lock

    def count_bytes(self) -> None:
        """Count the bytes of owned batches that are in memory, after each change of an entry."""
        self._held.hold_elsewhere(self.consumer.queue, sum(entry.held_bytes for entry in self.entries))

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

    def checkpoint_fits(self) -> None:
        """Delete the batches that the state does not own: it is the latest one. From any thread, not under the lock."""
        with self._lock:
            unowned, self._unowned = self._unowned, ()
        delete_rubbish(unowned, self.consumer, self.spool)

    # --- on the consumer's thread

    def enter(self, client: Client, *, declared: bool = False) -> bool:
        """Take lock and state on a new session; False if another session holds the lock: try again on another one.
        ``declared``: the queue is new. StateError: the lock was not released in time, or the state is not valid for
        this consumer."""
        if not self._first_has_recovered(client):
            return False
        owner = self._store(client)
        if self._quorum is not None and not self._is_old_enough(client, declared=declared):
            return False
        try:
            owner.lock()
        except ResourceLocked as error:
            self._refused(error)
            return False
        # Later a consumer of this reader may still be counted, since its node is down, or has not noticed the loss.
        # Before a doubt ends, the count is looked at.
        if self._quorum is not None and self.state is None and not self._is_only_consumer(client):
            return False
        self._refused_since = None
        self._entered_at = self._clock()
        crashpoints.reached(crashpoints.LOCK_TAKEN)
        if self.state is None:
            state, unowned = recover(self.consumer, client, owner, self.spool)
            with self._lock:
                self.state, self._unowned = state, unowned
                self.entries = [Entry(batch) for batch in state.owned]
                self.count_bytes()
                self._lock.notify_all()
        else:
            self._resume(owner)
            self._has_resumed = True
        if self._quorum is not None:
            self._quorum.enter()
        self._owner = owner
        return True

    @property
    def in_doubt(self) -> bool:
        """Whether messages are to be recognised that an earlier session has accepted."""
        return self._quorum is not None and self._quorum.in_doubt

    @property
    def withheld(self) -> int:
        """Number of messages that are withheld until it is known whether they were accepted: nothing is accepted till
        then."""
        return 0 if self._quorum is None else self._quorum.withheld

    @property
    def owned(self) -> tuple[int, int]:
        """Number of messages that are owned, and their bytes."""
        batches = () if self.state is None else self.state.owned
        return sum(batch.count for batch in batches), sum(batch.nbytes for batch in batches)

    def most_unsettled(self, most: int | None) -> int | None:
        """The limit of unsettled messages of the next subscription; ``most``: without the messages in doubt."""
        return most if self._quorum is None else self._quorum.most_unsettled(most)

    def sift(self, blocks: Sequence[AnyBlock]) -> Sequence[AnyBlock]:
        """Return what arrived without messages that an earlier session may have accepted."""
        return blocks if self._quorum is None else self._quorum.sift(blocks)

    def overlooked(self, block: AnyBlock) -> None:
        """Take note of what arrived before an answer, and was dropped: it may have been accepted by this session."""
        if self._quorum is not None:
            self._quorum.overlooked(block)

    def look_for_equal(self, held: QueueBuffer) -> None:
        """Look at the bytes of an owned batch, from the thread that has planned it, for messages that could not be
        recognised."""
        if self._quorum is not None and self._quorum.looks_for_equal:
            self._quorum.look_for_equal(held.parts(held.accepted, held.planned), ends_of(held))

    def take_again(self) -> tuple[int, int]:
        """Numbers of messages that were recognised since the last call, and of those that are received once more."""
        return (0, 0) if self._quorum is None else self._quorum.take_again()

    def surveyed(self, consumers: int | None) -> None:
        """Take the number of consumers of the queue, from any thread; warn if another one has come.

        One count proves nothing, nor do those just after a session was lost: RabbitMQ may still count that one.
        """
        if self._quorum is None or self.state is None or consumers is None:
            return
        shared, self._shared = self._shared, consumers > 1
        now = self._clock()
        recent = self._has_resumed and now < self._entered_at + PATIENCE_SECONDS
        if shared and self._shared and not recent and now >= self._next_warning:
            self._next_warning = now + WARNING_SECONDS
            _log.warning(
                "%s: the queue has %d consumers, and exactly-once needs to be the only one: messages that come again "
                "after a crash could go to another one, so that they are processed twice; stop the others",
                self.consumer.shown, consumers,
            )  # fmt: skip

    def is_asked(self) -> bool:
        """Whether there is a change to make, or a finished batch to drop. Under the lock."""
        return self._change is not None or self._drop_wanted

    def run(self, *, finish: bool) -> bool:
        """Make the requested change; return whether there was any. ``finish``: drop finished batches in any case."""
        assert self._owner is not None
        if self._quorum is not None:
            self._quorum.resolve()
            self._check_age()
            if self.withheld:
                return False
        with self._lock:
            change = self._change
            if change is not None and self._is_void(change):
                self._settle(change, committed=False)
                change = None
            finished = self._droppable()
            attempt = None
            if change is not None or (finished and (finish or self._drop_wanted)):
                self._drop_wanted = False
                attempt = self._attempted(change, finished)
        if attempt is None:
            if finish and self._quorum is not None:
                self._quorum.note()
            return False
        self._attempt = attempt
        begun = self._clock()
        try:
            self._owner.swap(
                attempt.after.dump(), accept=() if change is None else change.accept, sent=partial(_sent, attempt)
            )
        except StateError:
            # A transaction committed nothing. A state in the spool may be there, and a successor own the batch.
            if self._quorum is None:
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
        self._arrivals.clear()
        self._refused_since = None

    # --- inside

    def _store(self, client: Client) -> StateStore:
        """Where the state is: on the broker if it has transactions, else in the spool."""
        self.spool.protocol = client.protocol
        if not client.capabilities.counts_deliveries:
            return StateQueue(client, self.consumer.names)
        limit = check_quorum(client, self.consumer.queue)
        if self._quorum is None:
            warn_of_limit(client, self.consumer.queue, limit)
            self._quorum = QuorumState(self.consumer, self.spool, self._clock, self._waiting)
        self._quorum.begin(client)
        return self._quorum

    def _waiting(self, count: int) -> Block | None:
        """At most so many of the first messages that are not owned, with ids from 1; ``None``: there are none."""
        with self._lock:
            begin, end = self._buffer.planned, min(self._buffer.planned + count, self._buffer.received)
            if begin == end:
                return None
            held = self._buffer.copy(begin, end)
        return Block(b"".join(held.parts(begin, end)), array("I", ends_of(held).tolist()), 1)

    def _is_old_enough(self, client: Client, *, declared: bool) -> bool:
        """Wait until a queue that was just declared may be relied on; False when the query ends."""
        until = self._clock() + YOUNG_SECONDS
        while declared and (left := until - self._clock()) > 0:
            with self._lock:
                if self._held.stopping:
                    return False
                self._lock.wait(min(left, KEEP_ALIVE_SECONDS))
            client.sync()
        return True

    def _is_only_consumer(self, client: Client) -> bool:
        """Whether the queue has no consumer; StateError: it still has one after the time that a lost one needs."""
        info = client.query_queue(self.consumer.queue)
        count = 0 if info is None else info.subscriber_count or 0
        if not count:
            return True
        now = self._clock()
        if self._refused_since is None:
            self._refused_since = now
        if now - self._refused_since >= self._patience():
            raise StateError(SparkCondition.QUEUE_SHARED(owner=self.consumer.shown, count=count))
        return False

    def _check_age(self) -> None:
        """Replace the session before the broker takes messages back that wait here for long."""
        with self._lock:
            buffer, now = self._buffer, self._clock()
            if not self._arrivals or now >= self._arrivals[-1][1] + 1.0:
                self._arrivals.append((buffer.received, now))
            while len(self._arrivals) > 1 and self._arrivals[1][0] <= buffer.planned:
                self._arrivals.popleft()
            oldest = self._arrivals[0][1] if buffer.waiting else now
        if self._quorum is not None:
            self._quorum.oldest = oldest
        age = now - oldest
        if age > self.consumer.consumer_timeout / 2:
            queue, seconds = self.consumer.queue, f"{age:.0f}"
            raise ConsumerStalled(SparkCondition.MESSAGES_HELD_LONG(queue=queue, seconds=seconds))

    def _is_void(self, change: Change) -> bool:
        """Whether its batch can no longer be owned. Under the lock.

        Its ids belong to a session that is gone; or AvailableNow has found its end before that of the batch, while the
        file was written, so that the messages beyond go back to the queue.
        """
        if change.incarnation not in {None, self._buffer.incarnation}:
            return True
        return change.entry is not None and change.entry.batch.end > self._buffer.received

    def _droppable(self) -> list[Entry]:
        """Finished batches, up to the first one whose messages may come again."""
        found = []
        for entry in self.entries:
            if not entry.finished or (self._quorum is not None and self._quorum.is_in_doubt(entry.batch.file)):
                break
            found.append(entry)
        return found

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

    def _patience(self) -> float:
        """Seconds for which a session that is lost may hold the lock, or be counted as a consumer."""
        if self._quorum is None:
            return 2 * self.consumer.heartbeat + LOCK_SECONDS
        return self._quorum.dying_seconds + (PATIENCE_SECONDS if self.consumer.hosts > 1 else 0.0)

    def _refused(self, error: ResourceLocked) -> None:
        now = self._clock()
        limit = self._patience()
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

    def _resume(self, owner: StateStore) -> None:
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
        kept = self.entries[len(finished) :]
        epoch, sequence = before.epoch, before.sequence
        if change is not None and change.relabelled is not None:
            kept, epoch = change.relabelled, before.epoch + 1
        if change is not None and change.entry is not None:
            kept = [*kept, change.entry]
        if kept:
            sequence = max(sequence, kept[-1].batch.sequence + 1)
        mark = finished[-1].batch.mark if finished else before.finished
        if change is not None and (change.finished is not None or change.forget):
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
            self.count_bytes()
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

    def __init__(self, owner: TransactionalState, buffer: QueueBuffer, end: int, size: int, sequence: int) -> None:
        state = owner.state
        assert state is not None
        self.owner = owner
        held = buffer.copy(buffer.planned, end)
        batch = OwnedBatch(
            epoch=state.epoch, sequence=sequence, begin=buffer.planned, end=end, nbytes=size, file="", checksum=""
        )
        self.change = Change(
            entry=Entry(batch, held),
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

    def owned(self) -> None:
        """Look at its messages, once it is owned: before, the same ones may be planned again."""
        self.owner.look_for_equal(self._held)

    def discard(self) -> None:
        """Delete its file: the batch is not owned, and the broker has its messages."""
        if self._file:
            try:
                self.owner.spool.delete(self._file)
            except SpoolError as error:
                _log.warning("%s: a file without an owner stays: %s", self.owner.consumer.shown, error)
