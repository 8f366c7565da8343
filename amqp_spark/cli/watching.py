"""How a job is watched: what it shows of its progress, and the port with its metrics."""

from __future__ import annotations

import importlib.util
import os
import sys
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TextIO

from amqp_spark.cli.errors import CommandLineError
from amqp_spark.cli.progress import Progress
from amqp_spark.cli.spark import session
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.options import kinds

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from amqp_spark.cli.live_panel import LivePanel
    from amqp_spark.monitoring import Metrics

AUTO, PANEL, LINES, NONE = "auto", "panel", "lines", "none"
_STANDARD_ERROR: Final = 2
_MOST_PORT: Final = 65_535


def add_watching_arguments(group: argparse._ArgumentGroup) -> None:
    """Add ``--progress``, ``--quiet``, ``--metrics-port`` and ``--metrics-address``."""
    group.add_argument(
        "--progress",
        choices=(AUTO, PANEL, LINES, NONE),
        default=AUTO,
        help="on standard error: a live panel (on a terminal, with the extra 'panel'), one line per batch, or nothing "
        "(default: auto, the panel where there can be one; else, on a terminal and with the package tqdm, one live "
        "line; else lines)",
    )
    group.add_argument(
        "--quiet",
        action="store_true",
        help="no progress, as --progress none: only the summary, errors and the log of the sink",
    )
    group.add_argument(
        "--metrics-port",
        metavar="N",
        help="serve metrics of the stream for Prometheus on this port (extra 'metrics'; docs/monitoring.md), 0: on one "
        "that is free; a port in use is a warning",
    )
    group.add_argument(
        "--metrics-address",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="address of --metrics-port (default: %(default)s); 0.0.0.0 is reached from other machines",
    )


def check_watching(arguments: argparse.Namespace, stream: TextIO) -> None:
    """Check ``--progress`` and ``--metrics-port`` before anything starts.

    Args:
        arguments: the command line.
        stream: standard error.

    Raises:
        CommandLineError: they contradict each other, or need what is not there.
    """
    if arguments.quiet and arguments.progress not in {AUTO, NONE}:
        raise CommandLineError(f"--quiet and --progress {arguments.progress} exclude each other", "Give one of them")
    if arguments.progress == PANEL:
        if not _is_there("rich"):
            raise _missing("Panels (--progress panel)", "rich", "panel")
        if not _is_terminal(stream):
            raise CommandLineError(
                "--progress panel needs a terminal, and standard error is not one", "Use --progress auto or lines"
            )
    if arguments.metrics_port is not None:
        _port(arguments.metrics_port)
        _check_address(arguments.metrics_address)
        if not getattr(arguments, "stream", True) or getattr(arguments, "dry_run", False):
            raise CommandLineError(
                "--metrics-port is for streams only: an action without batches has no metrics", "Remove it"
            )
        if not _is_there("prometheus_client"):
            raise _missing("Metrics for Prometheus (--metrics-port)", "prometheus_client", "metrics")


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) <= _MOST_PORT):
        raise CommandLineError(f"--metrics-port {text!r} is not a port", f"Give a number from 0 to {_MOST_PORT}")
    return int(text)


def _check_address(text: str) -> None:
    try:
        kinds.host().parse(text)
    except ValueError as error:
        raise CommandLineError(
            f"--metrics-address {text!r} is not a {error}", "Give one of this machine, such as 127.0.0.1 or 0.0.0.0"
        ) from None


def _is_there(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _missing(what: str, package: str, extra: str) -> CommandLineError:
    return CommandLineError(SparkCondition.EXTRA_MISSING(what=what, package=package, extra=extra))


def _is_terminal(stream: TextIO) -> bool:
    """Whether it is the standard error of this process, and a terminal on which lines can be overwritten."""
    try:
        return stream.fileno() == _STANDARD_ERROR and stream.isatty() and os.environ.get("TERM") != "dumb"
    except (OSError, ValueError):  # a notebook's, or closed
        return False


def has_panel(arguments: argparse.Namespace, stream: TextIO) -> bool:
    """Whether the job shows a panel on ``stream``."""
    if arguments.progress == PANEL:
        return True
    if arguments.progress != AUTO or arguments.quiet or not (_is_terminal(stream) and _is_there("rich")):
        return False
    # Spark's console sink writes from another process to standard output: between the lines of a panel
    return not (getattr(arguments, "format", None) == "console" and sys.stdout is not None and sys.stdout.isatty())


@dataclass(frozen=True, slots=True)
class Watch:
    """How one run of a job is watched."""

    arguments: argparse.Namespace
    panel: LivePanel | None

    def progress(self, on_batch: Callable[[StreamingQueryProgress], None] | None = None) -> Progress:
        """The progress of the job, as the command line wants it shown."""
        quiet = self.arguments.quiet or self.arguments.progress == NONE
        live = self.arguments.progress != LINES
        return Progress(sys.stderr, quiet=quiet, live=live, display=self.panel, on_batch=on_batch)


@contextmanager
def watched_session(job: str, arguments: argparse.Namespace) -> Iterator[tuple[SparkSession, Watch]]:
    """The session that the command line requests, and how its queries are watched.

    The panel is there before Spark starts: what Spark starts inherits standard error. At the end standard error is as
    it was, whatever has happened.

    Raises:
        CommandLineError: as :func:`check_watching`.
    """
    check_watching(arguments, sys.stderr)
    with ExitStack() as stack:
        panel = stack.enter_context(_panel(job)) if has_panel(arguments, sys.stderr) else None
        metrics = None if arguments.metrics_port is None else stack.enter_context(_metrics(arguments))
        spark = stack.enter_context(session(job, arguments))
        if metrics is not None:
            spark.streams.addListener(metrics)
            stack.callback(_remove, spark, metrics)
        if panel is not None:
            panel.phase("running")
        yield spark, Watch(arguments, panel)


def _remove(spark: SparkSession, metrics: Metrics) -> None:
    with suppress(Exception):  # Java is gone: the error of the job says so
        spark.streams.removeListener(metrics)


@contextmanager
def _panel(job: str) -> Iterator[LivePanel]:
    from amqp_spark.cli.live_panel import LivePanel  # noqa: PLC0415 - the extra panel
    from amqp_spark.cli.standard_error import StandardError  # noqa: PLC0415

    standard_error = StandardError()
    panel = LivePanel(job, standard_error.terminal, standard_error.drain)
    standard_error.on_line = panel.line
    with standard_error:
        panel.start()
        try:
            yield panel
        finally:
            panel.close()


def _metrics(arguments: argparse.Namespace) -> Metrics:
    from amqp_spark.monitoring import Metrics  # noqa: PLC0415 - --help and wrong options must not wait for Spark

    # A job does not use the history, which takes gigabytes for hundreds of queues and thousands of batches.
    return Metrics(_port(arguments.metrics_port), prometheus_address=arguments.metrics_address, history_batches=1)
