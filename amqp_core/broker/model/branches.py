"""Branches of distributed transactions (X/Open XA): work that is done or undone when a transaction manager says so.

A branch belongs to its virtual host, and not to the sessions that work on it. It is started by one session, which is
then associated with it, others may join; when all have ended their work it can be prepared, and a prepared one is
committed or rolled back, whatever happens meanwhile. If a branch fails or its time is over, the broker undoes its work
and keeps its name: the next request for it is answered with the reason.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from amqp_core.broker.model.errors import Refusal, Refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from amqp_core.broker.model.entries import Entry
    from amqp_core.broker.model.journal import Journal
    from amqp_core.broker.model.messages import Message
    from amqp_core.broker.model.queues import Queue

DEFAULT_TIMEOUT_S: Final = 60
"""Seconds from the start of a branch until it is rolled back unless it is prepared."""
KNOWN_S: Final = 3600.0
"""Seconds for which a branch that was rolled back by failure or time stays known."""


class Xid(NamedTuple):
    """Name of a branch."""

    format: int
    global_id: bytes
    branch_id: bytes


class Outcome(Enum):
    """Result of a request that was carried out."""

    OK = auto()
    ROLLED_BACK = auto()
    """The work failed and is undone."""
    TIMED_OUT = auto()
    """It took too long and is undone."""


class Work(Protocol):
    """What a branch does when it ends."""

    @property
    def journal(self) -> Journal | None:
        """Takes note of prepared branches."""

    def admit(self, message: Message, queues: Iterable[Queue], now: float) -> None:
        """Put a message into queues, whatever their limits."""

    def accept(self, entries: Iterable[Entry]) -> None:
        """Settle messages."""

    def release(self, entries: Iterable[Entry]) -> None:
        """Put messages back to their places."""


class Branch:
    """One branch."""

    def __init__(self, xid: Xid, *, prepared: bool = False) -> None:
        self.xid = xid
        self.published: list[tuple[Message, Sequence[Queue]]] = []
        """Messages that its commit publishes, in this order, and the queues that they go to."""
        self.accepted: list[Entry] = []
        """Messages that its commit settles; they are held until then."""
        self.prepared = prepared
        """Whether it can be committed and rolled back, and nothing else any more."""
        self.undone: Outcome | None = None
        """Why its work was undone."""
        self.sessions: dict[object, bool] = {}
        """Those that are associated with it, and whether they go on with their work (or have suspended it)."""
        self.timeout_s = DEFAULT_TIMEOUT_S
        self.until = 0.0
        """When it is rolled back; for one that was undone: when it is forgotten. It does not count once prepared."""

    def __repr__(self) -> str:
        return f"<branch {self.xid}: {len(self.published)} published, {len(self.accepted)} accepted>"

    def publish(self, message: Message, queues: Sequence[Queue]) -> None:
        """Let its commit put a message into queues; nothing if its work was undone."""
        if self.undone is None:
            self.published.append((message, queues))

    def take_accepted(self) -> list[Entry]:
        """Forget its work; return the messages that it would have settled."""
        self.published.clear()
        accepted, self.accepted = self.accepted, []
        return accepted


class Branches:
    """The branches of a virtual host. ``session`` is the object of a session; objects are compared by identity.

    A call that raises has changed nothing.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._branches: dict[Xid, Branch] = {}
        self.has_new_expiry = False
        """Whether a branch may end earlier than ``next_expiry`` said."""

    @property
    def by_xid(self) -> Mapping[Xid, Branch]:
        """All branches."""
        return self._branches

    @property
    def prepared(self) -> list[Xid]:
        """Names of the branches that are prepared, the oldest first."""
        return [xid for xid, branch in self._branches.items() if branch.prepared]

    def restore(
        self, xid: Xid, published: Iterable[tuple[Message, Sequence[Queue]]], accepted: Iterable[Entry]
    ) -> Branch:
        """Bring back a prepared branch that has outlived a process; its entries are held."""
        branch = self._branches[xid] = Branch(xid, prepared=True)
        branch.published += published
        branch.accepted += accepted
        return branch

    # --- the work on a branch

    def start(self, xid: Xid, session: object, *, join: bool, now: float) -> tuple[Branch, Outcome]:
        """Associate a session with a new branch, or with one that others have started (``join``).

        If its outcome is not OK, the session is not associated.

        Raises:
            Refused: NOT_ALLOWED, the name is in use, or unknown (``join``); ILLEGAL_STATE, it is prepared, or the
                session is associated with it.
        """
        branch = self._branches.get(xid)
        if not join:
            if branch is not None:
                raise Refused(Refusal.NOT_ALLOWED, f"Branch {_named(xid)} is known already")
            branch = self._branches[xid] = Branch(xid)
            branch.until, self.has_new_expiry = now + branch.timeout_s, True
        elif branch is None:
            raise Refused(Refusal.NOT_ALLOWED, f"Branch {_named(xid)} does not exist, so it cannot be joined")
        elif branch.prepared or session in branch.sessions:
            state = "is prepared" if branch.prepared else "has this session already"
            raise Refused(Refusal.ILLEGAL_STATE, f"Branch {_named(xid)} {state}")
        elif branch.undone is not None:
            return branch, branch.undone
        branch.sessions[session] = True
        return branch, Outcome.OK

    def resume(self, xid: Xid, session: object) -> tuple[Branch, Outcome]:
        """Let a session go on that has suspended its work; if the outcome is not OK, it is still suspended.

        Raises:
            Refused: NOT_ALLOWED, the branch is not known; ILLEGAL_STATE, the session has not suspended it.
        """
        branch = self._branches.get(xid)
        if branch is None:
            raise Refused(Refusal.NOT_ALLOWED, f"Branch {_named(xid)} is not known")
        if branch.sessions.get(session, True):
            raise Refused(Refusal.ILLEGAL_STATE, f"This session has not suspended branch {_named(xid)}")
        if branch.undone is not None:
            return branch, branch.undone
        branch.sessions[session] = True
        return branch, Outcome.OK

    def end(self, xid: Xid, session: object, *, fail: bool, suspend: bool, now: float) -> Outcome:
        """End the work of a session on a branch, or suspend it.

        Args:
            fail: it has failed: the branch is undone.

        Raises:
            Refused: ILLEGAL_STATE, the session is not associated with it, or has suspended it already.
        """
        branch = self._branches.get(xid)
        if branch is None or session not in branch.sessions:
            raise Refused(Refusal.ILLEGAL_STATE, f"This session is not associated with branch {_named(xid)}")
        if suspend and not branch.sessions[session]:
            raise Refused(Refusal.ILLEGAL_STATE, f"This session has suspended branch {_named(xid)} already")
        if suspend:
            branch.sessions[session] = False
        else:
            del branch.sessions[session]
        if fail:
            self._undo(branch, Outcome.ROLLED_BACK, now)
        return branch.undone or Outcome.OK

    def accept(self, branch: Branch, entries: Iterable[Entry]) -> None:
        """Let the commit of a branch settle messages; if its work was undone, they go back at once."""
        if branch.undone is None:
            branch.accepted += entries
        else:
            self._work.release(entries)

    def leave(self, session: object, now: float) -> list[Entry]:
        """A session ends: what it was associated with is undone.

        Return the messages that its branches would have settled. The caller releases them in one call with what the
        session holds: messages that come back in parts are delivered again in another order than that of their queue.
        """
        accepted: list[Entry] = []
        for branch in self._branches.values():
            if branch.sessions.pop(session, None) is not None:
                accepted += self._mark_undone(branch, Outcome.ROLLED_BACK, now)
        return accepted

    # --- its end

    def prepare(self, xid: Xid, now: float) -> Outcome:
        """Make sure that a branch can be committed; its time does not count any more.

        It is undone if a queue that rejects what it has no room for is full.

        Raises:
            Refused: NOT_FOUND; ILLEGAL_STATE, a session is associated with it, or it is prepared.
        """
        branch = self._left(xid)
        if branch.prepared:
            raise Refused(Refusal.ILLEGAL_STATE, f"Branch {_named(xid)} is prepared already")
        if branch.undone is None and not have_room(branch.published):
            self._undo(branch, Outcome.ROLLED_BACK, now)
        if branch.undone is not None:
            if branch.undone is Outcome.TIMED_OUT:
                del self._branches[xid]
            return branch.undone
        branch.prepared = True
        if self._work.journal is not None:
            self._work.journal.branch_prepared(branch)
        return Outcome.OK

    def commit(self, xid: Xid, now: float, *, one_phase: bool) -> Outcome:
        """Do the work of a branch, and forget it.

        Args:
            one_phase: it is not prepared.

        Raises:
            Refused: NOT_FOUND; ILLEGAL_STATE, a session is associated with it, or ``one_phase`` does not suit it.
        """
        branch = self._left(xid)
        if branch.undone is None and branch.prepared == one_phase:
            state = "prepared, so one-phase is not possible" if one_phase else "not prepared, and one-phase is not set"
            raise Refused(Refusal.ILLEGAL_STATE, f"Branch {_named(xid)} is {state}")
        if one_phase and branch.undone is None and not have_room(branch.published):
            self._undo(branch, Outcome.ROLLED_BACK, now)
        del self._branches[xid]
        if branch.undone is not None:
            return branch.undone
        for message, queues in branch.published:
            self._work.admit(message, queues, now)
        self._work.accept(branch.accepted)
        self._ended(branch)
        return Outcome.OK

    def rollback(self, xid: Xid) -> Outcome:
        """Undo the work of a branch, and forget it; TIMED_OUT: that was done before.

        Raises:
            Refused: NOT_FOUND; ILLEGAL_STATE, a session is associated with it.
        """
        branch = self._left(xid)
        del self._branches[xid]
        if branch.undone is Outcome.TIMED_OUT:
            return branch.undone
        self._work.release(branch.take_accepted())
        self._ended(branch)
        return Outcome.OK

    # --- its time

    def known(self, xid: Xid) -> Branch:
        """The branch of that name.

        Raises:
            Refused: NOT_FOUND.
        """
        branch = self._branches.get(xid)
        if branch is None:
            raise Refused(Refusal.NOT_FOUND, f"There is no branch {_named(xid)}")
        return branch

    def set_timeout(self, xid: Xid, seconds: int, now: float) -> None:
        """Let a branch be undone in so many seconds unless it is prepared before; 0: in the default ones.

        Raises:
            Refused: NOT_FOUND.
        """
        branch = self.known(xid)
        branch.timeout_s = seconds or DEFAULT_TIMEOUT_S
        if branch.undone is None:
            branch.until, self.has_new_expiry = now + branch.timeout_s, True

    def expire(self, now: float) -> None:
        """Undo what takes too long, and forget what was undone long ago."""
        for branch in [each for each in self._branches.values() if not each.prepared and each.until <= now]:
            if branch.undone is None:
                self._undo(branch, Outcome.TIMED_OUT, now)
            elif not branch.sessions:
                del self._branches[branch.xid]

    def next_expiry(self) -> float | None:
        """When ``expire`` is to be called."""
        self.has_new_expiry = False
        return min(
            (
                each.until
                for each in self._branches.values()
                if not each.prepared and not (each.undone and each.sessions)
            ),
            default=None,
        )

    # --- internals

    def _left(self, xid: Xid) -> Branch:
        """A branch that no session is associated with."""
        branch = self.known(xid)
        if branch.sessions:
            raise Refused(Refusal.ILLEGAL_STATE, f"A session is still associated with branch {_named(xid)}")
        return branch

    def _undo(self, branch: Branch, outcome: Outcome, now: float) -> None:
        self._work.release(self._mark_undone(branch, outcome, now))

    def _mark_undone(self, branch: Branch, outcome: Outcome, now: float) -> list[Entry]:
        """Drop the work of a branch unless that was done before; return the messages to release."""
        if branch.undone is None:
            branch.undone = outcome
            branch.until, self.has_new_expiry = now + KNOWN_S, True
        return branch.take_accepted()

    def _ended(self, branch: Branch) -> None:
        if branch.prepared and self._work.journal is not None:
            self._work.journal.branch_ended(branch)


def have_room(published: Iterable[tuple[Message, Sequence[Queue]]]) -> bool:
    """Whether no queue would reject what a branch publishes to it."""
    more: dict[Queue, list[Message]] = {}
    for message, queues in published:
        for queue in queues:
            more.setdefault(queue, []).append(message)
    return all(queue.has_room_for(messages) for queue, messages in more.items())


def _named(xid: Xid) -> str:
    return f"{xid.format}:{xid.global_id.hex()[:64]}:{xid.branch_id.hex()[:64]}"
