"""Errors of commits; their texts are in :mod:`amqp_spark.error_conditions`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import StateError
from amqp_spark.sink.prepared_transactions import BATCH_WRITES, PreparedBranch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqp_spark.state.names import Names
    from amqp_spark.state.records import DecidedBranch, WriterState


MOST_TASKS: Final = 500
"""Maximum tasks of a batch at a broker that lists all prepared branches in one frame: two runs and more must fit."""


class CommitErrors:
    """The errors of one writer; ``names`` are those of its queues."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._writer = names.identity
        self._forget = names.tool("--forget")

    def shared(self, state: WriterState, query_id: str) -> StateError:
        """Error: a query id returns after another one."""
        first, second, batch = named(query_id), named(state.query_id), state.past[query_id]
        return StateError(
            SparkCondition.TRANSACTIONAL_ID_SHARED(
                writer=self._writer, first=first, batch=batch, second=second, tool=self._forget
            )
        )

    def gone_back(self, state: WriterState, batch: int) -> StateError:
        """Error: the batch is older than the latest published one."""
        writer, latest = self._writer, state.batch
        if state.query_id == BATCH_WRITES:
            return StateError(SparkCondition.BATCH_ID_NOT_GREATER(batch=batch, writer=writer, latest=latest))
        query = named(state.query_id)
        return StateError(SparkCondition.CHECKPOINT_ROLLED_BACK(batch=batch, query=query, writer=writer, latest=latest))

    def unknown(self, state: WriterState, lost: Sequence[DecidedBranch]) -> StateError:
        """Error: the proofs of these branches were deleted with the marker queue."""
        return StateError(
            SparkCondition.COMMIT_UNKNOWN(
                queue=self._names.markers,
                batch=state.batch,
                lost=len(lost),
                total=len(state.branches),
                xid=lost[0].xid,
                partition=lost[0].partition,
                rows=f"{lost[0].rows:,}",
                tool=self._forget,
            )
        )

    def differs(self, batch: int, before: DecidedBranch | None, now: PreparedBranch | None) -> StateError:
        """Error: a repeated batch has different rows."""
        partition = now.partition if now is not None else before.partition if before is not None else 0
        others = " others" if before and now and before.rows == now.rows else ""
        return StateError(
            SparkCondition.BATCH_DIFFERS(
                batch=batch,
                writer=self._writer,
                partition=partition,
                before=f"{before.rows if before else 0:,}",
                now=f"{now.rows if now else 0:,}{others}",
            )
        )

    def twice(self, batch: int, marker: PreparedBranch, other: str) -> StateError:
        """Error: two attempts at one partition are committed; ``other`` is the decided one."""
        return StateError(
            SparkCondition.COMMITTED_TWICE(
                partition=marker.partition,
                batch=batch,
                writer=self._writer,
                xid=marker.xid,
                other=other,
                rows=f"{marker.rows:,}",
                tool=self._forget,
            )
        )


def named(query_id: str) -> str:
    """Describe a query id within a sentence."""
    return "a batch write" if query_id == BATCH_WRITES else f"query {query_id}"


def too_many_tasks(batch: int, count: int | None = None) -> StateError:
    """Error: the batch has more tasks than this broker can list; ``count``: their number, if it is known."""
    many = f"more than {MOST_TASKS}" if count is None else f"{count:,}"
    return StateError(SparkCondition.TOO_MANY_TASKS(batch=batch, count=many, most=MOST_TASKS))
