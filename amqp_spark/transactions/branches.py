"""Prepared branches: whose they are, and what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from amqp_core.errors import AmqpError
from amqp_spark.state.listing import ListLost, prepared_branches, too_many
from amqp_spark.state.names import WRITER, hashed, lock_queue, state_queue
from amqp_spark.state.records import OPEN, WriterState
from amqp_spark.state.xids import Branch, parse_branch, parse_xid, xid_text
from amqp_spark.transactions.look import Found, find

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from amqp_core.api import Client, Xid

FOREIGN: Final = "foreign"
DECIDED: Final = "decided"
UNDECIDED: Final = "not decided"
ORPHAN: Final = "orphan"
UNKNOWN: Final = "unknown"

MEANINGS: Final[Mapping[str, str]] = {
    FOREIGN: "not written by amqp_spark; its own transaction manager resolves it",
    DECIDED: "the state says that it is committed: its writer does that at its next start; never roll it back",
    UNDECIDED: "of a batch that is under way, or was cut off: its writer decides, or rolls it back at its next start",
    ORPHAN: "of an attempt that lost: its writer rolls it back at its next start, and while it runs",
    UNKNOWN: "its writer's state cannot be seen, so nobody can say whether it was decided",
}
"""What the standing of a branch means."""
LOOKS: Final = 3
"""What belongs together is read again when it changed while it was read, so many times in all."""
MOST_TIMEOUTS: Final = 50
"""The broker is asked for the timer of so many branches; each costs a round trip."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A branch that is prepared, or named on the command line.

    Attributes:
        xid: from the broker or the command line.
        branch: what it is for; ``None`` if it is not one of ours.
        standing: a key of :data:`MEANINGS`.
        transactional_id: of its writer; ``None`` when the broker has no state of it.
        timeout: seconds of its timer, 0 for none; ``None`` when it was not asked for.
    """

    xid: Xid
    branch: Branch | None
    standing: str
    transactional_id: str | None = None
    timeout: int | None = None

    @property
    def text(self) -> str:
        """The xid as it is shown and given."""
        return xid_text(self.xid)

    def age(self, now: float) -> int | None:
        """Seconds since it was begun, by the clock of the machine that did; ``None`` for a foreign one."""
        return None if self.branch is None else max(0, int(now) - self.branch.begun)


@dataclass(frozen=True, slots=True)
class Branches:
    """All prepared branches of a broker, and the states of the writers that have some.

    Attributes:
        prepared: those of one writer side by side, oldest first; foreign ones last.
        writers: what their state queues show, by the digest that their xids have.
    """

    prepared: tuple[Prepared, ...]
    writers: Mapping[str, Found[WriterState]]

    def of(self, transactional_id: str) -> tuple[Prepared, ...]:
        """Those of one writer."""
        return tuple(each for each in self.prepared if each.branch and each.branch.is_of(transactional_id))


def look_at_branches(client: Client, *, transactional_id: str | None = None) -> Branches:
    """Ask for all prepared branches (dtx.recover), and look at the state of each writer of ours that has some.

    Parameters:
        client: to look with.
        transactional_id: a writer whose state is looked at although it has none.
    """
    digests = set() if transactional_id is None else {hashed(WRITER, transactional_id)}
    looks = 1
    while True:
        xids = listed(client)
        branches = [(xid, parse_branch(xid)) for xid in xids]
        digests |= {branch.writer for _, branch in branches if branch is not None}
        writers = {digest: find_writer(client, digest) for digest in sorted(digests)}
        # A state that was read after its writer went on would say nothing of the branches from before.
        if looks == LOOKS or {*map(xid_text, listed(client))} == {*map(xid_text, xids)}:
            break
        looks += 1
    ours = sorted(
        ((xid, branch) for xid, branch in branches if branch is not None),
        key=lambda each: (each[1].writer, each[1].begun, each[1].batch, each[1].partition, each[1].attempt),
    )
    prepared = [named(xid, writers) for xid, _ in ours]
    prepared += [named(xid, writers) for xid, branch in branches if branch is None]
    return Branches(tuple(prepared), writers)


def listed(client: Client) -> list[Xid]:
    """All prepared branches.

    Raises:
        TooManyPrepared: qpidd cannot name them, and has ended the connection.
    """
    try:
        return prepared_branches(client)
    except ListLost as error:
        raise too_many() from error


def find_writer(client: Client, digest: str) -> Found[WriterState]:
    """Look at the state of the writer that has this digest."""
    return find(client, state_queue(digest), lock_queue(digest), WriterState)


def with_timeouts(client: Client, prepared: Sequence[Prepared]) -> tuple[Prepared, ...]:
    """Ask for the timers of ours. The last thing to do with a client: for a branch that is gone the session ends."""
    asked = {each.text for each in [each for each in prepared if each.branch][:MOST_TIMEOUTS]}
    found = []
    for each in prepared:
        timeout = None
        if each.text in asked:
            try:
                timeout = client.transactions.get_timeout(each.xid)
            except AmqpError:
                asked = set()
        found.append(replace(each, timeout=timeout))
    return tuple(found)


def named(xid: Xid, writers: Mapping[str, Found[WriterState]]) -> Prepared:
    """What a branch is by its name and the states of the writers; one of ours must have its writer among them."""
    branch = parse_branch(xid)
    if branch is None:
        return Prepared(xid, None, FOREIGN)
    state = writers[branch.writer].state
    if state is None:
        return Prepared(xid, branch, UNKNOWN)
    return Prepared(xid, branch, standing_of(xid, branch, state), state.transactional_id)


def standing_of(xid: Xid, branch: Branch, state: WriterState) -> str:
    """What the state of its writer says of a branch."""
    if key(xid) in decided(state):
        return DECIDED
    if branch.is_of_lineage(state.lineage):
        return UNDECIDED if branch.batch > state.batch else ORPHAN
    return ORPHAN if any(map(branch.is_of_lineage, state.past)) else UNDECIDED


def decided(state: WriterState) -> frozenset[tuple[bytes | None, bytes | None]]:
    """The branches that an open decision names."""
    return keys(parse_xid(each.xid) for each in state.branches) if state.state == OPEN else frozenset()


def key(xid: Xid) -> tuple[bytes | None, bytes | None]:
    """What tells branches of ours apart; not every broker looks at the format."""
    return xid.global_id, xid.branch_id


def keys(xids: Iterable[Xid]) -> frozenset[tuple[bytes | None, bytes | None]]:
    """:func:`key` of each."""
    return frozenset(map(key, xids))
