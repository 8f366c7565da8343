"""Errors of commits; each text says what is published and how to proceed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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
        return StateError(
            f"two queries share transactionalId {self._writer!r}: {named(query_id)} has published with it until "
            f"batch {state.past[query_id]}, then {named(state.query_id)} did, and now the first comes back. Give "
            f"each its own transactionalId. If the other one is gone for good: stop the query, and let "
            f"{self._forget} remove what is known of this transactionalId; batches that it has published and "
            "Spark has not logged then come twice"
        )

    def published_elsewhere(self, query_id: str) -> StateError:
        """Error: another writer has begun this query id."""
        return StateError(
            f"{named(query_id)} has published under another transactionalId before, and would now under "
            f"{self._writer!r}: its latest batch may come twice. Set option transactionalId back to what it was; a "
            "new checkpoint makes a new query, which may have any. Or the query has two sinks with exactly-once on "
            "this broker, which is not possible: write both with one of them (exchangeFromColumn), or let each "
            "have a query of its own"
        )

    def gone_back(self, state: WriterState, batch: int) -> StateError:
        """Error: the batch is older than the latest published one."""
        if state.query_id == BATCH_WRITES:
            return StateError(
                f"option batchId is {batch}, and transactionalId {self._writer!r} has published {state.batch} already: "
                f"allowed are {state.batch} with the same rows (a repetition: it publishes nothing), and greater ones"
            )
        return StateError(
            f"Spark runs batch {batch} of {named(state.query_id)}, and transactionalId {self._writer!r} has published "
            f"batch {state.batch} of it already: the checkpoint was rolled back, or a copy of it is in use. Restore "
            f"the checkpoint of batch {state.batch}, or start with a new one, which publishes all that it reads"
        )

    def state_deleted(self) -> StateError:
        """Error: the state queue existed and is missing now."""
        return StateError(
            f"the state queue {self._names.state!r} of transactionalId {self._writer!r} was deleted: what of a "
            "batch that Spark runs again was published cannot be known. See docs/operations.md; "
            f"{self._forget} lets the next batch begin anew, and what Spark runs again then comes twice"
        )

    def unknown(self, state: WriterState, lost: Sequence[DecidedBranch]) -> StateError:
        """Error: the proofs of these branches were deleted with the marker queue."""
        return StateError(
            f"the queue {self._names.markers!r} was deleted while batch {state.batch} of {named(state.query_id)} "
            f"was being committed: whether {len(lost)} of its {len(state.branches)} transactions are committed cannot "
            f"be known, the first is {lost[0].xid} of partition {lost[0].partition} with {lost[0].rows:,} row(s). Look "
            f"whether these rows are there. {self._forget} then removes the decision: the batch is published again, "
            "whole, when Spark runs it again"
        )

    def differs(self, batch: int, before: DecidedBranch | None, now: PreparedBranch | None) -> StateError:
        """Error: a repeated batch has different rows."""
        partition = now.partition if now is not None else before.partition if before is not None else 0
        return StateError(
            f"batch {batch} was published with transactionalId {self._writer!r} before, and is not the same now: "
            f"partition {partition} had {before.rows if before else 0:,} row(s) and has {now.rows if now else 0:,}"
            f"{' others' if before and now and before.rows == now.rows else ''}. What was published stays as it was; "
            "nothing of the new attempt is. Exactly-once needs a source and a query that give the same rows in the "
            "same order and partitions when a batch is run again; a batch write with other rows needs another batchId"
        )

    def twice(self, batch: int, marker: PreparedBranch, other: str) -> StateError:
        """Error: two attempts at one partition are committed."""
        return StateError(
            f"partition {marker.partition} of batch {batch} with transactionalId {self._writer!r} was committed by "
            f"{marker.xid}, which was not decided for ({other} was): its {marker.rows:,} row(s) may be there twice. "
            "The broker commits prepared transactions when it is restarted (qpidd with its linear store), or another "
            f"client has committed one. Look for duplicates; {self._forget} then removes the state"
        )


def named(query_id: str) -> str:
    """Describe a query id within a sentence."""
    return "a batch write" if query_id == BATCH_WRITES else f"the query {query_id}"


def too_many_tasks(batch: int, count: int | None = None) -> StateError:
    """Error: the batch has more tasks than this broker can list; ``count``: their number, if it is known."""
    many = f"more than {MOST_TASKS}" if count is None else f"{count:,}"
    return StateError(
        f"batch {batch} has {many} tasks, and this broker (qpidd) takes {MOST_TASKS} with exactly-once: each of them "
        "prepares a transaction, and one that cannot name all of them in one frame ends every connection that asks "
        f"for them. Nothing of the batch was published: write frame.coalesce({MOST_TASKS}), or less"
    )
