"""Readings, series, history and export of metrics, from progress events made by hand."""

from __future__ import annotations

import json
import logging
import math
import socket
import sys
import tempfile
import urllib.request
import uuid
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

from amqp_spark import reports
from amqp_spark.errors import MissingExtra, OptionError
from amqp_spark.monitoring import Metrics, show
from amqp_spark.monitoring.series import Trend, slope
from amqp_spark.sink.reports import Fates, report_batch
from amqp_spark.sink.statistics import Statistics

if TYPE_CHECKING:
    from collections.abc import Iterator

ID, RUN, OTHER_RUN = (str(uuid.UUID(int=number)) for number in (1, 2, 3))


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No reports of other processes, and none to them."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    with Metrics(registry=CollectorRegistry()) as metrics:
        yield metrics


def queue(backlog: int | None = None, **counts: object) -> dict[str, object]:
    entry: dict[str, object] = {"epoch": 1, "position": 5, "version": 2, "metrics": counts}
    return entry if backlog is None else entry | {"backlog": backlog}


def progress(
    batch: int,
    *latest: object,
    rows: int = 10,
    run: str = RUN,
    written: int = -1,
    name: str | None = "copied",
    seconds: float | None = None,
) -> QueryProgressEvent:
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=10 * batch if seconds is None else seconds)
    sources = [
        {
            "description": "amqp", "startOffset": None, "endOffset": None, "latestOffset": each, "numInputRows": rows,
            "inputRowsPerSecond": 5.0, "processedRowsPerSecond": 5.0, "metrics": {},
        }
        for each in latest
    ]  # fmt: skip
    fields: dict[str, Any] = {
        "id": ID, "runId": run, "name": name, "timestamp": f"{at:%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z", "batchId": batch,
        "batchDuration": 2000, "durationMs": {"addBatch": 1500, "triggerExecution": 2000}, "eventTime": {},
        "stateOperators": [], "sources": sources, "numInputRows": rows, "inputRowsPerSecond": 5.0,
        "processedRowsPerSecond": 5.0, "observedMetrics": {},
        "sink": {"description": "sink", "numOutputRows": written, "metrics": {}},
    }  # fmt: skip
    return QueryProgressEvent(StreamingQueryProgress.fromJson(fields))


def started(name: str | None = "copied", run: str = RUN, query: str = ID) -> QueryStartedEvent:
    return QueryStartedEvent(uuid.UUID(query), uuid.UUID(run), name, "2026-01-01T00:00:00.000Z", set())


def terminated(exception: str | None = None, query: str = ID, run: str = RUN) -> QueryTerminatedEvent:
    return QueryTerminatedEvent(uuid.UUID(query), uuid.UUID(run), exception, None)


def exported(metrics: Metrics) -> dict[str, float]:
    registry = metrics._registry
    assert registry is not None
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def column(frame: pd.DataFrame, name: str) -> list[Any]:
    return [None if pd.isna(value) else value for value in frame[name]]


def test_counts_are_increments_in_the_history_and_totals_in_prometheus(metrics: Metrics) -> None:
    metrics.onQueryStarted(started())
    for batch, (run, received, rejected) in enumerate([(RUN, 10, 0), (RUN, 30, 1), (OTHER_RUN, 5, 2)]):
        latest = {"a": queue(received=received, rejected=rejected), "b": queue(received=1, rejected=0)}
        metrics.onQueryProgress(progress(batch, json.dumps(latest), run=run))

    assert column(metrics.history(), "received") == [11, 20, 6]  # another run has another reader, which counts from 0
    assert column(metrics.history(), "rejected") == [0, 1, 2]
    assert column(metrics.history(by_queue=True), "received") == [10, 1, 20, 0, 5, 1]
    samples = exported(metrics)
    assert samples['amqp_spark_source_received_messages_total{query="copied",queue="a"}'] == 35
    assert samples['amqp_spark_source_rejected_messages_total{query="copied",queue="a"}'] == 3
    assert samples['amqp_spark_rows_in_total{query="copied"}'] == 30
    assert samples['amqp_spark_batch_phase_seconds_total{phase="addBatch",query="copied"}'] == 4.5


def test_backlog_trend_and_time_to_drain(metrics: Metrics) -> None:
    for batch, backlog in enumerate([1000, 800, 600, None, 0]):
        metrics.onQueryProgress(progress(batch, {"a": queue(backlog)}))
    frame = metrics.history()
    assert column(frame, "backlog") == [1000, 800, 600, None, 0]
    assert column(frame, "backlog_per_s")[:3] == pytest.approx([None, -20, -20])
    assert column(frame, "drain_s")[1:] == [40, 30, None, 0]


def test_the_trend_is_that_of_minutes_where_batches_are_short(metrics: Metrics) -> None:
    """The reader asks for the backlog every ten seconds, and subtracts what it takes meanwhile."""
    for batch in range(1200):  # five per second; 1,100 messages per second come and 1,000 are taken
        seconds = batch / 5
        asked = seconds // 10 * 10
        backlog = round(10_000 + 100 * asked - 1000 * (seconds - asked))
        metrics.onQueryProgress(progress(batch, {"a": queue(backlog)}, seconds=seconds))
    growth = column(metrics.history(), "backlog_per_s")
    assert growth[-1] == pytest.approx(100, rel=0.1)
    assert min(growth[600:]) > 0
    assert exported(metrics)['amqp_spark_backlog_growth_messages_per_second{query="copied"}'] == growth[-1]


def test_a_clock_that_is_set_back_does_not_keep_a_trend() -> None:
    trend, begin = Trend(), datetime(2026, 1, 1, tzinfo=UTC)
    assert [trend.add(begin + timedelta(seconds=10 * at), 100 * at) for at in range(3)] == [None, 10, 10]
    assert trend.add(begin - timedelta(hours=1), 500) is None
    assert trend.add(begin - timedelta(hours=1, seconds=-10), 400) == -10


def test_the_backlog_of_a_part_of_the_queues_is_not_shown_as_that_of_all(metrics: Metrics) -> None:
    metrics.onQueryStarted(started())
    for batch, of_b in enumerate([50, None, None, 20]):
        metrics.onQueryProgress(progress(batch, {"a": queue(1000 - 100 * batch), "b": queue(of_b)}))
        samples = exported(metrics)
        assert samples['amqp_spark_source_backlog_messages{query="copied",queue="a"}'] == 1000 - 100 * batch
        assert ('amqp_spark_backlog_drain_seconds{query="copied"}' in samples) == (batch == 3)
    frame = metrics.history()
    assert column(frame, "backlog") == [1050, None, None, 720]
    assert column(frame, "backlog_per_s") == pytest.approx([None, None, None, -11])
    assert column(frame, "drain_s")[1:] == pytest.approx([None, None, 720 / 11])
    assert column(metrics.history(by_queue=True), "backlog")[:4] == [1000, 50, 900, None]


def test_queues_of_one_name_on_two_brokers(metrics: Metrics) -> None:
    for batch, backlogs in enumerate([(3, 4), (3, None)]):
        one, other = ({"a": queue(backlog, oldestSeconds=backlog, received=1)} for backlog in backlogs)
        metrics.onQueryProgress(progress(batch, one, other))
    frame = metrics.history(by_queue=True)
    assert column(frame, "backlog") == [7, None]
    assert column(frame, "received") == [2, 0]
    assert column(frame, "oldest_s") == [4, 3]


def test_a_growing_backlog_never_drains(metrics: Metrics) -> None:
    for batch, backlog in enumerate([100, 200]):
        metrics.onQueryProgress(progress(batch, {"a": queue(backlog)}))
    assert exported(metrics)['amqp_spark_backlog_drain_seconds{query="copied"}'] == math.inf
    assert slope([(1.0, 5.0), (1.0, 6.0)]) is None


def test_redelivered_share_and_possible_duplicates(metrics: Metrics) -> None:
    metrics.onQueryProgress(progress(0, {"a": queue(received=10, redelivered=5, repeated=3)}))
    report_batch(ID, 1, Statistics(messages=10, resent=4), Fates())
    metrics.onQueryProgress(progress(1, {"a": queue(received=10, redelivered=5, repeated=3)}))
    frame = metrics.history()
    assert column(frame, "redelivered_share") == [0.5, None]
    assert column(frame, "duplicates_possible") == [3, 4]
    assert column(frame, "published") == column(frame, "rows_out") == [None, 10]


def test_reports_of_the_sink_belong_to_their_batch_and_query(metrics: Metrics) -> None:
    """Spark may deliver the event of a batch after the sink has reported the next one."""
    metrics.onQueryStarted(started())
    for batch in (0, 1):
        report_batch(ID, batch, Statistics(messages=batch + 1, nbytes=7, started=1.0), Fates(committed=2))
    report_batch(str(uuid.uuid4()), 0, Statistics(messages=1000), Fates())
    report_batch(None, 0, Statistics(messages=1000), Fates())
    report_batch(ID, 2, Statistics(), Fates(rolled_back=3), failed=True)
    for batch in (0, 1):
        metrics.onQueryProgress(progress(batch, {"a": queue()}, written=5))
    metrics.onQueryTerminated(terminated("it broke"))

    frame = metrics.history()
    assert column(frame, "published") == [1, 2]
    assert column(frame, "rows_out") == [5, 5]  # Spark's own count goes first
    assert column(frame, "committed") == [2, 2]
    samples = exported(metrics)
    label = '{query="copied"}'
    assert samples[f"amqp_spark_sink_messages_total{label}"] == 3
    assert samples[f"amqp_spark_sink_transactions_rolled_back_total{label}"] == 3
    assert samples[f"amqp_spark_sink_failed_batches_total{label}"] == 1
    assert samples[f"amqp_spark_query_failures_total{label}"] == 1
    assert samples[f"amqp_spark_query_active{label}"] == 0


def test_a_query_without_a_name_has_its_id_and_other_sources_have_no_queues(metrics: Metrics) -> None:
    metrics.onQueryStarted(started(None))
    for batch, latest in enumerate([None, "null", "7", "{broken", {"topic": {"0": 5}}, [1]]):
        metrics.onQueryProgress(progress(batch, latest, name=None))
    assert set(metrics.history()["query"]) == {ID}
    assert len(metrics.history()) == 6
    assert metrics.history(by_queue=True).empty
    assert not [name for name in exported(metrics) if "source" in name]


@pytest.mark.parametrize("number", ["0.5", "1e400", "-1", "NaN", "true", '"7"', "1" + "0" * 400, str(1 << 62), "[]"])
def test_a_number_of_another_source_that_is_none(
    metrics: Metrics, caplog: pytest.LogCaptureFixture, number: str
) -> None:
    latest = f'{{"a": {{"backlog": {number}, "metrics": {{"received": {number}, "bufferBytes": {number}}}}}}}'
    for batch in range(2):
        metrics.onQueryProgress(progress(batch, latest))
    frame = metrics.history()
    for name in ("backlog", "received", "buffer_bytes"):
        assert column(frame, name) == [None, None]
    assert len(metrics.history(by_queue=True)) == 2
    assert not [name for name in exported(metrics) if "backlog" in name]
    assert caplog.messages == []


@pytest.mark.parametrize("latest", ["[" * 100_000, '{"a": {"backlog": 1' + "0" * 5000 + "}}"])
def test_what_another_source_has_that_cannot_be_read(metrics: Metrics, latest: str) -> None:
    metrics.onQueryProgress(progress(0, latest))
    assert len(metrics.history()) == 1
    assert metrics.history(by_queue=True).empty


def test_names_that_are_no_valid_unicode_are_escaped(metrics: Metrics, tmp_path: Path) -> None:
    query = "half \ud800"
    metrics.onQueryStarted(started(query))
    metrics.onQueryProgress(progress(0, '{"q\\udfff": {"backlog": 3}, "é": {"backlog": 4}}', name=query))
    samples = exported(metrics)
    assert samples[r'amqp_spark_batches_total{query="half \\ud800"}'] == 1
    assert samples[r'amqp_spark_source_backlog_messages{query="half \\ud800",queue="q\\udfff"}'] == 3
    assert samples[r'amqp_spark_source_backlog_messages{query="half \\ud800",queue="é"}'] == 4
    metrics.history(by_queue=True).to_csv(tmp_path / "history.csv")
    assert show(metrics.history())._repr_png_().startswith(b"\x89PNG")


def test_a_stream_of_rabbitmq_has_its_lag_as_backlog(metrics: Metrics) -> None:
    metrics.onQueryProgress(progress(0, {"log": {"lag": 12, "offset": 40, "rowsPerSecond": 1.5}}))
    assert column(metrics.history(), "backlog") == [12]


def test_an_idle_query_gives_a_sign_of_life(metrics: Metrics) -> None:
    metrics.onQueryStarted(started())
    seen = 'amqp_spark_last_progress_timestamp_seconds{query="copied"}'
    before = exported(metrics)[seen]
    metrics.onQueryIdle(idle())
    assert exported(metrics)[seen] > before


def idle() -> QueryIdleEvent:
    return QueryIdleEvent(uuid.UUID(ID), uuid.UUID(RUN), "2026-01-01T00:00:00.000Z")


def test_nothing_waits_and_nothing_grows_while_a_query_is_idle(metrics: Metrics) -> None:
    """Spark sends no numbers then: those of the last batch would stay."""
    metrics.onQueryStarted(started())
    for batch, backlog in enumerate([100, 200]):
        metrics.onQueryProgress(progress(batch, {"a": queue(backlog, oldestSeconds=590.0, waiting=7), "b": queue(0)}))
    of_a = '{query="copied",queue="a"}'
    of_query = '{query="copied"}'
    names = (
        f"amqp_spark_source_oldest_unaccepted_seconds{of_a}",
        f"amqp_spark_source_waiting_messages{of_a}",
        f"amqp_spark_backlog_growth_messages_per_second{of_query}",
    )
    assert [exported(metrics)[name] for name in names] == [590, 7, 10]

    metrics.onQueryIdle(idle())
    samples = exported(metrics)
    assert [samples[name] for name in names] == [0, 0, 0]
    assert f"amqp_spark_backlog_drain_seconds{of_query}" not in samples
    assert 'amqp_spark_source_waiting_messages{query="copied",queue="b"}' not in samples  # still not known

    metrics.onQueryProgress(progress(2, {"a": queue(300, oldestSeconds=2.0, waiting=1)}))
    assert [exported(metrics)[name] for name in names] == [2, 1, 10]


def test_a_query_that_has_ended_keeps_its_counters_only(metrics: Metrics) -> None:
    metrics.onQueryStarted(started())
    metrics.onQueryProgress(progress(0, {"a": queue(5, oldestSeconds=590.0, received=3)}))
    metrics.onQueryTerminated(terminated())
    of_query = {name: value for name, value in exported(metrics).items() if "_total" not in name}
    assert of_query == {'amqp_spark_query_active{query="copied"}': 0}
    assert exported(metrics)['amqp_spark_source_received_messages_total{query="copied",queue="a"}'] == 3

    metrics.onQueryStarted(started(run=OTHER_RUN))  # the next run has no batch yet
    assert not [name for name in exported(metrics) if "oldest" in name]
    metrics.onQueryProgress(progress(0, {"a": queue(5, oldestSeconds=1.0)}, run=OTHER_RUN))
    assert exported(metrics)['amqp_spark_source_oldest_unaccepted_seconds{query="copied",queue="a"}'] == 1
    assert len(metrics.history()) == 2


def test_events_of_a_run_that_come_after_the_next_one_has_begun(metrics: Metrics) -> None:
    """Spark tells of the begin of a run at once, and of all else by a queue."""
    metrics.onQueryStarted(started())
    metrics.onQueryProgress(progress(0, {"a": queue(5, received=1000)}))
    metrics.onQueryStarted(started(run=OTHER_RUN))
    metrics.onQueryProgress(progress(0, {"a": queue(3, received=4)}, run=OTHER_RUN))
    metrics.onQueryProgress(progress(1, {"a": queue(5, received=1006)}))
    metrics.onQueryTerminated(terminated("it broke"))
    metrics.onQueryProgress(progress(1, {"a": queue(2, received=5)}, run=OTHER_RUN))
    found = exported(metrics)
    assert found['amqp_spark_source_received_messages_total{query="copied",queue="a"}'] == 1006 + 5
    assert found['amqp_spark_query_active{query="copied"}'] == 1
    assert found['amqp_spark_source_backlog_messages{query="copied",queue="a"}'] == 2
    assert found['amqp_spark_query_failures_total{query="copied"}'] == 1
    metrics.onQueryTerminated(terminated(run=OTHER_RUN))
    assert exported(metrics)['amqp_spark_query_active{query="copied"}'] == 0


def test_a_report_that_nests_deeply_is_passed_over(metrics: Metrics) -> None:
    reports.send({"kind": "sink", "query": ID, "batch": 0, "messages": 5})
    inbox = next(Path(tempfile.gettempdir()).glob("amqp-spark-*/*"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.sendto(b"[" * 8000, str(inbox))
    reports.send({"kind": "sink", "query": ID, "batch": 0, "messages": 6})
    metrics.onQueryStarted(started())
    metrics.onQueryProgress(progress(0, {"a": queue(1)}))
    assert exported(metrics)['amqp_spark_sink_messages_total{query="copied"}'] == 11


def test_the_query_that_ended_first_makes_room(metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqp_spark.monitoring.metrics.MOST_QUERIES", 2)
    ids = {name: str(uuid.uuid4()) for name in "abcd"}
    for name in "ab":
        metrics.onQueryStarted(started(name, query=ids[name]))
    for name in "ba":
        metrics.onQueryTerminated(terminated(query=ids[name]))
    for name, kept in (("c", "ac"), ("d", "cd")):
        metrics.onQueryStarted(started(name, query=ids[name]))
        shown = {key for key in exported(metrics) if "query_active" in key}
        assert shown == {f'amqp_spark_query_active{{query="{each}"}}' for each in kept}


def test_a_listener_throws_nothing_and_warns_once(metrics: Metrics, caplog: pytest.LogCaptureFixture) -> None:
    broken: Any = object()
    metrics.onQueryStarted(started())
    for _ in range(3):
        metrics.onQueryStarted(broken)
        metrics.onQueryProgress(broken)
        metrics.onQueryIdle(broken)
        metrics.onQueryTerminated(broken)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 4
    assert "onQueryProgress" in warnings[1]


def test_a_port_in_use_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with Metrics(prometheus_port=port) as metrics:
            assert metrics.port is None
            metrics.onQueryProgress(progress(0, {"a": queue(1)}))
            assert len(metrics.history()) == 1
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert f"port {port}" in warning
    assert "prometheus_port" in warning


def test_a_connection_that_is_silent_is_closed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("amqp_spark.monitoring.scrape_port._Handler.timeout", 0.3)
    with Metrics(prometheus_port=0) as metrics:
        metrics.onQueryStarted(started())
        assert metrics.port is not None
        for said in (b"", b"GET /metrics HTTP/1.1\r\nHost: h\r\n"):
            with socket.create_connection(("127.0.0.1", metrics.port), timeout=30.0) as silent:
                silent.sendall(said)
                assert silent.recv(1) == b""
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=60) as response:
            assert b'amqp_spark_query_active{query="copied"} 1.0' in response.read()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("address", ["a..b", "x" * 64, "", "[::1"])
def test_an_address_that_can_be_none_is_an_error_of_its_option(address: str) -> None:
    with pytest.raises(OptionError, match=r"'prometheus_address' has the value .* Allowed: host name or address"):
        Metrics(prometheus_port=0, prometheus_address=address)


def test_a_name_of_an_address_and_one_that_is_none(caplog: pytest.LogCaptureFixture) -> None:
    with Metrics(prometheus_port=0, prometheus_address="localhost") as metrics:
        assert metrics.port
    assert caplog.messages == []
    with Metrics(prometheus_port=0, prometheus_address="no-such-host.invalid") as metrics:
        assert metrics.port is None
    assert "nothing is served on no-such-host.invalid" in caplog.text


def test_without_the_packages_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("prometheus_client", "matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=r"pip install 'amqp-spark\[metrics\]'"):
        Metrics(prometheus_port=0)
    query: Any = object()
    with pytest.raises(MissingExtra, match=r"pip install 'amqp-spark\[plot\]'"):
        show(query)
    with Metrics() as metrics:
        metrics.onQueryProgress(progress(0, {"a": queue(1)}))
        assert len(metrics.history()) == 1


@pytest.mark.parametrize("port", [-1, 65_536, True, "9464"])
def test_a_port_that_is_none(port: Any) -> None:
    with pytest.raises(OptionError, match=r"'prometheus_port'.*from 0 to 65535"):
        Metrics(prometheus_port=port)


def test_a_registry_has_the_metrics_of_one_listener() -> None:
    registry = CollectorRegistry()
    with Metrics(registry=registry), pytest.raises(OptionError, match=r"'registry'.*another registry.*close\(\)"):
        Metrics(registry=registry)
    with Metrics(registry=registry) as metrics:
        assert exported(metrics) == {}


def test_a_picture_of_no_batch(metrics: Metrics) -> None:
    assert show(metrics.history())._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", [r"$\frac$", "a$b_$", r"5\$", "a_b^c%#{"])
def test_a_picture_of_a_query_whose_name_looks_like_mathematics(metrics: Metrics, name: str) -> None:
    metrics.onQueryProgress(progress(0, {"a": queue(5)}, name=name))
    picture = show(metrics.history())
    assert picture._repr_png_().startswith(b"\x89PNG")
    assert picture.figure.get_suptitle() == name


# --- reports between processes


def test_reports_reach_all_who_watch_and_a_dead_socket_is_removed(tmp_path: Path) -> None:
    with closing(reports.Inbox()) as one, closing(reports.Inbox()) as other:
        (directory,) = tmp_path.iterdir()
        assert directory.stat().st_mode & 0o777 == 0o700
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
            dead.bind(str(directory / "1-0.sock"))
        reports.send({"n": 1})
        reports.send({"n": "x" * 10_000})
        assert list(one.take()) == list(other.take()) == [{"n": 1}]
        assert not (directory / "1-0.sock").exists()
    assert list(directory.iterdir()) == []
    reports.send({"n": 2})


def test_what_a_killed_process_has_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    with closing(reports.Inbox()) as living:
        (directory,) = tmp_path.iterdir()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
            dead.bind(str(directory / "1-0.sock"))
        with closing(reports.Inbox()):
            assert len(list(directory.iterdir())) == 2
        reports.send({"n": 1})
        assert list(living.take()) == [{"n": 1}]


def test_a_full_inbox_holds_up_no_sender() -> None:
    with closing(reports.Inbox()) as inbox:
        for number in range(2000):
            reports.send({"n": number})
        found = [report["n"] for report in inbox.take()]
    assert found == list(range(len(found)))
    assert 0 < len(found) < 2000


def test_a_directory_that_others_can_open_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(reports.Inbox()):
        (directory,) = tmp_path.iterdir()
        directory.chmod(0o755)
        with pytest.raises(reports.ReportsUnavailable, match="mode 0700"):
            reports.Inbox()
        reports.send({"n": 1})
        with Metrics() as metrics:
            assert metrics.history().empty
    assert "numbers of the sink cannot be received" in caplog.text
