"""Roll back branches left by earlier runs of a batch when a new run begins, not only when a run ends.

A killed driver never calls ``abort``, and tasks may prepare branches after an ``abort``. Spark tells a stream writer
that a run begins only through its tasks. Each process that runs tasks therefore looks once, before its first branch of
a run that may have had predecessors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqp_spark.options import SinkOptions
    from amqp_spark.state.xids import Run

_seen: dict[tuple[str, str], tuple[str, int, str]] = {}
"""Last work of this process by writer (url, id): query id, batch, token of the run."""


def sweep_once(options: SinkOptions, query_id: str, batch: int, run: Run) -> None:
    """Roll back branches of earlier runs of a batch, unless this process knows that there are hardly any.

    A batch that follows another one of the same query begins only after that one is finished. Only a process that has
    no history of the writer, or sees a batch again, has to look.

    Args:
        options: of the sink, with ``transactionalId``.
        query id, batch, run: of the task that begins.

    Raises:
        TooManyPrepared: see :meth:`CommitCoordinator.sweep_before`.
    """
    from amqp_spark.sink.commit_coordinator import CommitCoordinator  # noqa: PLC0415 - most tasks need it not

    assert options.transactional_id is not None
    key = options.url, options.transactional_id
    if not _follows(_seen.get(key), query_id, batch, run):
        CommitCoordinator(options).sweep_before(query_id, batch, run)
    _seen[key] = query_id, batch, run.token


def forget_all() -> None:
    """Forget all batches that this process has seen; for tests."""
    _seen.clear()


def _follows(seen: tuple[str, int, str] | None, query_id: str, batch: int, run: Run) -> bool:
    if seen is None or seen[0] != query_id:
        return False
    return batch > seen[1] or (batch, run.token) == seen[1:]
