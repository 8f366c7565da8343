"""The state message as objects: the batches that a consumer owns, and the decisions of a writer. Its body is JSON.

Everything is checked when it is read: data of another version or a foreign program is refused.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from amqp_spark.errors import StateError
from amqp_spark.state.names import CONSUMER, WRITER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import DataclassInstance

T = TypeVar("T")

VERSION: Final = 1
STORED_QUERY_ID: Final = "lineage"
"""Name of ``query_id`` in the JSON on the broker, kept so that versions can read each other's state."""
OPEN: Final = "open"
"""State of a writer's decision: branches of the batch may still have to be committed."""
DONE: Final = "done"
"""State of a writer's decision: every branch of the batch is committed."""


class RecordUnreadable(StateError):
    """A stored record is not valid. The error that names its queue quotes this one, so it has no condition."""


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """A position in a queue: everything before ``position`` of ``epoch``."""

    epoch: int
    position: int


@dataclass(frozen=True, slots=True)
class OwnedBatch:
    """Transfers ``[begin, end)`` of an epoch that were accepted: only a spool file still has their bytes.

    Attributes:
        epoch, sequence: identify the batch; the sequence continues over all epochs and all queues of the consumer: the
            parts of one batch of Spark have the same.
        begin, end: positions.
        nbytes: bytes of its transfers.
        file: name of the file, without directory.
        checksum: of the file's contents, as in its footer.
        skipped: messages set aside by hand, counted from 0 in the batch, ascending: the file contains them, but they
            yield no rows.
    """

    epoch: int
    sequence: int
    begin: int
    end: int
    nbytes: int
    file: str
    checksum: str
    skipped: tuple[int, ...] = ()

    @property
    def mark(self) -> ReadPosition:
        """The end of the batch."""
        return ReadPosition(self.epoch, self.end)

    @property
    def count(self) -> int:
        """Number of transfers."""
        return self.end - self.begin

    @property
    def skipped_positions(self) -> tuple[int, ...]:
        """Positions of the messages that were set aside."""
        return tuple(self.begin + index for index in self.skipped)


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """State of a consumer for one queue.

    Attributes:
        consumer_id, queue: the owner.
        spool: directory of its files.
        epoch: raised by every process that takes the state.
        sequence: of the batch that is owned next, at least: another queue may be ahead.
        finished: the end of the last batch that Spark has committed and that is no longer owned.
        owned: oldest first.
        instance: random id of this state; the consumer may have had others, or has others on other brokers. The names
            of its files contain it.
    """

    consumer_id: str
    queue: str
    spool: str
    epoch: int = 0
    sequence: int = 0
    finished: ReadPosition | None = None
    owned: tuple[OwnedBatch, ...] = ()
    instance: str = ""

    def dump(self) -> bytes:
        """The body of the state message."""
        return _dump(CONSUMER, self)

    @classmethod
    def load(cls, body: bytes) -> Self:
        """Parse the output of :meth:`dump`; RecordUnreadable describes foreign data."""
        value = _load(CONSUMER, body)
        finished = value.pop("finished", None)
        owned = _list(value.pop("owned", None), "owned")
        state = _make(cls, value | {"finished": None, "owned": ()})
        return replace(
            state,
            finished=None if finished is None else _make(ReadPosition, finished),
            owned=tuple(map(_owned_batch, owned)),
        )


@dataclass(frozen=True, slots=True)
class DecidedBranch:
    """A branch of a decided batch: ``xid`` as text, and the rows that the task has put into it."""

    xid: str
    partition: int
    rows: int
    digest: str


@dataclass(frozen=True, slots=True)
class WriterState:
    """Decision of a writer.

    Attributes:
        transactional_id: the writer.
        query_id: Spark's query id or its substitute; empty before the first decision.
        batch: the latest batch that was decided; -1 before the first.
        state: ``OPEN`` or ``DONE``.
        branches: of that batch.
        past: earlier queries, each with its last batch: if one returns, another query shares its transactionalId.
    """

    transactional_id: str
    query_id: str = ""
    batch: int = -1
    state: str = DONE
    branches: tuple[DecidedBranch, ...] = ()
    past: Mapping[str, int] = field(default_factory=dict)

    def dump(self) -> bytes:
        """The body of the state message."""
        return _dump(WRITER, self)

    @classmethod
    def load(cls, body: bytes) -> Self:
        """Parse the output of :meth:`dump`; RecordUnreadable describes foreign data."""
        value = _load(WRITER, body)
        branches = _list(value.pop("branches", None), "branches")
        past = value.pop("past", None)
        if STORED_QUERY_ID in value:
            value["query_id"] = value.pop(STORED_QUERY_ID)
        if not isinstance(past, dict) or not all(type(batch) is int for batch in past.values()):
            raise RecordUnreadable("the state message has no readable 'past'")
        state = _make(cls, value | {"branches": (), "past": past})
        if state.state not in {OPEN, DONE}:
            raise RecordUnreadable(f"the state message is in state {state.state!r}; {OPEN} and {DONE} are known")
        return replace(state, branches=tuple(_make(DecidedBranch, each) for each in branches))


def stored(record: DataclassInstance) -> dict[str, Any]:
    """Fields of a record by the names that they have on the broker, in order."""
    return {STORED_QUERY_ID if name == "query_id" else name: value for name, value in asdict(record).items()}


def _dump(kind: str, state: ConsumerState | WriterState) -> bytes:
    value = stored(state)
    for batch in value.get("owned", ()):
        if not batch["skipped"]:  # so that a version without this field can read all other states
            del batch["skipped"]
    return json.dumps({"version": VERSION, "kind": kind} | value, separators=(",", ":")).encode()


def _owned_batch(value: object) -> OwnedBatch:
    batch = _make(OwnedBatch, {"skipped": []} | value if isinstance(value, dict) else value)
    skipped: object = batch.skipped
    if not isinstance(skipped, list) or not all(type(index) is int and 0 <= index < batch.count for index in skipped):
        raise RecordUnreadable("the state message has no readable 'skipped' of a batch")
    return replace(batch, skipped=tuple(sorted(set(skipped))))


def _load(kind: str, body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        value = None
    if not isinstance(value, dict) or "version" not in value or "kind" not in value:
        raise RecordUnreadable(f"the state message ({len(body)} bytes) was not written by amqp_spark")
    version, found = value.pop("version"), value.pop("kind")
    if version != VERSION:
        raise RecordUnreadable(
            f"the state message has version {str(version)[:20]}; this amqp_spark knows version {VERSION}: use the one "
            "that wrote it, or a newer one"
        )
    if found != kind:
        raise RecordUnreadable(f"the state message is that of a {str(found)[:20]}, not of a {kind}")
    return value


def _list(value: object, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise RecordUnreadable(f"the state message has no readable {name!r}")
    return value


def _make(kind: type[T], value: object) -> T:
    """Make a dataclass from a JSON object with exactly its fields, each of its type."""
    types = {each.name: str(each.type) for each in fields(kind)}  # type: ignore[arg-type]  # T is always a dataclass here
    if not isinstance(value, dict) or set(value) != set(types):
        raise RecordUnreadable(
            f"the state message holds something else than {kind.__name__} with {', '.join(sorted(types))}"
        )
    for name, each in value.items():
        if types[name] in {"int", "str"} and type(each).__name__ != types[name]:
            raise RecordUnreadable(f"the state message has a {type(each).__name__} as {kind.__name__}.{name}")
    return kind(**value)
