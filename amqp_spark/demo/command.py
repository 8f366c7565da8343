"""The command line: where the demonstration keeps its files, and its exit code."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from amqp_core.command_line import Parser
from amqp_spark.cli import EXIT_DONE, EXIT_FAILED, CommandLineError, Signals, fail
from amqp_spark.cli.spark import check_temporary_directory
from amqp_spark.demo.demonstration import LOG, demonstrate
from amqp_spark.demo.java import JavaMissing, require_java
from amqp_spark.demo.quiet_spark import end_of
from amqp_spark.demo.reporting import Reporter

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from amqp_spark.demo.steps import Place

_PROGRAM: Final = "demo"
_DESCRIPTION: Final = """\
Shows the connector at work, with nothing installed but this package and Java.

Starts a broker, publishes sample market data to an exchange, streams the queue that is bound to it into Parquet files
with Spark, publishes a summary of each symbol with Spark, and receives the summaries with a plain AMQP client. Then it
checks that every message arrived exactly once with its content, and that the broker holds none of them any more. It
takes about half a minute, uses two cores, and leaves nothing behind.
"""
_EXIT_CODES: Final = """\
exit codes: 0 every check holds; 1 one does not, there is no Java for Spark, or Spark failed; 2 the command line is
wrong; 3 the broker could not be used; 130, 143 stopped by SIGINT (Ctrl-C), SIGTERM.
"""


def parser(program: str) -> argparse.ArgumentParser:
    """The command line."""
    arguments = Parser(
        prog=program,
        allow_abbrev=False,
        description=_DESCRIPTION,
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    arguments.add_argument(
        "--count", type=_positive, default=50_000, metavar="N", help="number of messages (default: %(default)s)"
    )
    arguments.add_argument("--seed", type=int, default=1, metavar="N", help="of the sample data (default: %(default)s)")
    arguments.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="new or empty directory that keeps the Parquet files, the checkpoint and the log of Spark (default: a "
        "temporary one, removed at the end)",
    )
    return arguments


def run(arguments: argparse.Namespace, title: str, broker: Callable[[], AbstractContextManager[Place]]) -> int:
    """Run the demonstration; return the exit code.

    Args:
        arguments: of :func:`parser`.
        title: of the broker.
        broker: starts one for the life of a context.
    """
    try:
        require_java()
        check_temporary_directory()
        directory = _directory(arguments.keep)
    except JavaMissing as error:
        sys.stderr.write(f"{_PROGRAM}: error: {error}\n")
        return EXIT_FAILED
    except CommandLineError as error:
        return fail(_PROGRAM, error)
    with Signals() as signals:
        reporter = Reporter(signals)
        try:
            reporter.say(f"1/6 starting a broker ({title})")
            with broker() as place:
                holds = demonstrate(place, arguments.count, arguments.seed, directory, reporter)
            code = _conclude(reporter, arguments, directory, holds=holds)
        except Exception as error:  # noqa: BLE001 - everything becomes a message and an exit code
            code = signals.exit_code or _explain(error, directory)
            if signals.received is not None:
                sys.stderr.write(f"{_PROGRAM}: stopped by {signal.Signals(signals.received).name}\n")
    if arguments.keep is None and (code == EXIT_DONE or signals.received is not None):
        shutil.rmtree(directory, ignore_errors=True)
    return code


def _conclude(reporter: Reporter, arguments: argparse.Namespace, directory: Path, *, holds: bool) -> int:
    """Say how it ended; return the exit code."""
    if not holds:
        reporter.say(f"demo: FAILED; files and the log of Spark ({LOG}) are in {directory}")
        return EXIT_FAILED
    reporter.say(f"demo: every message arrived exactly once, and the summaries of them came back ({reporter.elapsed})")
    if arguments.keep is not None:
        reporter.say(f"demo: the files are in {directory}")
    return EXIT_DONE


def _explain(error: Exception, directory: Path) -> int:
    """Say what went wrong, after the last lines that Spark has printed; return the exit code."""
    printed = end_of(directory / LOG)
    if printed:
        sys.stderr.write(f"{printed}\n")
    code = fail(_PROGRAM, error)
    sys.stderr.write(f"{_PROGRAM}: files and the log of Spark ({LOG}) are in {directory}\n")
    return code


def _directory(keep: Path | None) -> Path:
    """Make the directory of the demonstration.

    Raises:
        CommandLineError: it has files, or cannot be made.
    """
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="amqp-demo-"))
    try:
        keep.mkdir(parents=True, exist_ok=True)
        used = any(keep.iterdir())
    except OSError as error:
        raise CommandLineError(f"--keep {keep} is no directory: {error.strerror}", "Give a new one") from error
    if used:
        raise CommandLineError(f"--keep {keep} has files", "Give a new or an empty directory")
    return keep.resolve()


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)
