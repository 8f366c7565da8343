"""The command line: where the demonstration keeps its files, and its exit code."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from amqp_spark.cli import EXIT_BROKER, EXIT_DONE, EXIT_FAILED, CommandLineError, fail
from amqp_spark.demo.demonstration import LOG, demonstrate, elapsed, say
from amqp_spark.demo.java import JavaMissing, require_java
from amqp_spark.demo.quiet_spark import end_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import FrameType

    from amqp_spark.demo.steps import Place

_PROGRAM: Final = "demo"
_INTERRUPTED: Final = 128 + signal.SIGINT
_DESCRIPTION: Final = """\
Shows the connector at work, with nothing installed but this package and Java.

Starts a broker, publishes sample market data to an exchange, streams the queue that is bound to it into Parquet files
with Spark, publishes a summary of each symbol with Spark, and receives the summaries with a plain AMQP client. Then it
checks that every message arrived exactly once with its content, and that the broker holds none of them any more. It
takes about half a minute, uses two cores, and leaves nothing behind.
"""
_EXIT_CODES: Final = """\
exit codes: 0 every check holds; 1 one does not, or Spark failed; 2 the command line is wrong; 3 there is no Java for
Spark, or the broker could not be used; 130, 143 stopped by SIGINT (Ctrl-C), SIGTERM.
"""


def parser(program: str) -> argparse.ArgumentParser:
    """The command line."""
    arguments = argparse.ArgumentParser(
        prog=program,
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
        directory = _directory(arguments.keep)
    except JavaMissing as error:
        sys.stderr.write(f"{_PROGRAM}: error: {error}\n")
        return EXIT_BROKER
    except CommandLineError as error:
        return fail(_PROGRAM, error)
    done_with = arguments.keep is None
    signal.signal(signal.SIGTERM, _end)
    try:
        code = _run(arguments, title, broker, directory)
        done_with &= code == EXIT_DONE
    except KeyboardInterrupt:
        sys.stderr.write(f"{_PROGRAM}: stopped by SIGINT\n")
        return _INTERRUPTED
    else:
        return code
    finally:
        if done_with:
            shutil.rmtree(directory, ignore_errors=True)


def _run(
    arguments: argparse.Namespace, title: str, broker: Callable[[], AbstractContextManager[Place]], directory: Path
) -> int:
    """Run it in a directory, which the last lines name if it stays; return the exit code."""
    started = time.monotonic()
    try:
        say(f"1/6 starting a broker ({title})")
        with broker() as place:
            holds = demonstrate(place, arguments.count, arguments.seed, directory)
    except Exception as error:  # noqa: BLE001 - everything becomes a message and an exit code
        printed = end_of(directory / LOG)
        if printed:
            sys.stderr.write(f"{printed}\n")
        code = fail(_PROGRAM, error)
        sys.stderr.write(f"{_PROGRAM}: files and the log of Spark ({LOG}) are in {directory}\n")
        return code
    if not holds:
        say(f"demo: FAILED; files and the log of Spark ({LOG}) are in {directory}")
        return EXIT_FAILED
    say(f"demo: every message arrived exactly once, and the summaries of them came back ({elapsed(started)})")
    if arguments.keep is not None:
        say(f"demo: the files are in {directory}")
    return EXIT_DONE


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


def _end(number: int, _frame: FrameType | None) -> None:
    """End the process in order: broker and Spark stop, the directory is removed."""
    sys.exit(128 + number)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)
