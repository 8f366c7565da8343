"""Distributed transactions: what a branch does when it ends, and every refusal (0-10 section dtx)."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from amqp_core.broker.model.branches import DEFAULT_TIMEOUT_S, KNOWN_S, Outcome, Xid
from amqp_core.broker.model.errors import Refusal, Refused
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import encode_command
from amqp_core.v0_10.framing import COMMAND
from tests.core.broker.model_support import ME, Host, Sink, bodies, message, refused
from tests.core.broker.peer_0_10 import Peer, World, ids
from tests.support.choice import examples

XID = Xid(7, b"global", b"branch")
WIRE_XID = spec.Xid(*XID)
OK, ROLLED_BACK, TIMED_OUT = spec.DtxXaStatus.XA_OK, spec.DtxXaStatus.XA_RBROLLBACK, spec.DtxXaStatus.XA_RBTIMEOUT


@pytest.fixture
def host() -> Host:
    host = Host()
    host.make()
    return host


@pytest.fixture
def peer() -> Peer:
    peer = World().connect()
    peer.attach()
    peer.call(spec.QueueDeclare(queue="q"))
    peer.call(spec.DtxSelect())
    return peer


def work(host: Host, *published: str, accept: int = 0, xid: Xid = XID, session: object = ME) -> None:
    """Start a branch, work on it, and end it."""
    branch, outcome = host.branches.start(xid, session, join=False, now=0)
    assert outcome is Outcome.OK
    for body in published:
        each = message(body)
        branch.publish(each, host.route(each))
    for _ in range(accept):
        entry = host.get("q", owner=ME)
        assert entry is not None
        host.branches.accept(branch, [entry])
    host.branches.end(xid, session, fail=False, suspend=False, now=0)


def status(peer: Peer, command: spec.Command) -> int:
    return peer.ask(command, spec.XaResult).status or 0


def code_of(peer: Peer) -> int | None:
    return peer.received(spec.ExecutionException)[-1].error_code


# ------------------------------------------------------------------------------------------------------ what is done
@pytest.mark.parametrize("one_phase", [False, True])
def test_a_commit_does_everything(host: Host, one_phase: bool) -> None:
    for body in "ab":
        host.send(body)
    work(host, "c", "d", accept=1)
    assert host.waiting() == ["b"]
    if not one_phase:
        assert host.branches.prepare(XID, 0) is Outcome.OK
        assert host.branches.prepared == [XID]
    assert host.branches.commit(XID, 0, one_phase=one_phase) is Outcome.OK
    assert host.waiting() == ["b", "c", "d"]
    assert host.queues["q"].unsettled_count == 0
    assert not host.branches.by_xid


@pytest.mark.parametrize("prepare", [False, True])
def test_a_rollback_undoes_everything(host: Host, prepare: bool) -> None:
    for body in "abc":
        host.send(body)
    work(host, "d", accept=2)
    if prepare:
        host.branches.prepare(XID, 0)
    assert host.branches.rollback(XID) is Outcome.OK
    entries = list(host.all_of())
    assert bodies(entries) == ["a", "b", "c"]
    assert [entry.redelivered for entry in entries] == [True, True, False]


def test_messages_go_where_they_were_routed(host: Host) -> None:
    """A binding that is gone at the commit does not lose what was accepted; a queue that is gone takes nothing."""
    host.make("gone")
    for queue in ("q", "gone"):
        host.bind_queue(queue, "amq.fanout", "", owner=ME)
    branch, _ = host.branches.start(XID, ME, join=False, now=0)
    each = message("a", exchange="amq.fanout")
    branch.publish(each, host.route(each))
    host.branches.end(XID, ME, fail=False, suspend=False, now=0)
    host.branches.prepare(XID, 0)
    host.unbind_queue("q", "amq.fanout", "", owner=ME)
    host.delete_queue("gone", owner=ME)
    host.branches.commit(XID, 0, one_phase=False)
    assert host.waiting() == ["a"]


@pytest.mark.parametrize("one_phase", [False, True])
def test_a_queue_that_is_full_ends_a_branch_before_it_is_prepared(one_phase: bool) -> None:
    host = Host()
    host.make(x_max_length=3, x_overflow="reject-publish")
    host.send("a")
    host.send("b")
    work(host, "c", "d", accept=1)
    host.send("x")
    if one_phase:
        assert host.branches.commit(XID, 0, one_phase=True) is Outcome.ROLLED_BACK
    else:
        assert host.branches.prepare(XID, 0) is Outcome.ROLLED_BACK
        assert host.branches.rollback(XID) is Outcome.OK
    assert host.waiting() == ["a", "b", "x"]


def test_a_prepared_branch_is_committed_though_a_queue_is_full() -> None:
    host = Host()
    host.make(x_max_length=1, x_overflow="reject-publish")
    work(host, "a")
    assert host.branches.prepare(XID, 0) is Outcome.OK
    host.send("b")
    assert host.branches.commit(XID, 0, one_phase=False) is Outcome.OK
    assert host.waiting() == ["b", "a"]


def test_a_commit_delivers(host: Host) -> None:
    sink = Sink()
    host.listen(sink)
    work(host, "a")
    assert not sink.got
    host.branches.commit(XID, 0, one_phase=True)
    assert sink.bodies == ["a"]


# -------------------------------------------------------------------------------------------------------------- time
def test_a_branch_that_takes_too_long(host: Host) -> None:
    host.send("a")
    work(host, "b", accept=1)
    host.branches.set_timeout(XID, 5, now=1)
    assert host.next_expiry == 6
    host.expire(5.9)
    assert host.waiting() == []
    host.expire(6)
    assert host.waiting() == ["a"]
    assert host.branches.prepare(XID, 7) is Outcome.TIMED_OUT
    with refused(Refusal.NOT_FOUND):
        host.branches.rollback(XID)


def test_no_time_is_too_long_for_a_prepared_branch(host: Host) -> None:
    work(host, "a")
    host.branches.prepare(XID, 0)
    host.branches.set_timeout(XID, 1, now=0)
    host.expire(1e9)
    assert host.next_expiry is None
    assert host.branches.commit(XID, 1e9, one_phase=False) is Outcome.OK
    assert host.waiting(now=1e9) == ["a"]


def test_timeouts(host: Host) -> None:
    work(host, "a")
    assert host.branches.known(XID).timeout_s == DEFAULT_TIMEOUT_S
    host.branches.set_timeout(XID, 9, now=0)
    assert (host.branches.known(XID).timeout_s, host.next_expiry) == (9, 9)
    host.branches.set_timeout(XID, 0, now=0)
    assert host.branches.known(XID).timeout_s == host.next_expiry == DEFAULT_TIMEOUT_S


def test_work_behind_the_end_of_its_time_strands_nothing(host: Host) -> None:
    """The session does not know yet: what it accepts goes back, and what it publishes is dropped."""
    for body in "ab":
        host.send(body)
    branch, _ = host.branches.start(XID, ME, join=False, now=0)
    first, second = host.get("q", owner=ME), host.get("q", owner=ME)
    assert first
    assert second
    host.branches.accept(branch, [first])
    host.expire(DEFAULT_TIMEOUT_S)
    host.branches.accept(branch, [second])
    each = message("c")
    branch.publish(each, host.route(each))
    assert host.waiting() == ["a", "b"]
    assert host.branches.end(XID, ME, fail=False, suspend=False, now=61) is Outcome.TIMED_OUT
    assert host.branches.commit(XID, 62, one_phase=True) is Outcome.TIMED_OUT
    assert host.waiting() == ["a", "b"]


def test_what_was_undone_is_forgotten_some_day(host: Host) -> None:
    work(host, "a")
    host.expire(DEFAULT_TIMEOUT_S)
    assert host.next_expiry == DEFAULT_TIMEOUT_S + KNOWN_S
    host.expire(DEFAULT_TIMEOUT_S + KNOWN_S)
    assert not host.branches.by_xid
    assert host.next_expiry is None


# ---------------------------------------------------------------------------------------------------------- sessions
def test_a_session_that_ends_undoes_what_it_works_on(host: Host) -> None:
    for body in "ab":
        host.send(body)
    work(host, "c", accept=1)  # which it has ended
    other = Xid(7, b"global", b"other")
    branch, _ = host.branches.start(other, ME, join=False, now=0)
    entry = host.get("q", owner=ME)
    assert entry
    host.branches.accept(branch, [entry])
    host.release(host.branches.leave(ME, 0))
    assert host.waiting() == ["b"]
    assert host.branches.prepare(other, 0) is Outcome.ROLLED_BACK
    assert host.branches.commit(other, 0, one_phase=True) is Outcome.ROLLED_BACK
    assert host.branches.commit(XID, 0, one_phase=True) is Outcome.OK


def test_joining_and_suspending(host: Host) -> None:
    branches = host.branches
    branches.start(XID, "first", join=False, now=0)
    assert branches.start(XID, "second", join=True, now=0)[1] is Outcome.OK
    with refused(Refusal.ILLEGAL_STATE):
        branches.start(XID, "second", join=True, now=0)
    with refused(Refusal.ILLEGAL_STATE):
        branches.resume(XID, "first")
    assert branches.end(XID, "first", fail=False, suspend=True, now=0) is Outcome.OK
    with refused(Refusal.ILLEGAL_STATE):
        branches.end(XID, "first", fail=False, suspend=True, now=0)
    with refused(Refusal.ILLEGAL_STATE):
        branches.prepare(XID, 0)
    assert branches.resume(XID, "first")[1] is Outcome.OK
    assert branches.end(XID, "first", fail=False, suspend=False, now=0) is Outcome.OK
    with refused(Refusal.ILLEGAL_STATE):
        branches.rollback(XID)
    assert branches.end(XID, "second", fail=True, suspend=False, now=0) is Outcome.ROLLED_BACK
    assert branches.start(XID, "third", join=True, now=0)[1] is Outcome.ROLLED_BACK
    assert branches.rollback(XID) is Outcome.OK


# ---------------------------------------------------------------------------------------------------------- the wire
def test_a_branch_over_the_wire(peer: Peer) -> None:
    peer.publish(b"a")
    peer.subscribe()
    peer.flow()
    assert status(peer, spec.DtxStart(xid=WIRE_XID)) == OK
    peer.publish(b"b")
    ((command_id, *_),) = peer.transfers
    peer.call(spec.MessageAccept(transfers=[(command_id, command_id)]))
    assert status(peer, spec.DtxEnd(xid=WIRE_XID)) == OK
    assert status(peer, spec.DtxPrepare(xid=WIRE_XID)) == OK
    assert peer.ask(spec.DtxRecover(), spec.DtxRecoverResult).in_doubt == [WIRE_XID]
    other = peer.world.connect()
    other.attach(name=b"other")
    assert other.ask(spec.DtxRecover(), spec.DtxRecoverResult).in_doubt == [WIRE_XID]
    peer.server.lost()
    assert status(other, spec.DtxCommit(xid=WIRE_XID)) == OK
    other.subscribe()
    other.flow()
    assert other.bodies == [b"b"]


def test_what_a_lost_session_held_inside_and_outside_of_its_branches_comes_back_in_the_order_of_the_queue(
    peer: Peer,
) -> None:
    for number in range(5):
        peer.publish(b"%d" % number)
    peer.subscribe()
    peer.flow()
    for place, branch in ((3, b"first"), (1, b"second")):
        xid = spec.Xid(7, b"global", branch)
        assert status(peer, spec.DtxStart(xid=xid)) == OK
        peer.call(spec.MessageAccept(transfers=ids(peer, place)))
        assert status(peer, spec.DtxEnd(xid=xid, suspend=True)) == OK
    other = peer.world.connect()
    other.attach(name=b"other")
    other.subscribe()
    other.flow()
    peer.server.lost()
    other.pump()
    assert other.bodies == [b"0", b"1", b"2", b"3", b"4"]


def test_transfers_of_a_branch_are_answered_at_once(peer: Peer) -> None:
    status(peer, spec.DtxStart(xid=WIRE_XID))
    accepted, rejected, discarded = (
        peer.publish(b"1"),
        peer.publish(b"2", key="none"),
        peer.publish(b"3", key="none", discard_unroutable=True),
    )
    assert [each.transfers for each in peer.received(spec.MessageAccept)] == [
        [(accepted, accepted)],
        [(discarded, discarded)],
    ]
    (reject,) = peer.received(spec.MessageReject)
    assert (reject.transfers, reject.code) == ([(rejected, rejected)], spec.MessageRejectCode.UNROUTABLE)
    peer.publish(b"4", exchange="missing")
    assert code_of(peer) == 404


def test_timeouts_over_the_wire(peer: Peer) -> None:
    status(peer, spec.DtxStart(xid=WIRE_XID))
    peer.call(spec.DtxSetTimeout(xid=WIRE_XID, timeout=3))
    assert peer.ask(spec.DtxGetTimeout(xid=WIRE_XID), spec.DtxGetTimeoutResult).timeout == 3
    peer.world.now += 4
    peer.world.host.expire(peer.world.now)
    assert status(peer, spec.DtxEnd(xid=WIRE_XID)) == TIMED_OUT
    assert status(peer, spec.DtxRollback(xid=WIRE_XID)) == TIMED_OUT


def test_work_outside_of_a_branch_is_not_transactional(peer: Peer) -> None:
    status(peer, spec.DtxStart(xid=WIRE_XID))
    assert status(peer, spec.DtxEnd(xid=WIRE_XID, fail=True)) == ROLLED_BACK
    peer.publish(b"a")
    peer.subscribe()
    peer.flow()
    assert peer.bodies == [b"a"]


START = spec.DtxStart(xid=WIRE_XID)
END = spec.DtxEnd(xid=WIRE_XID)
PREPARE = spec.DtxPrepare(xid=WIRE_XID)


@pytest.mark.parametrize(
    ("before", "command", "code"),
    [
        ([], spec.DtxStart(xid=WIRE_XID, join=True, resume=True), 530),
        ([], spec.DtxStart(xid=WIRE_XID, join=True), 530),
        ([], spec.DtxStart(xid=WIRE_XID, resume=True), 530),
        ([START], spec.DtxStart(xid=spec.Xid(1, b"g", b"b")), 409),
        ([START, END], START, 530),
        ([START], START, 530),
        ([START], spec.DtxStart(xid=spec.Xid(1, b"g", b"b"), join=True), 530),
        ([START], spec.DtxStart(xid=WIRE_XID, join=True), 409),
        ([START, END], END, 409),
        ([], END, 409),
        ([START], spec.DtxEnd(xid=WIRE_XID, fail=True, suspend=True), 530),
        ([], PREPARE, 404),
        ([START], PREPARE, 409),
        ([START, END, PREPARE], PREPARE, 409),
        ([], spec.DtxCommit(xid=WIRE_XID), 404),
        ([START], spec.DtxCommit(xid=WIRE_XID, one_phase=True), 409),
        ([START, END], spec.DtxCommit(xid=WIRE_XID), 409),
        ([START, END, PREPARE], spec.DtxCommit(xid=WIRE_XID, one_phase=True), 409),
        ([START, END, PREPARE], spec.DtxStart(xid=WIRE_XID, join=True), 409),
        ([], spec.DtxRollback(xid=WIRE_XID), 404),
        ([START], spec.DtxRollback(xid=WIRE_XID), 409),
        ([], spec.DtxForget(xid=WIRE_XID), 404),
        ([START, END], spec.DtxForget(xid=WIRE_XID), 409),
        ([], spec.DtxGetTimeout(xid=WIRE_XID), 404),
        ([], spec.DtxSetTimeout(xid=WIRE_XID, timeout=1), 404),
        ([], spec.TxSelect(), 409),
    ],
)  # fmt: skip
def test_refusals(peer: Peer, before: list[spec.Command], command: spec.Command, code: int) -> None:
    for each in before:
        assert status(peer, each) == OK
    peer.call(command)
    assert code_of(peer) == code


@pytest.mark.parametrize("xid", [None, spec.Xid(format=1, global_id=b"g"), spec.Xid(global_id=b"g", branch_id=b"b")])
def test_an_xid_without_all_its_fields(peer: Peer, xid: spec.Xid | None) -> None:
    peer.protocol.send_assembly(0, [(COMMAND, encode_command(spec.DtxStart(xid=xid), False))])
    peer.pump()
    assert code_of(peer) == 542


def test_without_select(peer: Peer) -> None:
    other = peer.world.connect()
    other.attach(name=b"other")
    other.call(START)
    assert code_of(other) == 409
    third = peer.world.connect()
    third.attach(name=b"third")
    third.call(spec.TxSelect())
    third.call(spec.DtxSelect())
    assert code_of(third) == 409


# ---------------------------------------------------------------------------------------------------- any order at all
NAMES = [Xid(1, b"g", bytes([each])) for each in range(3)]
SESSIONS = ["first", "second"]


class AnyOrder(RuleBasedStateMachine):
    """Whatever two sessions do with three branches, each message is in the queue, held, or settled by a commit."""

    def __init__(self) -> None:
        super().__init__()
        self.host = Host()
        self.host.make()
        self.number = 0
        self.now = 0.0
        self.waiting_for: dict[Xid, set[str]] = {}
        """What a commit of a branch publishes, and what its rollback brings back."""
        self.taken: dict[Xid, set[str]] = {}
        self.there: set[str] = set()
        """Bodies that are in the queue, ready."""
        self.active: dict[str, Xid] = {}

    def undone(self, xid: Xid) -> None:
        self.there |= self.taken.pop(xid, set())
        self.waiting_for.pop(xid, None)

    @rule(session=st.sampled_from(SESSIONS), xid=st.sampled_from(NAMES), join=st.booleans())
    def start(self, session: str, xid: Xid, join: bool) -> None:
        if session in self.active:
            return
        try:
            _, outcome = self.host.branches.start(xid, session, join=join, now=self.now)
        except Refused:
            return
        if outcome is Outcome.OK:
            self.active[session] = xid

    @precondition(lambda self: self.active)
    @rule(data=st.data(), fail=st.booleans(), suspend=st.booleans())
    def end(self, data: st.DataObject, fail: bool, suspend: bool) -> None:
        session = data.draw(st.sampled_from(sorted(self.active)))
        xid = self.active.pop(session)
        self.host.branches.end(xid, session, fail=fail and not suspend, suspend=suspend, now=self.now)
        if fail and not suspend:
            self.undone(xid)

    @rule(session=st.sampled_from(SESSIONS), xid=st.sampled_from(NAMES))
    def resume(self, session: str, xid: Xid) -> None:
        if session in self.active:
            return
        try:
            _, outcome = self.host.branches.resume(xid, session)
        except Refused:
            return
        if outcome is Outcome.OK:
            self.active[session] = xid

    @rule()
    def publish_outside(self) -> None:
        self.number += 1
        self.host.send(str(self.number))
        self.there.add(str(self.number))

    @precondition(lambda self: self.active)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        xid = self.active[data.draw(st.sampled_from(sorted(self.active)))]
        self.number += 1
        branch, each = self.host.branches.by_xid[xid], message(str(self.number))
        branch.publish(each, self.host.route(each))
        if branch.undone is None:
            self.waiting_for.setdefault(xid, set()).add(str(self.number))

    @precondition(lambda self: self.active and self.there)
    @rule(data=st.data())
    def accept(self, data: st.DataObject) -> None:
        xid = self.active[data.draw(st.sampled_from(sorted(self.active)))]
        branch = self.host.branches.by_xid[xid]
        entry = self.host.get("q", owner=ME)
        assert entry is not None
        self.host.branches.accept(branch, [entry])
        if branch.undone is None:
            body = entry.message.body.decode()
            self.there.discard(body)
            self.taken.setdefault(xid, set()).add(body)

    @rule(xid=st.sampled_from(NAMES))
    def prepare(self, xid: Xid) -> None:
        try:
            self.host.branches.prepare(xid, self.now)
        except Refused:
            return

    @rule(xid=st.sampled_from(NAMES), one_phase=st.booleans())
    def commit(self, xid: Xid, one_phase: bool) -> None:
        try:
            outcome = self.host.branches.commit(xid, self.now, one_phase=one_phase)
        except Refused:
            return
        if outcome is Outcome.OK:
            self.there |= self.waiting_for.pop(xid, set())
            self.taken.pop(xid, None)

    @rule(xid=st.sampled_from(NAMES))
    def rollback(self, xid: Xid) -> None:
        try:
            self.host.branches.rollback(xid)
        except Refused:
            return
        self.undone(xid)

    @rule(session=st.sampled_from(SESSIONS))
    def leave(self, session: str) -> None:
        for xid, branch in self.host.branches.by_xid.items():
            if session in branch.sessions:
                self.undone(xid)
        self.active.pop(session, None)
        self.host.release(self.host.branches.leave(session, self.now))

    @rule(seconds=st.sampled_from([1, DEFAULT_TIMEOUT_S, KNOWN_S]))
    def time(self, seconds: float) -> None:
        self.now += seconds
        for xid, branch in self.host.branches.by_xid.items():
            if not branch.prepared and branch.undone is None and branch.until <= self.now:
                self.undone(xid)
        self.host.expire(self.now)

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        assert sorted(self.host.waiting(now=self.now)) == sorted(self.there)
        assert self.host.queues["q"].unsettled_count == sum(map(len, self.taken.values()))


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
