"""The command line of jobs/ingest.py and what the jobs share: without a broker, and without Spark."""

from __future__ import annotations

import argparse
import errno
import io
import os
import signal
import sys
import traceback
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyspark
import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import IllegalArgumentException

from amqp_core.errors import AmqpError, AuthenticationFailed, ConnectionFailed, NotFound, ResourceLocked, UsageError
from amqp_spark import cli
from amqp_spark.cli.arguments import check_query
from amqp_spark.errors import (
    HeadersError,
    MessageFormatError,
    MessagePlace,
    OffsetError,
    OptionError,
    PublishFailed,
    RowError,
    SchemaError,
    Unroutable,
    UnsupportedModeError,
)  # fmt: skip
from amqp_spark.options import CONNECTION, SOURCE
from amqp_spark.state.xids import ListLost, TooManyPrepared
from tests.spark.job_support import SECRET, without_spark
from tests.support.jobs import load

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession


@pytest.fixture
def ingest(monkeypatch: pytest.MonkeyPatch) -> Any:
    return without_spark("ingest", monkeypatch)


GOOD = ["--url", "amqp://localhost/v", "--queue", "q", "--output", "out", "--checkpoint", "ck"]


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        ([], ["--output"]),
        (["--queue", "q", "--output", "out"], ["--checkpoint"]),
        (["--queue", "q", "--output", "out", "--checkpoint", "ck"], ["'url' is required"]),
        ([*GOOD, "--table", "t"], ["--output and --table"]),
        ([*GOOD, "--option", "heartbeat"], ["key=value"]),
        ([*GOOD, "--option", "queue=other"], ["queue=", "repeats another argument"]),
        ([*GOOD, "--option", "a=1", "--option", "a=2"], ["given twice"]),
        (
            [*GOOD, "--option", "hartbeat=1", "--option", "mode=x"],
            ["Use 'heartbeat' instead", "FAILFAST, REJECT, PERMISSIVE"],
        ),
        ([*GOOD, "--username", "u"], ["without 'password'"]),
        ([*GOOD, "--option", "deliveryGuarantee=exactly-once"], ["'consumerId' is required"]),
        ([*GOOD, "--option", "queueType=stream", "--option", "endingOffsets=latest"], ["in a streaming query"]),
        ([*GOOD, "--url", f"amqp://u:{SECRET}@localhost/v"], ["credentials"]),
        ([*GOOD, "--option", f"password={SECRET}"], ["--password-file", "AMQP_PASSWORD"]),
        ([*GOOD, "--option", f"PassWord={SECRET}"], ["--password-file"]),
        ([*GOOD, "--sink-option", "x"], ["A value of --sink-option is not of the form key=value"]),
        ([*GOOD, "--name", " "], ["--name is empty. Give a value, or leave it out"]),
        ([*GOOD, "--output", ""], ["--output is empty"]),
        ([*GOOD, "--checkpoint", ""], ["--checkpoint is empty"]),
        ([*GOOD, "--processing-time", ""], ["--processing-time '' is no time. Write for instance '10 seconds'"]),
        ([*GOOD, "--conf", "x"], ["A value of --conf is not of the form key=value. Write --conf key=value"]),
    ],
)
def test_a_wrong_command_line_ends_with_2_before_spark_starts(
    ingest: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], texts: list[str]
) -> None:
    assert ingest.main(arguments) == 2
    shown = capsys.readouterr()
    for text in texts:
        assert text in shown.err
    assert SECRET not in shown.err + shown.out


@pytest.mark.spark
@pytest.mark.parametrize(
    ("text", "is_time"),
    [
        ("10 seconds", True),
        ("interval 1 minute", True),
        (" 1 Minute  30 seconds ", True),
        ("+1.5 seconds", True),
        (".5 second", True),
        ("1 minute -10 seconds", True),
        ("0 seconds", True),
        ("2 weeks", True),
        ("1 week 2 days 3 hours 4 milliseconds 5 microseconds", True),
        ("soon", False),
        ("10", False),
        ("10s", False),
        ("10seconds", False),
        ("1 day2 hours", False),
        ("10 seconds 0 months", True),
        ("10 \u017feconds", False),
        ("10 seconds ago", False),
    ],
)
def test_a_time_is_refused_only_if_spark_refuses_it(spark: SparkSession, text: str, is_time: bool) -> None:
    arguments = argparse.Namespace(processing_time=text)
    trigger: Any = spark.sparkContext._jvm.org.apache.spark.sql.streaming.Trigger  # type: ignore[union-attr]
    if is_time:
        check_query(arguments)
        trigger.ProcessingTime(text)
        return
    with pytest.raises(cli.CommandLineError, match="is no time"):
        check_query(arguments)
    with pytest.raises(IllegalArgumentException):
        trigger.ProcessingTime(text)


def test_arguments_that_argparse_refuses_end_with_2_too(ingest: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        ingest.main([*GOOD, "--available-now", "--processing-time", "1 second"])
    assert caught.value.code == 2


def test_help_lists_every_option_and_the_exit_codes(ingest: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        ingest.main(["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert "exit codes: 0 done" in shown
    for option in (*CONNECTION, *SOURCE):
        # an option that the job refuses on its command line is not offered there
        assert (f"  {option.name} " in shown) is not option.secret
    assert "at-least-once, exactly-once, at-most-once" in shown


@pytest.mark.parametrize("option", ["passwordFile", "tls.caFile"])
def test_a_file_that_cannot_be_read_ends_with_2_before_spark_starts(
    ingest: Any, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--url", "amqps://localhost/v", "--option", f"{option}=/no/such/file"]
    login = ["--username", "u"] if option == "passwordFile" else []
    assert ingest.main([*GOOD, *more, *login]) == 2
    assert f"Option '{option}': '/no/such/file' cannot be read" in capsys.readouterr().err


def test_login_comes_from_the_environment_or_a_file(ingest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMQP_URL", "amqp://elsewhere/v")
    monkeypatch.setenv("AMQP_USERNAME", "u")
    monkeypatch.setenv("AMQP_PASSWORD", SECRET)
    options = ingest.source_options(ingest.parser().parse_args(["--queue", "a", "--queue", "b"]))
    assert options == {"url": "amqp://elsewhere/v", "username": "u", "password": SECRET, "queue": "a,b"}
    options = ingest.source_options(ingest.parser().parse_args(["--queue", "a", "--password-file", "/f"]))
    assert (options["passwordFile"], "password" in options) == ("/f", False)


def test_market_data_says_what_is_missing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AMQP_URL", raising=False)
    job = load("market_data")
    assert job.main([]) == 2
    assert job.main(["--url", f"amqp://u:{SECRET}@h"]) == 2
    shown = capsys.readouterr().err
    assert "AMQP_URL" in shown
    assert SECRET not in shown


@pytest.mark.parametrize("rate", ["-1", "0", "nan", "inf", "fast"])
def test_market_data_needs_a_rate_above_0(rate: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        load("market_data").main([f"--rate={rate}"])
    assert ended.value.code == 2
    assert f"argument --rate: '{rate}' is not a number above 0" in capsys.readouterr().err


def test_market_data_does_not_wait_for_its_next_tick_after_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    job = load("market_data")
    slept: list[float] = []
    sent: list[object] = []
    with cli.Signals() as signals:

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(job.time, "sleep", sleep)
        monkeypatch.setattr(job, "send", lambda _client, tick, _exchange: sent.append(tick))
        client = SimpleNamespace(confirm=lambda: None)
        arguments = job.parser().parse_args(["--exchange=", "--rate=0.001", "--count=3"])
        confirmed, _ = job.publish(client, arguments, signals)
    assert (confirmed, len(sent), len(slept)) == (1, 1, 1)
    assert slept[0] < 1


def test_market_data_is_repeatable() -> None:
    job = load("market_data")

    def content(seed: int) -> list[Any]:
        return [(tick.body, tick.routing_key, tick.message_id, tick.qty) for tick in job.ticks(50, seed)]

    assert content(1) == content(1)
    assert content(1) != content(2)
    assert len({tick.message_id for tick in job.ticks(50, 1)}) == 50


TRACEBACK = """[STREAM_FAILED] Query [id = 7, runId = 8] terminated with exception: Python worker raised:
Traceback (most recent call last):
  File "receiver.py", line 7, in run
amqp_core.errors.ConnectionLost: connection reset

The above exception was the direct cause of the following exception:
Traceback (most recent call last):
  File "stream_reader.py", line 5, in latestOffset
{error}
 SQLSTATE: XXKST
"""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OptionError(["option 'a' is wrong"]), 2),
        (OptionError(["option 'a' is wrong", "option 'b' is wrong"]), 2),
        (SchemaError(["column 'x' is not known", "column 'y' is not known"]), 2),
        (UnsupportedModeError("the broker has no transactions"), 2),
        (AuthenticationFailed("the login was refused"), 3),
        (ConnectionFailed("cannot connect to h:1"), 3),
        (NotFound(404, None, "there is no queue 'q'"), 3),
        (MessageFormatError("q", 7, "body", "not UTF-8"), 1),
        (OffsetError("of another queue"), 1),
        (UsageError("closed"), 1),
        (RowError("routing_key", 17, 3, 12, "has 300 bytes; at most 255 are allowed"), 1),
        (HeadersError(2, "symbol: str16 is not a number"), 1),
        (PublishFailed("there is no such exchange", MessagePlace(1, row=3, exchange="e")), 3),
        (Unroutable("nothing is bound", MessagePlace(1, count=2)), 3),
        (TooManyPrepared("[AMQP_PREPARED_LIST_TOO_LONG] The broker cannot list. Wait."), 1),
        (ListLost("[AMQP_PREPARED_LIST_LOST] The connection was lost. Try again."), 3),
    ],
)
def test_errors_of_other_processes_are_recognised(error: AmqpError, code: int) -> None:
    assert cli.explain(error) == (str(error), code)
    qualified = f"{type(error).__module__}.{type(error).__name__}: {error}"
    assert cli.explain(RuntimeError(TRACEBACK.format(error=qualified))) == (str(error), code)


def test_an_error_of_python_that_is_not_ours_is_its_own_text() -> None:
    foreign = TRACEBACK.replace("amqp_core.errors.ConnectionLost", "ConnectionError")
    too_old = RuntimeError(foreign.format(error="some.package.TooOldError: version 3 is needed"))
    assert cli.explain(too_old) == ("some.package.TooOldError: version 3 is needed", 1)
    text, code = cli.explain(RuntimeError(foreign.format(error="ModuleNotFoundError: No module named 'pyarrow'")))
    assert (text.partition("]")[0], code) == ("[AMQP_PYTHON_PACKAGE_MISSING", 1)
    assert "has no package 'pyarrow'" in text


def test_an_error_that_has_lost_its_text_is_told_all_the_same() -> None:
    class LostError(Exception):
        def __str__(self) -> str:
            raise ConnectionRefusedError

    assert cli.explain(LostError()) == ("LostError: the JVM, which knows the reason, has ended", 1)


def test_the_notes_of_an_error_are_told() -> None:
    error = ResourceLocked(405, None, "in use")
    error.add_note("set exclusive to false")
    error.add_note("while receiving from queue 'q'")
    said = f"{error}\nset exclusive to false\nwhile receiving from queue 'q'"
    assert cli.explain(error) == (said, 3)
    text = "".join(traceback.format_exception(error))
    assert cli.explain(RuntimeError(TRACEBACK.format(error=text.rstrip()))) == (said, 3)
    assert cli.explain(RuntimeError(f"{text}=== Streaming Query ===\nIdentifier: 7")) == (said, 3)


def test_other_errors_are_failures_with_their_first_line() -> None:
    assert cli.explain(RuntimeError("\nwhat happened\n  at java.lang")) == ("what happened", 1)
    assert cli.explain(KeyError()) == ("KeyError", 1)
    java = "An error occurred while calling o1.start.\n: org.x.SomeException: [A_CLASS] the reason\n\tat org.x"
    assert cli.explain(RuntimeError(java)) == ("[A_CLASS] the reason", 1)


def test_a_java_that_was_killed_does_not_look_like_a_broker_that_refuses() -> None:
    """As py4j raises it: with the lost connection as the context of the next attempt."""
    error = ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    error.__context__ = Py4JNetworkError("Answer from Java side is empty")
    said, code = cli.explain(error)
    assert said.startswith("[AMQP_JAVA_ENDED] The Java process of Spark has ended by itself, or was killed. Look ")
    assert code == 1


@pytest.mark.parametrize(
    "text",
    [
        "An error occurred while calling o1.toTable.\n: java.lang.NoSuchMethodError: 'void org.x.Y.z()'\n\tat org.x",
        "[STREAM_FAILED] Stopped.\nCaused by: java.lang.NoSuchMethodError: 'void org.x.Y.z()'\n\tat org.x",
    ],
)
def test_a_library_for_another_spark_is_named_as_one(text: str) -> None:
    said, code = cli.explain(RuntimeError(text))
    assert said == (
        f"[AMQP_JAVA_LIBRARY_UNFIT] A library of Java that Spark has loaded does not fit Spark {pyspark.__version__}: "
        "NoSuchMethodError: 'void org.x.Y.z()'. "
        "Give --packages or --jars the release of it that is made for this Spark."
    )
    assert code == 1


class Query:
    """The part of a query that :class:`cli.Progress` and :func:`cli.follow` use."""

    def __init__(self, *, ends_after: int, on_wait: Callable[[int], None] = lambda _: None) -> None:
        self.recentProgress: list[Any] = []
        self.stopped = False
        self._waits = 0
        self._ends_after = ends_after
        self._on_wait = on_wait

    def batch(self, batch_id: int, rows: int, latest: object, written: int = -1) -> None:
        source = SimpleNamespace(latestOffset=latest)
        self.recentProgress.append(
            SimpleNamespace(
                batchId=batch_id, numInputRows=rows, processedRowsPerSecond=1234.5, sources=[source],
                timestamp=f"2026-01-01T00:00:00.{len(self.recentProgress):03}Z",
                sink=SimpleNamespace(numOutputRows=written),
            )
        )  # fmt: skip

    def awaitTermination(self, timeout: float) -> bool:
        assert timeout > 0
        self._waits += 1
        self._on_wait(self._waits)
        return self._waits >= self._ends_after

    def stop(self) -> None:
        self.stopped = True


LATEST = '{"q": {"epoch": 1, "position": 7, "version": 1, "backlog": 4000}, "r": {"backlog": 1}}'


def follow(query: Query, stream: io.StringIO, *, quiet: bool = False) -> tuple[int, cli.Progress]:
    progress = cli.Progress(stream, quiet=quiet)
    with cli.Signals() as signals:
        return cli.follow(query, signals, progress), progress  # type: ignore[arg-type]


def test_progress_is_one_line_per_batch_where_there_is_no_terminal() -> None:
    query = Query(ends_after=3, on_wait=lambda wait: query.batch(wait // 2, 1000 if wait > 1 else 0, LATEST))
    stream = io.StringIO()
    code, progress = follow(query, stream)
    assert code == 0
    assert stream.getvalue() == "batch 1: 1,000 rows, 1,234 rows/s, backlog 4,001\n"
    assert (progress.batches, progress.rows) == (1, 1000)
    assert progress.summary().startswith("1,000 rows in 1 batch, ")


@pytest.mark.parametrize(
    ("written", "line", "total"),
    [
        (1000, "batch 1: 1,000 rows, 1,234 rows/s\n", None),
        (0, "batch 1: 1,000 rows, 1,234 rows/s, 0 written\n", ", 0 written"),
        (-1, "batch 1: 1,000 rows, 1,234 rows/s\n", None),
    ],
)
def test_what_was_written_is_shown_where_it_is_not_what_was_read(written: int, line: str, total: str | None) -> None:
    query = Query(ends_after=1, on_wait=lambda _: query.batch(1, 1000, None, written))
    stream = io.StringIO()
    _, progress = follow(query, stream)
    assert stream.getvalue() == line
    assert progress.summary().startswith(f"1,000 rows{total or ''} in 1 batch, ")


def test_the_backlog_of_a_part_of_the_queues_is_not_shown() -> None:
    query = Query(ends_after=1, on_wait=lambda _: query.batch(0, 1, '{"q": {"backlog": 4}, "r": {"metrics": {}}}'))
    stream = io.StringIO()
    follow(query, stream)
    assert stream.getvalue() == "batch 0: 1 rows, 1,234 rows/s\n"


def test_the_lag_of_streams_is_shown_as_backlog() -> None:
    latest = (
        '{"s": {"lag": 4000, "offset": 9000, "rowsPerSecond": 1.5}, "t": {"lag": 1, "offset": 1, "rowsPerSecond": 0}}'
    )
    query = Query(ends_after=1, on_wait=lambda _: query.batch(0, 1, latest))
    stream = io.StringIO()
    follow(query, stream)
    assert stream.getvalue() == "batch 0: 1 rows, 1,234 rows/s, backlog 4,001\n"


@pytest.mark.parametrize("latest", [None, "null", "not json", "[]", '{"q": {"position": 1}}', {"q": 5}])
def test_an_unknown_backlog_is_not_shown(latest: object) -> None:
    query = Query(ends_after=1, on_wait=lambda _: query.batch(0, 1, latest))
    stream = io.StringIO()
    follow(query, stream)
    assert stream.getvalue() == "batch 0: 1 rows, 1,234 rows/s\n"


def test_quiet_shows_nothing() -> None:
    query = Query(ends_after=1, on_wait=lambda _: query.batch(0, 1, None))
    stream = io.StringIO()
    assert follow(query, stream, quiet=True)[0] == 0
    assert stream.getvalue() == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_live_line() -> None:
    query = Query(ends_after=2, on_wait=lambda wait: query.batch(wait, 500, LATEST))
    stream = Terminal()
    follow(query, stream)
    assert "rows" in stream.getvalue()
    assert "2 batches, backlog 4,001" in stream.getvalue()


def test_without_tqdm_a_terminal_shows_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    query = Query(ends_after=1, on_wait=lambda _: query.batch(0, 1, None))
    stream = Terminal()
    follow(query, stream)
    assert stream.getvalue() == "batch 0: 1 rows, 1,234 rows/s\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_query_in_order(number: signal.Signals, code: int) -> None:
    before = signal.getsignal(number)
    query = Query(ends_after=10, on_wait=lambda _: os.kill(os.getpid(), number))
    stream = io.StringIO()
    assert follow(query, stream)[0] == code
    assert query.stopped
    assert f"stopped by {number.name}" in stream.getvalue()
    assert signal.getsignal(number) is before


def test_the_password_of_another_format_is_refused_with_another_remedy() -> None:
    with pytest.raises(cli.CommandLineError) as caught:
        cli.pairs([f"password={SECRET}"], "--source-option", side=None)
    assert "--table" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert "AMQP_PASSWORD" not in str(caught.value)
