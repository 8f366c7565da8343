"""Prepared branches: their owners and their expected outcome."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from amqp_core.errors import AmqpError
from amqp_spark.state.names import WRITER, hashed, lock_queue, state_queue
from amqp_spark.state.records import OPEN, WriterState
from amqp_spark.state.xids import Branch, ListLost, parse_branch, parse_xid, prepared_branches, too_many, xid_text
from amqp_spark.transactions.browse import Found, find

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from amqp_core.api import Client, Xid

    Named = frozenset[tuple[bytes | None, bytes | None]]

FOREIGN: Final = "foreign"
DECIDED: Final = "decided"
UNDECIDED: Final = "not decided"
ORPHAN: Final = "orphan"
UNKNOWN: Final = "unknown"

MEANINGS: Final[Mapping[str, str]] = {
    FOREIGN: "not of amqp_spark; its own transaction manager resolves it",
    DECIDED: "decided to be committed: its writer commits it at its next start; never roll it back",
    UNDECIDED: "of a batch that runs or was interrupted: its writer decides it, or rolls it back at its next start",
    ORPHAN: "of a superseded attempt: its writer rolls it back at its next start or with its next batch",
    UNKNOWN: "the state of its writer cannot be read, so that its decision is unknown",
}
"""Meaning of each standing of a branch."""
LOOKS: Final = 3
"""Maximum number of reads of related data, repeated if it changed during a read."""
MOST_TIMEOUTS: Final = 50
"""Maximum number of branches whose timer is queried; each query costs a round trip."""


@dataclass(frozen=True, slots=True)
class BranchStatus:
    """A branch that is prepared, or named on the command line; ``branch`` is None if it is not one of ours.
    ``standing`` is a key of :data:`MEANINGS`. ``transactional_id`` is None if the broker has no state of its writer;
    ``timeout``: seconds of its timer, 0 for none, ``None`` if it was not queried."""

    xid: Xid
    branch: Branch | None
    standing: str
    transactional_id: str | None = None
    timeout: int | None = None

    @property
    def text(self) -> str:
        """The xid in the text form that is printed and accepted."""
        return xid_text(self.xid)

    def age(self, now: float) -> int | None:
        """Seconds since it was begun, by the clock of the machine that began it; ``None`` for a foreign one."""
        return None if self.branch is None else max(0, int(now) - self.branch.begun)


@dataclass(frozen=True, slots=True)
class BranchList:
    """All prepared branches of a broker, grouped by writer, oldest first, foreign ones last; and the states of the
    writers that have some, by the digest in their xids."""

    prepared: tuple[BranchStatus, ...]
    writers: Mapping[str, Found[WriterState]]

    def of(self, transactional_id: str) -> tuple[BranchStatus, ...]:
        """The branches of one writer."""
        return tuple(each for each in self.prepared if each.branch and each.branch.is_of(transactional_id))


def look_at_branches(client: Client, *, transactional_id: str | None = None) -> BranchList:
    """List all prepared branches (dtx.recover), and read the state of each writer of ours that has some, and of
    ``transactional_id`` in any case."""
    digests = set() if transactional_id is None else {hashed(WRITER, transactional_id)}
    looks = 1
    while True:
        xids = listed(client)
        branches = [(xid, parse_branch(xid)) for xid in xids]
        digests |= {branch.writer for _, branch in branches if branch is not None}
        writers = {digest: find_writer(client, digest) for digest in sorted(digests)}
        # A state that was read after its writer went on would not match the branches listed before.
        if looks == LOOKS or {*map(xid_text, listed(client))} == {*map(xid_text, xids)}:
            break
        looks += 1
    ours = sorted(
        ((xid, branch) for xid, branch in branches if branch is not None),
        key=lambda each: (each[1].writer, each[1].begun, each[1].batch, each[1].partition, each[1].attempt),
    )
    named = decisions(writers)
    prepared = [identified(xid, writers, named) for xid, _ in ours]
    prepared += [identified(xid, writers, named) for xid, branch in branches if branch is None]
    return BranchList(tuple(prepared), writers)


def listed(client: Client) -> list[Xid]:
    """List all prepared branches. TooManyPrepared: qpidd cannot list them, and has ended the connection."""
    try:
        return prepared_branches(client)
    except ListLost as error:
        raise too_many() from error


def find_writer(client: Client, digest: str) -> Found[WriterState]:
    """Find and read the state of the writer that has this digest."""
    return find(client, state_queue(digest), lock_queue(digest), WriterState)


def with_timeouts(client: Client, prepared: Sequence[BranchStatus]) -> tuple[BranchStatus, ...]:
    """Query the timers of our branches. Do this last with a client: a missing branch ends its session."""
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


def identified(xid: Xid, writers: Mapping[str, Found[WriterState]], named: Mapping[str, Named]) -> BranchStatus:
    """Identify a branch by its name and the states of the writers; ``writers`` must contain the writer of ours.
    ``named``: the :func:`decisions` of these writers."""
    branch = parse_branch(xid)
    if branch is None:
        return BranchStatus(xid, None, FOREIGN)
    state = writers[branch.writer].state
    if state is None:
        return BranchStatus(xid, branch, UNKNOWN)
    return BranchStatus(xid, branch, standing_of(xid, branch, state, named[branch.writer]), state.transactional_id)


def standing_of(xid: Xid, branch: Branch, state: WriterState, named: Named) -> str:
    """Standing of a branch according to the state of its writer; ``named``: the branches that its open decision
    names."""
    if key(xid) in named:
        return DECIDED
    if branch.is_of_query(state.query_id):
        return UNDECIDED if branch.batch > state.batch else ORPHAN
    return ORPHAN if any(map(branch.is_of_query, state.past)) else UNDECIDED


def decisions(writers: Mapping[str, Found[WriterState]]) -> dict[str, Named]:
    """The branches that the open decision of each writer names, read once: each may have thousands."""
    return {digest: decided(found.state) for digest, found in writers.items() if found.state is not None}


def decided(state: WriterState) -> Named:
    """The branches that an open decision names."""
    return keys(parse_xid(each.xid) for each in state.branches) if state.state == OPEN else frozenset()


def key(xid: Xid) -> tuple[bytes | None, bytes | None]:
    """Key that identifies a branch of ours; not every broker compares the format."""
    return xid.global_id, xid.branch_id


def keys(xids: Iterable[Xid]) -> frozenset[tuple[bytes | None, bytes | None]]:
    """:func:`key` of each."""
    return frozenset(map(key, xids))
