"""Named points at which a test may kill a process of a query; inactive unless an environment variable is set.

If ``AMQP_SPARK_CRASHPOINTS`` is set to a directory when a process starts, :func:`reached` looks there for a file
``<point>.armed``. Its text is an action and the number of times that a process passes the point before it acts::

    wait 0     stop here (this thread only) and wait to be killed, or for the ``.reached`` file to be removed
    kill 0     end this process by SIGKILL

The first process at the point takes it: it renames the file, atomically, to ``<point>.<pid>.<time>.reached``.
All processes of a query (JVM, reader, workers) inherit the environment, and a test can arm one point after the other.
Without the variable :func:`reached` is a function that does nothing.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE: Final = "AMQP_SPARK_CRASHPOINTS"

RECEIVED_UNPLANNED: Final = "received-unplanned"
"""Receiver thread: transfers are in the buffer and in no batch."""
END_RETURNED_UNLOGGED: Final = "end-returned-unlogged"
"""A batch is planned; ``latestOffset`` returns its end, which Spark has not logged."""
LOGGED_BEFORE_PARTITIONS: Final = "logged-before-partitions"
"""``partitions`` was called, so the end is in the offset log; no partition was returned."""
PARTITIONS_RETURNED: Final = "partitions-returned"
"""The partitions of a batch are built and about to be returned to Spark."""
FETCH_MID: Final = "fetch-mid"
"""Pull endpoint: some, not all, bytes of a range were sent to an executor."""
READ_STARTED: Final = "read-started"
"""Executor: ``read`` was called and has produced no Arrow batch."""
READ_MID: Final = "read-mid"
"""Executor: ``read`` has produced its first Arrow batch."""
BATCH_DONE_UNCOMMITTED: Final = "batch-done-uncommitted"
"""The sink has written the batch, Spark has not logged it. Reached by the sink of a test, not by the source."""
COMMIT_LOGGED: Final = "commit-logged"
"""The batch is in the commit log; the receiver has not begun to accept it."""
ACCEPT_UNSENT: Final = "accept-unsent"
"""Receiver thread: about to send the accept of a processed batch."""
ACCEPT_SENT: Final = "accept-sent"
"""Receiver thread: the accept was sent; whether the broker has it is not known."""
ACCEPT_CONFIRMED: Final = "accept-confirmed"
"""Receiver thread: the broker has completed the accept; Spark does not know yet."""

POINTS: Final = (
    RECEIVED_UNPLANNED, END_RETURNED_UNLOGGED, LOGGED_BEFORE_PARTITIONS, PARTITIONS_RETURNED, FETCH_MID, READ_STARTED,
    READ_MID, BATCH_DONE_UNCOMMITTED, COMMIT_LOGGED, ACCEPT_UNSENT, ACCEPT_SENT, ACCEPT_CONFIRMED,
)  # fmt: skip
"""Every point of the source, in the order of a batch's life."""

LOCK_TAKEN: Final = "lock-taken"
"""Exactly-once: the receiver's thread has the lock and has not read the state."""
EPOCH_RAISED: Final = "epoch-raised"
"""Exactly-once: the broker has the state with the new epoch; no batch was offered to Spark."""
RECOVERY_MID: Final = "recovery-mid"
"""Exactly-once: state and spool were read and match; the epoch is not raised."""
TX_SENT: Final = "tx-sent"
"""Exactly-once: the transaction that owns a batch was sent with its commit; whether the broker has it is not known."""
TX_COMMITTED: Final = "tx-committed"
"""Exactly-once: the broker has committed it; ``latestOffset`` has not returned."""
FINISH_SENT: Final = "finish-sent"
"""Exactly-once: the transaction that drops processed batches from the state was sent with its commit."""
FINISH_CONFIRMED: Final = "finish-confirmed"
"""Exactly-once: the broker has committed it; the files are in the spool."""
SPOOL_DELETED: Final = "spool-deleted"
"""Exactly-once: the file of a processed batch was deleted."""

SPOOL_PARTIAL: Final = "spool-partial"
"""Exactly-once: a part of a batch's bytes was written to its spool file, which is not visible yet."""
SPOOL_SYNCED: Final = "spool-synced"
"""Exactly-once: all bytes of the file are written, on a local path also synced; it does not have its final name."""
SPOOL_RENAMED: Final = "spool-renamed"
"""Exactly-once: the file is in the spool under its name; no transaction owns it."""

EXACTLY_ONCE_POINTS: Final = (
    LOCK_TAKEN, RECOVERY_MID, EPOCH_RAISED, SPOOL_PARTIAL, SPOOL_SYNCED, SPOOL_RENAMED, TX_SENT, TX_COMMITTED,
    END_RETURNED_UNLOGGED, LOGGED_BEFORE_PARTITIONS, PARTITIONS_RETURNED, BATCH_DONE_UNCOMMITTED, COMMIT_LOGGED,
    FINISH_SENT, FINISH_CONFIRMED, SPOOL_DELETED,
)  # fmt: skip
"""Every point of the source with exactly-once, in the order of a batch's life; some apply to every guarantee."""

TASK_STARTED: Final = "task-started"
"""Task of a writer: it has its first rows; it is not connected and has sent nothing."""
BLOCK_SENT: Final = "block-sent"
"""Task of a writer: its first block was passed to the connection; more may follow."""
CONNECTION_LOST: Final = "connection-lost"
"""Task of a writer: its connection broke; it has not reconnected."""
ALL_SENT: Final = "all-sent"
"""Task of a writer: all transfers were passed to the connection; the broker was not asked to complete the last ones."""
SYNCED: Final = "synced"
"""Task of a writer: the broker has completed every transfer; Spark does not know yet."""
MESSAGE_RETURNED: Final = "message-returned"
"""Driver: it has the results of the tasks (``commit``, or inside ``foreachBatch``); the batch is not in Spark's commit
log."""

SINK_POINTS: Final = (TASK_STARTED, BLOCK_SENT, CONNECTION_LOST, ALL_SENT, SYNCED, MESSAGE_RETURNED)
"""Every point of the sink, in the order of a batch's life."""

BRANCH_OPEN: Final = "branch-open"
"""Exactly-once task: its transaction is started with its timeout; no row was sent."""
ENDED: Final = "ended"
"""Exactly-once task: rows and marker are in the transaction, which is ended (dtx.end) but not prepared."""
PREPARED: Final = "prepared"
"""Exactly-once task: the transaction is prepared; Spark does not know yet."""
COMMIT_DENIED: Final = "commit-denied"
"""Spark has denied a task its commit because another attempt won; its transaction stays prepared until a sweep. No code
of this package runs then, so no process reaches this point: tests cause it by two attempts of one task."""
SINK_LOCK_TAKEN: Final = "sink-lock-taken"
"""Driver, exactly-once: it has the writer's lock and has not read the state."""
VERIFIED: Final = "verified"
"""Driver, exactly-once: all transactions of the batch are prepared, their timers are renewed; no decision is made."""
DECISION_SENT: Final = "decision-sent"
"""Driver, exactly-once: the decision and its commit were sent; whether the broker has them is not known."""
DECISION_COMMITTED: Final = "decision-committed"
"""Driver, exactly-once: the batch is decided; none of its transactions is committed."""
SOME_COMMITTED: Final = "some-committed"
"""Driver, exactly-once: the first transaction of the batch is committed."""
ALL_COMMITTED: Final = "all-committed"
"""Driver, exactly-once: all transactions are committed; their markers are not removed."""
DONE_SWAPPED: Final = "done-swapped"
"""Driver, exactly-once: the state records the batch as done, and the markers are removed."""
MID_SWEEP: Final = "mid-sweep"
"""Driver, or the first task of a run, exactly-once: the first orphan was rolled back."""
ABORT_ENTERED: Final = "abort-entered"
"""Driver, exactly-once: Spark has called ``abort``; no action was taken."""

EXACTLY_ONCE_SINK_POINTS: Final = (
    TASK_STARTED, BRANCH_OPEN, BLOCK_SENT, ALL_SENT, SYNCED, ENDED, PREPARED, COMMIT_DENIED, MESSAGE_RETURNED,
    SINK_LOCK_TAKEN, VERIFIED, DECISION_SENT, DECISION_COMMITTED, SOME_COMMITTED, ALL_COMMITTED, DONE_SWAPPED,
    MID_SWEEP, ABORT_ENTERED,
)  # fmt: skip
"""Every point of the sink with exactly-once, in the order of a batch's life."""

EXPORTED: Final = "exported"
"""Command ``transactions --skip``: the message is in its file, on disk; the state of the consumer is unchanged."""
ASIDE_SENT: Final = "aside-sent"
"""Command ``transactions --skip``: the state that skips the message was sent; the broker may or may not have it."""
ASIDE_COMMITTED: Final = "aside-committed"
"""Command ``transactions --skip``: the broker has it; the command has not printed its result."""

ASIDE_POINTS: Final = (EXPORTED, ASIDE_SENT, ASIDE_COMMITTED)
"""Every point of skipping a message of a spool, in order."""

_POLL_SECONDS: Final = 0.01


class _Armed:
    """The points of one process, armed through files of one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._passed: dict[tuple[str, int], int] = {}

    def reached(self, point: str) -> None:
        armed = self._directory / f"{point}.armed"
        try:
            action, count = armed.read_text(encoding="ascii").split()
            key = point, armed.stat().st_mtime_ns  # armed again: counted from the start
        except OSError:
            return  # not armed, or another process was faster
        passed = self._passed.get(key, 0)
        if passed < int(count):
            self._passed[key] = passed + 1
            return
        announced = self._directory / f"{point}.{os.getpid()}.{time.monotonic_ns()}.reached"
        try:
            armed.rename(announced)
        except OSError:
            return
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        while announced.exists():
            time.sleep(_POLL_SECONDS)


def _nothing(point: str) -> None:
    """Do nothing: :func:`reached` in a process without the environment variable."""


_directory = os.environ.get(VARIABLE)

reached: Callable[[str], None] = _Armed(Path(_directory)).reached if _directory else _nothing
"""Pass ``point``: returns at once unless a test has armed it."""
