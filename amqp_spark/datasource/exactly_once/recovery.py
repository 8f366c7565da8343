"""Recovery at a start: check that the state belongs to this consumer, and that checkpoint and spool match it.

Recovery happens under the lock, on the thread of the consumer, before the first answer to Spark.
"""

from __future__ import annotations

import logging
import secrets
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from amqp_spark import crashpoints
from amqp_spark.datasource.consumer_setup import CONSUMER_TIMEOUT_SECONDS
from amqp_spark.datasource.exactly_once.waiting import meanwhile
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import OffsetError, SpoolError, StateError
from amqp_spark.options.kinds import shown_location
from amqp_spark.spool.spool import BatchLostError
from amqp_spark.state.names import CONSUMER, Names
from amqp_spark.state.queue import loaded
from amqp_spark.state.records import ConsumerState, OwnedBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from amqp_core.api import Client
    from amqp_spark.offsets import QueueOffset
    from amqp_spark.spool.spool import Spool
    from amqp_spark.state.records import ReadPosition

_log = logging.getLogger(__name__)


class StateStore(Protocol):
    """Where the state is, and its lock: a :class:`.StateQueue` on the broker, or a :class:`.QuorumState`."""

    def lock(self) -> None:
        """Acquire the lock, without waiting."""

    def take(self) -> bytes | None:
        """Return the state; ``None`` if there never was one."""

    def has(self, names: Names) -> bool:
        """Whether there is the state of another queue."""

    def check_newest(self) -> None:
        """Raise ConsumerStalled if the state was changed since it was taken, so that it is to be taken again."""

    def create(self, body: bytes) -> None:
        """Store the first state."""

    def swap(
        self, body: bytes, *, accept: Sequence[tuple[int, int]] = (), sent: Callable[[], None] | None = None
    ) -> None:
        """Replace the state, and accept transfers of the session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """The consumer that a state belongs to, and the options for taking it. ``index``: of the queue among its ``count``
    queues, sorted; ``heartbeat`` (seconds) determines how long a suspended process may hold the lock;
    ``consumer_timeout`` (seconds), after which time RabbitMQ takes messages back; ``hosts``: how many the URL names."""

    consumer_id: str
    queue: str
    index: int
    count: int
    spool: str = field(repr=False)
    adopt: bool
    heartbeat: int
    consumer_timeout: float = CONSUMER_TIMEOUT_SECONDS
    hosts: int = 1

    @property
    def names(self) -> Names:
        """Names of its queues on the broker."""
        return Names(CONSUMER, self.consumer_id, self.index)

    @property
    def shown(self) -> str:
        """Text for errors."""
        return f"consumerId {self.consumer_id!r}, queue {self.queue!r}"


def recover(consumer: Consumer, client: Client, owner: StateStore, spool: Spool) -> tuple[ConsumerState, Sequence[str]]:
    """Take the state and raise its epoch; return it as stored on the broker, and the batches of the spool that it does
    not own: to be deleted when the state is known to fit the checkpoint. That of a broker that was restored, or lags
    behind another one, is older, and a later state owns them.

    Raises:
        StateError: the state belongs to another consumer, or is gone although the spool has batches.
        SpoolError: the spool cannot be used, or lacks batches of the state.
        ConsumerStalled: the state was changed meanwhile: on another session it is taken again.
    """
    meanwhile(client, spool.open)
    anew = _to_begin_anew(consumer, client)
    body = owner.take()
    _no_more_queues(consumer, owner, anew)
    if body is None:
        state = meanwhile(client, lambda: _first(consumer, spool))
        spool.instance = state.instance
        rubbish = meanwhile(client, lambda: spool.rubbish((), ""))
        crashpoints.reached(crashpoints.RECOVERY_MID)
        owner.create(state.dump())
    else:
        found = loaded(consumer.names, ConsumerState.load, body)
        _check_ours(consumer, found, anew)
        meanwhile(client, lambda: _check_files(consumer, found, spool))
        try:
            state = meanwhile(client, lambda: _with_files(consumer, found, spool))
        except BatchLostError:
            owner.check_newest()
            raise
        spool.instance = state.instance
        # Listed by the state from before this start gave up any batch: a damaged file stays until the next start.
        owned = {batch.file for batch in found.owned}
        rubbish = meanwhile(client, lambda: spool.rubbish(owned, found.instance))
        crashpoints.reached(crashpoints.RECOVERY_MID)
        state = replace(state, epoch=state.epoch + 1, spool=consumer.spool)
        owner.swap(state.dump())
    # The broker has answered on this session: so the lock was held while the rubbish was listed. From here on it may be
    # lost at any moment, and a successor may write files.
    crashpoints.reached(crashpoints.EPOCH_RAISED)
    batches = [name for name in rubbish if spool.is_batch(name)]
    meanwhile(client, lambda: delete_rubbish(set(rubbish) - set(batches), consumer, spool))
    return state, batches


def _to_begin_anew(consumer: Consumer, client: Client) -> str:
    """How a consumer begins anew: the command does not delete the state of a quorum queue, which is in the spool."""
    if client.capabilities.counts_deliveries:
        return "another consumerId with another spoolLocation"
    return consumer.names.tool("--forget")


def _no_more_queues(consumer: Consumer, owner: StateStore, anew: str) -> None:
    if consumer.index:
        return
    beyond = Names(CONSUMER, consumer.consumer_id, consumer.count)
    if owner.has(beyond):
        reason = f"there is state of more than {consumer.count} queue(s) ({beyond.state!r})"
        raise _other_queues(consumer, reason, anew)


def _check_ours(consumer: Consumer, found: ConsumerState, anew: str) -> None:
    where = consumer.names.state
    if found.consumer_id != consumer.consumer_id:
        raise StateError(
            SparkCondition.STATE_FOREIGN(
                queue=where,
                found=f"consumerId {found.consumer_id!r}",
                owner=f"consumerId {consumer.consumer_id!r}",
                tool=consumer.names.tool(),
            )
        )
    if found.queue != consumer.queue:
        reason = f"its state {where!r} is of queue {found.queue!r}, and now it is queue {consumer.queue!r}"
        raise _other_queues(consumer, reason, anew)
    if found.spool != consumer.spool and not consumer.adopt:
        before, now = shown_location(found.spool), shown_location(consumer.spool)
        if before == now:  # a query is not shown, since it may contain secrets
            now = f"{now} with other parameters behind its '?'"
        raise StateError(SparkCondition.CONSUMER_SPOOL_CHANGED(consumer=consumer.shown, found=before, spool=now))


def _other_queues(consumer: Consumer, reason: str, anew: str) -> StateError:
    return StateError(
        SparkCondition.CONSUMER_QUEUES_CHANGED(consumer=consumer.consumer_id, reason=reason, command=anew)
    )


def _first(consumer: Consumer, spool: Spool) -> ConsumerState:
    """Initial state of a consumer that the broker does not know. Epochs start from the time, so that they stay unique
    even if a state is deleted."""
    state = ConsumerState(
        consumer.consumer_id, consumer.queue, consumer.spool, epoch=int(time.time()), instance=secrets.token_hex(4)
    )
    files = spool.files()
    if not files:
        return state
    if not consumer.adopt:
        raise StateError(
            SparkCondition.CONSUMER_STATE_LOST(
                consumer=consumer.shown,
                state=consumer.names.state,
                spool=shown_location(consumer.spool),
                count=len(files),
            )
        )
    owned = _readable(files, consumer, spool)
    _log.warning("%s: %d batch(es) of the spool are adopted", consumer.shown, len(owned))
    epoch = max([state.epoch, *(batch.epoch + 1 for batch in owned)])
    sequence = max([0, *(batch.sequence + 1 for batch in owned)])
    instances = {spool.instance_of(file) for file in files}
    if len(instances) == 1:  # it continues the lost instance
        state = replace(state, instance=instances.pop())
    return replace(state, epoch=epoch, sequence=sequence, owned=tuple(owned))


def _readable(files: Iterable[str], consumer: Consumer, spool: Spool) -> list[OwnedBatch]:
    """The batches of these files, oldest first. Unreadable ones are given up, as adoptState=true allows."""
    batches = []
    for file in files:
        try:
            batches.append(spool.batch(file))
        except BatchLostError as error:
            _log.warning(
                "%s: the messages of file %r are LOST, as adoptState=true allows: %s", consumer.shown, file, error
            )
    return sorted(batches, key=lambda batch: batch.sequence)


def _check_files(consumer: Consumer, found: ConsumerState, spool: Spool) -> None:
    """Refuse files of another state of this consumer: that state may be in use, on another broker."""
    owned = {batch.file for batch in found.owned}
    foreign = [file for file in spool.files() if file not in owned and spool.instance_of(file) != found.instance]
    if not foreign:
        return
    if not consumer.adopt:
        raise StateError(
            SparkCondition.CONSUMER_SPOOL_SHARED(
                consumer=consumer.shown, spool=shown_location(consumer.spool), count=len(foreign)
            )
        )
    _log.warning("%s: %d batch(es) of another state stay in the spool", consumer.shown, len(foreign))


def _with_files(consumer: Consumer, found: ConsumerState, spool: Spool) -> ConsumerState:
    kept: list[OwnedBatch] = []
    for batch in found.owned:
        try:
            # Batches that adoptState gives up must be found now: later they can no longer be left out.
            spool.check(batch, thorough=consumer.adopt)
        except BatchLostError as error:
            if not consumer.adopt:
                error.add_note(f"{consumer.shown}: {batch.count} accepted message(s) are in this file")
                raise
            if found.spool != consumer.spool:
                error.add_note(
                    f"{consumer.shown}: {batch.count} accepted message(s) are in this file, which was in "
                    f"{shown_location(found.spool)!r}: move all files from there; to give lost messages up, set "
                    "option spoolLocation as it was"
                )
                raise
            _log.warning(
                "%s: %d message(s) of the batch with sequence %d are LOST, as adoptState=true allows: its file %r "
                "cannot be read",
                consumer.shown, batch.count, batch.sequence, batch.file,
            )  # fmt: skip
        else:
            kept.append(batch)
    return replace(found, owned=tuple(kept))


def delete_rubbish(rubbish: Iterable[str], consumer: Consumer, spool: Spool) -> None:
    """Delete files without an owner; a failure is a warning."""
    for name in rubbish:
        try:
            spool.delete_rubbish(name)
        except SpoolError as error:
            _log.warning("%s: a file without an owner stays: %s", consumer.shown, error)


def mismatch(
    consumer: Consumer, state: ConsumerState | None, owned: Iterable[OwnedBatch], offset: QueueOffset, what: str
) -> OffsetError:
    """Build the error for an offset that does not match the state; ``what``: the verb phrase before the offset."""
    assert state is not None
    who, at = consumer.shown, shown(offset)
    if offset.epoch is not None and not offset.is_owned:
        return OffsetError(SparkCondition.CHECKPOINT_NOT_EXACTLY_ONCE(consumer=who, what=what, offset=at))
    ends = "; ".join(_place(batch.mark) for batch in owned)
    if state.finished is None and not ends:
        return OffsetError(SparkCondition.CHECKPOINT_WITHOUT_STATE(consumer=who, what=what, offset=at))
    held = f"the batch(es) that end at {ends}" if ends else "none"
    finished = "no batch" if state.finished is None else f"the batch that ends at {_place(state.finished)}"
    return OffsetError(
        SparkCondition.CHECKPOINT_MISMATCH(consumer=who, what=what, offset=at, finished=finished, owned=held)
    )


def shown(offset: QueueOffset) -> str:
    """Format an offset for a sentence."""
    return "the start" if offset.epoch is None else f"epoch {offset.epoch}, position {offset.position}"


def _place(mark: ReadPosition) -> str:
    return f"epoch {mark.epoch}, position {mark.position}"
