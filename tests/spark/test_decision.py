"""What a decision asks of a broker where a real Broker-J cannot show it: qpidd's timers, races, what is remembered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.errors import ConnectionLost, NotFound, ResourceLocked, TransactionFailed, UnauthorizedAccess
from amqp_spark import crashpoints
from amqp_spark.errors import StateError
from amqp_spark.options import SinkOptions
from amqp_spark.sink import deciding, decision
from amqp_spark.sink.connections import Connections
from amqp_spark.sink.decision import Decision
from amqp_spark.sink.prepared import BATCH_WRITES, Prepared
from amqp_spark.state.names import WRITER, Names, lineage_key
from amqp_spark.state.queue import StateQueue
from amqp_spark.state.records import DONE, OPEN, WriterState
from amqp_spark.state.xids import new_branch, xid_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from amqp_core.errors import AmqpError
    from amqp_core.v0_10.spec import Xid


class FakeBroker:
    """Holds a state, marks, prepared branches with their timers, and markers; every connection sees the same."""

    def __init__(self, *, qpidd: bool = False) -> None:
        self.qpidd = qpidd
        self.state: bytes | None = None
        self.kept = False
        self.marks: set[str] = set()
        self.elsewhere: set[str] = set()
        """Marks of other state queues."""
        self.prepared: dict[str, Xid] = {}
        self.holds: dict[str, Prepared] = {}
        """What the branches hold."""
        self.timers: dict[str, list[int]] = {}
        self.expired: set[str] = set()
        """Branches that can still be asked for their timeout, and are not prepared."""
        self.markers: dict[str, Prepared] = {}
        self.calls: list[str] = []
        self.fails: dict[str, list[AmqpError]] = {}
        self.locked = 0
        """So many times the lock is refused."""
        self.connections = 0

    def connect(self, options: object) -> Any:
        self.connections += 1
        self.fail("connect")
        return FakeClient(self)

    def task(self, batch: int, partition: int = 0, *, lineage: str = "q", rows: int = 1, digest: str = "d") -> Prepared:
        """A task that has prepared its branch."""
        xid = new_branch("w", lineage, batch, partition, 0)
        task = Prepared(lineage, batch, partition, xid_text(xid), rows, digest)
        self.prepared[task.xid] = xid
        self.holds[task.xid] = task
        return task

    def fail(self, name: str) -> None:
        self.calls.append(name)
        if self.fails.get(name):
            raise self.fails[name].pop(0)

    @property
    def writer(self) -> WriterState:
        assert self.state is not None
        return WriterState.load(self.state)


class FakeClient:
    """A connection, and its transactions."""

    peer = "fake:5672"

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.transactions = self
        self.patience_s = 0.0
        self.ended = False

    @property
    def is_qpidd(self) -> bool:
        return self.broker.qpidd

    def recover(self) -> list[Xid]:
        self.broker.fail("recover")
        return list(self.broker.prepared.values())

    def set_timeout(self, xid: Xid, seconds: int) -> None:
        self.broker.fail("set_timeout")
        text = xid_text(xid)
        assert text in self.broker.prepared or text in self.broker.expired
        self.broker.timers.setdefault(text, []).append(seconds)

    def commit_branch(self, xid: Xid) -> None:
        text = xid_text(xid)
        self.broker.fail("commit")
        assert self.patience_s >= self.broker.holds[text].rows / 1000, "it may be silent meanwhile"
        self.broker.markers[text] = self.broker.holds[text]
        del self.broker.prepared[text]

    def rollback_branch(self, xid: Xid) -> None:
        self.broker.fail("rollback")
        assert self.patience_s >= self.broker.holds[xid_text(xid)].rows / 1000, "it may be silent meanwhile"
        del self.broker.prepared[xid_text(xid)]

    def service(self) -> None:
        assert not self.ended

    def discard(self) -> None:
        self.ended = True

    close = abort = discard


class FakeQueue(StateQueue):
    """See :class:`amqp_spark.state.queue.StateQueue`."""

    def __init__(self, client: Any, names: Names) -> None:
        self.names = names
        self.broker: FakeBroker = client.broker

    def lock(self) -> None:
        if self.broker.locked:
            self.broker.locked -= 1
            raise ResourceLocked(405, 0, "locked")
        self.broker.fail("lock")

    def unlock(self) -> None:
        self.broker.fail("unlock")

    def take(self, *, timeout: float = 10.0) -> bytes | None:
        del timeout
        return self.broker.state

    def create(self, body: bytes) -> None:
        assert self.broker.state is None
        self.broker.state = body

    def swap(
        self, body: bytes, *, accept: Sequence[tuple[int, int]] = (), sent: Callable[[], None] | None = None
    ) -> None:
        state = WriterState.load(body)
        self.broker.fail(f"swap {state.state}")
        if sent is not None:
            sent()
        self.broker.state = body
        for low, high in accept:
            for at in range(low, high + 1):
                del self.broker.markers[list(self.broker.holds)[at]]

    def mark(self, key: str) -> None:
        self.broker.marks.add(key)

    def unmark(self, key: str) -> None:
        self.broker.marks.remove(key)

    def marked(self, key: str) -> bool:
        return key in self.broker.marks

    def marked_anywhere(self, key: str) -> bool:
        return key in self.broker.marks | self.broker.elsewhere


class FakeMarkers:
    """See :class:`amqp_spark.sink.markers.Markers`; a marker's command id is the place of its branch among all."""

    def __init__(self, client: FakeClient, names: Names) -> None:
        assert names == Names(WRITER, "w")
        self.broker = client.broker
        self.found: dict[str, Prepared] = {}

    def exist(self) -> bool:
        return True

    def are_kept(self) -> bool:
        return self.broker.kept

    def keep(self) -> None:
        self.broker.kept = True

    def look(self) -> None:
        self.found = dict(self.broker.markers)

    def wait_for(self, xids: Iterable[str], timeout: float) -> None:
        del xids, timeout
        self.look()

    def ranges(self, xids: Iterable[str]) -> list[tuple[int, int]]:
        ids = [list(self.broker.holds).index(xid) for xid in xids]
        return [(at, at) for at in ids]

    def accepted(self, xids: Iterable[str]) -> None:
        for xid in xids:
            del self.found[xid]

    def close(self) -> None:
        self.broker.fail("close")


@pytest.fixture(autouse=True)
def _fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "Markers", FakeMarkers)
    monkeypatch.setattr(decision, "StateQueue", FakeQueue)
    decision.forget_all()


@pytest.fixture
def fake() -> FakeBroker:
    return FakeBroker()


def driver(fake: FakeBroker, waits: list[float] | None = None, *, alone: bool = False, **options: object) -> Decision:
    given: dict[str, object] = {"url": "amqp://b", "deliveryGuarantee": "exactly-once", "transactionalId": "w"}
    waits = [] if waits is None else waits
    parsed = SinkOptions.parse(given | {"retry.maxAttempts": 2} | options)
    return Decision(parsed, alone=alone, connections=Connections(fake.connect), sleep=waits.append)


# -------------------------------------------------------------------------------------------------------------- timers
def test_qpidd_gets_a_changed_timeout_and_never_zero() -> None:
    """There 0 ends a branch at once, and an unchanged value starts no new term."""
    fake = FakeBroker(qpidd=True)
    tasks = [fake.task(0), fake.task(0, 1)]
    assert driver(fake, transactionTimeout=600).commit(tasks, 0)
    assert fake.timers == {task.xid: [599] for task in tasks}


def test_broker_j_gets_no_timer(fake: FakeBroker) -> None:
    task = fake.task(0)
    assert driver(fake).commit([task], 0)
    assert fake.timers == {task.xid: [0]}
    assert fake.calls.index("set_timeout") < fake.calls.index("swap open") < fake.calls.index("commit")


@pytest.mark.parametrize("qpidd", [True, False])
def test_a_branch_that_expires_while_its_timer_is_renewed(qpidd: bool) -> None:
    """Its timer can be set all the same; only the list of prepared branches tells."""
    fake = FakeBroker(qpidd=qpidd)
    tasks = [fake.task(0), fake.task(0, 1)]

    class Expiring(FakeClient):
        def set_timeout(self, xid: Xid, seconds: int) -> None:
            super().set_timeout(xid, seconds)
            fake.expired.add(tasks[0].xid)
            fake.prepared.pop(tasks[0].xid, None)

    fake.connect = lambda options: Expiring(fake)  # type: ignore[method-assign]
    with pytest.raises(StateError, match=r"1 of 2 transactions are no longer prepared.*transactionTimeout=3600 s"):
        driver(fake).commit(tasks, 0)
    assert "swap open" not in fake.calls
    assert "commit" not in fake.calls


# --------------------------------------------------------------------------------------------------------------- races
@pytest.mark.parametrize(("call", "fate"), [("set_timeout", "gone"), ("commit", "committed"), ("rollback", "gone")])
def test_somebody_resolves_a_branch_between_look_and_command(fake: FakeBroker, call: str, fate: str) -> None:
    """The 404 ends the session; what is true is found out on the next one."""
    driver(fake).commit([fake.task(0)], 0)
    decision.forget_all()
    stray = fake.task(0)
    task = fake.task(1)
    gone = stray if call == "rollback" else task
    fake.fails[call] = [NotFound(404, 0, "no such branch")]

    def connect(options: object) -> Any:
        if call in fake.calls[calls:]:  # that is the second connection
            fake.prepared.pop(gone.xid, None)
            if fate == "committed":
                fake.markers[gone.xid] = gone
        return FakeClient(fake)

    calls = len(fake.calls)
    fake.connect = connect  # type: ignore[method-assign]
    if call == "set_timeout":
        with pytest.raises(StateError, match="no longer prepared"):
            driver(fake).commit([task], 1)
    else:
        assert driver(fake).commit([task], 1)
        assert (fake.writer.batch, fake.writer.state, fake.prepared, fake.markers) == (1, DONE, {}, {})


def test_a_branch_that_cannot_be_committed_is_lost(fake: FakeBroker) -> None:
    fake.fails["commit"] = [TransactionFailed("dtx.commit", 2, "XA_RBTIMEOUT")]
    task = fake.task(0)
    with pytest.raises(StateError, match=f"{task.xid} of partition 0 .* neither prepared nor committed: 1 of 1"):
        driver(fake).commit([task], 0)
    assert fake.writer.state == OPEN


def test_an_orphan_whose_timer_was_faster(fake: FakeBroker) -> None:
    fake.task(0)
    fake.fails["rollback"] = [TransactionFailed("dtx.rollback", 2, "XA_RBTIMEOUT")]
    assert driver(fake).commit([fake.task(0)], 0)
    assert fake.writer.state == DONE


def test_a_sweep_that_fails_is_no_failure_of_the_batch(fake: FakeBroker) -> None:
    fake.task(0)
    fake.fails["rollback"] = [ConnectionLost("cut")]
    fake.fails["close"] = [ConnectionLost("cut")]
    assert driver(fake).commit([fake.task(0)], 0)
    assert (fake.writer.state, len(fake.prepared), fake.connections) == (DONE, 1, 1)


# ----------------------------------------------------------------------------------------------- batches without rows
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("same_process", [True, False])
def test_a_batch_that_comes_back_without_rows_is_not_taken_for_an_empty_one(
    fake: FakeBroker, same_process: bool, alone: bool
) -> None:
    def again() -> None:
        if not same_process:
            decision.forget_all()

    assert driver(fake, alone=alone).commit([fake.task(5)], 5)
    again()
    with pytest.raises(StateError, match=r"batch 5 was published .* before, and is not the same now"):
        driver(fake, alone=alone).commit([Prepared("q", 5, 0)], 5)
    again()
    with pytest.raises(StateError, match="rolled back"):
        driver(fake, alone=alone).commit([Prepared("q", 3, 0)], 3)


def test_an_open_decision_is_finished_by_a_batch_without_rows(fake: FakeBroker) -> None:
    fake.fails["commit"] = [ConnectionLost("cut")] * 5
    with pytest.raises(ConnectionLost):
        driver(fake).commit([fake.task(5)], 5)
    assert (fake.writer.state, len(fake.prepared)) == (OPEN, 1)
    fake.fails.clear()
    assert driver(fake).commit([Prepared("q", 6, 0)], 6)
    assert (fake.writer.state, len(fake.prepared)) == (DONE, 0)


def test_empty_batches_ask_the_broker_nothing_once_the_last_one_is_done(fake: FakeBroker) -> None:
    assert driver(fake, alone=True).commit([fake.task(5)], 5)
    before = list(fake.calls)
    for batch in (6, 7):
        assert driver(fake, alone=True).commit([Prepared("q", batch, 0)], batch)
    assert fake.calls == before
    assert driver(fake, alone=True).commit([Prepared("another", 0, 0)], 0)
    assert fake.calls != before, "whether that query has published before is not known here"


def test_empty_batches_are_compared_where_others_may_have_decided(fake: FakeBroker) -> None:
    """The commits of a stream writer run in workers, any of which may get the next one."""
    assert driver(fake).commit([fake.task(5)], 5)
    settled = dict(decision._settled)
    assert driver(fake).commit([fake.task(6)], 6)
    decision._settled.clear()
    decision._settled.update(settled)  # as the worker has it that decided batch 5
    with pytest.raises(StateError, match=r"batch 6 was published .* before, and is not the same now"):
        driver(fake).commit([Prepared("q", 6, 0)], 6)


# --------------------------------------------------------------------------------------------------- what is remembered
def test_earlier_lineages_are_remembered_and_their_marks_are_not(fake: FakeBroker) -> None:
    for number in range(deciding.MOST_PAST + 5):
        lineage = f"q{number}"
        assert driver(fake).commit([fake.task(number, lineage=lineage)], number)
        assert fake.marks == {lineage_key(lineage)}
    past = fake.writer.past
    assert list(past.items()) == [(f"q{number}", number) for number in range(4, deciding.MOST_PAST + 4)]


def test_batch_writes_leave_no_mark(fake: FakeBroker) -> None:
    """All of them have one lineage, whatever their transactionalId."""
    fake.elsewhere.add(lineage_key(BATCH_WRITES))
    assert driver(fake).commit([fake.task(0, lineage=BATCH_WRITES)], 0)
    assert fake.marks == set()
    assert driver(fake).commit([fake.task(0)], 0)
    assert fake.writer.past == {BATCH_WRITES: 0}


def test_a_lineage_of_another_writer(fake: FakeBroker) -> None:
    fake.elsewhere.add(lineage_key("q"))
    with pytest.raises(StateError, match="published under another transactionalId before"):
        driver(fake).commit([fake.task(0)], 0)


def test_a_state_of_another_writer(fake: FakeBroker) -> None:
    fake.state = WriterState("other").dump()
    with pytest.raises(StateError, match="is that of transactionalId 'other', not of 'w'"):
        driver(fake).commit([fake.task(0)], 0)


def test_what_is_known_to_be_done_costs_nothing(fake: FakeBroker) -> None:
    first = driver(fake)
    assert first.commit([Prepared("q", 0, 0)], 0)
    assert fake.connections == 1
    assert first.commit([Prepared("q", 1, 0)], 1)
    assert fake.connections == 1, "a batch without rows after one that is done"
    with pytest.raises(StateError):
        first.commit([fake.task(2), fake.task(2)], 2)
    calls = len(fake.calls)
    assert first.commit([Prepared("q", 3, 0)], 3)
    assert len(fake.calls) > calls, "after a failure nothing is known"


def test_tasks_must_belong_together(fake: FakeBroker) -> None:
    for tasks in ([fake.task(0), fake.task(1, 1)], [fake.task(0), fake.task(0, 1, lineage="r")]):
        with pytest.raises(StateError, match="several queries or batches came together"):
            driver(fake).commit(tasks, 0)
    with pytest.raises(StateError, match="several tasks of one partition"):
        driver(fake).commit([fake.task(0), fake.task(0)], 0)
    assert "swap open" not in fake.calls


def test_markers_of_what_is_not_decided_stay(fake: FakeBroker) -> None:
    """qpidd's linear store has committed a batch that is still to come, while an earlier one is open."""
    first = fake.task(0)
    fake.fails["commit"] = [ConnectionLost("cut")] * 3
    with pytest.raises(ConnectionLost):
        driver(fake).commit([first], 0)
    later = fake.task(1)
    for task in (first, later):
        fake.markers[task.xid] = task
        del fake.prepared[task.xid]
    assert driver(fake).commit([Prepared("q", 0, 1), fake.task(0)], 0) is False
    assert fake.markers == {later.xid: later}
    again = fake.task(1)
    assert driver(fake).commit([again], 1)
    assert [branch.xid for branch in fake.writer.branches] == [later.xid]
    assert (fake.markers, fake.prepared) == ({}, {})


# ----------------------------------------------------------------------------------------------- lock and connections
def test_the_lock_is_tried_for_on_fresh_connections(fake: FakeBroker) -> None:
    fake.locked = 3
    waits: list[float] = []
    assert driver(fake, waits).commit([fake.task(0)], 0)
    assert (waits, fake.connections) == ([0.5] * 3, 4)


def test_a_connection_is_kept_for_the_next_batch(fake: FakeBroker) -> None:
    one = driver(fake)
    for batch in range(3):
        assert one.commit([fake.task(batch)], batch)
    assert (fake.connections, fake.calls.count("unlock")) == (1, 3)


@pytest.mark.parametrize("call", ["connect", "lock", "recover", "set_timeout", "swap open", "commit", "swap done"])
def test_lost_connections_are_made_again_until_it_is_too_often(fake: FakeBroker, call: str) -> None:
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


def test_what_will_not_get_better_is_not_tried_again(fake: FakeBroker) -> None:
    fake.fails["recover"] = [UnauthorizedAccess(403, 0, "no")]
    with pytest.raises(UnauthorizedAccess):
        driver(fake).commit([fake.task(0)], 0)
    assert fake.connections == 1


def test_abort_only_logs(fake: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    task = fake.task(4)
    fake.fails["lock"] = [UnauthorizedAccess(403, 0, "no")]
    driver(fake).abort([task], 4)
    assert "batch 4: its transactions were not rolled back" in caplog.text
    driver(fake).abort([Prepared("q", 4, 0)], 4)
    assert fake.connections == 1, "nothing was prepared"
    driver(fake).abort([task], 4)
    assert (fake.prepared, fake.state) == ({}, None)


def test_the_points_of_a_driver_are_passed_in_order(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[str] = []
    monkeypatch.setattr(crashpoints, "reached", passed.append)
    fake.task(0)
    driver(fake).commit([fake.task(0), fake.task(0, 1)], 0)
    points = crashpoints.EXACTLY_ONCE_SINK_POINTS
    wanted = points[points.index(crashpoints.SINK_LOCK_TAKEN) : points.index(crashpoints.MID_SWEEP) + 1]
    assert passed == list(wanted)
    driver(fake).abort([fake.task(1)], 1)
    assert passed[-3:] == [crashpoints.ABORT_ENTERED, crashpoints.SINK_LOCK_TAKEN, crashpoints.MID_SWEEP]
