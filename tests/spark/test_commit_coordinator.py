"""Commands of a decision where a real Broker-J cannot show them: qpidd's timers, races, remembered answers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.errors import ConnectionLost, NotFound, ResourceLocked, TransactionFailed, UnauthorizedAccess
from amqp_spark import crashpoints
from amqp_spark.errors import StateError, UnsupportedModeError
from amqp_spark.sink import commit_coordinator, commit_protocol
from amqp_spark.sink.markers import MarkerLate
from amqp_spark.sink.prepared_transactions import BATCH_WRITES, PreparedBranch
from amqp_spark.state.names import query_key
from amqp_spark.state.queue import StateQueue
from amqp_spark.state.records import DONE, OPEN, WriterState
from amqp_spark.state.xids import Run
from tests.spark.commit_support import NAMES, WriterBroker, driver
from tests.support.hosts_tried import hosts_tried

if TYPE_CHECKING:
    from amqp_core.address import ConnectOptions
    from amqp_core.api import Client
    from amqp_core.errors import AmqpError


@pytest.fixture(autouse=True)
def _fresh_process() -> None:
    commit_coordinator.forget_all()


@pytest.fixture
def fake() -> WriterBroker:
    return WriterBroker()


# -------------------------------------------------------------------------------------------------------------- timers
def test_qpidd_gets_a_changed_timeout_and_never_zero() -> None:
    """There 0 ends a branch at once, and an unchanged value starts no new term."""
    fake = WriterBroker(qpidd=True)
    fake.term = 600
    tasks = [fake.task(0), fake.task(0, 1)]
    assert driver(fake, transactionTimeout=600).commit(tasks, 0)
    assert fake.timers == {task.xid: [599] for task in tasks}


def test_broker_j_gets_no_timer(fake: WriterBroker) -> None:
    task = fake.task(0)
    assert driver(fake).commit([task], 0)
    assert fake.timers == {task.xid: [0]}
    assert fake.calls.index("set_timeout") < fake.calls.index("swap open") < fake.calls.index("commit")


@pytest.mark.parametrize("qpidd", [True, False])
def test_a_branch_that_expires_while_its_timer_is_renewed(qpidd: bool) -> None:
    """Its timer can be set all the same; only the list of prepared branches tells."""
    fake = WriterBroker(qpidd=qpidd)
    tasks = [fake.task(0), fake.task(0, 1)]

    def expire() -> None:
        fake.expired.add(tasks[0].xid)
        fake.prepared.pop(tasks[0].xid, None)

    fake.on_timeout = expire
    with pytest.raises(StateError, match=r"1 of 2 transactions are no longer prepared.*transactionTimeout=3600 s"):
        driver(fake).commit(tasks, 0)
    assert "swap open" not in fake.calls
    assert "commit" not in fake.calls


# ------------------------------------------------------------------------------------------------------------- markers
def test_the_marker_queue_is_declared_only_if_it_is_missing(fake: WriterBroker) -> None:
    """Broker-J needs ten times as long to declare a queue as to answer a query."""
    assert driver(fake).commit([fake.task(0)], 0)
    assert NAMES.markers not in fake.declared
    task = fake.task(1)
    fake.delete(NAMES.markers)
    with pytest.raises(StateError, match=r"AMQP_MARKERS_DELETED.*batch 1"):
        driver(fake).commit([task], 1)
    assert NAMES.markers in fake.declared


# --------------------------------------------------------------------------------------------------------------- races
@pytest.mark.parametrize(("call", "fate"), [("set_timeout", "gone"), ("commit", "committed"), ("rollback", "gone")])
def test_another_client_resolves_a_branch_between_look_and_command(fake: WriterBroker, call: str, fate: str) -> None:
    """The 404 ends the session; what is true is found out on the next one."""
    driver(fake).commit([fake.task(0)], 0)
    commit_coordinator.forget_all()
    stray = fake.task(0)
    task = fake.task(1)
    gone = stray if call == "rollback" else task
    fake.fails[call] = [NotFound(404, 0, "no such branch")]

    def connect(options: ConnectOptions) -> Any:
        if call in fake.calls[calls:]:  # that is the second connection
            fake.prepared.pop(gone.xid, None)
            if fate == "committed":
                fake.show(gone)
        return connected(options)

    calls, connected = len(fake.calls), fake.connect
    fake.connect = connect  # type: ignore[method-assign]
    if call == "set_timeout":
        with pytest.raises(StateError, match="no longer prepared"):
            driver(fake).commit([task], 1)
    else:
        assert driver(fake).commit([task], 1)
        assert (fake.writer.batch, fake.writer.state, fake.prepared, fake.visible) == (1, DONE, {}, {})


def test_a_branch_that_cannot_be_committed_is_lost(fake: WriterBroker) -> None:
    fake.fails["commit"] = [TransactionFailed("dtx.commit", 2, "XA_RBTIMEOUT")]
    task = fake.task(0)
    with pytest.raises(StateError, match=f"{task.xid} of partition 0 .* neither prepared nor committed: 1 of 1"):
        driver(fake).commit([task], 0)
    assert fake.writer.state == OPEN


@pytest.mark.parametrize(
    "status", [(3, "XA_HEURHAZ"), (6, "XA_HEURMIX"), (99, "an unknown xa-status")], ids=lambda status: status[1]
)
@pytest.mark.parametrize("marker", [True, False], ids=["marker", "no marker"])
def test_a_branch_that_the_broker_has_committed_in_part_is_an_error(
    fake: WriterBroker, status: tuple[int, str], *, marker: bool
) -> None:
    fake.fails["commit"] = [TransactionFailed("dtx.commit", *status), TransactionFailed("dtx.commit", *status)]
    task = fake.task(0)
    if marker:
        fake.on_command = lambda name: fake.show(task) if name == "commit" else None
    with pytest.raises(TransactionFailed, match=rf"AMQP_TRANSACTION_MIXED.*{status[1]}.*Compare the messages"):
        driver(fake).commit([task], 0)
    fake.on_command = lambda name: None
    if not marker:  # its rows may have arrived, so a repetition must not replace it
        with pytest.raises(TransactionFailed, match=status[1]):
            driver(fake).commit([fake.task(0)], 0)
    assert fake.writer.state == OPEN


def test_a_branch_that_the_broker_has_committed_by_itself_is_not_replaced(fake: WriterBroker) -> None:
    task = fake.task(0)
    fake.fails["commit"] = [TransactionFailed("dtx.commit", 4, "XA_HEURCOM")] * 3
    with pytest.raises(MarkerLate):
        driver(fake).commit([task], 0)
    fake.show(task)
    del fake.prepared[task.xid]
    assert not driver(fake).commit([fake.task(0)], 0)
    assert (fake.writer.state, fake.visible) == (DONE, {})


def test_an_orphan_whose_timer_was_faster(fake: WriterBroker) -> None:
    fake.task(0)
    fake.fails["rollback"] = [TransactionFailed("dtx.rollback", 2, "XA_RBTIMEOUT")]
    assert driver(fake).commit([fake.task(0)], 0)
    assert fake.writer.state == DONE


def test_an_orphan_of_which_the_broker_has_committed_a_part_is_told(
    fake: WriterBroker, caplog: pytest.LogCaptureFixture
) -> None:
    orphan = fake.task(0)
    fake.fails["rollback"] = [TransactionFailed("dtx.rollback", 6, "XA_HEURMIX")]
    assert driver(fake).commit([fake.task(0)], 0)
    assert f"transaction {orphan.xid} was not rolled back as a whole" in caplog.text


def test_a_sweep_that_fails_is_no_failure_of_the_batch(fake: WriterBroker) -> None:
    fake.task(0)
    fake.fails["rollback"] = [ConnectionLost("cut")]
    fake.fails["close"] = [ConnectionLost("cut")]
    assert driver(fake).commit([fake.task(0)], 0)
    assert (fake.writer.state, len(fake.prepared), fake.connects) == (DONE, 1, 1)


# ----------------------------------------------------------------------------------------------- batches without rows
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("same_process", [True, False])
def test_a_batch_that_comes_back_without_rows_is_not_taken_for_an_empty_one(
    fake: WriterBroker, same_process: bool, alone: bool
) -> None:
    def again() -> None:
        if not same_process:
            commit_coordinator.forget_all()

    assert driver(fake, alone=alone).commit([fake.task(5)], 5)
    again()
    with pytest.raises(StateError, match=r"Batch 5 was published .* before, and is not the same now"):
        driver(fake, alone=alone).commit([PreparedBranch("q", 5, 0)], 5)
    again()
    with pytest.raises(StateError, match="AMQP_CHECKPOINT_ROLLED_BACK"):
        driver(fake, alone=alone).commit([PreparedBranch("q", 3, 0)], 3)


def test_an_open_decision_is_finished_by_a_batch_without_rows(fake: WriterBroker) -> None:
    fake.fails["commit"] = [ConnectionLost("cut")] * 5
    with pytest.raises(ConnectionLost):
        driver(fake).commit([fake.task(5)], 5)
    assert (fake.writer.state, len(fake.prepared)) == (OPEN, 1)
    fake.fails.clear()
    assert driver(fake).commit([PreparedBranch("q", 6, 0)], 6)
    assert (fake.writer.state, len(fake.prepared)) == (DONE, 0)


def test_empty_batches_ask_the_broker_nothing_once_the_last_one_is_done(fake: WriterBroker) -> None:
    assert driver(fake, alone=True).commit([fake.task(5)], 5)
    before = list(fake.calls)
    for batch in (6, 7):
        assert driver(fake, alone=True).commit([PreparedBranch("q", batch, 0)], batch)
    assert fake.calls == before
    assert driver(fake, alone=True).commit([PreparedBranch("another", 0, 0)], 0)
    assert fake.calls != before, "whether that query has published before is not known here"


def test_empty_batches_are_compared_where_others_may_have_decided(fake: WriterBroker) -> None:
    """The commits of a stream writer run in workers, any of which may get the next one."""
    assert driver(fake).commit([fake.task(5)], 5)
    settled = dict(commit_coordinator._settled)
    assert driver(fake).commit([fake.task(6)], 6)
    commit_coordinator._settled.clear()
    commit_coordinator._settled.update(settled)  # as the worker has it that decided batch 5
    with pytest.raises(StateError, match=r"Batch 6 was published .* before, and is not the same now"):
        driver(fake).commit([PreparedBranch("q", 6, 0)], 6)


# --------------------------------------------------------------------------------------------------- what is remembered
def test_earlier_lineages_are_remembered_and_their_marks_are_not(fake: WriterBroker) -> None:
    for number in range(commit_protocol.MOST_PAST + 5):
        query_id = f"q{number}"
        assert driver(fake).commit([fake.task(number, query_id=query_id)], number)
        assert fake.marks == {query_key(query_id)}
    past = fake.writer.past
    assert list(past.items()) == [(f"q{number}", number) for number in range(4, commit_protocol.MOST_PAST + 4)]


@pytest.mark.parametrize(
    "refusal",
    [UnauthorizedAccess(403, 0, "denied", "exchange.unbind"), StateError("the login may not ask for bindings")],
)
def test_a_login_that_may_not_unbind_has_published_all_the_same(
    fake: WriterBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refusal: AmqpError
) -> None:
    """The mark is taken away last: the refusal ends the session, and then there is nothing left to lose."""
    assert driver(fake).commit([fake.task(0, query_id="old")], 0)

    def refuse(_: StateQueue, key: str) -> None:
        assert key == query_key("old")
        assert (fake.writer.state, fake.prepared) == (DONE, {})
        fake.fails["unlock"] = [ConnectionLost("the session has ended")]
        raise refusal

    monkeypatch.setattr(StateQueue, "unmark", refuse)
    assert driver(fake).commit([fake.task(0, query_id="new")], 0)
    assert (fake.writer.query_id, fake.writer.state) == ("new", DONE)
    assert "the binding of query old, which this query has replaced, stays at amq.direct" in caplog.text
    assert str(refusal) in caplog.text
    del fake.fails["unlock"]
    assert driver(fake).commit([fake.task(1, query_id="new")], 1)
    assert fake.marks == {query_key("old"), query_key("new")}


def test_batch_writes_leave_no_mark(fake: WriterBroker) -> None:
    """All of them have one query id, whatever their transactionalId."""
    fake.mark_elsewhere(query_key(BATCH_WRITES))
    assert driver(fake).commit([fake.task(0, query_id=BATCH_WRITES)], 0)
    assert fake.marks == set()
    assert driver(fake).commit([fake.task(0)], 0)
    assert fake.writer.past == {BATCH_WRITES: 0}


def test_a_query_of_another_writer(fake: WriterBroker) -> None:
    fake.mark_elsewhere(query_key("q"))
    with pytest.raises(StateError, match="published under another transactionalId before"):
        driver(fake).commit([fake.task(0)], 0)


@pytest.mark.parametrize("capability", ["distributed_transactions", "local_transactions", "binding_queries"])
def test_a_broker_without_what_a_decision_needs_gets_none(fake: WriterBroker, capability: str) -> None:
    fake.lacks = frozenset({capability})
    task = fake.task(0)
    needed = {"distributed_transactions": "exactly-once: .* has no prepared transactions"}
    missing = needed.get(capability, f"exactly-once needs {capability.replace('_', ' ')}")
    with pytest.raises(UnsupportedModeError, match=missing):
        driver(fake).commit([task], 0)
    assert (list(fake.prepared), fake.states) == ([task.xid], {})


def test_a_state_of_another_writer(fake: WriterBroker) -> None:
    fake.writer = WriterState("other")
    with pytest.raises(StateError, match="is that of transactionalId 'other', not of transactionalId 'w'"):
        driver(fake).commit([fake.task(0)], 0)


def test_what_is_known_to_be_done_costs_nothing(fake: WriterBroker) -> None:
    first = driver(fake)
    assert first.commit([PreparedBranch("q", 0, 0)], 0)
    assert fake.connects == 1
    assert first.commit([PreparedBranch("q", 1, 0)], 1)
    assert fake.connects == 1, "a batch without rows after one that is done"
    with pytest.raises(StateError):
        first.commit([fake.task(2), fake.task(2)], 2)
    calls = len(fake.calls)
    assert first.commit([PreparedBranch("q", 3, 0)], 3)
    assert len(fake.calls) > calls, "after a failure nothing is known"


def test_tasks_must_belong_together(fake: WriterBroker) -> None:
    for tasks in ([fake.task(0), fake.task(1, 1)], [fake.task(0), fake.task(0, 1, query_id="r")]):
        with pytest.raises(StateError, match="several queries or batches came together"):
            driver(fake).commit(tasks, 0)
    with pytest.raises(StateError, match="several tasks of one partition"):
        driver(fake).commit([fake.task(0), fake.task(0)], 0)
    assert "swap open" not in fake.calls


def test_markers_of_what_is_not_decided_stay(fake: WriterBroker) -> None:
    """qpidd's linear store has committed a batch that is still to come, while an earlier one is open."""
    first = fake.task(0)
    fake.fails["commit"] = [ConnectionLost("cut")] * 3
    with pytest.raises(ConnectionLost):
        driver(fake).commit([first], 0)
    later = fake.task(1)
    fake.show(first, later)
    fake.prepared.clear()
    assert driver(fake).commit([PreparedBranch("q", 0, 1), fake.task(0)], 0) is False
    assert fake.visible == {later.xid: later}
    again = fake.task(1)
    assert driver(fake).commit([again], 1)
    assert [branch.xid for branch in fake.writer.branches] == [later.xid]
    assert (fake.visible, fake.prepared) == ({}, {})


# ----------------------------------------------------------------------------------------------- lock and connections
def test_the_lock_is_tried_for_on_fresh_connections(fake: WriterBroker) -> None:
    fake.fails["lock"] = [ResourceLocked(405, 0, "locked")] * 3
    waits: list[float] = []
    assert driver(fake, waits).commit([fake.task(0)], 0)
    assert (waits, fake.connects) == ([0.5] * 3, 4)


def test_a_connection_is_kept_for_the_next_batch(fake: WriterBroker) -> None:
    one = driver(fake)
    for batch in range(3):
        assert one.commit([fake.task(batch)], batch)
    assert (fake.connects, fake.calls.count("unlock")) == (1, 3)


@pytest.mark.parametrize("call", ["connect", "lock", "recover", "set_timeout", "swap open", "commit", "swap done"])
def test_lost_connections_are_made_again_until_it_is_too_often(fake: WriterBroker, call: str) -> None:
    fake.fails[call] = [ConnectionLost("cut")] * 2
    waits: list[float] = []
    assert driver(fake, waits).commit([fake.task(0)], 0)
    assert (fake.writer.state, len(waits)) == (DONE, 2)

    fake.fails[call] = [ConnectionLost("cut")] * 3
    task = fake.task(1)
    failing = driver(fake)
    with pytest.raises(ConnectionLost):
        failing.commit([task], 1)
    assert fake.fails[call] == []
    failing.abort([task], 1)
    assert fake.prepared == {}
    is_decided = call in {"commit", "swap done"}
    assert (fake.writer.batch, fake.writer.state) == (1 if is_decided else 0, DONE)


def test_after_a_loss_the_next_host_is_tried_first(fake: WriterBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = hosts_tried(fake, monkeypatch)
    fake.fails["recover"] = [ConnectionLost("cut")]
    assert driver(fake, url="amqp://fake,b").commit([fake.task(0)], 0)
    assert tried == ["fake", "b"]


@pytest.mark.parametrize("known", ["nothing", "another query", "a batch before"])
@pytest.mark.parametrize("call", ["swap open", "commit", "swap done"])
def test_a_decision_is_not_made_again_at_another_broker(
    fake: WriterBroker, monkeypatch: pytest.MonkeyPatch, call: str, known: str
) -> None:
    """The broker before may have published the batch: so the error must not say that nothing was committed."""
    other = WriterBroker()
    assert driver(fake).commit([fake.task(3)], 3)
    if known == "another query":
        other.writer = WriterState("w", "z", 9)
    elif known == "a batch before":
        assert driver(other).commit([other.task(2)], 2)
    task = fake.task(4)
    fake.fails[call] = [ConnectionLost("cut")]
    brokers = iter([fake.connect, other.connect])

    def connect(options: ConnectOptions) -> Client:
        return next(brokers)(options)

    monkeypatch.setattr(fake, "connect", connect)
    with pytest.raises(StateError, match=r"AMQP_WRITER_OTHER_BROKER.*batch 4"):
        driver(fake).commit([task], 4)
    assert task.xid not in other.visible


def test_a_query_that_begins_with_a_later_batch_is_a_warning(
    fake: WriterBroker, caplog: pytest.LogCaptureFixture
) -> None:
    assert driver(fake).commit([fake.task(0)], 0)
    assert driver(fake).commit([fake.task(1)], 1)
    assert "begins there" not in caplog.text
    other = WriterBroker()
    assert driver(other).commit([other.task(2)], 2)
    assert "the broker knows no batch of it, and this query begins there with batch 2" in caplog.text


def test_what_will_not_get_better_is_not_tried_again(fake: WriterBroker) -> None:
    fake.fails["recover"] = [UnauthorizedAccess(403, 0, "no")]
    with pytest.raises(UnauthorizedAccess):
        driver(fake).commit([fake.task(0)], 0)
    assert fake.connects == 1


def test_abort_only_logs(fake: WriterBroker, caplog: pytest.LogCaptureFixture) -> None:
    task = fake.task(4)
    fake.fails["lock"] = [UnauthorizedAccess(403, 0, "no")]
    driver(fake).abort([task], 4)
    assert "batch 4: its transactions were not rolled back" in caplog.text
    driver(fake).abort([task], 4)
    assert (fake.prepared, fake.states) == ({}, {})


def test_a_broker_without_prepared_transactions_has_none_to_roll_back(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    fake = WriterBroker(protocol="0-9-1")
    assert not driver(fake).abort([], 4)
    with pytest.raises(UnsupportedModeError, match="no prepared transactions"):
        driver(fake).sweep_before("q", 4, Run.new())
    assert caplog.messages == []


def test_the_points_of_a_driver_are_passed_in_order(fake: WriterBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[str] = []
    monkeypatch.setattr(crashpoints, "reached", passed.append)
    fake.task(0)
    driver(fake).commit([fake.task(0), fake.task(0, 1)], 0)
    points = crashpoints.EXACTLY_ONCE_SINK_POINTS
    wanted = points[points.index(crashpoints.SINK_LOCK_TAKEN) : points.index(crashpoints.MID_SWEEP) + 1]
    assert passed == list(wanted)
    driver(fake).abort([fake.task(1)], 1)
    assert passed[-3:] == [crashpoints.ABORT_ENTERED, crashpoints.SINK_LOCK_TAKEN, crashpoints.MID_SWEEP]
