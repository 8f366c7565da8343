"""The listener that keeps the numbers of streaming queries."""

from __future__ import annotations

import logging
import selectors
import threading
import time
from collections import deque
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

from pyspark.sql.streaming.listener import StreamingQueryListener

from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import MissingExtra, OptionError
from amqp_spark.monitoring import history, prometheus
from amqp_spark.monitoring.readings import label_of, read_progress
from amqp_spark.monitoring.scrape_port import ScrapePort
from amqp_spark.monitoring.series import QuerySeries
from amqp_spark.options import kinds
from amqp_spark.reports import Inbox, ReportsUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd
    from prometheus_client import CollectorRegistry
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

_log = logging.getLogger(__name__)
_Event = TypeVar("_Event")

MOST_QUERIES: Final = 200
"""Queries that are kept: a further one replaces the one that ended first. Queries that run are kept, however many."""
MOST_UNKNOWN: Final = 256
"""Reports that are kept until their query is known; most are of queries of other drivers."""


def _harmless(method: Callable[[Metrics, _Event], None]) -> Callable[[Metrics, _Event], None]:
    """Let no error out: Spark would log it for each event, or end the listener, for what is no fault of the query."""

    @wraps(method)
    def handled(self: Metrics, event: _Event) -> None:
        try:
            method(self, event)
        except Exception as error:  # noqa: BLE001
            self._failed(method.__name__, error)

    return cast("Callable[[Metrics, _Event], None]", handled)


class Metrics(StreamingQueryListener):
    """Keeps what streaming queries do: rates, backlog, ages, bytes, losses, transactions (docs/monitoring.md).

    Example::

        from amqp_spark.monitoring import Metrics

        metrics = Metrics(prometheus_port=9464)
        spark.streams.addListener(metrics)  # before the queries start
        ...
        metrics.history()

    Works with classic Spark and with Spark Connect. It watches all queries of the session; those of other sources and
    sinks have rates and durations only. Any thread may use it. None of its methods that Spark calls raises an error.

    Args:
        prometheus_port: serve the metrics at ``http://address:port/metrics``; 0: a port that is free. If the port is in
            use, a warning is logged and nothing is served.
        prometheus_address: address to listen on; ``0.0.0.0`` is reached from other machines. There is no password.
        registry: a ``prometheus_client.CollectorRegistry`` that gets the metrics, served by you or by the port; without
            it, the port serves one of its own.
        history_batches: batches of each query that :meth:`history` keeps.

    Raises:
        MissingExtra: a port or registry is given, and ``prometheus_client`` is not installed.
        OptionError: a port, an address or a number that is not allowed, or a registry that has the metrics of another
            ``Metrics``.
    """

    def __init__(
        self,
        prometheus_port: int | None = None,
        *,
        prometheus_address: str = "127.0.0.1",
        registry: CollectorRegistry | None = None,
        history_batches: int = 10_000,
    ) -> None:
        _check("prometheus_port", prometheus_port, 0, 65_535, "None, or a port number from 0 to 65535")
        _check("history_batches", history_batches, 1, 1 << 31, "a whole number from 1 on")
        self.port: int | None = None
        """The port on which metrics are served; None: they are not."""
        self._most_batches = history_batches
        self._lock = threading.RLock()
        self._queries: dict[str, QuerySeries] = {}
        """By label."""
        self._unknown: deque[dict[str, Any]] = deque(maxlen=MOST_UNKNOWN)
        self._has_failed: set[str] = set()
        self._server: ScrapePort | None = None
        self._registry = registry
        self._collector = prometheus.Collector(self._queries.values, self._lock)
        if prometheus_port is not None or registry is not None:
            self._export(prometheus_port, _host(prometheus_address))
        self._inbox = self._opened()
        if self._inbox is not None:
            selector = selectors.DefaultSelector()
            selector.register(self._inbox, selectors.EVENT_READ)  # here, since it may be closed when the thread begins
            arguments = self._inbox, selector
            threading.Thread(target=self._watch, args=arguments, name="amqp-metrics", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving and receiving; remove the listener from the session first. The history stays."""
        server, self._server, self.port = self._server, None, None
        if server is not None:
            server.close()
        if self._registry is not None:
            registry, self._registry = self._registry, None
            registry.unregister(self._collector)
        with self._lock:
            if self._inbox is not None:
                self._inbox.close()

    def history(self, *, by_queue: bool = False) -> pd.DataFrame:
        """Return the batches of all queries, oldest first; ``docs/monitoring.md`` lists the columns and their units.

        Args:
            by_queue: a row for each batch and queue, with the numbers of the reader, in place of one for each batch.
        """
        with self._lock:
            self._receive()
            batches = sorted(
                (batch for series in self._queries.values() for batch in series.batches),
                key=lambda batch: batch.reading.time,
            )
        return history.queue_frame(batches) if by_queue else history.frame(batches)

    # --- Spark calls these

    @_harmless
    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  Spark's names
        """See StreamingQueryListener."""
        with self._lock:
            series = self._series(event.id, event.name)
            series.begin(str(event.id), str(event.runId))
            series.seen = time.time()

    @_harmless
    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """See StreamingQueryListener."""
        reading = read_progress(event.progress)
        with self._lock:
            series = self._series(event.progress.id, event.progress.name)
            series.seen = time.time()
            self._receive()  # Spark sends this event after the sink has reported the batch
            series.add(reading)

    @_harmless
    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """See StreamingQueryListener."""
        with self._lock:
            self._receive()
            for series in self._queries.values():
                if series.is_of(str(event.id), str(event.runId)):
                    series.idle, series.seen = True, time.time()

    @_harmless
    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """See StreamingQueryListener."""
        with self._lock:
            self._receive()
            for series in self._queries.values():
                if series.query_id == str(event.id):
                    series.totals.failures += event.exception is not None
                if series.is_of(str(event.id), str(event.runId)):
                    series.active, series.ended = False, time.monotonic()

    # --- inside

    def _failed(self, where: str, error: Exception) -> None:
        level = logging.DEBUG if where in self._has_failed else logging.WARNING
        self._has_failed.add(where)
        _log.log(level, "metrics: an event is passed over, %s failed: %r", where, error)

    def _series(self, query_id: object, name: str | None) -> QuerySeries:
        label = label_of(query_id, name)
        if label not in self._queries:
            ended = [series for series in self._queries.values() if not series.active]
            if len(self._queries) >= MOST_QUERIES and ended:
                del self._queries[min(ended, key=lambda each: each.ended).label]
            self._queries[label] = QuerySeries(label, str(query_id), self._most_batches)
        return self._queries[label]

    def _receive(self) -> None:
        """Take the reports of sinks that are here. Under the lock."""
        if self._inbox is None or self._inbox.closed:
            return
        by_id = {series.query_id: series for series in self._queries.values()}
        reports = [*self._unknown, *self._inbox.take()]
        self._unknown.clear()
        for report in reports:
            if report.get("kind") != "sink":
                continue
            series = by_id.get(str(report.get("query")))
            if series is None:
                self._unknown.append(report)
            else:
                series.report(report)

    def _opened(self) -> Inbox | None:
        try:
            return Inbox()
        except ReportsUnavailable as error:
            _log.warning("metrics: numbers of the sink cannot be received: %s", error)
            return None

    def _watch(self, inbox: Inbox, selector: selectors.BaseSelector) -> None:
        """Empty the socket while no event comes: it holds a few reports only."""
        with selector:
            while True:
                ready = selector.select(1.0)
                with self._lock:
                    if inbox.closed:
                        return
                    if ready:
                        self._receive()

    def _export(self, port: int | None, address: str) -> None:
        try:
            import prometheus_client  # noqa: PLC0415 - the extra metrics
        except ImportError as error:
            raise MissingExtra.of("Prometheus metrics", "prometheus_client", "metrics") from error
        registry = self._registry
        if registry is None:
            registry = prometheus_client.CollectorRegistry()
        try:
            registry.register(self._collector)
        except ValueError as error:
            reason = f": it has metrics of that name ({prometheus.PREFIX}...), of another Metrics probably"
            allowed = "another registry, or this one after close() of the first Metrics"
            problem = SparkCondition.OPTION_INVALID(
                option="registry", value=repr(registry), reason=reason, allowed=allowed
            )
            raise OptionError([problem]) from error
        if port is None:
            return
        try:
            self._server = ScrapePort(port, address, registry)
        except OSError as error:
            _log.warning(
                "metrics: nothing is served on %s port %d: %s. The query goes on; give another prometheus_port "
                "(--metrics-port)",
                address, port, error.strerror or error,
            )  # fmt: skip
        else:
            self.port = self._server.server_port
            _log.info("metrics: served at http://%s:%d/metrics", address, self.port)


def _host(address: str) -> str:
    kind = kinds.host()
    try:
        return kind.parse(address)
    except ValueError:
        name, allowed = "prometheus_address", kind.allowed
        problem = SparkCondition.OPTION_INVALID(option=name, value=repr(address), reason="", allowed=allowed)
        raise OptionError([problem]) from None


def _check(name: str, value: object, least: int, most: int, allowed: str) -> None:
    if value is None and name == "prometheus_port":
        return
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        problem = SparkCondition.OPTION_INVALID(option=name, value=repr(value), reason="", allowed=allowed)
        raise OptionError([problem])
