"""Branches of distributed transactions (X/Open XA): work that is done or undone when a transaction manager says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from amqp_core.broker.model.entries import Entry
    from amqp_core.broker.model.messages import Message


class Xid(NamedTuple):
    """Name of a branch."""

    format: int
    global_id: bytes
    branch_id: bytes


class Branch:
    """One branch.

    Args:
        published: messages that its commit publishes, in this order.
        accepted: messages that its commit settles; they are held until then.
        prepared: whether it can be committed and rolled back, and nothing else any more.
    """

    def __init__(self, xid: Xid, *, prepared: bool = False) -> None:
        self.xid = xid
        self.published: list[Message] = []
        self.accepted: list[Entry] = []
        self.prepared = prepared

    def __repr__(self) -> str:
        return f"<branch {self.xid}: {len(self.published)} published, {len(self.accepted)} accepted>"


class Branches:
    """The branches of a virtual host."""

    def __init__(self) -> None:
        self._branches: dict[Xid, Branch] = {}

    @property
    def by_xid(self) -> Mapping[Xid, Branch]:
        """All branches."""
        return self._branches

    def restore(self, xid: Xid, published: Iterable[Message], accepted: Iterable[Entry]) -> Branch:
        """Bring back a prepared branch that has outlived a process; its entries are held."""
        branch = self._branches[xid] = Branch(xid, prepared=True)
        branch.published += published
        branch.accepted += accepted
        return branch
