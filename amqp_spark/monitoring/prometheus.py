"""The metrics of queries for Prometheus. ``prometheus_client`` (extra ``metrics``) is imported when it is needed.

Values are taken when Prometheus scrapes. A metric that is not known, such as one of a sink that has not reported, is
left out rather than 0. So are all gauges of a query that has ended, but ``query_active``: they would stay for ever at
what its last batch had. While a query is idle Spark sends no numbers; that it is idle tells some of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from amqp_spark.monitoring.series import drain_seconds, most

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from prometheus_client.metrics_core import Metric as Family

    from amqp_spark.monitoring.readings import Number
    from amqp_spark.monitoring.series import QuerySeries

GAUGE, COUNTER = "gauge", "counter"
PREFIX: Final = "amqp_spark_"


class Metric(NamedTuple):
    """A metric: its kind, its labels besides ``query``, its meaning, and its value by these labels."""

    kind: str
    labels: tuple[str, ...]
    meaning: str
    values: Callable[[QuerySeries], Mapping[tuple[str, ...], Number | None]]


def _one(
    value: Callable[[QuerySeries], Number | None],
) -> Callable[[QuerySeries], Mapping[tuple[str, ...], Number | None]]:
    return lambda series: {(): value(series)}


def _last(value: Callable[[Any], Number | None]) -> Callable[[QuerySeries], Mapping[tuple[str, ...], Number | None]]:
    return lambda series: {(): value(series.current)} if series.current else {}


def _sink(key: str) -> Callable[[QuerySeries], Mapping[tuple[str, ...], Number | None]]:
    return lambda series: {(): series.totals.sink.get(key)}


def _queue(name: str) -> Callable[[QuerySeries], Mapping[tuple[str, ...], Number | None]]:
    return lambda series: {
        (queue.queue,): getattr(queue, name) for queue in (series.current.reading.queues if series.current else ())
    }


def _queue_unless_idle(name: str) -> Callable[[QuerySeries], Mapping[tuple[str, ...], Number | None]]:
    """0 while the query is idle: all that the reader had is in batches, and these are accepted."""
    value = _queue(name)
    return lambda series: {
        queue: 0 if series.idle and number is not None else number for queue, number in value(series).items()
    }


def _growth(series: QuerySeries) -> Mapping[tuple[str, ...], Number | None]:
    if series.current is None:
        return {}
    idle = series.idle and series.current.backlog is not None
    return {(): 0 if idle else series.current.backlog_per_s}


def _drain(series: QuerySeries) -> Mapping[tuple[str, ...], Number | None]:
    """Not known while the query is idle, unless there is no backlog: the trend is of the time before."""
    if series.current is None:
        return {}
    return {(): drain_seconds(series.current.backlog, None) if series.idle else series.current.drain_s}


def _counted(name: str) -> Callable[[QuerySeries], Mapping[tuple[str, ...], Number | None]]:
    return lambda series: {(queue,): counts.get(name) for queue, counts in series.totals.queues.items()}


_Q: Final = ("queue",)

METRICS: Final[dict[str, Metric]] = {
    "query_active": Metric(GAUGE, (), "1 while the query runs, 0 after its end", _one(lambda s: int(s.active))),
    "query_failures_total": Metric(COUNTER, (), "ends of the query with an error", _one(lambda s: s.totals.failures)),
    "last_progress_timestamp_seconds": Metric(
        GAUGE,
        (),
        "when Spark last reported a batch, or that there is none to run",
        _one(lambda s: s.seen or None if s.active else None),
    ),
    "batches_total": Metric(COUNTER, (), "batches", _one(lambda s: s.totals.batches)),
    "rows_in_total": Metric(COUNTER, (), "rows read", _one(lambda s: s.totals.rows_in)),
    "rows_out_total": Metric(
        COUNTER, (), "rows written, where the sink counts them", _one(lambda s: s.totals.rows_out)
    ),
    "batch_duration_seconds": Metric(GAUGE, (), "duration of the last batch", _last(lambda b: b.reading.batch_s)),
    "batch_phase_seconds_total": Metric(
        COUNTER,
        ("phase",),
        "time in each phase of the batches, by Spark's names (`durationMs`); `triggerExecution` is all of it",
        lambda s: {(phase,): seconds for phase, seconds in s.totals.phases.items()},
    ),
    "backlog_drain_seconds": Metric(
        GAUGE, (), "until the backlog is gone, by its trend; +Inf: it does not shrink", _drain
    ),
    "backlog_growth_messages_per_second": Metric(
        GAUGE,
        (),
        "trend of the backlog over the last 5 minutes; negative: it shrinks; 0 while the query is idle",
        _growth,
    ),
    "buffer_limit_bytes": Metric(GAUGE, (), "option bufferBytes", _last(lambda b: most(b.queues, "buffer_bytes"))),
    "source_backlog_messages": Metric(GAUGE, _Q, "messages in no batch yet", _queue("backlog")),
    "source_waiting_messages": Metric(
        GAUGE,
        _Q,
        "messages of the backlog that the reader holds; 0 while the query is idle",
        _queue_unless_idle("waiting"),
    ),
    "source_oldest_unaccepted_seconds": Metric(
        GAUGE,
        _Q,
        "since the reader received the oldest message that is not accepted; with exactly-once, that is in no batch; 0 "
        "while the query is idle",
        _queue_unless_idle("oldest_s"),
    ),
    "source_held_bytes": Metric(GAUGE, _Q, "bytes that the reader holds", _queue("held_bytes")),
    "source_credit_messages": Metric(
        GAUGE, _Q, "messages that the broker may still send; left out where nothing limits it", _queue("credit")
    ),
    "source_received_messages_total": Metric(COUNTER, _Q, "messages received from the broker", _counted("received")),
    "source_received_bytes_total": Metric(
        COUNTER, _Q, "bytes received from the broker, with headers", _counted("received_bytes")
    ),
    "source_redelivered_messages_total": Metric(
        COUNTER,
        _Q,
        "messages that had been delivered before; an estimate: each block that arrives counts as its first message",
        _counted("redelivered"),
    ),
    "source_repeated_messages_total": Metric(
        COUNTER,
        _Q,
        "messages that come again although a batch had them, since a session was lost: possible duplicates "
        "(at-least-once)",
        _counted("repeated"),
    ),
    "source_rejected_messages_total": Metric(
        COUNTER,
        _Q,
        "messages that were rejected, since they did not fit the schema (`mode=REJECT`)",
        _counted("rejected"),
    ),
    "source_lost_sessions_total": Metric(
        COUNTER, _Q, "sessions that were lost, each followed by a reconnect", _counted("lost_sessions")
    ),
    "source_owned_batches": Metric(
        GAUGE, _Q, "batches of exactly-once that are accepted and not finished in Spark", _queue("owned_batches")
    ),
    "source_transactions_committed_total": Metric(
        COUNTER, _Q, "transactions of exactly-once that the broker has committed", _counted("committed")
    ),
    "source_transactions_rolled_back_total": Metric(
        COUNTER, _Q, "transactions of exactly-once that were not committed", _counted("rolled_back")
    ),
    "source_spool_bytes": Metric(GAUGE, _Q, "bytes of messages in the spool of exactly-once", _queue("spool_bytes")),
    "sink_messages_total": Metric(COUNTER, (), "messages published", _sink("messages")),
    "sink_bytes_total": Metric(COUNTER, (), "bytes published, with headers", _sink("bytes")),
    "sink_retries_total": Metric(COUNTER, (), "reconnects of tasks", _sink("retries")),
    "sink_resent_messages_total": Metric(
        COUNTER, (), "messages sent again after a lost connection: possible duplicates (at-least-once)", _sink("resent")
    ),
    "sink_discarded_messages_total": Metric(
        COUNTER, (), "messages discarded as unroutable (`onUnroutable=discard`)", _sink("discarded")
    ),
    "sink_failed_batches_total": Metric(
        COUNTER,
        (),
        "batches that Spark has given up",
        _one(lambda s: s.totals.failed_batches if s.totals.sink else None),
    ),
    "sink_transactions_committed_total": Metric(
        COUNTER, (), "transactions of exactly-once that were committed: one for each task with rows", _sink("committed")
    ),
    "sink_transactions_rolled_back_total": Metric(
        COUNTER, (), "transactions of exactly-once that were rolled back, as reported by tasks", _sink("rolledBack")
    ),
}
"""By name, without :data:`PREFIX`."""


class Collector:
    """What a registry of ``prometheus_client`` asks at each scrape; ``series`` returns the queries, one per label, and
    is called under ``lock``, as all are read."""

    def __init__(self, series: Callable[[], Iterable[QuerySeries]], lock: AbstractContextManager[object]) -> None:
        self._series = series
        self._lock = lock

    def describe(self) -> Iterator[Family]:
        """The metrics without values: a registry refuses a second collector with the same ones."""
        return (_family(name, metric) for name, metric in METRICS.items())

    def collect(self) -> list[Family]:
        """The metrics of all queries."""
        families = []
        with self._lock:
            for name, metric in METRICS.items():
                family = _family(name, metric)
                for series in self._series():
                    for labels, value in metric.values(series).items():
                        if value is not None:
                            family.add_metric([series.label, *labels], value)
                families.append(family)
        return families


def _family(name: str, metric: Metric) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 - the extra metrics

    kind = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
    return kind(PREFIX + name.removesuffix("_total"), metric.meaning, labels=["query", *metric.labels])
