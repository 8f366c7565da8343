"""What earlier runs of a batch have prepared is rolled back when a run begins, not only when one comes to its end.

A driver that is killed calls no ``abort``, and tasks may prepare after one. Spark tells no writer of a stream that a
run begins, except its tasks: each process that runs some looks once, before its first branch of a run that may have
had predecessors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqp_spark.options import SinkOptions
    from amqp_spark.state.xids import Run

_seen: dict[tuple[str, str], tuple[str, int, str]] = {}
"""Of writers (url, id) what this process has worked on last: lineage, batch, token of the run."""


def sweep_once(options: SinkOptions, lineage: str, batch: int, run: Run) -> None:
    """Look for branches of earlier runs of a batch, unless this process knows that there can hardly be any.

    A batch that follows one of the same lineage is begun once that is done, so that only a process that knows nothing,
    or sees a batch again, has to look.

    Raises:
        TooManyPrepared: see :meth:`CommitCoordinator.sweep_before`.
    """
    from amqp_spark.sink.commit_coordinator import CommitCoordinator  # noqa: PLC0415 - most tasks need it not

    assert options.transactional_id is not None
    key = options.url, options.transactional_id
    if not _follows(_seen.get(key), lineage, batch, run):
        CommitCoordinator(options).sweep_before(lineage, batch, run)
    _seen[key] = lineage, batch, run.token


def forget_all() -> None:
    """As if this process had seen no batch yet; for tests."""
    _seen.clear()


def _follows(seen: tuple[str, int, str] | None, lineage: str, batch: int, run: Run) -> bool:
    if seen is None or seen[0] != lineage:
        return False
    return batch > seen[1] or (batch, run.token) == seen[1:]
