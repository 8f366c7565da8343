"""State of one consumer: that of each of its queues, and the location of its owned batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from amqp_core.errors import ResourceLocked
from amqp_spark.errors import SpoolError
from amqp_spark.spool.spooled_record import SpooledRecord
from amqp_spark.state.names import CONSUMER, Names
from amqp_spark.state.records import ConsumerState, RecordUnreadable
from amqp_spark.transactions.browse import Found, find

if TYPE_CHECKING:
    from amqp_core.api import Client
    from amqp_spark.spool.spool import Spool
    from amqp_spark.state.records import OwnedBatch

EXISTS: Final = "exists"
MISSING: Final = "missing"
DAMAGED: Final = "damaged"
UNREACHABLE: Final = "not reachable"
"""Not reachable from this machine: the directory may belong to another one."""
_GAP: Final = 16
"""Stop after this many consecutive indexes without a state queue: one may have been deleted by hand."""


@dataclass(frozen=True, slots=True)
class OwnedFile:
    """An owned batch and the condition of its file: ``EXISTS``, ``MISSING``, ``DAMAGED`` or ``UNREACHABLE``."""

    batch: OwnedBatch
    spool: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ConsumerQueue:
    """One queue of a consumer, the spool that was examined (None if the state is not known), and the files of its owned
    batches, oldest first."""

    names: Names
    found: Found[ConsumerState]
    location: str | None = None
    files: tuple[OwnedFile, ...] = ()
    record: SpooledRecord | None = None
    """Of a quorum queue: which acknowledgements are in doubt, and what was recognised."""
    elsewhere: bool = False
    """Whether the state is of another broker or virtual host; for a quorum queue."""

    @property
    def in_doubt(self) -> int:
        """Number of messages whose acknowledgement is in doubt."""
        doubts = {} if self.record is None else self.record.doubts
        return sum(each.batch.count for each in self.files if each.batch.file in doubts)


def look_at_consumer(client: Client, consumer_id: str, *, spool: str | None = None) -> list[ConsumerQueue]:
    """Read every state of a consumer. ``spool``: where its spool is as seen from here; ``None``: as the states say."""
    queues: list[ConsumerQueue] = []
    index = 0
    while index < _end_of(queues):
        names = Names(CONSUMER, consumer_id, index)
        found = find(client, names.state, names.lock, ConsumerState, begun=names.begun)
        if found.exists or found.held:
            queues.append(_with_files(names, found, spool))
        index += 1
    return queues


def look_at_spooled(client: Client, consumer_id: str, location: str) -> list[ConsumerQueue]:
    """Read every state of a consumer from its spool, where a broker without transactions has it. SpoolError: the spool
    cannot be read."""
    from amqp_spark.spool.spool import Spool  # noqa: PLC0415 - as below
    from amqp_spark.spool.state_files import StateFiles  # noqa: PLC0415

    spool = Spool(location, consumer_id=consumer_id, queue="")
    spool.look()
    queues: list[ConsumerQueue] = []
    index = 0
    while index < _end_of(queues):
        names = Names(CONSUMER, consumer_id, index)
        index += 1
        file = StateFiles(spool, names.state).latest()
        if file is None:
            continue
        held = any(_is_held(client, lock) for lock in names.locks)
        try:
            record = SpooledRecord.load(file.content)
            state = ConsumerState.load(record.state)
        except RecordUnreadable as error:
            queues.append(ConsumerQueue(names, Found(names.state, True, held, None, str(error), file.content)))
            continue
        found = Found(names.state, True, held, state, body=file.content)
        elsewhere = bool(record.anchor) and not client.query_routes([(record.anchor, None)]).answers()[0].exists
        files = look_into_spool(state, location)
        queues.append(ConsumerQueue(names, found, location, files, record, elsewhere))
    return queues


def _is_held(client: Client, lock: str) -> bool:
    try:
        return client.query_queue(lock) is not None
    except ResourceLocked:
        return True


def _end_of(queues: list[ConsumerQueue]) -> int:
    return (queues[-1].names.index + 1 if queues else 0) + _GAP


def _with_files(names: Names, found: Found[ConsumerState], spool: str | None) -> ConsumerQueue:
    if found.state is None:
        return ConsumerQueue(names, found)
    location = spool or found.state.spool
    return ConsumerQueue(names, found, location, look_into_spool(found.state, location))


def look_into_spool(state: ConsumerState, location: str) -> tuple[OwnedFile, ...]:
    """Examine the file of each owned batch, without creating or changing anything."""
    if not state.owned:
        return ()
    from amqp_spark.spool.spool import Spool  # noqa: PLC0415 - imports Arrow: other looks need not wait for that

    spool = Spool(location, consumer_id=state.consumer_id, queue=state.queue)
    try:
        spool.look()
        there = set(spool.files())
    except SpoolError as error:
        return tuple(OwnedFile(batch, UNREACHABLE, str(error)) for batch in state.owned)
    return tuple(_look_at_file(spool, batch, there) for batch in state.owned)


def _look_at_file(spool: Spool, batch: OwnedBatch, there: set[str]) -> OwnedFile:
    if batch.file not in there:
        return OwnedFile(batch, MISSING)
    try:
        spool.check(batch)
    except SpoolError as error:
        return OwnedFile(batch, DAMAGED, str(error))
    return OwnedFile(batch, EXISTS)
