"""Run a job from command line to exit code: its query or action, and the signals that stop it."""

from __future__ import annotations

import signal
import sys
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self, TypeVar

from amqp_core.standard_output import replace_closed_error
from amqp_spark.active_session import activate
from amqp_spark.cli.arguments import check_query
from amqp_spark.cli.errors import EXIT_DONE, explain, fail, tell
from amqp_spark.cli.watching import check_watching

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from types import FrameType

    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from amqp_spark.cli.progress import Progress

_POLL_SECONDS = 1
SAME_SECONDS: Final = 1.0
"""A signal repeated within this time counts as the same: timeout(1), for one, signals the process, then its group."""
_T = TypeVar("_T")


class Stopped(Exception):
    """A signal has come, and this is a place at which everything can be ended in order."""


class Signals:
    """SIGINT and SIGTERM as a flag for a loop; a second signal, later, ends the process at once.

    A context manager that restores the previous handlers at its end.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._at = 0.0
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self.install()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def install(self) -> None:
        """Install the handlers; repeat it where something else has set its own."""
        for number in self._before:
            signal.signal(number, self._handle)

    def check(self) -> None:
        """Raise :class:`Stopped` if a signal has come."""
        if self.received is not None:
            raise Stopped("what comes next was not begun")

    @property
    def exit_code(self) -> int | None:
        """128 + the signal's number, as in a shell; ``None`` without a signal."""
        return None if self.received is None else 128 + self.received

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self._at = number, time.monotonic()
        elif time.monotonic() - self._at >= SAME_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


def job(
    program: str,
    parser: argparse.ArgumentParser,
    run: Callable[[argparse.Namespace, Signals], int],
    argv: Sequence[str] | None,
) -> int:
    """Parse the command line and run; every error becomes a message on standard error. Return the exit code."""
    replace_closed_error()
    arguments = parser.parse_args(argv)
    with Signals() as signals:
        try:
            check_watching(arguments, sys.stderr)
            check_query(arguments)
            return run(arguments, signals)
        except Exception as error:  # noqa: BLE001 - everything becomes a message and an exit code
            if signals.received is None:
                return fail(program, error)
            # a signal to the whole process group also ends the JVM: later failures are expected
            name = signal.Signals(signals.received).name
            tell(program, f"stopped by {name} before it was done: {explain(error)[0]}")
            return signals.exit_code or EXIT_DONE


_GOES_BACK = "messages that were not accepted return to their queues"


def follow(query: StreamingQuery, signals: Signals, progress: Progress, *, rest: str = _GOES_BACK) -> int:
    """Show progress until the query ends or a signal comes; stop it cleanly, and report the fate of the ``rest``.

    Raises:
        OSError: standard error can no longer be written, such as a pipe whose reader has ended. The query is stopped.
    """
    try:
        while signals.received is None:
            ended = query.awaitTermination(_POLL_SECONDS)
            progress.update(query)
            if ended:
                return EXIT_DONE
        stopping = time.monotonic()
        query.stop()
        progress.update(query)
        name = signal.Signals(signals.received).name
        progress.say(f"stopped by {name} in {time.monotonic() - stopping:.1f} s; {rest}")
    except OSError:
        with suppress(Exception):  # the JVM may be what is gone
            query.stop()
        raise
    except Exception:
        with suppress(Exception):  # the batches before the failure count
            progress.update(query)
        raise
    finally:
        progress.close()
    return signals.exit_code or EXIT_DONE


def run_action(spark: SparkSession, action: Callable[[], _T], signals: Signals, progress: Progress) -> _T | None:
    """Run an action of Spark, such as a batch write, in a second thread, while this one shows the number of tasks done.

    A signal cancels the jobs of the action: the result is then ``None``.

    Raises:
        Stopped: a signal has come before.
        OSError: standard error can no longer be written, as in :func:`follow`. The jobs are cancelled.
    """
    from pyspark import InheritableThread  # noqa: PLC0415 - --help and wrong options must not wait for it

    signals.check()
    context = spark.sparkContext
    group = f"amqp-spark-{uuid.uuid4()}"
    results: list[_T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            activate(spark)
            # Cancelling interrupts no threads: a Python worker in the middle of a write notices it at its socket.
            context.setJobGroup(group, "amqp", interruptOnCancel=False)
            results.append(action())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            errors.append(error)

    def cancel() -> None:
        # Repeatedly: a job that starts between two of its stages is not cancelled with the others.
        while thread.is_alive():
            context.cancelJobGroup(group)
            thread.join(_POLL_SECONDS)

    thread = InheritableThread(target=body, name="amqp-spark-action", daemon=True)
    thread.start()
    try:
        while thread.is_alive() and signals.received is None:
            thread.join(_POLL_SECONDS)
            progress.tasks(*_tasks(context, group))
        if signals.received is not None:
            stopping = time.monotonic()
            cancel()
            name = signal.Signals(signals.received).name
            progress.say(f"stopped by {name} in {time.monotonic() - stopping:.1f} s")
    except OSError:
        with suppress(Exception):  # the JVM may be what is gone
            cancel()
        raise
    finally:
        progress.close()
    if errors and signals.received is None:
        raise errors[0]
    return results[0] if results else None


def _tasks(context: SparkContext, group: str) -> tuple[int, int]:
    """Number of finished tasks of a job group, and number of all its tasks."""
    tracker = context.statusTracker()
    done = total = 0
    for job_id in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job_id)
        stages = [] if info is None else [tracker.getStageInfo(stage) for stage in info.stageIds]
        for stage in stages:
            if stage is not None:  # Spark forgets old ones
                done += stage.numCompletedTasks
                total += stage.numTasks
    return done, total
