"""State of one writer: its last decision, the outcome of each of its branches, and its markers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from amqp_spark.sink.prepared_transactions import PreparedBranch as Marker
from amqp_spark.state.names import WRITER, Names, hashed
from amqp_spark.state.records import DONE, RecordUnreadable
from amqp_spark.state.xids import parse_xid
from amqp_spark.transactions.branch_status import (
    LOOKS,
    BranchList,
    BranchStatus,
    find_writer,
    key,
    keys,
    look_at_branches,
)
from amqp_spark.transactions.browse import browse

if TYPE_CHECKING:
    from amqp_core.api import Client
    from amqp_spark.state.records import DecidedBranch, WriterState
    from amqp_spark.transactions.browse import Found

COMMITTED: Final = "committed"
PREPARED: Final = "prepared"
GONE: Final = "gone"
"""Neither prepared nor marked as committed: it was rolled back, or its marker was consumed."""


UNLISTED: Final = "not listed"
"""It is unknown whether the branch is prepared: the broker does not list prepared branches."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A branch of the last decision: ``COMMITTED``, ``PREPARED``, ``GONE`` or ``UNLISTED``."""

    branch: DecidedBranch
    standing: str


@dataclass(frozen=True, slots=True)
class WriterStatus:
    """State, markers and branches of a writer: ``decisions`` on the branches of the last decided batch, remaining
    ``markers`` (without xid for foreign messages; none after a batch is done), its ``prepared`` branches, and all
    ``others``."""

    names: Names
    found: Found[WriterState]
    decisions: tuple[Decision, ...]
    markers: tuple[Marker, ...]
    prepared: tuple[BranchStatus, ...]
    others: tuple[BranchStatus, ...]


def look_at_writer(client: Client, transactional_id: str) -> WriterStatus:
    """Read the state, the markers and the branches of a writer."""
    names = Names(WRITER, transactional_id)
    digest = hashed(WRITER, transactional_id)
    looks = 1
    while True:
        branches = look_at_branches(client, transactional_id=transactional_id)
        found = branches.writers[digest]
        markers = look_at_markers(client, names)
        # If the writer went on in the meantime, a branch that it has committed would look lost.
        if looks == LOOKS or find_writer(client, digest).body == found.body:
            break
        looks += 1
    prepared = branches.of(transactional_id)
    return WriterStatus(
        names,
        found,
        decisions_of(found.state, markers, branches) if found.state is not None else (),
        markers,
        prepared,
        tuple(each for each in branches.prepared if each not in prepared),
    )


def look_at_state(client: Client, transactional_id: str) -> WriterStatus:
    """Read the state and the markers of a writer if the broker cannot list branches."""
    names = Names(WRITER, transactional_id)
    found = find_writer(client, hashed(WRITER, transactional_id))
    markers = look_at_markers(client, names)
    marked = {marker.xid for marker in markers}
    state = found.state
    branches = () if state is None else state.branches
    done = state is not None and state.state == DONE
    decisions = tuple(Decision(each, COMMITTED if done or each.xid in marked else UNLISTED) for each in branches)
    return WriterStatus(names, found, decisions, markers, (), ())


def look_at_markers(client: Client, names: Names) -> tuple[Marker, ...]:
    """Browse the markers of a writer that no session holds."""
    if client.query_queue(names.markers) is None:
        return ()
    return tuple(map(_marker, browse(client, names.markers)))


def decisions_of(state: WriterState, markers: tuple[Marker, ...], branches: BranchList) -> tuple[Decision, ...]:
    """Determine the outcome of each branch of the last decision."""
    marked = {marker.xid for marker in markers}
    prepared = keys(each.xid for each in branches.prepared)

    def standing(branch: DecidedBranch) -> str:
        if key(parse_xid(branch.xid)) in prepared:
            return PREPARED
        return COMMITTED if state.state == DONE or branch.xid in marked else GONE

    return tuple(Decision(branch, standing(branch)) for branch in state.branches)


def _marker(body: bytes) -> Marker:
    try:
        return Marker.load(body)
    except RecordUnreadable:
        return Marker("", -1, -1)
