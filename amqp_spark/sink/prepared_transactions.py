"""The prepared branches of a writer on the broker: which there are, and how they are committed or rolled back.

Only dtx.recover tells what is prepared: the timeout of an expired branch can still be asked for and set.
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
    """Somebody else resolved a branch between our look at it and our command, which ended the session: look again."""

    retryable = True


class PreparedTransactions:
    """Branches are named by the text of their xid (:func:`amqp_spark.state.xids.xid_text`).

    Every method but :meth:`be_patient_with` asks the broker, and may raise its errors or :class:`Raced`.

    Parameters:
        client: connected.
        writer: the transactionalId; branches of others are never touched.

    Attributes:
        seen: what was prepared when the broker was asked last, of everybody, without what was swept since.
    """

    def __init__(self, client: Client, writer: str) -> None:
        self._client = client
        self._writer = writer
        self.seen: dict[str, Xid] = {}
        client.transactions.patience_s = branch_timeout(0)  # the sitting before had its own

    def be_patient_with(self, rows: Iterable[int]) -> None:
        """Resolving a branch of so many rows, or another attempt at it, may take its time."""
        transactions = self._client.transactions
        transactions.patience_s = max([transactions.patience_s, *(branch_timeout(each) for each in rows)])

    def listed(self) -> dict[str, Xid]:
        """What is prepared, of everybody."""
        self.seen = {xid_text(xid): xid for xid in prepared_branches(self._client)}
        return self.seen

    def renew(self, xids: Iterable[str], seconds: int) -> None:
        """Start the timers of prepared branches anew; of :attr:`seen` those that are named.

        Parameters:
            xids: the branches; those that are not prepared are left out.
            seconds: their term, where a broker needs one.
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
        """0 where that is no timer at all (Broker-J). qpidd: 0 ends a branch at once, and an unchanged value starts no
        new term."""
        if self._client.capabilities.zero_timeout_is_none:
            return 0
        return seconds - 1 if self._client.transactions.get_timeout(xid) == seconds else seconds

    def commit(self, xids: Collection[str], *, seen: bool = False) -> set[str]:
        """Commit those that are prepared; return them.

        Parameters:
            xids: the branches.
            seen: :attr:`seen` is what is prepared: it was asked for after everything that could have changed it.
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
        """Roll back those that are prepared; ``listed``: what is, if that is known."""
        if not xids:
            return
        known = self.listed() if listed is None else listed
        self._each(known, xids, lambda text: self._roll_back(known[text]), crashpoints.MID_SWEEP)

    def roll_back_unlisted(self, xids: Collection[str], done: set[str]) -> None:
        """Roll back branches of which it is not known whether they are prepared.

        Parameters:
            xids: the branches.
            done: those that need not be looked at any more; those that the broker has answered for are added, so that
                the next call, on another connection, goes on behind one that the broker does not know.
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
            pass  # its timer was faster

    def sweep(self, lineage: str, batch: int, keep: Collection[str]) -> None:
        """Roll back what nobody will ever decide for.

        Spark does not tell the driver of attempts that lost: they are found by their names. What a later batch has
        prepared is left alone, and so is everything that is not of this writer.

        Parameters:
            lineage, batch: what is published; of other lineages everything is swept.
            keep: what may still be needed.
        """
        self._sweep(keep, lambda branch: not branch.is_of_lineage(lineage) or branch.batch <= batch)

    def sweep_batch(self, batch: int, keep: Collection[str], *, lineage: str | None, run: Run | None) -> None:
        """Roll back what the runs of a batch have prepared, up to one that has failed.

        Parameters:
            batch: its id.
            keep: what is decided.
            lineage, run: of the batch that has failed, as far as they are known. A run that began later may be at work.
        """

        def is_over(branch: Branch) -> bool:
            same = branch.batch == batch and (lineage is None or branch.is_of_lineage(lineage))
            return same and (run is None or not run.is_followed_by(branch.run))

        self._sweep(keep, is_over)

    def sweep_before(self, batch: int, keep: Collection[str], *, lineage: str, run: Run) -> None:
        """Roll back what earlier runs of a batch have prepared; ``run`` is at work."""

        def is_over(branch: Branch) -> bool:
            earlier = branch.run.token != run.token and not run.is_followed_by(branch.run)
            return earlier and branch.batch == batch and branch.is_of_lineage(lineage)

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
