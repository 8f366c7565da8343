"""The receiver of exactly-once: batches are planned into the spool and the state, and served from there."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from amqp_spark import crashpoints
from amqp_spark.datasource.exactly_once.batch_parts import BatchPart
from amqp_spark.datasource.exactly_once.commit_pace import CommitPace
from amqp_spark.datasource.exactly_once.entries import Entry, load
from amqp_spark.datasource.exactly_once.lookahead import Lookahead
from amqp_spark.datasource.exactly_once.mismatch import mismatch, shown
from amqp_spark.datasource.exactly_once.recovery import Consumer
from amqp_spark.datasource.exactly_once.transactional_state import Change, TransactionalState
from amqp_spark.datasource.partitions import Range
from amqp_spark.datasource.planner import measure_batch
from amqp_spark.datasource.queue_consumer import now
from amqp_spark.datasource.receiver import STOP_SECONDS, SYNC_SECONDS, Receiver
from amqp_spark.errors import OffsetError, SpoolError, StateError
from amqp_spark.spool.spool import Spool
from amqp_spark.state.records import Mark

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqp_spark.connect import Connector
    from amqp_spark.datasource.queue_buffer import QueueBuffer
    from amqp_spark.datasource.queue_consumer import QueueConsumer
    from amqp_spark.datasource.receive_buffer import ConsumerOptions, ReceiveBuffer
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
_NO_EPOCH: Final = 0
"""Epoch of the receiver as a whole: with exactly-once every queue has its own epoch."""


class OwningReceiver(Receiver):
    """Holds transfers received and not accepted, and batches owned and not finished."""

    def __init__(self, options: SourceOptions, consumer_options: ConsumerOptions, *, connector: Connector) -> None:
        self._owners: dict[str, TransactionalState] = {}
        self._planning = threading.Lock()
        self._pace = CommitPace()
        self._least_messages = options.min_messages_per_trigger
        self._decided: set[str] = set()
        """Queues whose first offset from Spark was checked against the state."""
        queues = sorted(options.queues)
        assert options.consumer_id is not None
        assert options.spool_location is not None
        consumer_id, spool_location = options.consumer_id, options.spool_location

        def owner(queue: str, held: ReceiveBuffer) -> TransactionalState:
            consumer = Consumer(
                consumer_id=consumer_id,
                queue=queue,
                index=queues.index(queue),
                count=len(queues),
                spool=spool_location,
                adopt=options.adopt_state,
                heartbeat=options.heartbeat,
            )
            spool = Spool(spool_location, consumer_id=consumer_id, queue=queue)
            self._owners[queue] = owner = TransactionalState(
                consumer, spool, held, held.buffers[queue], self._owners.get(queues[0])
            )
            held.elsewhere.append(lambda: owner.held_bytes)
            return owner

        super().__init__(
            queues,
            consumer_options,
            epoch=_NO_EPOCH,
            buffer_bytes=options.buffer_bytes,
            connector=connector,
            owners=owner,
        )
        self._ahead = Lookahead(self._held)

    # --- position of Spark

    def finish(self, offsets: Mapping[str, QueueOffset]) -> None:
        """Finish everything up to these offsets, which Spark has committed. The first call gives its start position."""
        self._wait_until_ready()
        for queue, offset in offsets.items():
            owner = self._owners[queue]
            if queue not in self._decided:
                self._decide(owner, offset)
                self._decided.add(queue)
            with self._lock:
                news = any(not entry.finished for entry in owner.entries[: _index(owner, offset) + 1])
            if news:
                crashpoints.reached(crashpoints.COMMIT_LOGGED)
            with self._lock:
                for entry in owner.entries[: _index(owner, offset) + 1]:
                    if not entry.finished:
                        entry.finish()
            if news:
                for consumer in self._consumers:  # all of them: they may wait for a part of the budget
                    consumer.wake()
        self._raise_error()

    def unfinished(self) -> dict[str, QueueOffset]:
        """The ends, per queue, of the first batch that Spark has not committed."""
        with self._lock:
            first = {
                queue: next((entry for entry in owner.entries if not entry.finished), None)
                for queue, owner in self._owners.items()
            }
        turn = min((entry.turn for entry in first.values() if entry is not None), default=0)
        return {queue: entry.offset for queue, entry in first.items() if entry is not None and entry.turn == turn}

    def owned_between(self, queue: str, start: QueueOffset, end: QueueOffset) -> list[Range]:
        """The batches after ``start`` up to ``end``, which Spark has logged; loads their bytes into memory."""
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
            raise mismatch(owner, end, "asks for a batch that ends at")
        for entry in wanted:
            if entry.held is None:
                held = load(entry.batch, owner.spool)
                with self._lock:
                    entry.held = held
            if entry.batch.skipped:
                _log.warning(
                    "%s: no row is made of %d message(s) that were set aside by hand, at %s",
                    owner.consumer.shown, len(entry.batch.skipped), entry.batch.skipped_positions,
                )  # fmt: skip
        return [
            Range(queue, each.batch.epoch, each.batch.begin, each.batch.end, each.batch.skipped_positions)
            for each in wanted
        ]

    def _decide(self, owner: TransactionalState, offset: QueueOffset) -> None:
        """Check the first start offset of Spark against the state, and decide on the owned batches."""
        state = owner.state
        assert state is not None
        consumer = owner.consumer
        if offset.epoch is None:
            if owner.entries:
                _log.warning(
                    "%s: a new checkpoint; %d batch(es) that an earlier query has accepted and not finished are read "
                    "with it",
                    consumer.shown, len(owner.entries),
                )  # fmt: skip
                self._relabel(owner)
            elif state.finished is not None:
                _log.warning("%s: a new checkpoint, although this consumer was used before", consumer.shown)
            return
        if _index(owner, offset) >= 0 or _is_finished(owner, offset):
            return
        if not consumer.adopt:
            raise mismatch(owner, offset, "is at")
        _log.warning(
            "%s: the checkpoint is at %s, which is not where the state is; adoptState=true goes on from the state, "
            "with %d owned batch(es)",
            consumer.shown, shown(offset), len(owner.entries),
        )  # fmt: skip
        # The state matches this checkpoint from now on, so that the next start needs no option.
        self._relabel(owner, None if isinstance(offset.epoch, str) else Mark(offset.epoch, offset.position))

    def _relabel(self, owner: TransactionalState, finished: Mark | None = None) -> None:
        """Offer all owned batches again, with epochs, sequence numbers and positions that are in no checkpoint."""
        state = owner.state
        assert state is not None
        position, sequence = 0, state.sequence
        relabelled: list[Entry] = []
        for entry in owner.entries:
            batch = replace(
                entry.batch,
                epoch=state.epoch,
                sequence=sequence,
                begin=position,
                end=position + entry.batch.count,
            )
            relabelled.append(Entry(batch))
            position, sequence = batch.end, sequence + 1
        while not self._made(owner, Change(relabelled=relabelled, finished=finished)) and not self._held.stopping:
            self._wait_until_ready()

    # --- planning

    def plan(self, *, max_messages: int | None, max_bytes: int) -> bool:
        """Own the next batch of the received transfers; return whether there is one.

        Raises:
            SpoolError: it could not be written; nothing was accepted.
            AmqpError: a consumer gave up.
        """
        with self._planning:
            return self._plan(max_messages, max_bytes)

    def wait_for_batch(self, *, max_messages: int | None, max_bytes: int) -> None:
        """As for other guarantees; additionally, a batch has no more messages than one transaction may accept."""
        super().wait_for_batch(max_messages=self._most_messages(max_messages), max_bytes=max_bytes)

    def _most_messages(self, max_messages: int | None) -> int:
        """Most messages of the next batch, by the option and by the commit pace."""
        most = max(self._pace.limit, self._least_messages)
        return most if max_messages is None else min(most, max_messages)

    def plan_ahead(self, *, max_messages: int | None, max_bytes: int) -> None:
        """Own the next batch while Spark works on the current one, as soon as all of it has arrived."""
        enough = self._held.enough_bytes(max_bytes)

        def full() -> bool:
            return self._held.waiting >= self._most_messages(max_messages) or self._held.waiting_bytes >= enough

        def plan() -> None:
            with self._planning:
                if self._ahead.wanted:
                    self._plan(max_messages, max_bytes)

        self._ahead.start(full, plan, enough, self._most_messages(max_messages))

    def no_more_ahead(self) -> None:
        """Begin no further batch ahead, and wait for the one that is being planned: Spark asks for a batch."""
        self._ahead.stop()
        with self._planning:
            pass

    def _plan(self, max_messages: int | None, max_bytes: int) -> bool:
        with self._lock:
            self._turn += 1
            buffers = tuple(self._held.buffers.values())
            most = self._most_messages(max_messages)
            measured = measure_batch(buffers, max_messages=most, max_bytes=max_bytes, turn=self._turn)
            slices = [BatchPart(self._owners[each.queue], each, end, size, self._turn) for each, end, size in measured]
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
            self._consumer(each.owner).wake()
        owned = [self._outcome(each.owner, each.change) for each in slices]
        committed = [each for each in slices if each.change.committed]
        if committed:  # the bound applies to a batch, over all queues
            self._pace.committed(sum(each.count for each in committed), sum(each.change.seconds for each in committed))
        for each in slices:
            if each.change.done and not each.change.committed:
                each.discard()
        self._raise_error()
        return any(owned)

    def nothing_to_plan(self) -> None:
        """Drop finished batches, without waiting for the outcome."""
        with self._lock:
            wanted = [owner for owner in self._owners.values() if owner.drop_finished()]
        for owner in wanted:
            self._consumer(owner).wake()

    def stop(self) -> None:
        """Close the connections cleanly. Owned batches stay in the spool, other messages go back to their queue."""
        super().stop()
        self._ahead.join(STOP_SECONDS)
        self._wait_for_disposal(STOP_SECONDS)

    def sync(self) -> bool:
        """As for other guarantees; also waits until finished batches are deleted from the spool, for a bounded time."""
        done = super().sync()
        self._wait_for_disposal(SYNC_SECONDS)
        return done

    def _wait_for_disposal(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for owner in self._owners.values():
            owner.wait_for_disposal(max(0.0, deadline - time.monotonic()))

    def _made(self, owner: TransactionalState, change: Change) -> bool:
        with self._lock:
            owner.ask(change)
        self._consumer(owner).wake()
        committed = self._outcome(owner, change)
        self._raise_error()
        return committed

    def _outcome(self, owner: TransactionalState, change: Change) -> bool:
        consumer = self._consumer(owner)
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
        told = False
        with self._lock:
            while not self._held.stopping:
                self._raise_error()
                silent = [consumer for consumer in self._consumers if not _is_certain(consumer, begun, anew=anew)]
                if not silent:
                    return
                for consumer in silent:
                    if consumer.sync_wanted == consumer.sync_done:
                        consumer.sync_wanted += 1
                        consumer.wake()
                if not told and now() - begun >= SLOW_SECONDS:
                    told = True
                    _log.warning(
                        "a batch waits until the broker has answered, which has taken %.0f s now (queue %s)",
                        now() - begun, ", ".join(repr(consumer.queue) for consumer in silent),
                    )  # fmt: skip
                self._lock.wait(ASSURE_SECONDS)

    def epoch_of(self, queue: str) -> int | None:
        """The current epoch of a queue; None as long as it is not known."""
        state = self._owners[queue].state
        return None if state is None else state.epoch

    def failure(self) -> Exception | None:
        """The error of a consumer that gave up: another process may own its batches by now."""
        for consumer in self._consumers:
            if consumer.error is not None:
                return consumer.error
        return None

    def _holder(self, queue: str, epoch: int, end: int) -> QueueBuffer:
        owner = self._owners.get(queue)
        if owner is None:
            raise OffsetError(f"queue {queue!r} is not one of this reader")
        error = self._consumer(owner).error
        if isinstance(error, StateError):
            raise error  # another process may own the batches by now
        for entry in owner.entries:
            if entry.held is not None and entry.batch.epoch == epoch and entry.batch.begin < end <= entry.batch.end:
                return entry.held
        raise OffsetError(f"queue {queue!r}: no batch of epoch {epoch} that has position {end} is held")

    # --- inside

    def _consumer(self, owner: TransactionalState) -> QueueConsumer:
        return next(consumer for consumer in self._consumers if consumer.queue == owner.consumer.queue)

    def _wait_until_ready(self) -> None:
        with self._lock:
            while any(owner.state is None for owner in self._owners.values()):
                if self.failure() is not None or self._held.stopping:
                    break
                self._lock.wait()
        self._raise_error()

    def _raise_error(self) -> None:
        failure = self.failure()
        if failure is not None:
            raise failure


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
    return owner.state.finished == Mark(offset.epoch, offset.position)
