"""Exactly-once, the driver's side: decides about a batch under the writer's lock, on as many connections as it takes.

The state message on the broker says what is decided. So whatever becomes of this process or its connection, the next
one reads it and goes on: :mod:`amqp_spark.sink.commit_protocol` has the rules.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, TypeVar

from amqp_core.errors import AmqpError, ResourceLocked
from amqp_spark import crashpoints
from amqp_spark.errors import StateError
from amqp_spark.retry import LOCK_RETRY_SECONDS, RetryPolicy
from amqp_spark.sink.commit_protocol import CommitProtocol
from amqp_spark.sink.connections import shared
from amqp_spark.sink.prepared import FailedBatch
from amqp_spark.sink.prepared_transactions import Raced
from amqp_spark.state.listing import ListLost, TooManyPrepared, too_many
from amqp_spark.state.names import WRITER, Names
from amqp_spark.state.queue import StateQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from amqp_spark.options import SinkOptions
    from amqp_spark.sink.connections import Connections, Lease
    from amqp_spark.sink.prepared import PreparedBranch
    from amqp_spark.state.xids import Run

T = TypeVar("T")

_log = logging.getLogger("amqp_spark.sink")

POOL: Final = "decisions"
"""Connections of their own: their sessions are transactional (tx)."""
LOCK_SLACK_SECONDS: Final = 5.0
"""How much longer than a broker takes to notice a dead peer (two heartbeats) the lock is waited for."""
ABORT_PATIENCE_SECONDS: Final = 5.0
"""How long ``abort`` waits for the lock: the session that failed just now may still have it."""
LISTS_LOST: Final = 2
"""So many connections in a row, lost when qpidd was asked for its prepared branches, are no chance."""
MOST_NAMED: Final = 100
"""So many branches that could not be rolled back are named in the log, for where the broker cannot list them."""
_settled: dict[tuple[str, str], tuple[str, int]] = {}
"""Of writers (url, id) lineage and batch of the latest decision, where this process has brought it to its end and no
other one decides."""

_few_tasks: dict[str, bool] = {}
"""Whether a broker takes few tasks only, by url."""


def forget_all() -> None:
    """As if this process had decided nothing yet; for tests."""
    _settled.clear()
    _few_tasks.clear()


class CommitCoordinator:
    """Commits and aborts the batches of one writer.

    Parameters:
        options: of the sink, with ``transactionalId``.
        alone: all batches of a query are decided by this process: an empty one after one that was brought to its end
            needs no look at the broker.
        connections: the pool; by default one of the process, so that the next batch does not log in again.
        sleep: waits some seconds.
        clock: monotonic seconds.
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
        """Decide that a batch is published, and publish it: commit the branches of its tasks.

        Parameters:
            tasks: what each of them has prepared, one at least; those without rows have no branch.
            batch: the id of the batch.

        Returns:
            ``False`` when the batch was published before, so that these branches, which repeat it, were rolled back.

        Raises:
            StateError: it must not or cannot be committed; the text says what of it is committed.
            AmqpError: the broker cannot be reached (retry.*). What is decided then will be done by the next one who
                commits.
        """
        lineage, latest = _settled.pop(self._key, ("", -1))
        if lineage == tasks[0].lineage and batch > latest and not any(task.xid for task in tasks):
            _settled[self._key] = lineage, batch
            return True  # there is nothing to decide, and nothing left of the batch before
        patience = 2 * self._options.heartbeat + LOCK_SLACK_SECONDS
        fresh = self._under_lock(lambda protocol: protocol.commit(tasks, batch), patience)
        if self._alone:
            _settled[self._key] = tasks[0].lineage, batch
        return fresh

    def abort(
        self, tasks: Sequence[PreparedBranch], batch: int, *, lineage: str | None = None, run: Run | None = None
    ) -> None:
        """Roll back what the runs of a batch have prepared, unless it is decided: then finish it; only log errors.

        Spark calls this also after a commit that has failed half-way. What a task prepares later is rolled back by the
        next run (:meth:`sweep_before`). Where the tasks have told nothing, a connection is tried for once only.

        Parameters:
            tasks: that have told what they have prepared; others may have prepared as well.
            batch: the id of the batch.
            lineage, run: of the batch, where they are known without the tasks.
        """
        failed = FailedBatch.of(tasks, batch, lineage=lineage, run=run)
        crashpoints.reached(crashpoints.ABORT_ENTERED)
        attempts = self._options.retry_max_attempts if failed.xids else 0
        try:
            try:
                self._under_lock(lambda protocol: protocol.abort(failed), ABORT_PATIENCE_SECONDS, attempts)
            except (TooManyPrepared, ListLost):
                if not failed.xids:
                    raise
                self._roll_back_unlisted(failed, attempts)
        except AmqpError as error:
            _log.warning(
                "batch %d: its transactions were not rolled back (%s); the next batch of transactionalId %r does that, "
                "or their timers do%s",
                failed.batch, error, self._options.transactional_id,
                f": {' '.join(failed.xids[:MOST_NAMED])}" if failed.xids else "",
            )  # fmt: skip

    def _roll_back_unlisted(self, failed: FailedBatch, attempts: int) -> None:
        """Roll back one branch after the other; each that the broker does not know costs a session, but no attempt."""
        done: set[str] = set()
        while True:
            before = len(done)
            try:
                self._under_lock(lambda protocol: protocol.roll_back(failed, done), ABORT_PATIENCE_SECONDS, attempts)
            except Raced:
                if len(done) == before:
                    raise
            else:
                return

    def has_few_tasks(self) -> bool:
        """Whether the broker takes few tasks (MOST_TASKS) only: a list of their branches must fit one frame (qpidd).

        Looked at once in a process. ``False`` as well where the broker cannot be reached.
        """
        if self._options.url not in _few_tasks:
            try:
                lease = self._connections.lease(self._options.connect_options())
            except AmqpError:
                return False  # the tasks say so, when they have tried as often as the options allow
            _few_tasks[self._options.url] = lease.client.capabilities.lists_branches_in_one_frame
            lease.give_back()
        return _few_tasks[self._options.url]

    def sweep_before(self, lineage: str, batch: int, run: Run) -> None:
        """Roll back what earlier runs of a batch have prepared, when one begins; for a task of it.

        It does nothing while another process has the lock: that one sweeps as well, or decides. Errors are logged
        only, since the commit meets them again.

        Raises:
            TooManyPrepared: the batch could not be committed.
        """
        pool = self._connections.apart()  # a worker needs it this once
        one = CommitCoordinator(self._options, connections=pool, sleep=self._sleep, clock=self._clock)
        try:
            one._under_lock(lambda protocol: protocol.sweep_before(lineage, batch, run), patience=0.0, attempts=1)
        except TooManyPrepared:
            raise
        except AmqpError as error:
            _log.info("batch %d: what earlier runs of it have prepared was not looked for (%s)", batch, error)
        finally:
            pool.close()

    def _under_lock(self, work: Callable[[CommitProtocol], T], patience: float, attempts: int | None = None) -> T:
        """Do something under the lock, anew on another connection when one breaks: the state says how far it came.

        ``attempts``: so many connections may break; as the options say if it is not given.
        """
        most = self._options.retry_max_attempts if attempts is None else attempts
        lists_lost = 0
        user = f"transactionalId {self._options.transactional_id!r}"
        policy = RetryPolicy(user, most, self._options.retry_max_delay, _log)
        committed: set[str] = set()
        while True:
            lease: Lease | None = None
            try:
                lease, queue = self._locked(patience)
                protocol = CommitProtocol(lease.client, queue, self._options, committed)
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
                self._sleep(delay)
            else:
                self._let_go(lease, protocol)
                return result

    def _locked(self, patience: float) -> tuple[Lease, StateQueue]:
        """A connection that has the lock."""
        deadline = self._clock() + patience
        while True:
            lease = self._connections.lease(self._options.connect_options())
            queue = lease.notes.get(self._names.state)
            if not isinstance(queue, StateQueue):
                queue = StateQueue(lease.client, self._names)
                lease.notes[self._names.state] = queue
            try:
                queue.lock()
            except ResourceLocked as error:
                lease.abort()  # the session is over
                if self._clock() >= deadline:
                    raise StateError(
                        f"transactionalId {self._options.transactional_id!r} is in use: another query or process has "
                        f"held its lock, the queue {self._names.lock!r}, for {patience:.0f} s. Stop it, or give one of "
                        "them another transactionalId; after a crash the broker lets go within two heartbeats"
                    ) from error
                self._sleep(LOCK_RETRY_SECONDS)
            except BaseException:
                lease.abort()
                raise
            else:
                return lease, queue

    def _let_go(self, lease: Lease, protocol: CommitProtocol) -> None:
        """Give the lock away and keep the connection; what fails here undoes nothing."""
        try:
            protocol.close()
        except AmqpError as error:
            _log.warning("transactionalId %r: giving the lock away failed (%s)", self._options.transactional_id, error)
            lease.abort()
        except BaseException:
            lease.abort()
            raise
        else:
            lease.give_back()
