"""Distributed transactions (class dtx of 0-10): branches, XA results, recovery, and errors."""

from __future__ import annotations

import itertools
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.v0_10 import spec
from tests.conformance.peer import answered, outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conformance.conftest import Connect
    from tests.conformance.peer import Delivery
    from tests.conformance.peer_0_10 import Peer010
    from tests.conformance.targets import Target

OK, ROLLED_BACK = spec.DtxXaStatus.XA_OK, spec.DtxXaStatus.XA_RBROLLBACK
_numbers = itertools.count(1)


def new_xid() -> spec.Xid:
    """An xid that nobody else has."""
    return spec.Xid(format=7, global_id=uuid.uuid4().bytes, branch_id=b"%d" % next(_numbers))


def status(peer: Peer010, command: Any) -> int | None:
    """The XA status that a command has as its result."""
    return peer.ask(command, spec.XaResult).status


def in_doubt(peer: Peer010) -> list[bytes | None]:
    """Global ids of the prepared branches of the virtual host."""
    return [each.global_id for each in peer.ask(spec.DtxRecover(), spec.DtxRecoverResult).in_doubt or ()]


class Branch:
    """The commands of one branch on one session."""

    def __init__(self, peer: Peer010, xid: spec.Xid | None = None) -> None:
        self.peer = peer
        self.xid = xid or new_xid()

    def start(self, **flags: bool) -> int | None:
        return status(self.peer, spec.DtxStart(xid=self.xid, **flags))

    def end(self, **flags: bool) -> int | None:
        return status(self.peer, spec.DtxEnd(xid=self.xid, **flags))

    def prepare(self) -> int | None:
        return status(self.peer, spec.DtxPrepare(xid=self.xid))

    def commit(self, *, one_phase: bool = False) -> int | None:
        return status(self.peer, spec.DtxCommit(xid=self.xid, one_phase=one_phase))

    def roll_back(self) -> int | None:
        return status(self.peer, spec.DtxRollback(xid=self.xid))


@pytest.fixture
def peer(connect_0_10: Connect) -> Peer010:
    """A client with dtx selected."""
    made: Peer010 = connect_0_10()
    made.call(spec.DtxSelect())
    return made


@pytest.fixture
def other(connect_0_10: Connect) -> Peer010:
    """A client without transactions."""
    made: Peer010 = connect_0_10()
    return made


@pytest.fixture
def branch(peer: Peer010, other: Peer010) -> Iterator[Branch]:
    """A branch that is not started; what is left of it after the test is rolled back."""
    made = Branch(peer)
    yield made
    if made.xid.global_id in in_doubt(other):
        Branch(other, made.xid).roll_back()


def queues(peer: Peer010, name: Callable[[str], str]) -> tuple[str, str]:
    """A queue with three messages, and an empty one."""
    for queue in ("in", "out"):
        peer.declare_queue(name(queue))
    peer.publish_all(name("in"), [b"1", b"2", b"3"])
    return name("in"), name("out")


def work(branch: Branch, source: str, drain: str) -> list[Delivery]:
    """In a branch: take two messages, accept one, and publish two."""
    held = branch.peer.get(source, most=2)[source]
    assert branch.start() == OK
    branch.peer.accept(held[0])
    for body in (b"a", b"b"):
        branch.peer.publish("", drain, body)
    branch.peer.sync()
    return held


def test_two_phases(branch: Branch, other: Peer010, name: Callable[[str], str]) -> None:
    source, drain = queues(other, name)
    work(branch, source, drain)
    assert branch.end() == OK
    assert other.bodies(drain) == []
    assert branch.prepare() == OK
    assert other.bodies(drain) == []
    assert branch.xid.global_id in in_doubt(other)
    assert branch.commit() == OK
    assert branch.xid.global_id not in in_doubt(other)
    assert other.bodies(drain) == [b"a", b"b"]
    branch.peer.reopen()
    found = other.get(source, accept=True)[source]
    assert [(each.body, each.redelivered) for each in found] == [(b"2", True), (b"3", False)]


def test_one_phase(branch: Branch, other: Peer010, name: Callable[[str], str]) -> None:
    source, drain = queues(other, name)
    work(branch, source, drain)
    assert branch.end() == OK
    assert branch.commit(one_phase=True) == OK
    assert other.bodies(drain) == [b"a", b"b"]
    branch.peer.reopen()
    assert other.bodies(source) == [b"2", b"3"]


@pytest.mark.parametrize("prepared", [False, True])
def test_rollback(branch: Branch, other: Peer010, name: Callable[[str], str], target: Target, prepared: bool) -> None:
    """What was published is discarded, what was consumed goes back to its queue (section dtx.rollback)."""
    source, drain = queues(other, name)
    work(branch, source, drain)
    assert branch.end() == OK
    if prepared:
        assert branch.prepare() == OK
    assert branch.roll_back() == OK
    assert other.bodies(drain) == []
    found = other.get(source)[source]
    assert [(each.body, each.redelivered) for each in found] == [(b"1", True), (b"3", False)]
    assert branch.xid.global_id not in in_doubt(other)


def test_another_session_decides(branch: Branch, other: Peer010, name: Callable[[str], str]) -> None:
    """A prepared branch outlives its session; who decides needs no dtx.select."""
    source, drain = queues(other, name)
    work(branch, source, drain)
    assert (branch.end(), branch.prepare()) == (OK, OK)
    branch.peer.reopen()
    assert branch.xid.global_id in in_doubt(other)
    held = other.get(source)[source]
    assert sorted(each.body for each in held) == [b"2", b"3"], "what was accepted is not to be had"
    other.release(*held)
    assert Branch(other, branch.xid).commit() == OK
    assert other.bodies(drain) == [b"a", b"b"]
    assert other.bodies(source) == [b"2", b"3"]


def test_several_branches_of_a_session(peer: Peer010, other: Peer010, name: Callable[[str], str]) -> None:
    """One after the other, and decided in another order."""
    _, drain = queues(other, name)
    first, second = Branch(peer), Branch(peer)
    for number, each in enumerate((first, second)):
        assert each.start() == OK
        peer.publish("", drain, b"%d" % number)
        peer.sync()
        assert (each.end(), each.prepare()) == (OK, OK)
    assert {first.xid.global_id, second.xid.global_id} <= set(in_doubt(other))
    assert second.commit() == OK
    assert first.commit() == OK
    assert other.bodies(drain) == [b"1", b"0"]


def test_outside_of_a_branch_nothing_is_transactional(
    peer: Peer010, other: Peer010, name: Callable[[str], str]
) -> None:
    """Section dtx, transactionality."""
    source, drain = queues(other, name)
    (held,) = peer.get(source, most=1)[source]
    peer.publish("", drain, b"at once")
    peer.accept(held)
    peer.sync()
    assert other.bodies(drain) == [b"at once"]
    peer.reopen()
    assert other.bodies(source) == [b"2", b"3"]


def test_suspend_and_resume(branch: Branch, other: Peer010, name: Callable[[str], str]) -> None:
    _, drain = queues(other, name)
    peer = branch.peer
    assert branch.start() == OK
    peer.publish("", drain, b"in")
    assert branch.end(suspend=True) == OK
    peer.publish("", drain, b"beside")
    peer.sync()
    assert other.bodies(drain) == [b"beside"]
    assert branch.start(resume=True) == OK
    peer.publish("", drain, b"in, too")
    assert (branch.end(), branch.prepare(), branch.commit()) == (OK, OK, OK)
    assert other.bodies(drain) == [b"in", b"in, too"]


def test_join(branch: Branch, connect_0_10: Connect, other: Peer010, name: Callable[[str], str]) -> None:
    """Two sessions work on one branch."""
    _, drain = queues(other, name)
    second: Peer010 = connect_0_10()
    second.call(spec.DtxSelect())
    joined = Branch(second, branch.xid)
    assert branch.start() == OK
    assert joined.start(join=True) == OK
    branch.peer.publish("", drain, b"1")
    branch.peer.sync()
    second.publish("", drain, b"2")
    second.sync()
    assert (branch.end(), joined.end()) == (OK, OK)
    assert (branch.prepare(), branch.commit()) == (OK, OK)
    assert other.bodies(drain) == [b"1", b"2"]


def test_a_branch_without_work(branch: Branch, target: Target) -> None:
    assert (branch.start(), branch.end()) == (OK, OK)
    assert branch.prepare() == OK
    assert branch.commit() == OK


def test_failed_work_is_rolled_back(branch: Branch, other: Peer010, name: Callable[[str], str], target: Target) -> None:
    """dtx.end with fail: the branch is rollback-only (section dtx.end, rule failure)."""
    source, drain = queues(other, name)
    work(branch, source, drain)
    found = (branch.end(fail=True), branch.prepare())
    assert found == target.expects("dtx: end with fail, then prepare", (ROLLED_BACK, ROLLED_BACK))
    if found[1] == OK:
        branch.roll_back()
    assert other.bodies(drain) == []


def test_a_session_that_ends_in_a_branch(
    branch: Branch, other: Peer010, name: Callable[[str], str], target: Target
) -> None:
    """The branch is rollback-only then (section dtx.end, rule session-closed)."""
    source, drain = queues(other, name)
    work(branch, source, drain)
    branch.peer.reopen()
    assert branch.xid.global_id not in in_doubt(other)
    late = Branch(other, branch.xid)
    prepared = answered(late.prepare)
    assert prepared == target.expects("dtx: prepare what a dead session left open", ROLLED_BACK)
    answered(late.roll_back)
    assert other.bodies(drain) == []
    held = other.get(source)[source]
    assert [each.body for each in held] == [b"1", b"2", b"3"]


def test_timeouts(branch: Branch) -> None:
    """get-timeout returns what set-timeout has set; 0 sets the default again (section dtx.set-timeout)."""
    peer, xid = branch.peer, branch.xid

    def timeout() -> int | None:
        return peer.ask(spec.DtxGetTimeout(xid=xid), spec.DtxGetTimeoutResult).timeout

    assert branch.start() == OK
    default = timeout()
    peer.call(spec.DtxSetTimeout(xid=xid, timeout=600))
    assert timeout() == 600
    peer.call(spec.DtxSetTimeout(xid=xid, timeout=0))
    assert timeout() == default
    assert (branch.end(), branch.prepare(), branch.commit()) == (OK, OK, OK)


def test_rejecting_and_releasing_are_not_part_of_a_branch(
    branch: Branch, other: Peer010, name: Callable[[str], str]
) -> None:
    """Only transfers and acceptances are."""
    source, _ = queues(other, name)
    held = branch.peer.get(source)[source]
    assert branch.start() == OK
    branch.peer.release(held[0])
    branch.peer.reject(held[1])
    branch.peer.sync()
    assert other.bodies(source) == [b"1"]
    assert branch.end() == OK
    assert branch.roll_back() == OK


# Errors: a session exception each. "open" is a branch that is started, "ended" one that was ended too, "prepared" one
# that is prepared, "suspended" one that is suspended.
ERRORS: dict[str, tuple[str, Callable[[Branch], Any], tuple[str, int]]] = {
    "start: not selected": ("unselected", lambda each: each.start(), ("session", 409)),
    "start: a known xid": ("ended", lambda each: each.start(), ("session", 530)),
    "start: in another branch": ("open", lambda each: Branch(each.peer).start(), ("session", 409)),
    "start: join and resume": ("ended", lambda each: each.start(join=True, resume=True), ("session", 530)),
    "start: join an unknown xid": ("new", lambda each: each.start(join=True), ("session", 530)),
    "start: resume an unknown xid": ("new", lambda each: each.start(resume=True), ("session", 530)),
    "end: not selected": ("unselected", lambda each: each.end(), ("session", 409)),
    "end: an unknown xid": ("new", lambda each: each.end(), ("session", 409)),
    "end: ended already": ("ended", lambda each: each.end(), ("session", 409)),
    "end: suspend and fail": ("open", lambda each: each.end(suspend=True, fail=True), ("session", 530)),
    "prepare: an unknown xid": ("new", lambda each: each.prepare(), ("session", 404)),
    "prepare: still open": ("open", lambda each: each.prepare(), ("session", 409)),
    "prepare: prepared already": ("prepared", lambda each: each.prepare(), ("session", 409)),
    "commit: an unknown xid": ("new", lambda each: each.commit(), ("session", 404)),
    "commit: still open": ("open", lambda each: each.commit(one_phase=True), ("session", 409)),
    "commit: two phases, not prepared": ("ended", lambda each: each.commit(), ("session", 409)),
    "commit: one phase, prepared": ("prepared", lambda each: each.commit(one_phase=True), ("session", 409)),
    "commit: committed already": ("committed", lambda each: each.commit(), ("session", 404)),
    "rollback: an unknown xid": ("new", lambda each: each.roll_back(), ("session", 404)),
    "rollback: still open": ("open", lambda each: each.roll_back(), ("session", 409)),
    "get-timeout: an unknown xid": (
        "new",
        lambda each: each.peer.ask(spec.DtxGetTimeout(xid=each.xid), spec.DtxGetTimeoutResult),
        ("session", 404),
    ),
    "set-timeout: an unknown xid": (
        "new",
        lambda each: each.peer.call(spec.DtxSetTimeout(xid=each.xid, timeout=5)),
        ("session", 404),
    ),
    "forget: an unknown xid": ("new", lambda each: each.peer.call(spec.DtxForget(xid=each.xid)), ("session", 404)),
    "forget: a prepared branch": (
        "prepared",
        lambda each: each.peer.call(spec.DtxForget(xid=each.xid)),
        ("session", 409),
    ),
    "tx.select: dtx is selected": ("new", lambda each: each.peer.call(spec.TxSelect()), ("session", 409)),
}


@pytest.mark.parametrize("case", ERRORS)
def test_an_error(connect_0_10: Connect, branch: Branch, target: Target, case: str) -> None:
    state, action, specified = ERRORS[case]
    if state == "unselected":
        branch = Branch(connect_0_10())
    if state not in ("new", "unselected"):
        assert branch.start() == OK
    if state in ("ended", "prepared", "committed"):
        assert branch.end() == OK
    if state in ("prepared", "committed"):
        assert branch.prepare() == OK
    if state == "committed":
        assert branch.commit() == OK
    assert outcome(lambda: action(branch)) == target.expects(f"dtx {case}", specified)
    if state in ("open", "ended"):  # Broker-J keeps such a branch for ever
        later = Branch(connect_0_10(), branch.xid)
        outcome(later.roll_back)
