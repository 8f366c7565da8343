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

from amqp_core.error_conditions import reason
from amqp_core.errors import (
    AmqpError,
    CommandFailed,
    IllegalState,
    InvalidArgument,
    MessageRejected,
    NotFound,
    PublisherStopped,
    TransactionFailed,
)
from amqp_spark import crashpoints
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import PublishFailed, StateError
from amqp_spark.retry import RetryPolicy, pause_before
from amqp_spark.sink.connections import shared
from amqp_spark.sink.errors import MOST_TASKS, too_many_tasks
from amqp_spark.sink.prepared_transactions import BATCH_WRITES, PreparedBranch
from amqp_spark.sink.replay_buffer import ReplayBuffer
from amqp_spark.sink.sender import Sender
from amqp_spark.state.names import WRITER, Names
from amqp_spark.state.queue import allowed
from amqp_spark.state.xids import Run, new_branch, xid_text
from amqp_spark.timeouts import branch_timeout

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.api import Client, Xid
    from amqp_core.transfer_ledger import Transfers
    from amqp_spark.arrow.encode import TaskId
    from amqp_spark.options import SinkOptions
    from amqp_spark.sink.connections import Connections, Lease
    from amqp_spark.sink.sender import Link

_log = logging.getLogger("amqp_spark.sink")

POOL: Final = "branches"
"""Name of a separate connection pool: a session that has taken part in branches serves no other purpose."""
ROLL_BACK_ATTEMPTS: Final = 4
"""Number of attempts to roll back the branch on another connection after its own broke."""
_SELECTED: Final = "dtx"
_ROOM: Final = (
    "A whole batch must fit into its queues: let consumers take messages, raise the limit of the queue "
    "(qpid.max_size), or make batches smaller"
)


class ExactlyOnce:
    """The :class:`CommitPolicy` of exactly-once: a task ends when its branch is prepared, with all rows and a marker.

    Without ``run`` the task is a run of its own. ``before`` is called once, before the task connects, with query id,
    batch and run. ``prepared`` is, after :meth:`commit`, the report to the driver.
    """

    def __init__(
        self,
        options: SinkOptions,
        task_id: TaskId,
        *,
        attempt: int = 0,
        run: Run | None = None,
        before: Callable[[str, int, Run], None] | None = None,
        connections: Connections | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        assert options.transactional_id is not None
        assert task_id.batch_id is not None
        self.sender = Sender(options, task_id, connections or shared(POOL), transaction=True)
        self._options = options
        self._sleep = sleep
        self._names = Names(WRITER, options.transactional_id)
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

    def connect(self) -> Link:
        """See :class:`CommitPolicy`; opens the branch, too."""
        if self._before is not None:
            self._before(self._query_id, self._batch, self._run)
        self.sender.link = self._open()
        return self.sender.link

    def send(self, transfers: Transfers) -> None:
        """See :class:`CommitPolicy`."""
        assert self.sender.link is not None
        self._digest.update(transfers.frames)
        # A broker that rejects does not wait for dtx.prepare: it refuses messages for a full queue at once.
        self._kept.add(transfers, may_spill=not self.sender.link.lease.client.capabilities.rejects_unroutable)
        self.sender.add(transfers)
        self._drive()

    def finish(self) -> None:
        """See :class:`CommitPolicy`."""
        self._drive(finish=True)

    def _drive(self, *, finish: bool = False) -> None:
        try:
            self.sender.send_waiting(finish=finish)
            while self.sender.waiting:  # messages that may be discarded are sent once more
                self.sender.send_waiting(finish=finish)
        except PublishFailed:
            raise
        except CommandFailed as error:
            self.sender.refused(error)
        except PublisherStopped as error:
            self.sender.blocked(error)
        except AmqpError as error:
            self._gone(error)

    def commit(self) -> None:
        """Prepare the branch, which then belongs to the driver."""
        attempt, link = 0, self.sender.link
        assert link is not None
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
            self._query_id,
            self._batch,
            self.sender.task_id.partition,
            xid_text(xid),
            self.sender.rows,
            self._digest.hexdigest(),
        )
        try:
            self._publish_marker(client)
            client.transactions.silence_timeout_s = branch_timeout(self.sender.rows, self.sender.nbytes)
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
            raise self._marker_not_stored(reason(error)) from error
        except StateError as error:
            raise PublishFailed(str(error), self.sender.place) from error
        except CommandFailed as error:
            place = self.sender.place
            raise PublishFailed(SparkCondition.TRANSACTION_REFUSED(place=place, reason=reason(error)), place) from error
        except PublisherStopped as error:
            self.sender.blocked(error)
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
            self.sender.place, error, attempt, delay, _ROOM,
        )  # fmt: skip
        sender, sender.link = self.sender, None
        self._roll_back(link)
        self._sleep(delay)
        sender.forget_sent()
        sender.link = self._open()
        sender.retries += 1
        sender.resent += sender.rows
        for transfers in self._kept.runs():
            sender.waiting.append(transfers)
            self._drive()
        self._drive(finish=True)
        return sender.link

    def _leave_to_spark(self, link: Link, error: TransactionFailed) -> NoReturn:
        """Fail because the rows are too many to keep. Spark reruns the task at once, so wait before failing."""
        place, delay = self.sender.place, self._options.retry_max_delay
        _log.warning(
            "%s: the broker has rolled the transaction back (%s), as qpidd does when a queue is too full; the task "
            "fails in %.1f s, so that Spark may run it again",
            place, error, delay,
        )  # fmt: skip
        with link.lease.resting():
            self._sleep(delay)
        nbytes = f"{self._kept.nbytes:,}"
        raise PublishFailed(
            SparkCondition.TRANSACTION_TOO_LARGE(place=place, nbytes=nbytes, reason=reason(error)), place
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

    def abandon(self) -> None:
        """See :class:`CommitPolicy`; rolls the branch back."""
        self._kept.close()
        link = self.sender.link
        if link is None:
            return
        xid, self._xid = self._xid, None
        done = xid is None or link.lease.client.transactions.abandon(xid, ended=self._is_ended)
        link.lease.abort()
        if xid is not None and not done:  # the session is over: broken connection or refused command
            self._roll_back_elsewhere(xid)

    def _roll_back_elsewhere(self, xid: Xid) -> None:
        """Try to roll back on another connection, of the next host first: Broker-J keeps a branch of an ended session
        until its timer ends."""
        self.sender.hosts.lost()
        for attempt in range(1, ROLL_BACK_ATTEMPTS + 1):
            try:
                lease = self.sender.lease()
            except AmqpError:
                return
            try:
                lease.client.transactions.silence_timeout_s = branch_timeout(self.sender.rows, self.sender.nbytes)
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

    def _open(self) -> Link:
        """Open a connection with an open branch, with as many attempts as the options permit: nothing was sent yet."""
        policy = RetryPolicy(
            str(self.sender.place), self._options.retry_max_attempts, self._options.retry_max_delay, _log
        )
        while True:
            link: Link | None = None
            try:
                link = self.sender.open()
                self._begin(link.lease)
            except BaseException as error:
                if link is not None:
                    link.lease.abort()
                self.sender.hosts.lost()
                xid, self._xid = self._xid, None
                if xid is not None:  # begun, perhaps without its timer
                    self._roll_back_elsewhere(xid)
                if not isinstance(error, AmqpError):
                    raise
                # a kept connection may have broken while idle
                delay = policy.pause_after(error, counts=link is None or not link.lease.reused)
                if delay is None:
                    raise
                self.sender.retries += 1
                self._sleep(delay)
            else:
                crashpoints.reached(crashpoints.BRANCH_OPEN)
                return link

    def _begin(self, lease: Lease) -> None:
        client, transactions = lease.client, lease.client.transactions
        if client.capabilities.lists_branches_in_one_frame and self.sender.task_id.partition >= MOST_TASKS:
            raise too_many_tasks(self._batch)
        markers, timeout = self._names.markers, self._options.transaction_timeout
        transactions.silence_timeout_s = branch_timeout(0)  # the previous task had its own
        owner = f"transactionalId {self._names.identity!r}"
        with allowed(f"declare the queue {markers!r}", owner):
            client.declare_queue(markers, durable=True)
        xid = new_branch(
            self._names.identity,
            self._query_id,
            self._batch,
            self.sender.task_id.partition,
            self._attempt,
            run=self._run,
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
                SparkCondition.TRANSACTIONS_REFUSED(
                    kind="distributed transactions (dtx)", owner=owner, reason=reason(error)
                )
            ) from error
        try:
            transactions.set_timeout(xid, timeout)
        except (InvalidArgument, NotFound) as error:
            raise StateError(
                SparkCondition.TRANSACTION_TIMEOUT_REFUSED(timeout=timeout, reason=reason(error))
            ) from error

    def _publish_marker(self, client: Client) -> None:
        with allowed(f"publish to the queue {self._names.markers!r}", f"transactionalId {self._names.identity!r}"):
            client.publish_to_queue(self._names.markers, self.prepared.dump(), content_type="application/json")
            client.confirm()
            if client.query_queue(self._names.markers) is None:  # a marker in a transaction would not be rejected
                raise self._marker_not_stored("it was deleted")

    # --- errors

    def _gone(self, error: AmqpError) -> NoReturn:
        place = self.sender.place
        raise PublishFailed(SparkCondition.TRANSACTION_LOST(place=place, reason=reason(error)), place) from error

    def _rolled_back(self, error: TransactionFailed) -> NoReturn:
        place, timeout = self.sender.place, self._options.transaction_timeout
        text = SparkCondition.TRANSACTION_ROLLED_BACK(place=place, reason=reason(error))
        if error.is_timeout:
            text = SparkCondition.TRANSACTION_TIMED_OUT(place=place, timeout=timeout, reason=reason(error))
        if error.operation == "dtx.prepare" and error.is_timeout:
            self._xid = None  # the broker has forgotten it: rolling back would end the session
        raise PublishFailed(text, place) from error

    def _marker_not_stored(self, why: str) -> PublishFailed:
        place = self.sender.place
        text = SparkCondition.MARKER_NOT_STORED(place=place, queue=self._names.markers, reason=why)
        return PublishFailed(text, place)
