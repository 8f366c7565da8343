"""What a job shows, and where: the arguments, the panel on a terminal, the port with metrics. Without Spark."""

from __future__ import annotations

import argparse
import io
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from amqp_spark import cli
from amqp_spark.cli import watching
from amqp_spark.cli.live_panel import LivePanel
from amqp_spark.monitoring import Metrics, readings
from tests.spark.job_support import without_spark
from tests.spark.test_monitoring_series import progress
from tests.spark.test_queue_tracks import event, queue
from tests.support.terminal import standard_error_on, terminal

JOBS = ("ingest", "publish", "bridge", "drain")


def parsed(*given: str, **more: object) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    cli.add_watching_arguments(parser.add_argument_group())
    return argparse.Namespace(**vars(parser.parse_args(given)), **more)


class StandardErrorTerminal(io.StringIO):
    """Standard error on a terminal."""

    def fileno(self) -> int:
        return 2

    def isatty(self) -> bool:
        return True


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    monkeypatch.setenv("TERM", "xterm")
    return StandardErrorTerminal()


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize(
    ("given", "package", "error"),
    [
        (["--metrics-port", "0"], "prometheus_client", "(--metrics-port) need the package prometheus_client, which"),
        (["--progress", "panel"], "rich", "(--progress panel) need the package rich, which"),
        (["--progress", "panel"], None, "--progress panel needs a terminal, and standard error is not one"),
        (["--progress", "lines", "--quiet"], None, "--quiet and --progress lines exclude each other"),
        (["--metrics-port", "65536"], None, "--metrics-port '65536' is not a port. Give a number from 0 to 65535"),
        (["--metrics-port", "-1"], None, "--metrics-port '-1' is not a port"),
        (["--metrics-port", "http"], None, "--metrics-port 'http' is not a port"),
        (
            ["--metrics-port", "0", "--metrics-address=a..b"],
            None,
            "--metrics-address 'a..b' is not a host name or address",
        ),
    ],
)
def test_one_error_before_anything_starts(
    job: str, given: list[str], package: str | None, error: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    module = without_spark(job, monkeypatch)
    monkeypatch.setattr(module, "run", lambda *_: pytest.fail("the job was started"))
    if package is not None:
        monkeypatch.setitem(sys.modules, package, None)
    given = [*given, "--stream"] if job == "publish" else given
    assert module.main([f"{given[0]}={given[1]}", *given[2:]]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{job}: error: ")
    assert error in line


@pytest.mark.parametrize(("job", "flags"), [("publish", []), ("drain", ["--dry-run"])])
def test_an_action_has_no_metrics(
    job: str, flags: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert without_spark(job, monkeypatch).main([*flags, "--metrics-port", "0"]) == 2
    assert "--metrics-port is for streams only" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "expected"), [([], True), (["--progress", "lines"], False), (["--progress", "none"], False),
                            (["--quiet"], False), (["--progress", "panel"], True)],
)  # fmt: skip
def test_the_panel_is_for_a_terminal(on_terminal: io.StringIO, given: list[str], expected: bool) -> None:
    watching.check_watching(parsed(*given), on_terminal)
    assert watching.has_panel(parsed(*given), on_terminal) is expected


def test_without_rich_or_terminal_there_are_lines(on_terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not watching.has_panel(parsed(), io.StringIO())
    monkeypatch.setenv("TERM", "dumb")
    assert not watching.has_panel(parsed(), on_terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setitem(sys.modules, "rich", None)
    assert not watching.has_panel(parsed(), on_terminal)


def test_rows_on_the_terminal_have_it_alone(on_terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", StandardErrorTerminal())
    assert not watching.has_panel(parsed(format="console"), on_terminal)
    assert watching.has_panel(parsed(format="parquet"), on_terminal)


def test_lines_are_lines_on_a_terminal(monkeypatch: pytest.MonkeyPatch, on_terminal: io.StringIO) -> None:
    monkeypatch.setattr("sys.stderr", on_terminal)
    watching.Watch(parsed("--progress", "lines"), None).progress().say("a line")
    assert on_terminal.getvalue() == "a line\n"


class Query:
    """The part of a query that Progress uses."""

    def __init__(self) -> None:
        self.recentProgress: list[Any] = []


def test_an_event_is_read_once_although_spark_shows_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And although the clock that stamps them is set back by an hour."""
    reads: list[object] = []
    monkeypatch.setattr(readings, "backlog_of", reads.append)
    query: Any = Query()
    with Path(os.devnull).open("w", encoding="utf-8") as nothing:
        panel = LivePanel("ingest", nothing)
        progress = cli.Progress(nothing, display=panel)
        progress.update(query)
        for batch, second in enumerate((3500, 3510, 10, 20, 30)):
            query.recentProgress.append(event(second, {"ticks": queue(100 - batch)}, batch=batch))
            del query.recentProgress[:-3]
            progress.update(query)
            progress.update(query)
        assert len(reads) == progress.batches == panel.state().batches == 5
        (track,) = panel.state().queues
        assert track.course == (100, 99, 98, 97, 96)
        query.recentProgress = [event(40 + batch, {"ticks": queue(0)}, batch=batch) for batch in range(5, 8)]
        progress.update(query)
        assert len(reads) == progress.batches == panel.state().batches == 8


def test_lines_of_other_processes_do_not_tear_the_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal of 60 columns: whole lines above, one panel below, and what comes after it below that."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    query: Any = Query()
    with terminal(60, 20) as shown, standard_error_on(shown):
        with watching._panel("ingest") as panel:
            progress = watching.Watch(parsed(), panel).progress()
            for second in range(5):
                noise = "import sys; [sys.stderr.write(f'noise %d.{n} of another process\\n') for n in range(20)]"
                subprocess.run([sys.executable, "-c", noise % second], check=True)
                query.recentProgress.append(event(second, {"ticks": queue(100 - 10 * second, received=second)}))
                progress.update(query)
            progress.say("stopped by SIGTERM")
            progress.close()
        sys.stderr.write("after it\n")
    screen = [line for line in shown.shown() if line]
    noise_lines = [line for line in screen if "noise" in line and not line.startswith("│")]
    assert noise_lines == [f"noise {second}.{n} of another process" for second in range(5) for n in range(20)]
    (top,) = [index for index, line in enumerate(screen) if line.startswith("╭")]
    (bottom,) = [index for index, line in enumerate(screen) if line.startswith("╰")]
    assert "stopped by SIGTERM" in screen[:top]
    assert screen[bottom + 1 :] == ["after it"]
    inside = screen[top + 1 : bottom]
    assert all(line.startswith("│") and line.endswith("│") and len(line) == 60 for line in inside)
    assert any(line.split()[1:4] == ["ticks", "1/s", "60"] for line in inside)
    assert any("warning: noise 4.19 of another process" in line for line in inside)
    assert any("last batch 4: 10 rows" in line for line in inside)


def test_the_panel_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")

    def fail() -> None:
        with watching._panel("drain"):
            sys.stderr.write("a warning\n")
            raise KeyError("broken")

    with terminal(60, 20) as shown, standard_error_on(shown):
        before = os.fstat(2).st_rdev
        with pytest.raises(KeyError):
            fail()
        assert os.fstat(2).st_rdev == before
        assert sys.stderr.isatty()
        sys.stderr.write("drain: error: broken\n")
    screen = [line for line in shown.shown() if line]
    assert screen[0] == "a warning"
    assert screen[-1] == "drain: error: broken"
    assert shown.raw.count(b"\x1b[?25l") <= shown.raw.count(b"\x1b[?25h")  # the cursor is there


def test_a_warning_that_repeats_is_counted_and_their_number_is_bounded() -> None:
    with Path(os.devnull).open("w", encoding="utf-8") as nothing:
        panel = LivePanel("ingest", nothing)
        for text in ("a", "b", "a"):
            panel.line(text)
        assert panel.state().warnings == (("b", 1), ("a", 2))
        for number in range(100):
            panel.line(f"warning {number}")
        assert len(panel.state().warnings) == 20
        panel.tasks(1, 2)
        assert panel.state().tasks == (1, 2)


def test_a_port_in_use_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        metrics = watching._metrics(parsed("--metrics-port", str(other.getsockname()[1])))
        assert isinstance(metrics, Metrics)
        assert metrics.port is None
        metrics.close()
    assert "Address already in use. The query goes on; give another prometheus_port (--metrics-port)" in caplog.text


def test_metrics_of_a_job_keep_no_history() -> None:
    """Nobody can ask for it, and that of 300 queues would take two gigabytes."""
    metrics = watching._metrics(parsed("--metrics-port", "0"))
    with metrics:
        for batch in range(3):
            metrics.onQueryProgress(progress(batch, {"q": queue(3 - batch, received=10 * batch)}))
        (series,) = metrics._queries.values()
        assert len(series.batches) == 1
        assert series.current is not None
        assert series.current.backlog == 1
        assert series.totals.queues == {"q": {"received": 20}}
