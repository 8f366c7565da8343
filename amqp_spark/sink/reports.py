"""Reports about batches of the sink, to the metrics of the query (:mod:`amqp_spark.monitoring`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from amqp_spark import reports

if TYPE_CHECKING:
    from amqp_spark.sink.statistics import Statistics

KIND: Final = "sink"


class Fates(NamedTuple):
    """Numbers of transactions of a batch; each task with rows has one."""

    committed: int = 0
    rolled_back: int = 0


def report_batch(
    query_id: str | None,
    batch_id: int | None,
    statistics: Statistics,
    fates: Fates,
    *,
    failed: bool = False,
) -> None:
    """Report a batch that was published, or has failed; batch writes are no query and are not reported.

    Args:
        query_id: of the streaming query; ``None``: not known.
        batch_id: of its batch.
        statistics: sum over the tasks that have reported to the driver.
        fates: of its transactions, with exactly-once.
        failed: whether Spark has given the batch up.
    """
    if query_id is None:
        return
    reports.send(
        {
            "kind": KIND,
            "query": query_id,
            "batch": batch_id,
            "messages": statistics.messages,
            "bytes": statistics.nbytes,
            "retries": statistics.retries,
            "resent": statistics.resent,
            "discarded": statistics.discarded,
            "committed": fates.committed,
            "rolledBack": fates.rolled_back,
            "failed": failed,
        }
    )
