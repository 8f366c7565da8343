"""The prepared branches of a writer on the broker: which there are, and how they are committed or rolled back.

Only dtx.recover tells what is prepared: the timeout of an expired branch can still be asked for and set.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from amqp_core.errors import AmqpError, NotFound, TransactionFailed
from amqp_spark import crashpoints
from amqp_spark.sink.patience import patience_with
from amqp_spark.state.xids import parse_branch, xid_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from amqp_core.v0_10.client import Client
    from amqp_core.v0_10.spec import Xid

_log = logging.getLogger("amqp_spark.sink")


class Raced(AmqpError):
    """Somebody else resolved a branch between our look at it and our command, which ended the session: look again."""

    retryable = True


class Branches:
    """Branches are named by the text of their xid (:func:`amqp_spark.state.xids.xid_text`).

    Every method but :meth:`be_patient_with` asks the broker, and may raise its errors or :class:`Raced`.

    Parameters:
        client: connected.
        writer: the transactionalId; branches of others are never touched.
    """

    def __init__(self, client: Client, writer: str) -> None:
        self._client = client
        self._writer = writer
        client.transactions.patience_s = patience_with(0)  # the sitting before had its own

    def be_patient_with(self, rows: Iterable[int]) -> None:
        """Resolving a branch of so many rows, or another attempt at it, may take its time."""
        transactions = self._client.transactions
        transactions.patience_s = max([transactions.patience_s, *(patience_with(each) for each in rows)])

    def listed(self) -> dict[str, Xid]:
        """What is prepared, of everybody."""
        return {xid_text(xid): xid for xid in self._client.transactions.recover()}

    def set_timeout(self, xids: Iterable[str], seconds: int) -> None:
        """Start the timers of prepared branches anew, with this term."""
        listed = self.listed()
        for text in xids:
            try:
                self._client.transactions.set_timeout(listed[text], seconds)
            except (KeyError, NotFound) as error:
                raise _raced(text) from error

    def commit(self, xids: Collection[str]) -> set[str]:
        """Commit those that are prepared; return them."""
        listed = self.listed() if xids else {}
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

        def roll_back(text: str) -> None:
            try:
                self._client.transactions.rollback_branch(known[text])
            except TransactionFailed:
                pass  # its timer was faster

        self._each(known, xids, roll_back, crashpoints.MID_SWEEP)

    def sweep(self, lineage: str, batch: int, keep: Collection[str]) -> None:
        """Roll back what nobody will ever decide for.

        Spark does not tell the driver of attempts that lost: they are found by their names. What a later batch has
        prepared is left alone, and so is everything that is not of this writer.

        Parameters:
            lineage, batch: what is published; of other lineages everything is swept.
            keep: what may still be needed.
        """
        listed = self.listed()
        orphans = []
        for text, xid in listed.items():
            branch = parse_branch(xid)
            if branch is None or not branch.is_of(self._writer) or text in keep:
                continue
            if not branch.is_of(self._writer, lineage) or branch.batch <= batch:
                orphans.append(text)
        self.roll_back(orphans, listed)

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
