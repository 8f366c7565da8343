"""Exactly-once, driver side: decide each batch under the writer's lock, over as many connections as needed.

The state message on the broker records the decision. If this process or its connection dies, the next one reads the
message and continues: :mod:`amqp_spark.sink.commit_protocol` has the rules.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, TypeVar

from amqp_core.errors import AmqpError, ResourceLocked
from amqp_spark import crashpoints
from amqp_spark.connect import require_prepared_transactions
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import StateError, UnsupportedModeError
from amqp_spark.host_order import HostOrder
from amqp_spark.retry import LOCK_RETRY_SECONDS, RetryPolicy
from amqp_spark.sink.commit_protocol import CommitProtocol, Progress
from amqp_spark.sink.connections import shared
from amqp_spark.sink.prepared_transactions import FailedBatch, Raced
from amqp_spark.state.names import WRITER, Names
from amqp_spark.state.queue import StateQueue
from amqp_spark.state.xids import ListLost, TooManyPrepared, too_many

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from amqp_spark.options import SinkOptions
    from amqp_spark.sink.connections import Connections, Lease
    from amqp_spark.sink.prepared_transactions import PreparedBranch
    from amqp_spark.state.xids import Run

T = TypeVar("T")

_log = logging.getLogger("amqp_spark.sink")

POOL: Final = "decisions"
"""Name of a separate connection pool: its sessions are transactional (tx)."""
LOCK_SLACK_SECONDS: Final = 5.0
"""Seconds to wait for the lock beyond the time that a broker takes to detect a dead peer (two heartbeats)."""
ABORT_LOCK_TIMEOUT_SECONDS: Final = 5.0
"""Seconds that ``abort`` waits for the lock: the session that just failed may still hold it."""
LISTS_LOST: Final = 2
"""This many consecutive connections lost while qpidd listed its prepared branches are no coincidence."""
MOST_NAMED: Final = 100
"""Maximum number of branches named in the log when they could not be rolled back and the broker cannot list them."""
_settled: dict[tuple[str, str], tuple[str, int]] = {}
"""Query id and batch of the latest decision by writer (url, id), if this process has finished it and no other process
decides.
"""
_swept: dict[tuple[str, str], tuple[str, int, str]] = {}
"""Latest work of the tasks of this process by writer (url, id): query id, batch, token of the run."""
_few_tasks: dict[str, bool] = {}
"""Whether a broker limits the number of tasks, by url."""


def forget_all() -> None:
    """Forget all decisions of this process, and the batches that its tasks have seen; for tests."""
    _settled.clear()
    _swept.clear()
    _few_tasks.clear()


class CommitCoordinator:
    """Commits and aborts the batches of one writer.

    ``alone``: this process decides all batches of the query, so an empty batch after a finished one needs no broker
    request. The default of ``connections`` is the shared pool of the process, so that the next batch does not log in
    again.
    """

    def __init__(
        self,
        options: SinkOptions,
        *,
        alone: bool = False,
        connections: Connections | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert options.transactional_id is not None
        self._options = options
        self._alone = alone
        self._names = Names(WRITER, options.transactional_id)
        self._connections = connections or shared(POOL)
        self._sleep = sleep
        self._clock = clock
        self._key = options.url, options.transactional_id

    def commit(self, tasks: Sequence[PreparedBranch], batch: int) -> bool:
        """Decide that a batch is published, and publish it: commit the branches of its tasks, which are at least one;
        tasks without rows have no branch.

        Returns ``False`` if the batch was published before; these branches repeat it and were rolled back. StateError:
        the batch must not or cannot be committed; the text says which part of it is committed. AmqpError: the broker
        cannot be reached (retry.*); the next commit completes any decision already made.
        """
        query_id, latest = _settled.pop(self._key, ("", -1))
        if query_id == tasks[0].query_id and batch > latest and not any(task.xid for task in tasks):
            _settled[self._key] = query_id, batch
            return True  # nothing to decide, and nothing left of the batch before
        lock_timeout = 2 * self._options.heartbeat + LOCK_SLACK_SECONDS
        fresh = self._under_lock(lambda protocol: protocol.commit(tasks, batch), lock_timeout)
        if self._alone:
            _settled[self._key] = tasks[0].query_id, batch
        return fresh

    def abort(
        self, tasks: Sequence[PreparedBranch], batch: int, *, query_id: str | None = None, run: Run | None = None
    ) -> bool:
        """Roll back the branches of all runs of a batch, unless it is decided: then finish it. Errors are only logged.

        Returns ``False`` if the broker has no prepared transactions, so that no task has published anything.

        Spark also calls this after a partly failed commit. The next run rolls back branches prepared later
        (:meth:`sweep_before`). If no task has reported, only one connection attempt is made. Tasks that have not
        reported may have prepared branches as well.
        """
        failed = FailedBatch.of(tasks, batch, query_id=query_id, run=run)
        crashpoints.reached(crashpoints.ABORT_ENTERED)
        attempts = self._options.retry_max_attempts if failed.xids else 0
        try:
            try:
                self._under_lock(lambda protocol: protocol.abort(failed), ABORT_LOCK_TIMEOUT_SECONDS, attempts)
            except (TooManyPrepared, ListLost):
                if not failed.xids:
                    raise
                self._roll_back_unlisted(failed, attempts)
        except UnsupportedModeError:
            return False
        except AmqpError as error:
            _log.warning(
                "batch %d: its transactions were not rolled back (%s); the next batch of transactionalId %r or their "
                "timers do that%s",
                failed.batch, error, self._options.transactional_id,
                f": {' '.join(failed.xids[:MOST_NAMED])}" if failed.xids else "",
            )  # fmt: skip
        return True

    def _roll_back_unlisted(self, failed: FailedBatch, attempts: int) -> None:
        """Roll back the branches one by one; an unknown branch costs a session but does not count as an attempt."""
        done: set[str] = set()
        while True:
            before = len(done)
            try:
                self._under_lock(
                    lambda protocol: protocol.roll_back(failed, done), ABORT_LOCK_TIMEOUT_SECONDS, attempts
                )
            except Raced:
                if len(done) == before:
                    raise
            else:
                return

    def has_few_tasks(self) -> bool:
        """Whether the broker is limited to MOST_TASKS tasks: a list of their branches must fit one frame (qpidd).

        Queried once per process. Also ``False`` if the broker cannot be reached.
        """
        if self._options.url not in _few_tasks:
            try:
                lease = self._connections.lease(self._options.connect_options())
            except AmqpError:
                return False  # the tasks report it after as many attempts as the options permit
            _few_tasks[self._options.url] = lease.client.capabilities.lists_branches_in_one_frame
            lease.give_back()
        return _few_tasks[self._options.url]

    def sweep_before(self, query_id: str, batch: int, run: Run) -> None:
        """Roll back the branches of earlier runs of a batch when a run begins; called by one of its tasks.

        Does nothing while another process holds the lock: that process sweeps as well, or decides. Errors are only
        logged, because the commit meets them again, except TooManyPrepared and UnsupportedModeError: the batch could
        not be committed.
        """
        pool = self._connections.apart()  # a worker needs it only once
        one = CommitCoordinator(self._options, connections=pool, sleep=self._sleep, clock=self._clock)
        try:
            one._under_lock(lambda protocol: protocol.sweep_before(query_id, batch, run), lock_timeout=0.0, attempts=1)
        except (TooManyPrepared, UnsupportedModeError):
            raise
        except AmqpError as error:
            _log.info("batch %d: the search for transactions of its earlier runs failed (%s)", batch, error)
        finally:
            pool.close()

    def _under_lock(self, work: Callable[[CommitProtocol], T], lock_timeout: float, attempts: int | None = None) -> T:
        """Run ``work`` under the lock; repeat it on a new connection if one breaks: the state records the progress.

        ``attempts``: number of connections that may break; by default as the options say.
        """
        most = self._options.retry_max_attempts if attempts is None else attempts
        lists_lost = 0
        user = f"transactionalId {self._options.transactional_id!r}"
        policy = RetryPolicy(user, most, self._options.retry_max_delay, _log)
        progress, hosts = Progress(), HostOrder()
        while True:
            lease: Lease | None = None
            try:
                lease, queue = self._locked(lock_timeout, hosts)
                protocol = CommitProtocol(lease.client, queue, self._options, progress)
                result = work(protocol)
            except BaseException as error:
                if lease is not None:
                    lease.abort()
                if not isinstance(error, AmqpError) or not error.retryable:
                    raise
                lists_lost = lists_lost + 1 if isinstance(error, ListLost) else 0
                if lists_lost >= LISTS_LOST:
                    raise too_many() from error
                delay = policy.pause_after(error)
                if delay is None:
                    raise
                hosts.lost()
                self._sleep(delay)
            else:
                self._let_go(lease, protocol)
                return result

    def _locked(self, lock_timeout: float, hosts: HostOrder) -> tuple[Lease, StateQueue]:
        """Lease a connection that holds the lock, and its state queue."""
        deadline = self._clock() + lock_timeout
        while True:
            lease = self._connections.lease(self._options.connect_options(), hosts)
            queue = lease.notes.get(self._names.state)
            if not isinstance(queue, StateQueue):
                queue = StateQueue(lease.client, self._names)
                lease.notes[self._names.state] = queue
            try:
                require_prepared_transactions(lease.client)
                queue.lock()
            except ResourceLocked as error:
                lease.abort()  # the session is over
                if self._clock() >= deadline:
                    why = (
                        f"another query or process has held its lock, the queue {self._names.lock!r}, for "
                        f"{lock_timeout:.0f} s"
                    )
                    owner = f"transactionalId {self._options.transactional_id!r}"
                    remedy = "Stop it, or give one of them another id"
                    raise StateError(SparkCondition.STATE_IN_USE(owner=owner, reason=why, remedy=remedy)) from error
                self._sleep(LOCK_RETRY_SECONDS)
            except BaseException:
                lease.abort()
                raise
            else:
                return lease, queue

    def _let_go(self, lease: Lease, protocol: CommitProtocol) -> None:
        """Release the lock and keep the connection; a failure here undoes nothing."""
        try:
            protocol.close()
        except AmqpError as error:
            _log.warning("transactionalId %r: releasing the lock failed (%s)", self._options.transactional_id, error)
            lease.abort()
        except BaseException:
            lease.abort()
            raise
        else:
            lease.give_back()


def sweep_once(options: SinkOptions, query_id: str, batch: int, run: Run) -> None:
    """Roll back branches of earlier runs of a batch when a run begins; every process that runs tasks calls it.

    A killed driver never calls ``abort``, tasks may prepare branches after an ``abort``, and Spark tells a stream
    writer that a run begins only through its tasks. A batch that follows another one of the same query begins only
    after that one is finished: only a process that has no history of the writer, or sees a batch again, has to look.
    TooManyPrepared: see :meth:`CommitCoordinator.sweep_before`.
    """
    assert options.transactional_id is not None
    key = options.url, options.transactional_id
    if not _follows(_swept.get(key), query_id, batch, run):
        CommitCoordinator(options).sweep_before(query_id, batch, run)
    _swept[key] = query_id, batch, run.token


def _follows(seen: tuple[str, int, str] | None, query_id: str, batch: int, run: Run) -> bool:
    if seen is None or seen[0] != query_id:
        return False
    return batch > seen[1] or (batch, run.token) == seen[1:]
