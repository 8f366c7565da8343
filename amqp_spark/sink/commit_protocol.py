"""The rules of a decision: which branches may be committed, on one connection that holds the lock.

There are three sources of information, each authoritative for one question:

- The state message says which batch was decided last, and whether it is finished.
- dtx.recover says which branches are prepared. No other command does: an expired branch still permits get-timeout and
  set-timeout. A branch that is not listed was committed or rolled back. It is sent before and after setting the timers.
- The markers say which branches were committed: qpidd's linear store commits prepared branches when it is restarted.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from amqp_core.errors import AmqpError, UnauthorizedAccess
from amqp_spark import crashpoints
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import StateError
from amqp_spark.sink.errors import CommitErrors, named
from amqp_spark.sink.markers import MarkerLate, Markers
from amqp_spark.sink.prepared_transactions import BATCH_WRITES, PreparedBranch, PreparedTransactions, same_rows
from amqp_spark.state.names import query_key
from amqp_spark.state.queue import EXCHANGE, loaded
from amqp_spark.state.records import DONE, OPEN, DecidedBranch, WriterState

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from amqp_core.api import Client
    from amqp_spark.options import SinkOptions
    from amqp_spark.sink.prepared_transactions import FailedBatch
    from amqp_spark.state.queue import StateQueue
    from amqp_spark.state.xids import Run

_log = logging.getLogger("amqp_spark.sink")

MARKER_SECONDS: Final = 10.0
"""Maximum seconds to wait for a marker: a session that just died may still hold it."""
TERMS_PER_WAIT: Final = 4
"""The wait is shorter than the timeout of the branches that may be needed after it, by this factor."""
MOST_PAST: Final = 100
"""Number of earlier queries that are remembered."""


@dataclass(slots=True)
class Progress:
    """What was done so far for one batch, over all connections.

    Attributes:
        before: the state before the decision.
        decided: the decision, once it was sent; the broker may or may not have it.
        committed: xids of branches whose commit the broker has confirmed.
    """

    before: WriterState | None = None
    decided: WriterState | None = None
    committed: set[str] = field(default_factory=set)


class CommitProtocol:
    """The protocol on one connection: the client holds the lock, and ``queue`` holds its state. Do not use it after an
    error of the client. ``progress``: on earlier connections; extended here."""

    def __init__(self, client: Client, queue: StateQueue, options: SinkOptions, progress: Progress) -> None:
        assert options.transactional_id is not None
        self._client = client
        self._queue = queue
        self._writer = options.transactional_id
        self._timeout = options.transaction_timeout
        self._progress = progress
        self._committed = progress.committed
        self._branches = PreparedTransactions(client, self._writer)
        self._markers = Markers(client, queue.names)
        self._refuse = CommitErrors(queue.names)
        self._kept = True
        """Whether the marker queue is still the one that existed when the state was last written."""
        self._replaced: str | None = None
        """A replaced query id whose mark is to be removed."""

    # --- operations of the coordinator

    def commit(self, tasks: Sequence[PreparedBranch], batch: int) -> bool:
        """See :meth:`CommitCoordinator.commit`."""
        crashpoints.reached(crashpoints.SINK_LOCK_TAKEN)
        branches = [task for task in tasks if task.xid]
        query_id = self._query_id(tasks, batch)
        self._branches.allow_silence_for(task.rows for task in branches)
        state = self._state(create=bool(branches))
        self._check_same_broker(state)
        if state is None:
            return True
        if state.state == OPEN:
            repeated = branches if (state.query_id, state.batch) == (query_id, batch) else []
            if repeated:  # they may be needed, and finding out takes time
                self._branches.listed()
                self._renew(repeated)
            state = self._finish(state, {each.partition: each for each in repeated})
        if not state.query_id and batch > 0 and query_id != BATCH_WRITES:
            _log.warning(
                "transactionalId %r: the broker knows no batch of it, and this query begins there with batch %d. If "
                "its latest batch went to another broker, or with another guarantee, look whether it came twice",
                self._writer, batch,
            )  # fmt: skip
        if query_id == state.query_id:
            if batch < state.batch:
                raise self._refuse.gone_back(state, batch)
            if batch == state.batch:
                return self._repeated(state, branches)
        else:
            self._check_query(state, query_id)
        if not branches:
            return True
        decided = self._decide(state, branches, query_id, batch)
        self._sweep_after(self._finish(decided, {}, seen=True))
        return True

    def abort(self, failed: FailedBatch) -> None:
        """See :meth:`CommitCoordinator.abort`."""
        crashpoints.reached(crashpoints.SINK_LOCK_TAKEN)
        self._branches.allow_silence_for(task.rows for task in failed.tasks)
        state = self._state(create=False)
        if state is not None and state.state == OPEN:
            try:
                self._finish(state, {})
            except StateError as error:
                _log.warning("transactionalId %r: %s", self._writer, error)
        self._branches.sweep_batch(failed.batch, _decided(state), query_id=failed.query_id, run=failed.run)

    def roll_back(self, failed: FailedBatch, done: set[str]) -> None:
        """Do the work of :meth:`abort` for its own tasks if the broker cannot list prepared branches.

        ``done``: see :meth:`Branches.roll_back_unlisted`.
        """
        self._branches.allow_silence_for(task.rows for task in failed.tasks)
        decided = _decided(self._state(create=False))
        self._branches.roll_back_unlisted([xid for xid in failed.xids if xid not in decided], done)

    def sweep_before(self, query_id: str, batch: int, run: Run) -> None:
        """See :meth:`CommitCoordinator.sweep_before`."""
        decided = _decided(self._state(create=False))
        self._branches.sweep_before(batch, decided, query_id=query_id, run=run)

    def close(self) -> None:
        """Return all markers and release the lock. After an AmqpError the session is over, and the lock with it;
        completed decisions and commits are not affected."""
        self._markers.close()
        self._unmark()
        self._queue.unlock()

    def _unmark(self) -> None:
        """Remove the mark of a replaced query id. This is the last step, because a refusal ends the session."""
        if self._replaced is None:
            return
        try:
            self._queue.unmark(query_key(self._replaced))
        except (StateError, UnauthorizedAccess) as error:
            _log.warning(
                "transactionalId %r: the binding of %s, which this query has replaced, stays at %s without harm: %s",
                self._writer, named(self._replaced), EXCHANGE, error,
            )  # fmt: skip
            raise

    # --- state and query id

    def _state(self, *, create: bool) -> WriterState | None:
        body = self._queue.take()
        self._kept = self._markers.are_kept()
        if body is None:
            if self._kept:
                names, owner = self._queue.names, f"transactionalId {self._writer!r}"
                raise StateError(
                    SparkCondition.STATE_DELETED(queue=names.state, owner=owner, tool=names.tool("--forget"))
                )
            if not create:
                return None
            self._check_same_broker(None)
            body = WriterState(self._writer).dump()
            self._queue.create(body)
        state = loaded(self._queue.names, WriterState.load, body)
        if state.transactional_id != self._writer:
            found, owner = (f"transactionalId {each[:200]!r}" for each in (state.transactional_id, self._writer))
            names = self._queue.names
            raise StateError(
                SparkCondition.STATE_FOREIGN(queue=names.state, found=found, owner=owner, tool=names.tool())
            )
        if not self._kept and not state.query_id and self._markers.exist():  # nothing was decided yet
            self._keep()  # if it is missing, it was deleted: every task with rows has declared it
        return state

    def _check_same_broker(self, state: WriterState | None) -> None:
        """Check that the broker knows a decision that was sent on an earlier connection, or what was there before it:
        a list of hosts may name several brokers."""
        sent = self._progress.decided
        if sent is None or state == self._progress.before:
            return
        known = {} if state is None else {**state.past, state.query_id: state.batch}
        if known.get(sent.query_id, -1) < sent.batch:
            raise StateError(SparkCondition.WRITER_OTHER_BROKER(writer=self._writer, batch=sent.batch))

    def _keep(self) -> None:
        self._markers.keep()
        self._kept = True

    def _query_id(self, tasks: Sequence[PreparedBranch], batch: int) -> str:
        query_id = tasks[0].query_id
        if any((task.query_id, task.batch) != (query_id, batch) for task in tasks):
            why = "tasks of several queries or batches came together"
            raise StateError(SparkCondition.TASKS_MIXED(batch=batch, reason=why))
        if len({task.partition for task in tasks}) < len(tasks):
            why = "several tasks of one partition came together"
            raise StateError(SparkCondition.TASKS_MIXED(batch=batch, reason=why))
        return query_id

    def _check_query(self, state: WriterState, query_id: str) -> None:
        """Check that a query id other than that of the state is a new one."""
        if query_id in state.past:
            raise self._refuse.shared(state, query_id)
        key = query_key(query_id)
        if query_id != BATCH_WRITES and self._queue.marked_anywhere(key) and not self._queue.marked(key):
            raise StateError(SparkCondition.TRANSACTIONAL_ID_CHANGED(query=named(query_id), writer=self._writer))

    # --- deciding

    def _decide(self, state: WriterState, branches: Sequence[PreparedBranch], query_id: str, batch: int) -> WriterState:
        """Check all branches and write the decision to commit them: none is committed before, all will be after."""
        if not self._kept:
            self._keep()
            raise StateError(SparkCondition.MARKERS_DELETED(queue=self._queue.names.markers, batch=batch))
        published = state.batch if query_id == state.query_id else -1
        keep = {branch.xid for branch in branches} | {branch.xid for branch in state.branches}
        self._branches.sweep(query_id, published, keep)
        self._markers.look()
        self._tell_strays(state)
        chosen = self._chosen(branches, query_id, batch)
        self._keep_prepared([branch for branch in chosen if branch.xid not in self._markers.found], batch)
        crashpoints.reached(crashpoints.VERIFIED)
        past = dict(state.past)
        key = query_key(query_id)
        if query_id != state.query_id:
            if state.query_id:
                past[state.query_id] = state.batch
                past = dict(list(past.items())[-MOST_PAST:])
            if query_id != BATCH_WRITES and not self._queue.marked(key):
                self._queue.mark(key)
        decided = WriterState(self._writer, query_id, batch, OPEN, tuple(chosen), past)
        self._progress.before, self._progress.decided = state, decided
        self._queue.swap(decided.dump(), sent=lambda: crashpoints.reached(crashpoints.DECISION_SENT))
        crashpoints.reached(crashpoints.DECISION_COMMITTED)
        if state.query_id not in {"", BATCH_WRITES, query_id}:
            self._replaced = state.query_id
        return decided

    def _chosen(self, branches: Sequence[PreparedBranch], query_id: str, batch: int) -> list[DecidedBranch]:
        """The branches to decide for: the new ones, unless the broker has committed an earlier attempt by itself."""
        done: dict[int, PreparedBranch] = {}
        for marker in self._markers.found.values():
            if (marker.query_id, marker.batch) == (query_id, batch) and done.setdefault(
                marker.partition, marker
            ) is not (marker):
                raise self._refuse.twice(batch, marker, done[marker.partition].xid)
        chosen = []
        superfluous = set()
        for branch in branches:
            marker = done.pop(branch.partition, branch)
            if not same_rows(marker, branch):
                raise self._refuse.differs(batch, marker.decided, branch)
            if marker.xid != branch.xid:
                superfluous.add(branch.xid)
            chosen.append(marker.decided)
        if done:
            raise self._refuse.differs(batch, next(iter(done.values())).decided, None)
        self._branches.roll_back(superfluous)
        return chosen

    def _keep_prepared(self, branches: Sequence[DecidedBranch], batch: int) -> None:
        """Check that all branches are prepared, and that no timer can end one of them before its commit."""
        self._must_be_listed(branches, batch, self._branches.seen)
        self._renew(branches)
        self._must_be_listed(branches, batch, self._branches.listed())  # an ended branch still has a timer

    def _renew(self, branches: Sequence[DecidedBranch | PreparedBranch]) -> None:
        self._branches.renew([branch.xid for branch in branches], self._timeout)

    def _must_be_listed(self, branches: Sequence[DecidedBranch], batch: int, listed: Container[str]) -> None:
        gone = [branch for branch in branches if branch.xid not in listed]
        if gone:
            committed = "nothing of them was committed"
            if self._markers.found:
                committed = "only the broker committed some by itself"
            raise StateError(
                SparkCondition.TRANSACTIONS_GONE(
                    batch=batch,
                    lost=len(gone),
                    total=len(branches),
                    xid=gone[0].xid,
                    partition=gone[0].partition,
                    committed=committed,
                    timeout=self._timeout,
                )
            )

    # --- finishing

    def _finish(self, state: WriterState, repeated: Mapping[int, PreparedBranch], *, seen: bool = False) -> WriterState:
        """Commit the decided branches, verify the commits by their markers, and write that the batch is done; return
        the state that was written.

        ``repeated``: new attempts at the same batch, by partition, which may replace lost branches; ``seen``: the
        branches of the state were just seen to be prepared.
        """
        wanted = {branch.xid for branch in state.branches}
        self._branches.allow_silence_for(branch.rows for branch in state.branches)
        self._markers.look()
        self._check_markers(state)
        committed = self._branches.commit(wanted - self._markers.found.keys(), seen=seen)
        self._committed |= committed
        crashpoints.reached(crashpoints.ALL_COMMITTED)
        if self._kept:
            self._markers.wait_for(wanted, min(MARKER_SECONDS, self._timeout / TERMS_PER_WAIT))
            self._prove(wanted)
        self._check_markers(state)
        proved = self._markers.found.keys() | committed
        lost = [branch for branch in state.branches if branch.xid not in proved]
        if lost and not self._kept:
            raise self._refuse.unknown(state, lost)
        if lost:
            return self._finish(self._substituted(state, lost, repeated), {}, seen=True)
        done = replace(state, state=DONE)
        finished = self._finished_markers(state)
        self._queue.swap(done.dump(), accept=self._markers.ranges(finished))
        self._markers.accepted(finished)
        if not self._kept:
            self._keep()
        crashpoints.reached(crashpoints.DONE_SWAPPED)
        return done

    def _prove(self, wanted: set[str]) -> None:
        """Check that no branch counts as lost whose commit the broker has confirmed: the broker may have paused since.
        MarkerLate: the marker of such a branch is missing."""
        if wanted <= self._markers.found.keys():
            return
        self._markers.look()  # the reply comes after all messages under way
        late = (wanted & self._committed) - self._markers.found.keys()
        if late:
            raise MarkerLate(SparkCondition.MARKER_LATE(xid=min(late), queue=self._queue.names.markers))

    def _check_markers(self, state: WriterState) -> None:
        """Check that no partition of the batch was committed twice."""
        wanted = {branch.partition: branch.xid for branch in state.branches}
        for marker in self._markers.found.values():
            is_of_batch = (marker.query_id, marker.batch) == (state.query_id, state.batch)
            if is_of_batch and wanted.get(marker.partition) != marker.xid:
                raise self._refuse.twice(state.batch, marker, wanted.get(marker.partition, "one"))

    def _tell_strays(self, state: WriterState) -> None:
        """Warn of markers of finished batches: their own were accepted, so other branches were published too."""
        for xid in self._finished_markers(state):
            marker = self._markers.found[xid]
            _log.error(
                "transaction %s (partition %d, batch %d of %s) was committed without a decision: its %d rows may be "
                "duplicates; the query continues",
                xid, marker.partition, marker.batch, named(marker.query_id), marker.rows,
            )  # fmt: skip

    def _finished_markers(self, state: WriterState) -> list[str]:
        """Found markers that are no longer needed: those of this batch and of earlier ones."""
        return [
            xid
            for xid, marker in self._markers.found.items()
            if (marker.query_id == state.query_id and marker.batch <= state.batch) or marker.query_id in state.past
        ]

    def _substituted(
        self, state: WriterState, lost: Sequence[DecidedBranch], repeated: Mapping[int, PreparedBranch]
    ) -> WriterState:
        """The decision with new attempts in place of branches that are neither prepared nor committed."""
        instead: dict[int, DecidedBranch] = {}
        for branch in lost:
            new = repeated.get(branch.partition)
            if new is None or new.xid == branch.xid or not same_rows(new, branch):
                names, again = self._queue.names, bool(repeated) and (new is None or new.xid != branch.xid)
                forget = f"Remove the rows of the batch that arrived, then run {names.tool('--forget')}"
                raise StateError(
                    SparkCondition.TRANSACTIONS_LOST(
                        xid=branch.xid,
                        partition=branch.partition,
                        batch=state.batch,
                        lost=len(lost),
                        total=len(state.branches),
                        reason="its repetition has other rows" if again else "Spark has not run it again yet",
                        remedy=forget if again else f"Restart the query; {names.tool()} shows the state",
                    )
                )
            instead[branch.partition] = new.decided
        self._branches.listed()
        self._markers.look()
        late = [branch.xid for branch in lost if branch.xid in self._markers.found]
        if late:
            raise MarkerLate(SparkCondition.MARKER_LATE(xid=late[0], queue=self._queue.names.markers))
        self._keep_prepared(list(instead.values()), state.batch)
        branches = tuple(instead.get(branch.partition, branch) for branch in state.branches)
        substituted = replace(state, branches=branches)
        self._queue.swap(substituted.dump())
        _log.warning(
            "batch %d: %d decided transaction(s) are lost; those of the repetition, with the same rows, replace them",
            state.batch, len(lost),
        )  # fmt: skip
        return substituted

    def _repeated(self, state: WriterState, branches: Sequence[PreparedBranch]) -> bool:
        """Handle new attempts at a finished batch, which must have the same rows and are not needed; return whether
        they are the very attempt that was committed."""
        decided = {branch.partition: branch for branch in state.branches}
        for branch in branches:
            before = decided.pop(branch.partition, None)
            if before is None or not same_rows(before, branch):
                raise self._refuse.differs(state.batch, before, branch)
        if decided:
            raise self._refuse.differs(state.batch, next(iter(decided.values())), None)
        self._markers.look()
        self._tell_strays(state)
        self._sweep_after(state)
        ours = {branch.xid for branch in state.branches}
        return all(branch.xid in ours for branch in branches)

    def _sweep_after(self, state: WriterState) -> None:
        """Sweep at the end, when all essential work is done."""
        try:
            self._branches.sweep(state.query_id, state.batch, {branch.xid for branch in state.branches})
        except AmqpError as error:
            _log.warning("transactionalId %r: rolling back orphans failed: %s", self._writer, error)


def _decided(state: WriterState | None) -> set[str]:
    """The xids that must never be rolled back."""
    return set() if state is None else {branch.xid for branch in state.branches}
