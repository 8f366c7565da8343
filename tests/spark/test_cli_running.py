"""Actions of Spark that a signal can end, and their progress: without Spark."""

from __future__ import annotations

import argparse
import errno
import io
import json
import os
import signal
import threading
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from amqp_core.errors import AmqpError
from amqp_spark import cli
from amqp_spark.cli.running import SAME_SECONDS
from tests.support.process import wait_until


class Context:
    """The part of a SparkContext that :func:`cli.run_action` uses: one job of two stages."""

    def __init__(self) -> None:
        self.group: str | None = None
        self.cancelled = threading.Event()
        self.done = 1

    def setJobGroup(self, group: str, _: str, **options: bool) -> None:
        assert options == {"interruptOnCancel": False}
        self.group = group

    def cancelJobGroup(self, group: str) -> None:
        assert group == self.group
        self.cancelled.set()

    def statusTracker(self) -> Context:
        return self

    def getJobIdsForGroup(self, group: str) -> list[int]:
        return [7] if group == self.group else []

    def getJobInfo(self, job: int) -> Any:
        assert job == 7
        return SimpleNamespace(stageIds=[1, 2, 3])

    def getStageInfo(self, stage: int) -> Any:
        return None if stage == 3 else SimpleNamespace(numTasks=4, numCompletedTasks=self.done)


@pytest.fixture
def context() -> Context:
    return Context()


def run(context: Context, action: Any, stream: io.StringIO | None = None) -> Any:
    active: list[object] = []
    jvm = SimpleNamespace(SparkSession=SimpleNamespace(setActiveSession=active.append))
    spark: Any = SimpleNamespace(sparkContext=context, _jvm=jvm, _jsparkSession="ours")
    progress = cli.Progress(stream or io.StringIO())
    with cli.Signals() as signals:
        try:
            return cli.run_action(spark, action, signals, progress)
        finally:
            assert active == ["ours"]


def test_the_result_of_an_action(context: Context) -> None:
    assert run(context, lambda: 5) == 5
    assert context.group is not None


def test_the_error_of_an_action(context: Context) -> None:
    def action() -> None:
        raise KeyError("what went wrong")

    with pytest.raises(KeyError, match="what went wrong"):
        run(context, action)


@pytest.mark.parametrize("fails", [True, False])
def test_a_signal_cancels_the_action(context: Context, fails: bool) -> None:
    def action() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        assert context.cancelled.wait(30)
        if fails:
            raise RuntimeError("job 7 was cancelled")

    stream = io.StringIO()
    assert run(context, action, stream) is None
    assert "stopped by SIGTERM" in stream.getvalue()


def test_an_action_is_not_begun_after_a_signal(context: Context) -> None:
    begun: list[int] = []
    spark: Any = SimpleNamespace(sparkContext=context)
    with cli.Signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: signals.received is not None, "the signal")
        with pytest.raises(cli.Stopped):
            cli.run_action(spark, lambda: begun.append(1), signals, cli.Progress(io.StringIO()))
    assert not begun


def test_a_job_that_a_signal_stops_before_its_beginning(capsys: pytest.CaptureFixture[str]) -> None:
    def body(_: argparse.Namespace, signals: cli.Signals) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: signals.received is not None, "the signal")
        signals.check()
        return 0

    parser = argparse.ArgumentParser()
    parser.set_defaults(progress="none", quiet=True, metrics_port=None, metrics_address=None)
    assert cli.job("job", parser, body, []) == 143
    assert "job: stopped by SIGTERM before it was done: what comes next was not begun" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_tasks_are_counted_over_all_stages(context: Context) -> None:
    stream = Terminal()

    def action() -> int:
        wait_until(lambda: "2 of 8 tasks" in stream.getvalue(), "the first count")
        context.done = 3
        wait_until(lambda: "6 of 8 tasks" in stream.getvalue(), "the second count")
        return 1

    assert run(context, action, stream) == 1


def test_lines_about_tasks_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    progress = cli.Progress(stream)
    progress.tasks(1, 4)
    assert stream.getvalue() == ""
    monkeypatch.setattr("amqp_spark.cli.progress._TASKS_SECONDS", 0)
    progress.tasks(0, 4)
    progress.tasks(2, 4)
    progress.tasks(2, 4)
    assert stream.getvalue() == "2 of 4 tasks are done\n"
    quiet = cli.Progress(stream, quiet=True)
    quiet.tasks(3, 4)
    assert stream.getvalue() == "2 of 4 tasks are done\n"


def job(run: Any) -> int:
    parser = argparse.ArgumentParser()
    cli.add_watching_arguments(parser.add_argument_group())
    return cli.job("name", parser, run, [])


def test_what_fails_after_a_signal_is_told_as_its_consequence(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(_: argparse.Namespace, signals: cli.Signals) -> int:
        signal.raise_signal(signal.SIGTERM)
        assert signals.received == signal.SIGTERM
        raise ConnectionRefusedError("the JVM is gone")

    assert job(broken) == 143
    assert capsys.readouterr().err == "name: stopped by SIGTERM before it was done: the JVM is gone\n"


def test_a_signal_that_comes_twice_at_once_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("amqp_spark.cli.running.time.monotonic", lambda: now[0])
    ended: list[int] = []
    with cli.Signals() as signals:
        before = signal.getsignal(signal.SIGTERM)
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)
        assert (signals.received, signals.exit_code) == (signal.SIGTERM, 143)
        assert signal.getsignal(signal.SIGTERM) == before
        now[0] += SAME_SECONDS
        monkeypatch.setattr("amqp_spark.cli.running.signal.raise_signal", ended.append)
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: bool(ended), "the second signal", 10)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert ended == [signal.SIGTERM]


class Query:
    """The part of a streaming query that :func:`cli.follow` uses: one batch of three rows, and no end."""

    def __init__(self) -> None:
        self.stopped = False
        sink = SimpleNamespace(numOutputRows=3)
        rows = {"numInputRows": 3, "processedRowsPerSecond": 1.0}
        batch = SimpleNamespace(batchId=0, timestamp="2026-11-26T00:00:00.000Z", sources=[], sink=sink, **rows)
        self.recentProgress = [batch]

    def awaitTermination(self, _: float) -> bool:
        return False

    def stop(self) -> None:
        self.stopped = True


@pytest.mark.parametrize(("meanwhile", "missed"), [(50, False), (150, True)])
def test_batches_that_spark_has_forgotten_are_told(meanwhile: int, missed: bool) -> None:
    """It keeps 100 events, and a terminal that is stopped (Ctrl-S) holds up who reads them."""
    query: Any = Query()
    (first,) = query.recentProgress

    class Stopped(io.StringIO):
        def write(self, text: str) -> int:
            if len(query.recentProgress) == 1:
                for number in range(1, meanwhile + 1):
                    other = {"batchId": number, "timestamp": f"2026-11-26T00:{number // 60:02}:{number % 60:02}.000Z"}
                    newer = SimpleNamespace(**vars(first) | other)
                    query.recentProgress = [*query.recentProgress, newer][-100:]
            return super().write(text)

    progress = cli.Progress(Stopped())
    for _ in range(3):
        progress.update(query)
    assert progress.missed is missed
    assert ("and others that were not counted" in progress.summary()) is missed
    assert progress.rows == (3 * 101 if missed else 3 * (meanwhile + 1))


class JavaEvent:
    """A progress event in the JVM: with hundreds of queues it takes long to read all of it."""

    def __init__(self, number: int, reads: list[int]) -> None:
        self.number = number
        self.reads = reads

    def batchId(self) -> int:
        return self.number

    def timestamp(self) -> str:
        return f"2026-11-26T00:{self.number // 60:02}:{self.number % 60:02}.000Z"

    def json(self) -> str:
        self.reads.append(self.number)
        fields: dict[str, Any] = {
            "id": str(uuid.UUID(int=1)), "runId": str(uuid.UUID(int=2)), "name": None, "timestamp": self.timestamp(),
            "batchId": self.number, "batchDuration": 1, "durationMs": {}, "eventTime": {}, "stateOperators": [],
            "sources": [], "numInputRows": 3, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0,
            "observedMetrics": {}, "sink": {"description": "", "numOutputRows": 3, "metrics": {}},
        }  # fmt: skip
        return json.dumps(fields)


def test_of_the_events_that_spark_keeps_only_the_new_ones_are_read() -> None:
    reads: list[int] = []
    events = [JavaEvent(number, reads) for number in range(100)]
    query: Any = SimpleNamespace(_jsq=SimpleNamespace(recentProgress=lambda: events))
    progress = cli.Progress(io.StringIO())
    progress.update(query)
    assert reads == list(range(100))
    progress.update(query)
    events = [*events[2:], JavaEvent(100, reads), JavaEvent(101, reads)]
    progress.update(query)
    progress.update(query)
    assert reads == list(range(102))
    assert (progress.rows, progress.missed) == (3 * 102, False)


class Closed(io.StringIO):
    """A pipe whose reader has ended."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def test_a_query_whose_progress_cannot_be_written_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    query: Any = Query()
    with cli.Signals() as signals, pytest.raises(BrokenPipeError):
        cli.follow(query, signals, cli.Progress(Closed()))
    assert query.stopped

    def broken(_: argparse.Namespace, signals: cli.Signals) -> int:
        return cli.follow(query, signals, cli.Progress(Closed()))

    monkeypatch.setattr("sys.stderr", Closed())
    assert job(broken) == 1


def test_an_action_whose_progress_cannot_be_written_is_cancelled(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amqp_spark.cli.progress._TASKS_SECONDS", 0)
    ended = threading.Event()

    def action() -> None:
        assert context.cancelled.wait(30)
        ended.set()

    with pytest.raises(BrokenPipeError):
        run(context, action, Closed())
    assert ended.is_set()


def test_an_error_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    def refused(_: argparse.Namespace, __: cli.Signals) -> int:
        raise AmqpError("the broker says \x1b[2Jnothing\r\nname: all is well")

    assert job(refused) == 3
    assert capsys.readouterr().err == "name: error: the broker says \\x1b[2Jnothing\\r\nname: all is well\n"
