"""The prepared branches of a writer on the broker: list, commit and roll back.

Only dtx.recover tells which branches are prepared: an expired branch still permits get-timeout and set-timeout.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from amqp_core.errors import AmqpError, NotFound, TransactionFailed
from amqp_spark import crashpoints
from amqp_spark.state.listing import prepared_branches
from amqp_spark.state.xids import parse_branch, parse_xid, xid_text
from amqp_spark.timeouts import branch_timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from amqp_core.api import Client, Xid
    from amqp_spark.state.xids import Branch, Run

_log = logging.getLogger("amqp_spark.sink")


class Raced(AmqpError):
    """Another party resolved a branch between our list and our command, which ended the session: look again."""

    retryable = True


class PreparedTransactions:
    """Prepared branches, named by the text of their xid (:func:`amqp_spark.state.xids.xid_text`).

    Every method but :meth:`allow_silence_for` queries the broker, and may raise its errors or :class:`Raced`.

    Args:
        client: connected.
        writer: the transactionalId; branches of other writers are never touched.

    Attributes:
        seen: all prepared branches of the latest list, of every writer, minus those swept since.
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
        """Restart the timers of the named prepared branches in :attr:`seen`.

        Args:
            xids: the branches; those that are not prepared are left out.
            seconds: their timeout, at brokers that need one.
        """
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
        """Commit the branches that are prepared.

        Args:
            xids: the branches.
            seen: :attr:`seen` is current: it was listed after every change.

        Returns:
            The xids that were committed.
        """
        listed = (self.seen if seen else self.listed()) if xids else {}
        committed = set()

        def commit(text: str) -> None:
            try:
                self._client.transactions.commit_branch(listed[text])
            except TransactionFailed as error:
                _log.warning("the branch %s cannot be committed: %s", text, error)
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
        """Roll back branches without knowing whether they are prepared.

        Args:
            xids: the branches.
            done: branches to skip; each answered branch is added, so that the next call, on another connection,
                continues behind a branch that the broker does not know.
        """
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
        except TransactionFailed:
            pass  # its timer expired first

    def sweep(self, query_id: str, batch: int, keep: Collection[str]) -> None:
        """Roll back the branches that no decision will ever name.

        Spark does not report lost attempts to the driver: they are found by their names. Branches of later batches and
            of other writers are left alone.

        Args:
            query_id, batch: the latest published batch; branches of other queries are all swept.
            keep: branches that may still be needed.
        """
        self._sweep(keep, lambda branch: not branch.is_of_query(query_id) or branch.batch <= batch)

    def sweep_batch(self, batch: int, keep: Collection[str], *, query_id: str | None, run: Run | None) -> None:
        """Roll back the branches of the runs of a batch, up to a failed one.

        Args:
            batch: its id.
            keep: decided branches.
            query_id, run: of the failed run, as far as they are known. A run that began later may be at work.
        """

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
    return Raced(f"the branch {text} was resolved by somebody else just now")
