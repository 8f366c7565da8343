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

# ---- source, every guarantee ----------------------------------------------------------------------------------------

RECEIVED_UNPLANNED: Final = "received-unplanned"  # receiver's thread: transfers are in the buffer and in no batch
# A batch is planned; ``latestOffset`` returns its end, which Spark has not logged.
END_RETURNED_UNLOGGED: Final = "end-returned-unlogged"
# ``partitions`` was called, so the end is in the offset log; no partition was returned.
LOGGED_BEFORE_PARTITIONS: Final = "logged-before-partitions"
PARTITIONS_RETURNED: Final = "partitions-returned"  # the partitions are built and about to be returned to Spark
FETCH_MID: Final = "fetch-mid"  # pull endpoint: some, not all, bytes of a range were sent to an executor
READ_STARTED: Final = "read-started"  # executor: ``read`` was called and has produced no Arrow batch
READ_MID: Final = "read-mid"  # executor: ``read`` has produced its first Arrow batch
# The sink has written the batch, Spark has not logged it. Reached by the sink of a test, not by the source.
BATCH_DONE_UNCOMMITTED: Final = "batch-done-uncommitted"
COMMIT_LOGGED: Final = "commit-logged"  # the batch is in the commit log; the receiver has not begun to accept it
ACCEPT_UNSENT: Final = "accept-unsent"  # receiver's thread: about to send the accept of a processed batch
ACCEPT_SENT: Final = "accept-sent"  # receiver's thread: the accept was sent; whether the broker has it is not known
ACCEPT_CONFIRMED: Final = "accept-confirmed"  # receiver's thread: the broker has completed it; Spark does not know yet

POINTS: Final = (
    RECEIVED_UNPLANNED, END_RETURNED_UNLOGGED, LOGGED_BEFORE_PARTITIONS, PARTITIONS_RETURNED, FETCH_MID, READ_STARTED,
    READ_MID, BATCH_DONE_UNCOMMITTED, COMMIT_LOGGED, ACCEPT_UNSENT, ACCEPT_SENT, ACCEPT_CONFIRMED,
)  # fmt: skip
"""Every point of the source, in the order of a batch's life."""

# ---- source, exactly-once -------------------------------------------------------------------------------------------

LOCK_TAKEN: Final = "lock-taken"  # the receiver's thread has the lock and has not read the state
EPOCH_RAISED: Final = "epoch-raised"  # the broker has the state with the new epoch; no batch was offered to Spark
RECOVERY_MID: Final = "recovery-mid"  # state and spool were read and match; the epoch is not raised
TX_SENT: Final = "tx-sent"  # the transaction that owns a batch was sent with its commit; unknown if the broker has it
TX_COMMITTED: Final = "tx-committed"  # the broker has committed it; ``latestOffset`` has not returned
FINISH_SENT: Final = "finish-sent"  # a transaction that drops processed batches from the state was sent with its commit
FINISH_CONFIRMED: Final = "finish-confirmed"  # the broker has committed it; the files are in the spool
SPOOL_DELETED: Final = "spool-deleted"  # the file of a processed batch was deleted
SPOOL_PARTIAL: Final = "spool-partial"  # some bytes of a batch were written to its spool file, which is not visible yet
# All bytes of the file are written, on a local path also synced; it does not have its final name.
SPOOL_SYNCED: Final = "spool-synced"
SPOOL_RENAMED: Final = "spool-renamed"  # the file is in the spool under its name; no transaction owns it
# Quorum queues only, which have no transaction: the state owns the batch, whose acknowledgement is not sent.
SPOOLED_UNACKED: Final = "spooled-unacked"
ACKED_WITHOUT_BARRIER: Final = "acked-without-barrier"  # it was sent; whether the queue has it is not known
BARRIER_UNNOTED: Final = "barrier-unnoted"  # the queue has it for good, which the state does not say
RECOGNISED_UNACKED: Final = "recognised-unacked"  # a batch has come again, which is noted; it is not acknowledged again
REACKED_WITHOUT_BARRIER: Final = (
    "reacked-without-barrier"  # it was acknowledged again; whether the queue has it is not known
)

EXACTLY_ONCE_POINTS: Final = (
    LOCK_TAKEN, RECOVERY_MID, EPOCH_RAISED, SPOOL_PARTIAL, SPOOL_SYNCED, SPOOL_RENAMED, TX_SENT, TX_COMMITTED,
    END_RETURNED_UNLOGGED, LOGGED_BEFORE_PARTITIONS, PARTITIONS_RETURNED, BATCH_DONE_UNCOMMITTED, COMMIT_LOGGED,
    FINISH_SENT, FINISH_CONFIRMED, SPOOL_DELETED,
)  # fmt: skip
"""Every point of the source with exactly-once, in the order of a batch's life; some apply to every guarantee."""

QUORUM_POINTS: Final = (SPOOLED_UNACKED, ACKED_WITHOUT_BARRIER, BARRIER_UNNOTED)
"""Further points of the source with exactly-once, on quorum queues, between ``TX_SENT`` and ``TX_COMMITTED``."""

RECOGNITION_POINTS: Final = (RECOGNISED_UNACKED, REACKED_WITHOUT_BARRIER)
"""Points that are passed there when an acknowledgement was lost, so that a batch comes again."""

# ---- tasks of a writer ----------------------------------------------------------------------------------------------

TASK_STARTED: Final = "task-started"  # it has its first rows; it is not connected and has sent nothing
BLOCK_SENT: Final = "block-sent"  # its first block was passed to the connection; more may follow
CONNECTION_LOST: Final = "connection-lost"  # its connection broke; it has not reconnected
# All transfers were passed to the connection; the broker was not asked to complete the last ones.
ALL_SENT: Final = "all-sent"
SYNCED: Final = "synced"  # the broker has completed every transfer; Spark does not know yet
# Driver: it has the results of the tasks (``commit``, or in ``foreachBatch``); the batch is not in Spark's commit log.
MESSAGE_RETURNED: Final = "message-returned"

SINK_POINTS: Final = (TASK_STARTED, BLOCK_SENT, CONNECTION_LOST, ALL_SENT, SYNCED, MESSAGE_RETURNED)
"""Every point of the sink, in the order of a batch's life."""

# ---- exactly-once: tasks of a writer, then its driver ---------------------------------------------------------------

BRANCH_OPEN: Final = "branch-open"  # its transaction is started with its timeout; no row was sent
ENDED: Final = "ended"  # rows and marker are in the transaction, which is ended (dtx.end) but not prepared
PREPARED: Final = "prepared"  # the transaction is prepared; Spark does not know yet
# Spark has denied a task its commit because another attempt won; its transaction stays prepared until a sweep. No code
# of this package runs then, so no process reaches this point: tests cause it by two attempts of one task.
COMMIT_DENIED: Final = "commit-denied"
SINK_LOCK_TAKEN: Final = "sink-lock-taken"  # driver: it has the writer's lock and has not read the state
VERIFIED: Final = "verified"  # driver: all transactions are prepared, their timers are renewed; no decision is made
# Driver: the decision and its commit were sent; whether the broker has them is not known.
DECISION_SENT: Final = "decision-sent"
DECISION_COMMITTED: Final = "decision-committed"  # driver: the batch is decided; no transaction of it is committed
SOME_COMMITTED: Final = "some-committed"  # driver: the first transaction of the batch is committed
ALL_COMMITTED: Final = "all-committed"  # driver: all transactions are committed; their markers are not removed
DONE_SWAPPED: Final = "done-swapped"  # driver: the state records the batch as done, and the markers are removed
MID_SWEEP: Final = "mid-sweep"  # driver, or the first task of a run: the first orphan was rolled back
ABORT_ENTERED: Final = "abort-entered"  # driver: Spark has called ``abort``; no action was taken

EXACTLY_ONCE_SINK_POINTS: Final = (
    TASK_STARTED, BRANCH_OPEN, BLOCK_SENT, ALL_SENT, SYNCED, ENDED, PREPARED, COMMIT_DENIED, MESSAGE_RETURNED,
    SINK_LOCK_TAKEN, VERIFIED, DECISION_SENT, DECISION_COMMITTED, SOME_COMMITTED, ALL_COMMITTED, DONE_SWAPPED,
    MID_SWEEP, ABORT_ENTERED,
)  # fmt: skip
"""Every point of the sink with exactly-once, in the order of a batch's life."""

# ---- command ``transactions --skip`` --------------------------------------------------------------------------------

EXPORTED: Final = "exported"  # the message is in its file, on disk; the state of the consumer is unchanged
ASIDE_SENT: Final = "aside-sent"  # the state that skips the message was sent; the broker may or may not have it
ASIDE_COMMITTED: Final = "aside-committed"  # the broker has it; the command has not printed its result

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
