"""Result of a task that prepared a branch: its report to the driver, and the marker that proves the commit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from amqp_spark.errors import StateError
from amqp_spark.state.records import STORED_QUERY_ID, DecidedBranch, stored
from amqp_spark.state.xids import parse_branch, parse_xid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqp_spark.state.xids import Run

VERSION: Final = 1
BATCH_WRITES: Final = "batch write"
"""Query id of batch writes (outside of streams)."""
_TYPES: Final = {STORED_QUERY_ID: str, "batch": int, "partition": int, "xid": str, "rows": int, "digest": str}


@dataclass(frozen=True, slots=True)
class PreparedBranch:
    """The transaction branch of one task.

    Attributes:
        query_id: Spark's query id, or :data:`BATCH_WRITES`.
        batch, partition: the task.
        xid: as text; empty if there were no rows, and hence no branch.
        rows: number of rows of the task, including discarded ones.
        digest: of their encoded frames, in order.
    """

    query_id: str
    batch: int
    partition: int
    xid: str = ""
    rows: int = 0
    digest: str = ""

    @property
    def decided(self) -> DecidedBranch:
        """The entry of this branch in a decision."""
        return DecidedBranch(self.xid, self.partition, self.rows, self.digest)

    def dump(self) -> bytes:
        """The body of its marker."""
        return json.dumps({"version": VERSION} | stored(self), separators=(",", ":")).encode()

    @classmethod
    def load(cls, body: bytes) -> Self:
        """Parse the output of :meth:`dump`.

        Raises:
            StateError: the body has another format.
        """
        try:
            value = json.loads(body)
        except ValueError:
            value = None
        if not isinstance(value, dict) or value.pop("version", None) != VERSION:
            raise StateError(f"a marker ({len(body)} bytes) was not written by amqp_spark, or by a newer version of it")
        if {name: type(each) for name, each in value.items()} != _TYPES:
            raise StateError(f"a marker does not have exactly {', '.join(_TYPES)}, each of its type")
        return cls(value.pop(STORED_QUERY_ID), **value)


@dataclass(frozen=True, slots=True)
class FailedBatch:
    """A failed run of a batch.

    Attributes:
        batch: its id.
        tasks: those of its tasks that have reported their branches to the driver.
        query_id, run: of the batch; ``None`` if neither the driver nor a task knows them.
    """

    batch: int
    tasks: tuple[PreparedBranch, ...] = ()
    query_id: str | None = None
    run: Run | None = None

    @classmethod
    def of(
        cls, tasks: Sequence[PreparedBranch], batch: int, *, query_id: str | None = None, run: Run | None = None
    ) -> Self:
        """Make one; take a missing query id or run from the tasks."""
        if tasks and query_id is None:
            query_id = tasks[0].query_id
        runs = [branch.run for task in tasks if task.xid and (branch := parse_branch(parse_xid(task.xid))) is not None]
        if run is None and runs:
            run = max(runs, key=lambda each: each.begun)
        return cls(batch, tuple(tasks), query_id, run)

    @property
    def xids(self) -> tuple[str, ...]:
        """Xids of the branches that its tasks have reported."""
        return tuple(task.xid for task in self.tasks if task.xid)


def same_rows(one: PreparedBranch | DecidedBranch, other: PreparedBranch | DecidedBranch) -> bool:
    """Whether two attempts at a partition have written the same rows."""
    return (one.rows, one.digest) == (other.rows, other.digest)
