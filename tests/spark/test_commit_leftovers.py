"""Branches that failed runs of a batch leave behind, and decisions whose branches have ended; without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqp_core.errors import ConnectionLost, ResourceLocked
from amqp_spark.errors import StateError
from amqp_spark.options.sink import SHORTEST_TRANSACTION_SECONDS
from amqp_spark.sink import commit_coordinator, commit_protocol
from amqp_spark.state.records import DONE, OPEN
from amqp_spark.state.xids import MOST_LISTED, Run, TooManyPrepared
from tests.spark.commit_support import WriterBroker, driver

if TYPE_CHECKING:
    from amqp_spark.sink.prepared_transactions import PreparedBranch


@pytest.fixture(autouse=True)
def _fresh_process() -> None:
    commit_coordinator.forget_all()


@pytest.fixture
def fake() -> WriterBroker:
    return WriterBroker()


def run_at(begun: int, token: str = "") -> Run:
    """A run that began at that second."""
    return Run(begun, token or f"{begun:06x}")


# ---------------------------------------------------------------------------------------------------------- failed runs
def test_abort_rolls_back_what_the_tasks_have_not_told(fake: WriterBroker) -> None:
    """Spark gives the messages of tasks that came to their end only, and none where ``collect`` has failed."""
    run = run_at(100)
    told, untold = fake.task(4, run=run), fake.task(4, 1, run=run)
    earlier = fake.task(4, 2, run=run_at(50))
    driver(fake).abort([told], 4)
    assert not {told.xid, untold.xid, earlier.xid} & set(fake.prepared)


@pytest.mark.parametrize("known", [True, False])
def test_abort_leaves_alone_what_is_not_of_the_batch(fake: WriterBroker, known: bool) -> None:
    run = run_at(100)
    left = [
        fake.task(5, run=run),
        fake.task(3, run=run),
        fake.task(4, writer="another", run=run),
        *([fake.task(4, query_id="r", run=run)] if known else []),
    ]
    failed = fake.task(4, run=run)
    driver(fake).abort([], 4, query_id="q" if known else None, run=run if known else None)
    assert set(fake.prepared) == {each.xid for each in left}
    assert failed.xid not in fake.prepared


def test_abort_of_a_run_leaves_its_successor_alone(fake: WriterBroker) -> None:
    """A driver that was suspended wakes up when another one has begun the batch again."""
    failed, successor = fake.task(4, run=run_at(100)), fake.task(4, run=run_at(101))
    driver(fake).abort([failed], 4)
    assert set(fake.prepared) == {successor.xid}
    assert driver(fake).commit([successor], 4)


def test_abort_rolls_nothing_back_that_is_decided(fake: WriterBroker) -> None:
    fake.fails["commit"] = [ConnectionLost("cut")] * 3
    decided = [fake.task(4, run=run_at(100)), fake.task(4, 1, run=run_at(100))]
    with pytest.raises(ConnectionLost):
        driver(fake).commit(decided, 4)
    fake.task(4, run=run_at(100))  # an attempt that lost
    driver(fake).abort([], 4, query_id="q", run=run_at(100))
    assert (fake.writer.state, fake.prepared) == (DONE, {})
    assert {branch.xid for branch in fake.writer.branches} == {task.xid for task in decided}


def test_abort_tries_the_broker_once_where_nothing_was_told(
    fake: WriterBroker, caplog: pytest.LogCaptureFixture
) -> None:
    fake.fails["connect"] = [ConnectionLost("cut")] * 5
    waits: list[float] = []
    driver(fake, waits).abort([], 4)
    assert (fake.connects, waits) == (1, [])
    assert "batch 4: its transactions were not rolled back (cut)" in caplog.text


@pytest.mark.parametrize("told", [True, False])
def test_fifty_failing_runs_leave_the_branches_of_one_at_most(fake: WriterBroker, told: bool) -> None:
    """Each run has a task that prepares, and one that does so when the driver has aborted already."""
    for number in range(50):
        run = run_at(1000 + number)
        early = fake.task(7, 0, run=run)
        driver(fake).abort([early] if told else [], 7, query_id="q" if told else None, run=run if told else None)
        fake.task(7, 1, run=run)
        assert len(fake.prepared) == 1
    tasks = [fake.task(7, partition, run=run_at(2000)) for partition in range(2)]
    assert driver(fake).commit(tasks, 7)
    assert fake.prepared == {}


def test_fifty_killed_drivers_leave_the_branches_of_one_at_most(fake: WriterBroker) -> None:
    """They call no abort: the first task of the next run looks for them."""
    for number in range(50):
        run = run_at(1000 + number)
        commit_coordinator.forget_all()
        driver(fake).sweep_before("q", 7, run)
        assert fake.prepared == {}
        for partition in range(3):
            fake.task(7, partition, run=run)


def test_a_run_that_begins_rolls_back_earlier_runs_of_its_batch_only(fake: WriterBroker) -> None:
    mine = run_at(100)
    left = [
        fake.task(4, run=mine),
        fake.task(4, 1, run=run_at(101)),
        fake.task(5, run=run_at(90)),
        fake.task(4, query_id="r", run=run_at(90)),
        fake.task(4, writer="another", run=run_at(90)),
    ]
    fake.task(4, run=run_at(90))
    fake.task(4, run=run_at(100, "ffffff"))
    driver(fake).sweep_before("q", 4, mine)
    assert set(fake.prepared) == {each.xid for each in left}


def test_a_run_that_begins_keeps_what_is_decided(fake: WriterBroker) -> None:
    fake.fails["commit"] = [ConnectionLost("cut")] * 3
    decided = fake.task(4, run=run_at(90))
    with pytest.raises(ConnectionLost):
        driver(fake).commit([decided], 4)
    fake.task(4, run=run_at(90))
    driver(fake).sweep_before("q", 4, run_at(100))
    assert set(fake.prepared) == {decided.xid}
    assert fake.writer.state == OPEN


def test_a_run_that_begins_does_not_wait_for_the_lock(fake: WriterBroker) -> None:
    before = fake.task(4, run=run_at(90))
    fake.fails["lock"] = [ResourceLocked(405, 0, "locked")]
    waits: list[float] = []
    driver(fake, waits).sweep_before("q", 4, run_at(100))
    assert (waits, set(fake.prepared)) == ([], {before.xid})


def test_a_run_that_begins_leaves_no_connection(fake: WriterBroker) -> None:
    driver(fake).sweep_before("q", 4, run_at(100))
    assert [client.ended for client in fake.clients] == ["closed"]


def test_a_process_looks_once_unless_a_batch_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[tuple[str, int, Run]] = []
    monkeypatch.setattr(
        commit_coordinator.CommitCoordinator,
        "sweep_before",
        lambda _self, query_id, batch, run: looked.append((query_id, batch, run)),
    )
    options = driver(WriterBroker())._options
    first, second = run_at(1), run_at(2)
    for query_id, batch, run, times in (
        ("q", 3, first, 1),
        ("q", 3, first, 1),
        ("q", 4, second, 1),
        ("q", 4, run_at(3), 2),
        ("q", 2, run_at(4), 3),
        ("r", 5, run_at(5), 4),
    ):
        commit_coordinator.sweep_once(options, query_id, batch, run)
        assert len(looked) == times, (query_id, batch, run)


# ------------------------------------------------------------------------------------------- too many to be listed
def test_too_many_branches_are_told_and_the_batch_can_be_rolled_back_all_the_same(fake: WriterBroker) -> None:
    """qpidd names all of them in one frame, or ends the connection of whoever asks."""
    fake.qpidd = True
    fake.most_listed = 5
    tasks = [fake.task(4, partition) for partition in range(8)]
    with pytest.raises(TooManyPrepared, match=r"dtx.recover.*--rollback XID.*transactionTimeout"):
        driver(fake).commit(tasks, 4)
    assert fake.connects == commit_coordinator.LISTS_LOST
    gone = tasks[3].xid
    del fake.prepared[gone]
    driver(fake).abort(tasks, 4)
    assert fake.prepared == {}


def test_what_cannot_be_listed_is_rolled_back_although_a_connection_breaks(fake: WriterBroker) -> None:
    fake.qpidd, fake.most_listed = True, 2
    tasks = [fake.task(4, partition) for partition in range(5)]
    fake.fails["rollback"] = [ConnectionLost("cut")]
    driver(fake).abort(tasks, 4)
    assert fake.prepared == {}


def test_more_branches_than_attempts_may_have_ended(fake: WriterBroker) -> None:
    """Each costs a session, since the broker does not know it."""
    fake.qpidd, fake.most_listed = True, 2
    tasks = [fake.task(4, partition) for partition in range(10)]
    for task in tasks[:5]:
        del fake.prepared[task.xid]
    driver(fake).abort(tasks, 4)
    assert fake.prepared == {}


def test_too_many_branches_are_told_before_a_run_begins(fake: WriterBroker) -> None:
    fake.qpidd = True
    fake.most_listed = 0
    fake.task(1, writer="another")
    with pytest.raises(TooManyPrepared, match=f"about {MOST_LISTED} of amqp_spark's"):
        driver(fake).sweep_before("q", 4, run_at(100))


def test_what_could_not_be_rolled_back_is_named(fake: WriterBroker, caplog: pytest.LogCaptureFixture) -> None:
    fake.fails["connect"] = [ConnectionLost("cut")] * 5
    task = fake.task(4)
    driver(fake).abort([task], 4)
    assert task.xid in caplog.text


@pytest.mark.parametrize("qpidd", [True, False])
def test_one_list_that_is_lost_is_chance(fake: WriterBroker, qpidd: bool) -> None:
    fake.qpidd = qpidd
    fake.fails["recover"] = [ConnectionLost("cut")]
    assert driver(fake).commit([fake.task(0)], 0)
    assert fake.connects == 2


def test_a_broker_that_splits_its_answer_is_not_said_to_have_too_many(fake: WriterBroker) -> None:
    fake.fails["recover"] = [ConnectionLost("cut")] * 3
    with pytest.raises(ConnectionLost, match=r"^cut$"):
        driver(fake).commit([fake.task(0)], 0)


def test_a_batch_lists_no_more_than_it_must(fake: WriterBroker) -> None:
    """Before the timers are set, after that, and when all is done."""
    assert driver(fake).commit([fake.task(0, partition) for partition in range(3)], 0)
    assert fake.calls.count("recover") == 3


# ------------------------------------------------------------------------------------------ decided, and then expired
def decided_and_expired(fake: WriterBroker, timeout: int = 3600) -> PreparedBranch:
    """A batch that was decided, whose only branch has ended while no process was running."""
    fake.fails["commit"] = [ConnectionLost("cut")] * 3
    task = fake.task(5, run=run_at(10))
    with pytest.raises(ConnectionLost):
        driver(fake, transactionTimeout=timeout, heartbeat=2).commit([task], 5)
    fake.prepared.pop(task.xid)
    fake.fails.clear()
    fake.calls.clear()
    return task


@pytest.mark.parametrize("qpidd", [True, False])
@pytest.mark.parametrize("timeout", [SHORTEST_TRANSACTION_SECONDS, 3600])
def test_a_replay_outlives_the_wait_for_markers_that_cannot_come(qpidd: bool, timeout: int) -> None:
    """Its timers begin anew before the wait, and the wait is shorter than they are."""
    fake = WriterBroker(qpidd=qpidd)
    fake.term = timeout
    decided_and_expired(fake, timeout)
    again = fake.task(5, run=run_at(20))

    def ends_unless_renewed() -> None:
        if not fake.timers.get(again.xid) or fake.waits[-1] >= timeout:
            fake.prepared.pop(again.xid, None)

    fake.on_wait = ends_unless_renewed
    again_driver = driver(fake, transactionTimeout=timeout, heartbeat=2)
    assert again_driver.commit([again], 5), "what is published is this very attempt"
    assert [branch.xid for branch in fake.writer.branches] == [again.xid]
    assert fake.calls.index("set_timeout") < fake.calls.index("wait")
    assert -1 < fake.waits[0] - min(commit_protocol.MARKER_SECONDS, timeout / 4) <= 0
    # qpidd starts no new term for a value that it has already
    assert fake.timers[again.xid] == ([timeout - 1, timeout] if qpidd else [0, 0])


def test_a_replay_that_has_ended_already_does_not_keep_a_batch_from_being_finished(fake: WriterBroker) -> None:
    fake.fails["commit"] = [ConnectionLost("cut")] * 3
    task = fake.task(5, run=run_at(10))
    with pytest.raises(ConnectionLost):
        driver(fake).commit([task], 5)
    fake.fails.clear()
    again = fake.task(5, run=run_at(20))
    fake.prepared.pop(again.xid)
    assert not driver(fake).commit([again], 5)
    assert fake.writer.state == DONE


def test_a_replay_that_ends_while_it_is_renewed_does_not_take_a_place(fake: WriterBroker) -> None:
    decided_and_expired(fake)
    again = fake.task(5, run=run_at(20))

    def expire() -> None:
        fake.expired.add(again.xid)
        fake.prepared.pop(again.xid, None)

    fake.on_timeout = expire
    with pytest.raises(StateError, match="1 of 1 transactions are no longer prepared"):
        driver(fake).commit([again], 5)
    assert fake.writer.state == OPEN
