"""Prepared branches: as tasks report them, as markers prove their commit, and on the broker.

Only dtx.recover tells which branches are prepared: an expired branch still permits get-timeout and set-timeout.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from amqp_core.errors import AmqpError, NotFound, TransactionFailed
from amqp_spark import crashpoints
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.state.records import STORED_QUERY_ID, DecidedBranch, RecordUnreadable, stored
from amqp_spark.state.xids import parse_branch, parse_xid, prepared_branches, xid_text
from amqp_spark.timeouts import branch_timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from amqp_core.api import Client, Xid
    from amqp_spark.state.xids import Branch, Run

_log = logging.getLogger("amqp_spark.sink")


VERSION: Final = 1
BATCH_WRITES: Final = "batch write"
"""Query id of batch writes (outside of streams)."""
_TYPES: Final = {STORED_QUERY_ID: str, "batch": int, "partition": int, "xid": str, "rows": int, "digest": str}


@dataclass(frozen=True, slots=True)
class PreparedBranch:
    """The transaction branch of one task.

    Attributes:
        query_id: Spark's query id, or :data:`BATCH_WRITES`.
        batch, partition: the task.
        xid: as text; empty if there were no rows, and hence no branch.
        rows: number of rows of the task, including discarded ones.
        digest: of their encoded frames, in order.
    """

    query_id: str
    batch: int
    partition: int
    xid: str = ""
    rows: int = 0
    digest: str = ""

    @property
    def decided(self) -> DecidedBranch:
        """The entry of this branch in a decision."""
        return DecidedBranch(self.xid, self.partition, self.rows, self.digest)

    def dump(self) -> bytes:
        """The body of its marker."""
        return json.dumps({"version": VERSION} | stored(self), separators=(",", ":")).encode()

    @classmethod
    def load(cls, body: bytes) -> Self:
        """Parse the output of :meth:`dump`; RecordUnreadable describes another format."""
        try:
            value = json.loads(body)
        except ValueError:
            value = None
        if not isinstance(value, dict) or value.pop("version", None) != VERSION:
            raise RecordUnreadable(
                f"a marker ({len(body)} bytes) was written by another program, or by a newer amqp_spark"
            )
        if {name: type(each) for name, each in value.items()} != _TYPES:
            raise RecordUnreadable(f"a marker does not have exactly {', '.join(_TYPES)}, each of its type")
        return cls(value.pop(STORED_QUERY_ID), **value)


@dataclass(frozen=True, slots=True)
class FailedBatch:
    """A failed run of a batch, with those of its tasks that have reported their branches to the driver; ``query_id``
    and ``run`` are None if neither the driver nor a task knows them."""

    batch: int
    tasks: tuple[PreparedBranch, ...] = ()
    query_id: str | None = None
    run: Run | None = None

    @classmethod
    def of(
        cls, tasks: Sequence[PreparedBranch], batch: int, *, query_id: str | None = None, run: Run | None = None
    ) -> Self:
        """Make one; take a missing query id or run from the tasks."""
        if tasks and query_id is None:
            query_id = tasks[0].query_id
        runs = [branch.run for task in tasks if task.xid and (branch := parse_branch(parse_xid(task.xid))) is not None]
        if run is None and runs:
            run = max(runs, key=lambda each: each.begun)
        return cls(batch, tuple(tasks), query_id, run)

    @property
    def xids(self) -> tuple[str, ...]:
        """Xids of the branches that its tasks have reported."""
        return tuple(task.xid for task in self.tasks if task.xid)


def same_rows(one: PreparedBranch | DecidedBranch, other: PreparedBranch | DecidedBranch) -> bool:
    """Whether two attempts at a partition have written the same rows."""
    return (one.rows, one.digest) == (other.rows, other.digest)


class Raced(AmqpError):
    """Another party resolved a branch between our list and our command, which ended the session: look again."""

    retryable = True


class PreparedTransactions:
    """Prepared branches, named by the text of their xid (:func:`amqp_spark.state.xids.xid_text`).

    Every method but :meth:`allow_silence_for` queries the broker, and may raise its errors or :class:`Raced`. Branches
    of other writers are never touched. ``seen``: all prepared branches of the latest list, of every writer, minus those
    swept since.
    """

    def __init__(self, client: Client, writer: str) -> None:
        self._client = client
        self._writer = writer
        self.seen: dict[str, Xid] = {}
        client.transactions.silence_timeout_s = branch_timeout(0)  # the previous user of the connection had its own

    def allow_silence_for(self, rows: Iterable[int]) -> None:
        """Raise the client's wait: resolving a branch of so many rows, or another attempt at it, takes time."""
        transactions = self._client.transactions
        transactions.silence_timeout_s = max([transactions.silence_timeout_s, *(branch_timeout(each) for each in rows)])

    def listed(self) -> dict[str, Xid]:
        """List the prepared branches of all writers, by xid text."""
        self.seen = {xid_text(xid): xid for xid in prepared_branches(self._client)}
        return self.seen

    def renew(self, xids: Iterable[str], seconds: int) -> None:
        """Restart the timers of those branches that are in :attr:`seen`; ``seconds``: their timeout, at brokers that
        need one."""
        for text in xids:
            xid = self.seen.get(text)
            if xid is None:
                continue
            try:
                self._client.transactions.set_timeout(xid, self._term(xid, seconds))
            except NotFound as error:
                raise _raced(text) from error

    def _term(self, xid: Xid, seconds: int) -> int:
        """Timeout to set; 0 if that means no timer (Broker-J).

        In qpidd 0 ends a branch at once, and setting an unchanged value does not restart the timer.
        """
        if self._client.capabilities.zero_timeout_is_none:
            return 0
        return seconds - 1 if self._client.transactions.get_timeout(xid) == seconds else seconds

    def commit(self, xids: Collection[str], *, seen: bool = False) -> set[str]:
        """Commit the branches that are prepared, and return their xids. ``seen``: :attr:`seen` is current, listed after
        every change. TransactionFailed: the broker has committed a part of a branch, or does not know."""
        listed = (self.seen if seen else self.listed()) if xids else {}
        committed = set()

        def commit(text: str) -> None:
            try:
                self._client.transactions.commit_branch(listed[text])
            except TransactionFailed as error:
                if error.has_committed:
                    _log.warning("the broker had committed the branch %s by itself", text)
                    committed.add(text)
                    return
                _log.warning("the branch %s cannot be committed: %s", text, error)
                if error.has_committed is None:  # its marker proves nothing about the other messages
                    error.add_note(f"branch {text}: compare its messages in the queues with the rows of the batch")
                    raise
            else:
                committed.add(text)

        self._each(listed, xids, commit, crashpoints.SOME_COMMITTED)
        return committed

    def roll_back(self, xids: Collection[str], listed: Mapping[str, Xid] | None = None) -> None:
        """Roll back the branches that are prepared; ``listed``: the prepared ones, if they are known."""
        if not xids:
            return
        known = self.listed() if listed is None else listed
        self._each(known, xids, lambda text: self._roll_back(known[text]), crashpoints.MID_SWEEP)

    def roll_back_unlisted(self, xids: Collection[str], done: set[str]) -> None:
        """Roll back branches without knowing whether they are prepared; skip those that are ``done``. Each answered
        branch is added there, so that the next call, on another connection, continues behind a branch that the broker
        does not know."""
        for text in xids:
            if text in done:
                continue
            try:
                self._roll_back(parse_xid(text))
            except NotFound as error:
                done.add(text)
                raise _raced(text) from error
            done.add(text)

    def _roll_back(self, xid: Xid) -> None:
        try:
            self._client.transactions.rollback_branch(xid)
        except TransactionFailed as error:  # most often its timer expired first
            if error.has_committed is not False:
                _log.error(
                    "transaction %s was not rolled back as a whole (%s): its rows may be duplicates; the query "
                    "continues",
                    xid_text(xid), error,
                )  # fmt: skip

    def sweep(self, query_id: str, batch: int, keep: Collection[str]) -> None:
        """Roll back the branches that no decision will ever name, but not those to ``keep``, which may still be needed.

        Spark does not report lost attempts to the driver: they are found by their names. Branches of batches later than
        the latest published one and of other writers are left alone; branches of other queries are all swept.
        """
        self._sweep(keep, lambda branch: not branch.is_of_query(query_id) or branch.batch <= batch)

    def sweep_batch(self, batch: int, keep: Collection[str], *, query_id: str | None, run: Run | None) -> None:
        """Roll back the branches of the runs of a batch, up to a failed one, but not decided ones. A run that began
        later than ``run`` may be at work."""

        def is_over(branch: Branch) -> bool:
            same = branch.batch == batch and (query_id is None or branch.is_of_query(query_id))
            return same and (run is None or not run.is_followed_by(branch.run))

        self._sweep(keep, is_over)

    def sweep_before(self, batch: int, keep: Collection[str], *, query_id: str, run: Run) -> None:
        """Roll back the branches of earlier runs of a batch; ``run`` is at work."""

        def is_over(branch: Branch) -> bool:
            earlier = branch.run.token != run.token and not run.is_followed_by(branch.run)
            return earlier and branch.batch == batch and branch.is_of_query(query_id)

        self._sweep(keep, is_over)

    def _sweep(self, keep: Collection[str], is_over: Callable[[Branch], bool]) -> None:
        orphans = []
        for text, xid in self.listed().items():
            branch = parse_branch(xid)
            if branch is not None and branch.is_of(self._writer) and text not in keep and is_over(branch):
                orphans.append(text)
        self.roll_back(orphans, self.seen)
        self.seen = {text: xid for text, xid in self.seen.items() if text not in orphans}

    def _each(
        self, listed: Mapping[str, Xid], xids: Collection[str], resolve: Callable[[str], None], after_first: str
    ) -> None:
        for number, text in enumerate(text for text in listed if text in xids):
            try:
                resolve(text)
            except NotFound as error:
                raise _raced(text) from error
            if not number:
                crashpoints.reached(after_first)


def _raced(text: str) -> Raced:
    return Raced(SparkCondition.BRANCH_RACED(xid=text))
