"""The decision on a batch, and its outcome after failures; on a real broker, without Spark."""

from __future__ import annotations

import contextlib
import uuid
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from amqp_core.api import Xid
from amqp_spark import crashpoints
from amqp_spark.errors import StateError
from amqp_spark.sink.commit_coordinator import CommitCoordinator, forget_all
from amqp_spark.state.queue import StateQueue
from amqp_spark.state.records import DONE, OPEN
from tests.broker.exactly_once_support import (
    Fate,
    Killed,
    Writer,
    anew,
    nothing_is_left,
    orphan,
    prepared_of,
    rows,
    state_of,
)
from tests.broker.sink_scenarios import taken
from tests.broker.stream_support import depth, publish

if TYPE_CHECKING:
    from amqp_core.v0_10.client import Client
    from amqp_spark.sink.prepared_transactions import PreparedBranch
    from tests.support.fixtures import Broker, Connect

pytestmark = pytest.mark.broker

DRIVER_POINTS = [
    crashpoints.SINK_LOCK_TAKEN,
    crashpoints.VERIFIED,
    crashpoints.DECISION_SENT,
    crashpoints.DECISION_COMMITTED,
    crashpoints.SOME_COMMITTED,
    crashpoints.ALL_COMMITTED,
    crashpoints.DONE_SWAPPED,
    crashpoints.MID_SWEEP,
]
UNKNOWN = crashpoints.DECISION_SENT
"""The broker may have the decision or not."""
DECIDED = DRIVER_POINTS[DRIVER_POINTS.index(crashpoints.DECISION_COMMITTED) :]


memory_only = pytest.mark.parametrize("place", ["default"], indirect=True)


def is_decided(client: Client, writer: Writer, tasks: list[PreparedBranch], point: str) -> bool:
    """Whether a driver that was killed at a point had decided for these tasks."""
    found = client.query_queue(writer.names.state) is not None
    found = found and {each.xid for each in state_of(client, writer).branches} == {each.xid for each in tasks}
    assert found == (point in DECIDED) or point == UNKNOWN
    return found


def test_batches_are_published_one_after_the_other(client: Client, writer: Writer) -> None:
    assert writer.publish(0, range(150), range(150, 300))
    nothing_is_left(client, writer)
    assert writer.publish(1, [], range(300, 310))  # a task without rows has no branch
    assert writer.publish(3, range(310, 320))
    nothing_is_left(client, writer)
    assert taken(client, writer.queue) == rows(range(320))
    state = state_of(client, writer)
    assert (state.query_id, state.batch, state.state) == (writer.query_id, 3, DONE)
    assert [(branch.partition, branch.rows) for branch in state.branches] == [(0, 10)]


def test_nothing_is_visible_before_the_commit(client: Client, writer: Writer) -> None:
    tasks = writer.run(0, range(10))
    publish(client, writer.queue, [b"777"])
    assert taken(client, writer.queue) == Counter({777: 1})
    assert writer.decision.commit(tasks, 0)
    assert taken(client, writer.queue) == rows(range(10))


@memory_only
def test_a_batch_without_rows_leaves_no_trace(client: Client, writer: Writer) -> None:
    assert writer.publish(0, [], [])
    assert writer.publish(1, [])
    assert client.query_queue(writer.names.state) is None
    assert client.query_queue(writer.names.lock) is None


def test_a_batch_that_is_done_is_not_published_again(client: Client, writer: Writer) -> None:
    assert writer.publish(7, range(10), range(10, 20))
    for _ in range(2):
        anew(writer)
        assert not writer.publish(7, range(10), range(10, 20))
        nothing_is_left(client, writer)
    assert taken(client, writer.queue) == rows(range(20))


@pytest.mark.parametrize(
    "again",
    [
        [range(10), range(10, 21)],
        [range(10), range(11, 21)],
        [range(10)],
        [range(10), range(10, 20), range(5)],
        [range(10, 20), range(10)],
        [[], range(10, 20)],
        [[], []],
    ],
    ids=["more", "others", "fewer tasks", "more tasks", "exchanged", "an empty one", "none"],
)
@memory_only
def test_a_batch_that_is_done_must_be_the_same_again(
    client: Client, writer: Writer, again: list[range | list[int]]
) -> None:
    writer.publish(7, range(10), range(10, 20))
    anew(writer)
    # what is known in a process of a decision that is done does not count here: another process, another memory
    forget_all()
    tasks = writer.run(7, *again)
    with pytest.raises(StateError, match=r"Batch 7 was published with transactionalId .*, and is not the same now"):
        writer.decision.commit(tasks, 7)
    writer.decision.abort(tasks, 7)
    nothing_is_left(client, writer)
    assert taken(client, writer.queue) == rows(range(20))


# ------------------------------------------------------------------------------------------------- killed and cut off
@pytest.mark.parametrize("point", DRIVER_POINTS)
def test_a_driver_is_killed_and_the_batch_run_again(client: Client, writer: Writer, fate: Fate, point: str) -> None:
    writer.publish(0, range(5))
    tasks = writer.run(1, range(10), range(10, 20))
    orphan(writer, 1)
    fate.kill_at(point)
    with pytest.raises(Killed):
        writer.decision.commit(tasks, 1)
    decided = is_decided(client, writer, tasks, point)
    anew(writer)
    assert writer.publish(1, range(10), range(10, 20)) == (not decided)
    nothing_is_left(client, writer)
    assert taken(client, writer.queue) == rows(range(5), range(20))


@pytest.mark.sampled("point", every=3)
@pytest.mark.parametrize("point", DRIVER_POINTS)
@memory_only
def test_a_driver_is_killed_twice(client: Client, writer: Writer, fate: Fate, point: str) -> None:
    for first in (crashpoints.VERIFIED, crashpoints.DECISION_COMMITTED, crashpoints.SOME_COMMITTED):
        writer.query_id = str(uuid.uuid4())
        for number, at in enumerate((first, point)):
            tasks = writer.run(0, range(10), range(10, 20))
            orphan(writer, 0)
            fate.kill_at(at)
            # what is decided needs no decision: some points are not passed again
            passed = number == 0 or first == crashpoints.VERIFIED
            with pytest.raises(Killed) if passed else contextlib.suppress(Killed):
                writer.decision.commit(tasks, 0)
            fate.point = ""
            anew(writer)
        writer.publish(0, range(10), range(10, 20))
        nothing_is_left(client, writer)
        assert taken(client, writer.queue) == rows(range(20)), f"{first}, then {point}"


@pytest.mark.parametrize("point", DRIVER_POINTS)
def test_a_connection_is_lost_and_the_decision_goes_on(client: Client, writer: Writer, fate: Fate, point: str) -> None:
    tasks = writer.run(0, range(10), range(10, 20))
    orphan(writer, 0)
    fate.cut_at(point)
    assert writer.decision.commit(tasks, 0)
    assert not fate.point
    nothing_is_left(client, writer)
    assert taken(client, writer.queue) == rows(range(20))


@pytest.mark.sampled("point", every=2)
@pytest.mark.parametrize("point", DRIVER_POINTS)
def test_abort_respects_the_decision(client: Client, writer: Writer, fate: Fate, point: str) -> None:
    """Spark calls it after a commit that has raised, whatever that had done."""
    tasks = writer.run(0, range(10), range(10, 20))
    orphan(writer, 0)
    fate.kill_at(point)
    with pytest.raises(Killed):
        writer.decision.commit(tasks, 0)
    decided = is_decided(client, writer, tasks, point)
    writer.decision.abort(tasks, 0)
    assert prepared_of(client, writer) == [], "the orphan, which no message names, is gone as well"
    if decided:
        assert depth(client, writer.queue) == 20
        assert state_of(client, writer).state == DONE
    else:
        assert depth(client, writer.queue) == 0
    anew(writer)
    assert writer.publish(0, range(10), range(10, 20)) == (not decided)
    nothing_is_left(client, writer)
    assert taken(client, writer.queue) == rows(range(20))


@memory_only
def test_an_abort_that_is_killed_is_made_up_for(client: Client, writer: Writer, fate: Fate) -> None:
    tasks = writer.run(0, range(10), range(10, 20))
    fate.kill_at(crashpoints.MID_SWEEP)
    with pytest.raises(Killed):
        writer.decision.abort(tasks, 0)
    assert writer.publish(0, range(10), range(10, 20))
    nothing_is_left(client, writer)
    assert taken(client, writer.queue) == rows(range(20))


@memory_only
def test_the_next_batch_finishes_what_was_decided(client: Client, writer: Writer, fate: Fate) -> None:
    """The user's function has swallowed the error, so that Spark went on."""
    tasks = writer.run(0, range(10), range(10, 20))
    fate.kill_at(crashpoints.SOME_COMMITTED)
    with pytest.raises(Killed):
        writer.decision.commit(tasks, 0)
    assert state_of(client, writer).state == OPEN
    assert writer.publish(1, range(20, 30))
    nothing_is_left(client, writer)
    assert taken(client, writer.queue) == rows(range(30))


@memory_only
def test_a_batch_without_rows_finishes_what_was_decided(client: Client, writer: Writer, fate: Fate) -> None:
    tasks = writer.run(0, range(10))
    fate.kill_at(crashpoints.DECISION_COMMITTED)
    with pytest.raises(Killed):
        writer.decision.commit(tasks, 0)
    anew(writer)
    assert writer.publish(1, [])
    nothing_is_left(client, writer)
    assert taken(client, writer.queue) == rows(range(10))


# --------------------------------------------------------------------------------------------------- orphans, strangers
def test_orphans_are_swept_and_strangers_are_not(
    connect: Connect, client: Client, writer: Writer, broker: Broker
) -> None:
    """Two writers, and a client of another kind, have prepared branches on one broker."""
    other = Writer(broker, writer.queue, writer.vhost)
    theirs = other.run(5, range(100, 110))
    foreign = Xid(format=1, global_id=uuid.uuid4().bytes, branch_id=b"0.0.0.0.00000000")
    stranger = connect(writer.vhost)
    with stranger.transactions.branch(foreign):
        publish(stranger, writer.queue, [b"500"])

    swept = [orphan(writer, 0), orphan(writer, 0)]
    later = orphan(writer, 1)
    assert writer.publish(0, range(10))
    assert prepared_of(client, writer) == [later], f"{swept} were prepared for the batch that is decided"
    assert writer.publish(1, range(10, 20))
    nothing_is_left(client, writer)

    assert prepared_of(client, other) == [theirs[0].xid]
    assert foreign in client.transactions.recover()
    assert other.decision.commit(theirs, 5)
    stranger.transactions.commit_branch(foreign)
    assert taken(client, writer.queue) == rows(range(20), range(100, 110)) + Counter({500: 1})
    other.close()


@memory_only
def test_orphans_of_an_earlier_query_are_swept(client: Client, writer: Writer) -> None:
    writer.publish(3, range(10))
    orphan(writer, 4)
    writer.query_id = str(uuid.uuid4())
    assert writer.publish(0, range(10, 20))
    nothing_is_left(client, writer)
    assert taken(client, writer.queue) == rows(range(20))


# ---------------------------------------------------------------------------------------------------------- query ids
@memory_only
def test_two_queries_may_not_share_a_transactional_id(client: Client, writer: Writer) -> None:
    first, second = str(uuid.uuid4()), str(uuid.uuid4())
    for query_id in (first, second):
        writer.query_id = query_id
        assert writer.publish(0, range(10))
    writer.query_id = first
    tasks = writer.run(1, range(10))
    with pytest.raises(StateError, match=f"Two queries share transactionalId .*{first} has published .*until batch 0"):
        writer.decision.commit(tasks, 1)
    writer.decision.abort(tasks, 1)
    nothing_is_left(client, writer)
    assert depth(client, writer.queue) == 20


@memory_only
def test_a_query_may_not_change_its_transactional_id(client: Client, writer: Writer, broker: Broker) -> None:
    writer.publish(0, range(10))
    other = Writer(broker, writer.queue, writer.vhost, query_id=writer.query_id)
    tasks = other.run(1, range(10))
    with pytest.raises(StateError, match="has published under another transactionalId before"):
        other.decision.commit(tasks, 1)
    other.decision.abort(tasks, 1)
    assert prepared_of(client, other) == []
    other.query_id = None  # a batch write
    assert other.publish(0, range(10, 20))
    other.close()
    assert writer.publish(1, range(20, 30))
    assert taken(client, writer.queue) == rows(range(30))


@memory_only
def test_batches_do_not_go_back(writer: Writer) -> None:
    writer.publish(5, range(10))
    with pytest.raises(StateError, match=r"Spark runs batch 4 .* has published batch 5 of it already"):
        writer.publish(4, range(10))
    writer.query_id = None
    writer.publish(9, range(10))
    with pytest.raises(StateError, match=r"Option batchId is 8, .* has published 9 already.*Use 9 with the same"):
        writer.publish(8, range(10))


@memory_only
def test_the_lock_is_held_by_another(connect: Connect, client: Client, writer: Writer) -> None:
    writer.given["heartbeat"] = 1
    writer.publish(0, range(10))
    holder = connect(writer.vhost)
    lock = StateQueue(holder, writer.names)
    lock.lock()
    tasks = writer.run(1, range(10, 20))
    waits: list[float] = []
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        waits.append(seconds)

    decision = CommitCoordinator(writer.options, connections=writer.drivers, sleep=sleep, clock=lambda: now)
    with pytest.raises(StateError, match=r"transactionalId .* is in use: .* has held its lock, .* for 7 s"):
        decision.commit(tasks, 1)
    assert sum(waits) == 7.0, "twice the heartbeat and five seconds"
    decision.abort(tasks, 1)
    assert prepared_of(client, writer) == [tasks[0].xid], "without the lock nothing is rolled back"
    lock.unlock()
    assert writer.decision.commit(tasks, 1)
    nothing_is_left(client, writer)
