"""Exactly-once: batches are owned before Spark receives them, and served from memory or from the spool.

A batch is measured, written to the spool, and owned in one transaction that accepts its messages; then its end is
returned. So every batch that Spark has logged is in the spool, whatever happens to the broker's copy, and messages
that are not in the state are still on their queue.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from amqp_spark import crashpoints
from amqp_spark.datasource.consumer_setup import CONSUMER_TIMEOUT_SECONDS
from amqp_spark.datasource.exactly_once.lookahead import Lookahead
from amqp_spark.datasource.exactly_once.owned_batches import Change, Entry, load
from amqp_spark.datasource.exactly_once.recovery import Consumer, mismatch, shown
from amqp_spark.datasource.exactly_once.transactional_state import BatchPart, TransactionalState
from amqp_spark.datasource.partitions import Range
from amqp_spark.datasource.planner import CommitPace, measure_batch
from amqp_spark.datasource.queue_consumer import now
from amqp_spark.datasource.receiver import STOP_SECONDS, SYNC_SECONDS, Receiver
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import OffsetError, SpoolError, StateError
from amqp_spark.spool.spool import Spool
from amqp_spark.state.records import ReadPosition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from amqp_spark.connect import Connector
    from amqp_spark.datasource.queue_consumer import QueueConsumer
    from amqp_spark.datasource.receive_buffer import QueueBuffer, ReceiveBuffer
    from amqp_spark.offsets import QueueOffset
    from amqp_spark.options import SourceOptions

_log = logging.getLogger(__name__)

CERTAIN_SECONDS: Final = 1.0
"""How long after an answer of the broker the lock counts as held: less than two of the shortest heartbeats, and no
longer, since a connection that is cut frees the lock at once."""
CERTAIN_HEARTBEATS: Final = 1.5
"""The same after waiting for an answer, in heartbeats of the connection: a slow broker answers late."""
SLOW_SECONDS: Final = 10.0
"""A wait for an answer of the broker is logged after this time."""
ASSURE_SECONDS: Final = 1.0
"""Interval between two checks whether a session has answered."""


class ExactlyOncePolicy:
    """See :class:`.DeliveryPolicy`. Messages are received and not accepted, or in batches owned and not finished."""

    unconfirmed = (
        "the broker did not confirm in time that the last batches are finished: they stay in the state and the spool "
        "until the query is started again, which does not read them twice"
    )

    def __init__(self, options: SourceOptions, connector: Connector) -> None:
        self._options = options
        self._owners: dict[str, TransactionalState] = {}
        self._planning = threading.Lock()
        self._pace = CommitPace()
        self._decided: set[str] = set()
        """Queues whose first offset from Spark was checked against the state."""
        self.receiver = Receiver(options, connector, owners=self._owner)
        self._consumers = {consumer.queue: consumer for consumer in self.receiver.consumers}
        self._held = self.receiver.held
        self._lock = self._held.changed
        self._ahead = Lookahead(self._held)

    def _owner(self, queue: str, held: ReceiveBuffer) -> TransactionalState:
        options = self._options
        assert options.consumer_id is not None
        assert options.spool_location is not None
        queues = sorted(options.queues)
        consumer = Consumer(
            consumer_id=options.consumer_id,
            queue=queue,
            index=queues.index(queue),
            count=len(queues),
            spool=options.spool_location,
            adopt=options.adopt_state,
            heartbeat=options.heartbeat,
            consumer_timeout=options.consumer_timeout or CONSUMER_TIMEOUT_SECONDS,
            hosts=len(options.hosts),
        )
        spool = Spool(options.spool_location, consumer_id=options.consumer_id, queue=queue)
        owner = TransactionalState(consumer, spool, held, held.buffers[queue], self._owners.get(queues[0]))
        self._owners[queue] = owner
        return owner

    # --- position of Spark

    def expect(self, _offsets: Mapping[str, QueueOffset]) -> None:
        """Nothing: the spool has the protocol."""

    def committed(self, offsets: Mapping[str, QueueOffset]) -> None:
        """Finish everything up to these offsets, which Spark has committed. The first call gives its start position."""
        self._wait_until_ready()
        first = [queue for queue in offsets if queue not in self._decided]
        anew = all(offset.epoch is None for offset in offsets.values())
        for queue in first:  # all of them, before the state of one is changed
            self._check(self._owners[queue], offsets[queue], anew=anew)
        has_news = False
        for queue, offset in offsets.items():
            owner = self._owners[queue]
            if queue not in self._decided:
                self._decide(owner, offset, anew=anew)
                self._decided.add(queue)
            with self._lock:
                finished = [entry for entry in owner.entries[: _index(owner, offset) + 1] if not entry.finished]
            if finished:
                has_news = True
                crashpoints.reached(crashpoints.COMMIT_LOGGED)
                with self._lock:
                    for entry in finished:
                        entry.finish()
                    owner.count_bytes()
        if has_news:
            for consumer in self.receiver.consumers:  # all of them: they may wait for a part of the budget
                consumer.wake()
        for queue in first:
            self._owners[queue].checkpoint_fits()
        self.receiver.raise_failure()

    def uncommitted(self, _offsets: Mapping[str, QueueOffset]) -> dict[str, QueueOffset]:
        """The ends, per queue, of the first batch that Spark has not committed."""
        with self._lock:
            first = {
                queue: next((entry for entry in owner.entries if not entry.finished), None)
                for queue, owner in self._owners.items()
            }
        found = {queue: entry for queue, entry in first.items() if entry is not None}
        sequence = min((entry.batch.sequence for entry in found.values()), default=0)
        return {queue: entry.offset for queue, entry in found.items() if entry.batch.sequence == sequence}

    def ranges(self, starts: Mapping[str, QueueOffset], ends: Mapping[str, QueueOffset]) -> list[Range]:
        """See :class:`.DeliveryPolicy`; loads the bytes of the batches into memory."""
        ranges: list[Range] = []
        for queue, end in ends.items():
            if end != starts[queue]:
                ranges += self._owned_between(queue, starts[queue], end)
        return ranges

    def _owned_between(self, queue: str, start: QueueOffset, end: QueueOffset) -> list[Range]:
        self._wait_until_ready()
        owner = self._owners[queue]
        with self._lock:
            last = _index(owner, end)
            first = _index(owner, start) + 1
            wanted = owner.entries[first : last + 1]
            known = first > 0 or start.epoch is None or _is_finished(owner, start) or owner.consumer.adopt
        if last < 0 or not known or any(entry.finished for entry in wanted):
            if owner.consumer.adopt:
                _log.warning(
                    "%s: the batch that ends at %s is not in the state; adoptState=true makes it an empty one",
                    owner.consumer.shown, shown(end),
                )  # fmt: skip
                return []
            raise mismatch(
                owner.consumer,
                owner.state,
                [each.batch for each in owner.entries],
                end,
                "asks for a batch that ends at",
            )
        for entry in wanted:
            if entry.held is None:
                held = load(entry.batch, owner.spool)
                with self._lock:
                    entry.held = held
                    owner.count_bytes()
            if entry.batch.skipped:
                _log.warning(
                    "%s: no row is made of %d message(s) that were set aside by hand, at %s",
                    owner.consumer.shown, len(entry.batch.skipped), entry.batch.skipped_positions,
                )  # fmt: skip
        return [
            Range(queue, each.batch.epoch, each.batch.begin, each.batch.end, each.batch.skipped_positions)
            for each in wanted
        ]

    def _check(self, owner: TransactionalState, offset: QueueOffset, *, anew: bool) -> None:
        """Check that the first start offset of Spark fits the state, or that it need not. ``anew``: the checkpoint is
        new. Else a queue without a batch in the checkpoint has finished none, either."""
        assert owner.state is not None
        fits = _index(owner, offset) >= 0 or _is_finished(owner, offset)
        if offset.epoch is None:
            fits = anew or owner.state.finished is None
        if not fits and not owner.consumer.adopt:
            raise mismatch(owner.consumer, owner.state, [each.batch for each in owner.entries], offset, "is at")

    def _decide(self, owner: TransactionalState, offset: QueueOffset, *, anew: bool) -> None:
        """Decide on the owned batches, for the first start offset of Spark, which was checked."""
        state = owner.state
        assert state is not None
        consumer = owner.consumer
        if offset.epoch is None:
            if anew and owner.entries:
                _log.warning(
                    "%s: a new checkpoint; %d batch(es) that an earlier query has accepted and not finished are read "
                    "with it",
                    consumer.shown, len(owner.entries),
                )  # fmt: skip
            elif state.finished is not None:
                _log.warning("%s: a new checkpoint, although this consumer was used before", consumer.shown)
            forget = state.finished is not None and (anew or consumer.adopt)
            if owner.entries or forget:
                self._relabel(owner, forget=forget)
            return
        if _index(owner, offset) >= 0 or _is_finished(owner, offset):
            return
        _log.warning(
            "%s: the checkpoint is at %s, which is not where the state is; adoptState=true goes on from the state, "
            "with %d owned batch(es)",
            consumer.shown, shown(offset), len(owner.entries),
        )  # fmt: skip
        # The state matches this checkpoint from now on, so that the next start needs no option.
        self._relabel(owner, None if isinstance(offset.epoch, str) else ReadPosition(offset.epoch, offset.position))

    def _relabel(
        self, owner: TransactionalState, finished: ReadPosition | None = None, *, forget: bool = False
    ) -> None:
        """Offer all owned batches again, with epochs and positions that are in no checkpoint. The sequence stays: it is
        that of the parts of other queues. ``forget``: the finished one is of another checkpoint."""
        state = owner.state
        assert state is not None
        position = 0
        relabelled: list[Entry] = []
        for entry in owner.entries:
            batch = replace(entry.batch, epoch=state.epoch, begin=position, end=position + entry.batch.count)
            relabelled.append(Entry(batch))
            position = batch.end
        while (
            not self._made(owner, Change(relabelled=relabelled, finished=finished, forget=forget))
            and not self._held.stopping
        ):
            self._wait_until_ready()

    # --- planning

    def plan(self, *, max_messages: int | None, max_bytes: int) -> bool:
        """Own the next batch of the received transfers; return whether there is one. After a SpoolError nothing was
        accepted."""
        with self._planning:
            return self._plan(max_messages, max_bytes)

    def _count(self, slices: Sequence[BatchPart]) -> None:
        for each in slices:
            counters = self._consumers[each.owner.consumer.queue].counters
            counters.committed += each.change.committed
            counters.rolled_back += each.change.done and not each.change.committed

    def most_messages(self, max_messages: int | None) -> int:
        """Most messages of the next batch, by the option and by what one transaction may accept."""
        most = max(self._pace.limit, self._options.min_messages_per_trigger)
        return most if max_messages is None else min(most, max_messages)

    def asked(self) -> None:
        """Begin no further batch ahead, and wait for the one that is being planned."""
        self._ahead.stop()
        with self._planning:
            pass

    def answered(self, *, batch: bool) -> None:
        """Check that this process still owns the batch, and plan the next one ahead; or drop finished batches."""
        if batch:
            self.assure()
            self._plan_ahead()
            return
        with self._lock:  # without waiting for the outcome
            wanted = [owner for owner in self._owners.values() if owner.drop_finished()]
        for owner in wanted:
            self._consumers[owner.consumer.queue].wake()

    def _plan_ahead(self) -> None:
        """Own the next batch while Spark works on the current one, as soon as all of it has arrived."""
        max_messages, max_bytes = self._options.max_messages_per_trigger, self._options.max_bytes_per_trigger
        enough = self._held.enough_bytes(max_bytes)

        def full() -> bool:
            return self._held.waiting >= self.most_messages(max_messages) or self._held.waiting_bytes >= enough

        def plan() -> None:
            with self._planning:
                if self._ahead.wanted:
                    self._plan(self.most_messages(max_messages), max_bytes)

        self._ahead.start(full, plan, enough, self.most_messages(max_messages))

    def _plan(self, max_messages: int | None, max_bytes: int) -> bool:
        with self._lock:
            buffers = tuple(self._held.buffers.values())
            # Over all queues: after any restart the parts of one batch are known, and the order of the batches.
            sequence = max(owner.state.sequence for owner in self._owners.values() if owner.state is not None)
            measured = measure_batch(buffers, max_messages=max_messages, max_bytes=max_bytes, turn=sequence)
            slices = [BatchPart(self._owners[each.queue], each, end, size, sequence) for each, end, size in measured]
        try:
            for each in slices:
                each.write()
        except SpoolError:
            for each in slices:
                each.discard()
            # A successor deletes half-written files of this process: then report that, and not a failing spool.
            self.assure(anew=True)
            raise
        with self._lock:
            stopping = self._held.stopping
            for each in () if stopping else slices:
                each.owner.ask(each.change)
        if stopping:
            for each in slices:
                each.discard()
            return False
        for each in slices:
            self._consumers[each.owner.consumer.queue].wake()
        owned = [self._outcome(each.owner, each.change) for each in slices]
        committed = [each for each in slices if each.change.committed]
        if committed:  # the bound applies to a batch, over all queues
            self._pace.committed(sum(each.count for each in committed), sum(each.change.seconds for each in committed))
        for each in committed:
            each.owned()
        for each in slices:
            if each.change.done and not each.change.committed:
                each.discard()
        self._count(slices)
        self.receiver.raise_failure()
        return any(owned)

    def sync(self) -> bool:
        """Wait for the broker, then until finished batches are deleted from the spool; each for a bounded time."""
        done = self.receiver.sync()
        self._wait_for_disposal(SYNC_SECONDS)
        return done

    def stop(self, _uncommitted: set[str]) -> None:
        """Close the connections cleanly. Owned batches stay in the spool, other messages go back to their queue."""
        self.receiver.stop()
        self._ahead.join(STOP_SECONDS)
        self._wait_for_disposal(STOP_SECONDS)

    def _wait_for_disposal(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for owner in self._owners.values():
            owner.wait_for_disposal(max(0.0, deadline - time.monotonic()))

    def _made(self, owner: TransactionalState, change: Change) -> bool:
        with self._lock:
            owner.ask(change)
        self._consumers[owner.consumer.queue].wake()
        committed = self._outcome(owner, change)
        self.receiver.raise_failure()
        return committed

    def _outcome(self, owner: TransactionalState, change: Change) -> bool:
        consumer = self._consumers[owner.consumer.queue]
        with self._lock:
            while not (change.done or consumer.error is not None or self._held.stopping):
                self._lock.wait()
            return change.committed

    # --- serving

    def assure(self, *, anew: bool = False) -> None:
        """Return when it is certain that this process still owns its batches; raise when it does not.

        A process does not notice its own suspension. The broker drops a silent connection after two heartbeats, which
        take at least one second. So a session that has just received an answer still holds the lock. If the last
        answer is older, or with ``anew``, the broker has to answer a sync: a cut connection frees the lock at once.
        """
        begun = now()
        warned = False
        consumers = self.receiver.consumers
        with self._lock:
            while True:
                if self._held.stopping:  # the lock is about to be free
                    raise OffsetError(
                        SparkCondition.BATCH_NOT_HELD(
                            queue=", ".join(self._consumers), reason="the query is being stopped"
                        )
                    )
                self.receiver.raise_failure()
                silent = [consumer for consumer in consumers if not _is_certain(consumer, begun, anew=anew)]
                if not silent:
                    return
                for consumer in silent:
                    if consumer.sync_wanted == consumer.sync_done:
                        consumer.sync_wanted += 1
                        consumer.wake()
                if not warned and now() - begun >= SLOW_SECONDS:
                    warned = True
                    _log.warning(
                        "a batch waits until the broker has answered, which has taken %.0f s now (queue %s)",
                        now() - begun, ", ".join(repr(consumer.queue) for consumer in silent),
                    )  # fmt: skip
                self._lock.wait(ASSURE_SECONDS)

    def epoch_of(self, queue: str) -> int | None:
        """The current epoch of a queue; None as long as it is not known."""
        state = self._owners[queue].state
        return None if state is None else state.epoch

    def metrics_of(self, queue: str) -> dict[str, object]:
        """Batches that are owned and not finished, the bytes that the spool holds of them, and transactions."""
        owner, counters = self._owners[queue], self._consumers[queue].counters
        with self._lock:
            return {
                "committed": counters.committed,
                "ownedBatches": sum(not entry.finished for entry in owner.entries),
                "rolledBack": counters.rolled_back,
                "spoolBytes": sum(entry.batch.nbytes for entry in owner.entries),
            }

    def buffer_of(self, queue: str, epoch: int, end: int) -> QueueBuffer:
        """See :class:`.DeliveryPolicy`."""
        owner = self._owners.get(queue)
        if owner is None:
            raise OffsetError(SparkCondition.BATCH_NOT_HELD(queue=queue, reason="it does not read this queue"))
        error = self._consumers[owner.consumer.queue].error
        if isinstance(error, StateError):
            raise error  # another process may own the batches by now
        for entry in owner.entries:
            if entry.held is not None and entry.batch.epoch == epoch and entry.batch.begin < end <= entry.batch.end:
                return entry.held
        reason = f"no batch of epoch {epoch} has position {end}"
        raise OffsetError(SparkCondition.BATCH_NOT_HELD(queue=queue, reason=reason))

    # --- inside

    def _wait_until_ready(self) -> None:
        with self._lock:
            while any(owner.state is None for owner in self._owners.values()):
                if self.receiver.failure() is not None or self._held.stopping:
                    break
                self._lock.wait()
        self.receiver.raise_failure()


def _is_certain(consumer: QueueConsumer, begun: float, *, anew: bool) -> bool:
    age = now() - consumer.answered
    if consumer.answered >= begun:
        return age < max(CERTAIN_SECONDS, CERTAIN_HEARTBEATS * consumer.heartbeat_s)
    return age < CERTAIN_SECONDS and not anew


def _index(owner: TransactionalState, offset: QueueOffset) -> int:
    for index, entry in enumerate(owner.entries):
        if entry.offset == offset:
            return index
    return -1


def _is_finished(owner: TransactionalState, offset: QueueOffset) -> bool:
    if owner.state is None or not isinstance(offset.epoch, int):
        return False
    return owner.state.finished == ReadPosition(offset.epoch, offset.position)
