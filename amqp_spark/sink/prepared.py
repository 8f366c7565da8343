"""What a task has prepared: the answer to the driver, and the marker in the transaction that proves its commit."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Self

from amqp_spark.errors import StateError
from amqp_spark.state.records import DecidedBranch
from amqp_spark.state.xids import parse_branch, parse_xid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqp_spark.state.xids import Run

VERSION: Final = 1
BATCH_WRITES: Final = "batch write"
"""The lineage of what is written outside of streams."""
_TYPES: Final = {"lineage": str, "batch": int, "partition": int, "xid": str, "rows": int, "digest": str}


@dataclass(frozen=True, slots=True)
class PreparedBranch:
    """The transaction branch of one task.

    Attributes:
        lineage: Spark's query id, or :data:`BATCH_WRITES`.
        batch, partition: the task.
        xid: as text; empty when there were no rows, and hence no branch.
        rows: how many rows the task had, discarded ones included.
        digest: of their encoded frames, in order.
    """

    lineage: str
    batch: int
    partition: int
    xid: str = ""
    rows: int = 0
    digest: str = ""

    @property
    def decided(self) -> DecidedBranch:
        """How a decision names it."""
        return DecidedBranch(self.xid, self.partition, self.rows, self.digest)

    def dump(self) -> bytes:
        """The body of its marker."""
        return json.dumps({"version": VERSION, **asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def load(cls, body: bytes) -> Self:
        """Read :meth:`dump`.

        Raises:
            StateError: it is something else.
        """
        try:
            value = json.loads(body)
        except ValueError:
            value = None
        if not isinstance(value, dict) or value.pop("version", None) != VERSION:
            raise StateError(f"a marker ({len(body)} bytes) was not written by amqp_spark, or by a newer version of it")
        if {name: type(each) for name, each in value.items()} != _TYPES:
            raise StateError(f"a marker does not have exactly {', '.join(_TYPES)}, each of its type")
        return cls(**value)


@dataclass(frozen=True, slots=True)
class FailedBatch:
    """A run of a batch that has failed.

    Attributes:
        batch: its id.
        tasks: of it, those that have told the driver what they have prepared.
        lineage, run: of the batch; ``None`` where neither the driver nor a task knows them.
    """

    batch: int
    tasks: tuple[PreparedBranch, ...] = ()
    lineage: str | None = None
    run: Run | None = None

    @classmethod
    def of(
        cls, tasks: Sequence[PreparedBranch], batch: int, *, lineage: str | None = None, run: Run | None = None
    ) -> Self:
        """What is not given is taken from the tasks."""
        if tasks and lineage is None:
            lineage = tasks[0].lineage
        runs = [branch.run for task in tasks if task.xid and (branch := parse_branch(parse_xid(task.xid))) is not None]
        if run is None and runs:
            run = max(runs, key=lambda each: each.begun)
        return cls(batch, tuple(tasks), lineage, run)

    @property
    def xids(self) -> tuple[str, ...]:
        """What its tasks have prepared, as far as they have told."""
        return tuple(task.xid for task in self.tasks if task.xid)


def same_rows(one: PreparedBranch | DecidedBranch, other: PreparedBranch | DecidedBranch) -> bool:
    """Whether two attempts at a partition have written the same."""
    return (one.rows, one.digest) == (other.rows, other.digest)
