"""What the scripts in ``jobs/`` share: credentials, session, signals, progress, exit codes.

Exit codes are for schedulers: 0 done, 1 the query failed, 2 the command line or an option is wrong, 3 the broker could
not be used (unreachable, login refused, queue missing, ...), 130 and 143 stopped by SIGINT and SIGTERM.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self, TextIO

from amqp_core import errors as core_errors
from amqp_core.errors import AmqpError
from amqp_spark import errors as spark_errors
from amqp_spark.errors import AmqpSparkError, OptionError, SchemaError
from amqp_spark.options import CONNECTION, SINK, SOURCE

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping
    from types import FrameType

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_OPTIONS = 2
EXIT_BROKER = 3

_POLL_SECONDS = 1
_ERROR_LINE = re.compile(r"\b(amqp_core\.errors|amqp_spark\.errors)\.(\w+): (.*)")
# What can follow an error in the text that the JVM makes of it.
_NOT_OURS = (" ", "\t", "===", "Traceback", "The above exception", "During handling", "JVM stacktrace", "Caused by")
_FILES = frozenset({"passwordFile", "tls.caFile", "tls.certFile", "tls.keyFile"})
_NAMES = {option.name.lower(): option for option in (*CONNECTION, *SOURCE, *SINK)}


class CommandLineError(Exception):
    """Something on the command line is wrong; the text says what to write instead."""


# ------------------------------------------------------------------------------------------------------ command line
def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    """``--url``, ``--username``, ``--password-file``; environment variables stand in for what is not given."""
    group = parser.add_argument_group("broker")
    group.add_argument("--url", default=os.environ.get("AMQP_URL"), help="amqp[s]://host[:port]/vhost (or $AMQP_URL)")
    group.add_argument("--username", default=os.environ.get("AMQP_USERNAME"), help="login name (or $AMQP_USERNAME)")
    group.add_argument(
        "--password-file",
        metavar="FILE",
        help="file that holds the password, read at every connection (or $AMQP_PASSWORD, the password itself; there is "
        "no way to give it on the command line, where everybody on the machine could read it)",
    )


def credentials(arguments: argparse.Namespace) -> dict[str, str]:
    """The login as options of the source. The password comes from a file or from ``AMQP_PASSWORD``."""
    found: dict[str, str] = {}
    if arguments.username is not None:
        found["username"] = arguments.username
    password = os.environ.get("AMQP_PASSWORD")
    if arguments.password_file is not None:
        found["passwordFile"] = arguments.password_file
    elif password is not None:
        found["password"] = password
    return found


def check_files(options: Mapping[str, str]) -> None:
    """The files that options name must be readable here, where the reader runs: better now than after Spark's start."""
    for option in CONNECTION:
        path = options.get(option.name)
        if option.name not in _FILES or path is None:
            continue
        try:
            with Path(path).open("rb"):
                pass
        except OSError as error:
            raise CommandLineError(f"option {option.name!r}: {path!r} cannot be read: {error.strerror}") from error


def pairs(texts: Iterable[str], flag: str) -> dict[str, str]:
    """``key=value`` arguments as a dictionary. A password is refused, unseen."""
    found: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise CommandLineError(f"{flag} takes key=value, not {key!r}")
        option = _NAMES.get(key.lower())
        if option is not None and option.secret:
            raise CommandLineError(
                f"{flag} {key}=... would show the password to everybody on this machine: use --password-file or the "
                "environment variable AMQP_PASSWORD"
            )
        if key in found:
            raise CommandLineError(f"{flag} {key}=... is given twice")
        found[key] = value
    return found


def option_help() -> str:
    """The table of the source's options for the end of ``--help``."""
    shown = [option for option in (*CONNECTION, *SOURCE) if not option.secret]  # pairs() refuses the others
    width = max(len(option.name) for option in shown)
    lines = [f"  {option.name:<{width}}  {option.kind.allowed} (default: {option.default})" for option in shown]
    return "options of the source, for --option name=value (docs/options.md says what they mean):\n" + "\n".join(lines)


# ------------------------------------------------------------------------------------------------------------- Spark
def spark_session(
    name: str, conf: Mapping[str, str], master: str | None, *, verbose: bool = False
) -> tuple[SparkSession, bool]:
    """A session whose workers run this interpreter, with ``format("amqp")`` registered; and whether it is new.

    One that was there already, as in a notebook, is not ours to stop, nor to be made quiet.
    """
    # Spark's own default is the first python3 on the PATH, which in a virtual environment that is not activated lacks
    # everything: each query would then fail after a minute with "Python worker failed to connect back".
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession  # noqa: PLC0415 - --help and wrong options must not wait for it

    from amqp_spark import register  # noqa: PLC0415

    new = SparkSession.getActiveSession() is None
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in conf.items():
        builder = builder.config(key, value)
    if new and not verbose and "spark.log.level" not in conf:
        builder = builder.config("spark.log.level", "ERROR")
    spark = builder.getOrCreate()
    if new and not verbose:
        _let_us_explain(spark)
    register(spark)
    return spark, new


def _let_us_explain(spark: SparkSession) -> None:
    """A query that fails is explained in one line by :func:`explain`; Spark's own hundred lines would bury it."""
    try:
        log4j = spark.sparkContext._jvm.org.apache.logging.log4j  # type: ignore[union-attr]  # there is a JVM now
        log4j.core.config.Configurator.setLevel("org.apache.spark.sql.execution.streaming", log4j.Level.OFF)
    except Exception:  # noqa: BLE001 - another logging back end, or Spark Connect: then both are shown
        return


class Signals:
    """SIGINT and SIGTERM as a flag that a loop looks at; a second signal ends the process at once.

    A context manager: at its end the handlers are those from before.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self.install()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def install(self) -> None:
        """Take the handlers; again after a SparkContext was made, which sets its own for SIGINT."""
        for number in self._before:
            signal.signal(number, self._handle)

    @property
    def exit_code(self) -> int | None:
        """128 + the signal's number, as a shell says it; ``None`` when none came."""
        return None if self.received is None else 128 + self.received

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.received = number
        for each in self._before:
            signal.signal(each, signal.SIG_DFL)


def follow(query: StreamingQuery, signals: Signals, progress: Progress) -> int:
    """Show progress until the query ends or a signal comes; stop it in order. Returns the exit code."""
    try:
        while signals.received is None:
            ended = query.awaitTermination(_POLL_SECONDS)
            progress.update(query)
            if ended:
                return EXIT_DONE
        stopping = time.monotonic()
        query.stop()
        progress.update(query)
        progress.say(
            f"stopped by {signal.Signals(signals.received).name} in {time.monotonic() - stopping:.1f} s; "
            "what was received and not accepted goes back to the broker"
        )
    finally:
        progress.close()
    return signals.exit_code or EXIT_DONE


# ---------------------------------------------------------------------------------------------------------- progress
class Progress:
    """Batches, rows, rows/s and backlog on the terminal: a live line where there is one, else one line per batch."""

    def __init__(self, stream: TextIO, *, quiet: bool = False) -> None:
        self.batches = 0
        self.rows = 0
        self._stream = stream
        self._quiet = quiet
        self._started = time.monotonic()
        self._seen = -1
        self._bar = None if quiet or not stream.isatty() else _bar(stream)

    def update(self, query: StreamingQuery) -> None:
        """Take in the batches that have finished since the last call."""
        backlog: int | None = None
        for each in query.recentProgress:
            backlog = _backlog(each.sources)
            rows = each.numInputRows
            if each.batchId <= self._seen or rows == 0:
                continue
            self._seen = each.batchId
            self.batches += 1
            self.rows += rows
            self._batch(each.batchId, rows, each.processedRowsPerSecond, backlog)
        if self._bar is not None:
            self._bar.set_postfix_str(f"{_batches(self.batches)}{_also(backlog)}", refresh=True)

    def _batch(self, batch_id: int, rows: int, rate: float | None, backlog: int | None) -> None:
        if self._bar is not None:
            self._bar.update(rows)
        elif not self._quiet:
            per_second = "" if rate is None else f", {rate:,.0f} rows/s"
            self.say(f"batch {batch_id}: {rows:,} rows{per_second}{_also(backlog)}")

    def say(self, text: str) -> None:
        """One line that stays."""
        if self._bar is not None:
            self._bar.clear()
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def close(self) -> None:
        """End the live line."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def summary(self) -> str:
        """What was done, for the last line."""
        return f"{self.rows:,} rows in {_batches(self.batches)}, {time.monotonic() - self._started:.1f} s"


class _Bar:
    """tqdm's bar, as far as it is used here."""

    def __init__(self, stream: TextIO) -> None:
        tqdm = importlib.import_module("tqdm").tqdm
        self._tqdm = tqdm(unit=" rows", unit_scale=True, file=stream, dynamic_ncols=True)

    def update(self, rows: int) -> None:
        self._tqdm.update(rows)

    def set_postfix_str(self, text: str, *, refresh: bool) -> None:
        self._tqdm.set_postfix_str(text, refresh=refresh)

    def clear(self) -> None:
        self._tqdm.clear()

    def close(self) -> None:
        self._tqdm.close()


def _bar(stream: TextIO) -> _Bar | None:
    try:
        return _Bar(stream)
    except ImportError:  # tqdm is not a requirement
        return None


def _batches(count: int) -> str:
    return f"{count:,} batch" if count == 1 else f"{count:,} batches"


def _also(backlog: int | None) -> str:
    return "" if backlog is None else f", backlog {backlog:,}"


def _backlog(sources: Iterable[object]) -> int | None:
    """The sum of what the sources say in ``latestOffset``; ``None`` as long as none of them knows."""
    known = [count for source in sources for count in _counts(getattr(source, "latestOffset", None))]
    return sum(known) if known else None


def _counts(latest: object) -> Iterable[int]:
    if isinstance(latest, str):
        try:
            latest = json.loads(latest)
        except ValueError:
            return
    if isinstance(latest, dict):
        for entry in latest.values():
            if isinstance(entry, dict) and isinstance(entry.get("backlog"), int):
                yield entry["backlog"]


# ------------------------------------------------------------------------------------------------------------ errors
def explain(error: BaseException) -> tuple[str, int]:
    """What to tell the user of an error that may come from another process, and the exit code for it.

    An error of ours that went through the JVM is text: the last line of a Python traceback somewhere in it.
    """
    if isinstance(error, AmqpError):
        return "\n".join((str(error), *getattr(error, "__notes__", ()))), _code(type(error))
    text = str(error)
    found = list(_ERROR_LINE.finditer(text))
    if found:
        match = found[-1]
        module = core_errors if match[1] == core_errors.__name__ else spark_errors
        return _message(text, match), _code(getattr(module, match[2], None))
    # Of an error that py4j passes on the first line names a Java object only; the next has its class before the text.
    lines = [
        re.sub(r"^: [\w.$]+: ", "", line)
        for line in text.splitlines()
        if line.strip() and not line.startswith("An error occurred while calling ")
    ]
    return (lines[0] if lines else type(error).__name__), EXIT_FAILED


def refused_by_spark(error: BaseException) -> bool:
    """Whether starting a query failed before anything ran: a column, format, trigger or sink option that is wrong."""
    from pyspark.errors import AnalysisException, IllegalArgumentException, ParseException  # noqa: PLC0415 - slow

    known = (AnalysisException, IllegalArgumentException, ParseException)
    return isinstance(error, known) or "[DATA_SOURCE_NOT_FOUND]" in str(error)


def _message(text: str, match: re.Match[str]) -> str:
    """The error's own lines: the one that names it, the list of problems under it, and its notes."""
    lines = [match[3]]
    for line in text[match.end() :].splitlines()[1:]:
        if not line.startswith("  - ") and (not line.strip() or line.startswith(_NOT_OURS)):
            break
        lines.append(line)
    return "\n".join(lines)


def _code(cls: object) -> int:
    if not (isinstance(cls, type) and issubclass(cls, AmqpError)) or cls is core_errors.UsageError:
        return EXIT_FAILED
    if issubclass(cls, AmqpSparkError):
        return EXIT_OPTIONS if issubclass(cls, (OptionError, SchemaError)) else EXIT_FAILED
    return EXIT_BROKER


def fail(program: str, error: BaseException) -> int:
    """Say what is wrong on standard error; returns the exit code."""
    if isinstance(error, CommandLineError):
        text, code = str(error), EXIT_OPTIONS
    else:
        text, code = explain(error)
    sys.stderr.write(f"{program}: error: {text}\n")
    sys.stderr.flush()
    return code
