"""Exactly-once, task side: all rows in one transaction branch (0-10 section dtx), prepared and not committed.

A marker is published in the same branch: the marker queue holds it exactly if the branch was committed. The driver
commits after its decision (:mod:`amqp_spark.sink.commit_coordinator`). A broken connection ends the branch: Spark runs
the task again.

qpidd applies no flow control within a branch: it detects a full queue at dtx.prepare and rolls the branch back. The
task then waits and sends the same rows in a new branch, for as long as the broker answers, just as at-least-once waits
for room.
"""

from __future__ import annotations

import hashlib
import logging
import time
from typing import TYPE_CHECKING, Final, NoReturn

from amqp_core.errors import (
    AmqpError,
    CommandFailed,
    IllegalState,
    InvalidArgument,
    MessageRejected,
    NotFound,
    TransactionFailed,
)
from amqp_spark import crashpoints
from amqp_spark.errors import PublishFailed, StateError
from amqp_spark.retry import RetryPolicy, pause_before
from amqp_spark.sink.connections import shared
from amqp_spark.sink.errors import MOST_TASKS, too_many_tasks
from amqp_spark.sink.prepared import BATCH_WRITES, PreparedBranch
from amqp_spark.sink.replay_buffer import MOST_BYTES, ReplayBuffer
from amqp_spark.sink.routes import Routes
from amqp_spark.sink.task_writer import TaskWriter, link_of
from amqp_spark.state.names import WRITER, Names
from amqp_spark.state.queue import allowed
from amqp_spark.state.xids import Run, new_branch, xid_text
from amqp_spark.timeouts import branch_timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from amqp_core.api import Client, Xid
    from amqp_core.transfer_ledger import Transfers
    from amqp_spark.arrow.encode import EncodedBlock, MessagePlan, TaskId
    from amqp_spark.options import SinkOptions
    from amqp_spark.sink.connections import Connections, Lease
    from amqp_spark.sink.task_writer import Link

_log = logging.getLogger("amqp_spark.sink")

POOL: Final = "branches"
"""Name of a separate connection pool: a session that has taken part in branches serves no other purpose."""
ROLL_BACK_ATTEMPTS: Final = 4
"""Number of attempts to roll back the branch on another connection after its own broke."""
_SELECTED: Final = "dtx"
_ROOM: Final = (
    "What is prepared of a batch takes room as well: it has to fit into its queues as a whole. Let consumers take "
    "messages, raise the limit of the queue (qpid.max_size), or let batches be smaller"
)


class TransactionalWriter(TaskWriter):
    """Publishes the rows of one task into a branch and prepares it; see :class:`TaskWriter`.

    Args:
        plan, options, task_id, connections, sleep: as there; ``task_id`` needs a batch id.
        attempt: Spark's number of this attempt at the task.
        run: of the batch; without one the task is a run of its own.
        before: called once, before the task connects, with query id, batch and run.

    Attributes:
        prepared: after ``run``: the report to the driver.

    ``run`` also raises StateError: the login lacks a permission, or the broker refuses the timeout.
    """

    def __init__(
        self,
        plan: MessagePlan,
        options: SinkOptions,
        task_id: TaskId,
        *,
        attempt: int = 0,
        run: Run | None = None,
        before: Callable[[str, int, Run], None] | None = None,
        connections: Connections | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(plan, options, task_id, connections=connections or shared(POOL), sleep=sleep)
        assert options.transactional_id is not None
        assert task_id.batch_id is not None
        self._writer = options.transactional_id
        self._batch = task_id.batch_id
        self._attempt = attempt
        self._run = Run.new() if run is None else run
        self._before = before
        self._query_id = task_id.query_id or BATCH_WRITES
        self._digest = hashlib.sha256(usedforsecurity=False)
        self._xid: Xid | None = None
        """The branch, as long as this task has to roll it back."""
        self._is_ended = False
        self._kept = ReplayBuffer()
        self.prepared = PreparedBranch(self._query_id, self._batch, task_id.partition)

    def _new_routes(self) -> Routes:
        return Routes(transaction=True)

    def _encoded(self, batch: pa.RecordBatch) -> Iterator[EncodedBlock]:
        for block in super()._encoded(batch):
            self._digest.update(block.frames)
            yield block

    def _made(self, transfers: Transfers) -> None:
        assert self._link is not None  # the frame format depends on the broker
        # A broker that rejects does not wait for dtx.prepare: it refuses messages for a full queue at once.
        self._kept.add(transfers, may_spill=not self._link.lease.client.capabilities.rejects_unroutable)
        super()._made(transfers)

    def _drive(self, *, finish: bool = False) -> None:
        if self._link is None:
            if self._before is not None:
                self._before(self._query_id, self._batch, self._run)
            self._link = self._open()
        try:
            self._send_waiting(self._link, finish=finish)
            while self._waiting:  # messages that may be discarded are sent once more
                self._send_waiting(self._link, finish=finish)
        except PublishFailed:
            raise
        except CommandFailed as error:
            self._refused(error, self._link.publisher)
        except AmqpError as error:
            self._gone(error)

    def _complete(self, link: Link) -> None:
        """Prepare the branch, which then belongs to the driver."""
        attempt = 0
        while (error := self._prepare(link)) is not None:
            attempt += 1
            link = self._again(link, error, attempt)
        self._xid = None
        self._kept.close()
        crashpoints.reached(crashpoints.PREPARED)
        link.lease.give_back()

    def _prepare(self, link: Link) -> TransactionFailed | None:
        """Send the marker, dtx.end and dtx.prepare; return the error of a full queue, which may have room later."""
        client, xid = link.lease.client, self._xid
        assert xid is not None
        self.prepared = PreparedBranch(
            self._query_id, self._batch, self._task_id.partition, xid_text(xid), self._rows, self._digest.hexdigest()
        )
        try:
            self._publish_marker(client)
            client.transactions.silence_timeout_s = branch_timeout(self._rows, self._nbytes)
            self._is_ended = True  # also if it ends with another status
            client.transactions.end(xid)
            crashpoints.reached(crashpoints.ENDED)
            client.transactions.prepare(xid)
        except TransactionFailed as error:
            # Only qpidd answers so for a full queue; other brokers refuse or reject the transfers, or wait.
            if error.operation == "dtx.prepare" and error.is_rollback:
                return error
            self._rolled_back(error)
        except PublishFailed:
            raise
        except MessageRejected as error:
            raise self._failure(f"its marker is not taken by the queue {self._names.markers!r}: {error}") from error
        except (CommandFailed, StateError) as error:
            raise self._failure(str(error)) from error
        except AmqpError as error:
            self._gone(error)
        return None

    def _again(self, link: Link, error: TransactionFailed, attempt: int) -> Link:
        """Wait for room, and send the rows again; return the link with the new branch."""
        if not self._kept.is_whole:
            self._leave_to_spark(link, error)
        delay = pause_before(attempt, self._options.retry_max_delay)
        _log.warning(
            "%s: the broker has rolled the transaction back (%s), as qpidd does when a queue is too full; attempt %d "
            "to send its rows again follows in %.1f s. %s",
            self._where, error, attempt, delay, _ROOM,
        )  # fmt: skip
        self._link = None
        self._roll_back(link)
        self._sleep(delay)
        self._routes = self._new_routes()  # earlier answers no longer count
        self._link = self._open()
        self._discarded = self._counted_rows = 0
        self._retries += 1
        self._resent += self._rows
        for transfers in self._kept.runs():
            self._waiting.append(transfers)
            self._drive()
        self._drive(finish=True)
        return self._link

    def _leave_to_spark(self, link: Link, error: TransactionFailed) -> NoReturn:
        """Fail because the rows are too many to keep. Spark reruns the task at once, so wait before failing."""
        delay = self._options.retry_max_delay
        _log.warning(
            "%s: the broker has rolled the transaction back (%s), as qpidd does when a queue is too full; the task "
            "fails in %.1f s, so that Spark may run it again",
            self._where, error, delay,
        )  # fmt: skip
        with link.lease.resting():
            self._sleep(delay)
        size = (
            f"its {self._kept.nbytes:,} bytes cannot be kept to be sent again ({MOST_BYTES:,} in memory, more on disk)"
        )
        raise self._failure(
            f"the broker has rolled the transaction back ({error}), as qpidd does when a queue is too full, and "
            f"{size}: Spark has to run it again, or use more partitions. {_ROOM}"
        ) from error

    def _roll_back(self, link: Link) -> None:
        """Roll the branch back, and keep the connection if the broker has confirmed it."""
        xid, self._xid = self._xid, None
        assert xid is not None
        if link.lease.client.transactions.abandon(xid, ended=True):
            link.lease.give_back()
        else:
            link.lease.abort()
            self._roll_back_elsewhere(xid)

    def _abandon(self, link: Link) -> None:
        self._kept.close()
        xid, self._xid = self._xid, None
        done = xid is None or link.lease.client.transactions.abandon(xid, ended=self._is_ended)
        super()._abandon(link)
        if xid is not None and not done:  # the session is over: broken connection or refused command
            self._roll_back_elsewhere(xid)

    def _roll_back_elsewhere(self, xid: Xid) -> None:
        """Try to roll back on another connection: Broker-J keeps a branch of an ended session until its timer ends."""
        for attempt in range(1, ROLL_BACK_ATTEMPTS + 1):
            try:
                lease = self._connections.lease(self._options.connect_options())
            except AmqpError:
                return
            try:
                lease.client.transactions.silence_timeout_s = branch_timeout(self._rows, self._nbytes)
                lease.client.transactions.rollback_branch(xid)
            except IllegalState:
                lease.abort()  # the broker has not noticed the end of the other session
                self._sleep(pause_before(attempt, self._options.retry_max_delay))
            except AmqpError:
                lease.abort()  # the branch is gone (404), or the broker is
                return
            except BaseException:
                lease.abort()
                raise
            else:
                lease.give_back()
                return

    # --- opening

    @property
    def _names(self) -> Names:
        return Names(WRITER, self._writer)

    def _open(self) -> Link:
        """Open a connection with an open branch, with as many attempts as the options permit: nothing was sent yet."""
        policy = RetryPolicy(self._where, self._options.retry_max_attempts, self._options.retry_max_delay, _log)
        while True:
            lease: Lease | None = None
            try:
                lease = self._connections.lease(self._options.connect_options())
                link = link_of(lease, self._options.max_in_flight, self._routes)
                self._check_same_kind(link.publisher)
                self._begin(lease)
            except BaseException as error:
                if lease is not None:
                    lease.abort()
                xid, self._xid = self._xid, None
                if xid is not None:  # begun, perhaps without its timer
                    self._roll_back_elsewhere(xid)
                if not isinstance(error, AmqpError):
                    raise
                # a kept connection may have broken while idle
                delay = policy.pause_after(error, counts=lease is None or not lease.reused)
                if delay is None:
                    raise
                self._retries += 1
                self._sleep(delay)
            else:
                crashpoints.reached(crashpoints.BRANCH_OPEN)
                return link

    def _begin(self, lease: Lease) -> None:
        client, transactions = lease.client, lease.client.transactions
        if client.capabilities.lists_branches_in_one_frame and self._task_id.partition >= MOST_TASKS:
            raise too_many_tasks(self._batch)
        markers, timeout = self._names.markers, self._options.transaction_timeout
        transactions.silence_timeout_s = branch_timeout(0)  # the previous task had its own
        with allowed(f"declare the queue {markers!r}", f"transactionalId {self._writer!r}"):
            client.declare_queue(markers, durable=True)
        xid = new_branch(
            self._writer, self._query_id, self._batch, self._task_id.partition, self._attempt, run=self._run
        )
        try:
            if not lease.notes.get(_SELECTED):
                transactions.dtx_select()
                lease.notes[_SELECTED] = True
            self._xid, self._is_ended = xid, False
            transactions.start(xid)
        except CommandFailed as error:
            self._xid = None
            raise StateError(
                "the broker does not let this login take part in distributed transactions (dtx), which "
                f"deliveryGuarantee=exactly-once needs: {error}. Without them the sink can do at-least-once"
            ) from error
        try:
            transactions.set_timeout(xid, timeout)
        except (InvalidArgument, NotFound) as error:
            raise StateError(
                f"option 'transactionTimeout' is {timeout}, which the broker does not take ({error}): allowed is what "
                "its administrator allows (qpidd: option dtx-max-timeout, 3600 s unless changed)"
            ) from error

    def _publish_marker(self, client: Client) -> None:
        with allowed(f"publish to the queue {self._names.markers!r}", f"transactionalId {self._writer!r}"):
            client.publish_to_queue(self._names.markers, self.prepared.dump(), content_type="application/json")
            client.confirm()
            if client.query_queue(self._names.markers) is None:  # a marker in a transaction would not be rejected
                raise self._failure(f"its marker went nowhere: the queue {self._names.markers!r} was deleted")

    # --- errors

    def _gone(self, error: AmqpError) -> NoReturn:
        raise self._failure(
            f"the connection was lost in the middle of the transaction, which will never be committed ({error}); "
            "nothing of it is in doubt: the task has to start again"
        ) from error

    def _rolled_back(self, error: TransactionFailed) -> NoReturn:
        why = "look into its log"
        if error.is_timeout:
            why = (
                f"it took longer than option transactionTimeout={self._options.transaction_timeout} s: raise it, or "
                "let batches be smaller"
            )
        if error.operation == "dtx.prepare" and error.is_timeout:
            self._xid = None  # the broker has forgotten it: rolling back would end the session
        raise self._failure(f"the broker has rolled the transaction back ({error}): {why}") from error

    def _failure(self, reason: str) -> PublishFailed:
        return PublishFailed(reason, partition=self._task_id.partition, batch_id=self._batch)
