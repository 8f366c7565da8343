"""Branches, markers and queues of an exactly-once sink that others resolve, delete or fill; on a real broker."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from amqp_core.errors import NotFound
from amqp_spark import crashpoints
from amqp_spark.errors import PublishFailed, StateError
from amqp_spark.sink import commit_protocol
from amqp_spark.state.xids import parse_xid
from tests.broker.exactly_once_support import (
    Fate,
    Killed,
    Writer,
    anew,
    batches,
    nothing_is_left,
    orphan,
    prepared_of,
    rows,
    state_of,
)
from tests.broker.sink_scenarios import taken
from tests.broker.stream_support import depth, publish
from tests.support.capabilities import needs
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from amqp_core.api import Xid
    from amqp_core.v0_10.client import Client
    from amqp_spark.sink.connections import Lease

pytestmark = pytest.mark.broker


memory_only = pytest.mark.parametrize("place", ["default"], indirect=True)


# ------------------------------------------------------------------------------------ branches with a fate of their own
@memory_only
def test_a_batch_that_outlives_its_timeout_fails_whole(client: Client, writer: Writer) -> None:
    writer.timeout_s = 3
    early = writer.task(0, 0, range(10))
    wait_until(lambda: not prepared_of(client, writer), "the timer of the first task")
    writer.timeout_s = None
    late = writer.task(0, 1, range(10, 20))
    with pytest.raises(StateError, match=r"1 of 2 transactions are no longer prepared.*nothing of them was committed"):
        writer.decision.commit([early, late], 0)
    writer.decision.abort([early, late], 0)
    assert depth(client, writer.queue) == 0
    assert writer.publish(0, range(10), range(10, 20))
    nothing_is_left(client, writer)


@pytest.mark.thorough
@memory_only
def test_a_task_that_outlives_its_timeout_fails(client: Client, writer: Writer) -> None:
    writer.timeout_s = 2
    delivery = writer.delivery(0)

    def slow() -> Iterator[pa.RecordBatch]:
        yield from batches(["1"])
        time.sleep(3)
        yield from batches(["2"])

    with pytest.raises(PublishFailed, match=r"rolled the transaction of .* back after option transactionTimeout=2 s"):
        delivery.run(slow())
    assert depth(client, writer.queue) == 0
    assert prepared_of(client, writer) == []


@needs("endless_branches")
def test_decided_branches_have_no_timer(client: Client, writer: Writer, fate: Fate) -> None:
    """Broker-J: once a batch is decided, its driver may be away for as long as it likes."""
    writer.timeout_s = 30
    tasks = writer.run(0, range(10))
    fate.kill_at(crashpoints.DECISION_COMMITTED)
    with pytest.raises(Killed):
        writer.decision.commit(tasks, 0)
    assert client.transactions.get_timeout(parse_xid(tasks[0].xid)) == 0


def test_a_branch_that_another_client_has_rolled_back(client: Client, writer: Writer) -> None:
    tasks = writer.run(0, range(10), range(10, 20))
    client.transactions.rollback_branch(parse_xid(tasks[1].xid))
    with pytest.raises(StateError, match="1 of 2 transactions are no longer prepared"):
        writer.decision.commit(tasks, 0)
    writer.decision.abort(tasks, 0)
    assert depth(client, writer.queue) == 0
    assert writer.publish(0, range(10), range(10, 20))
    nothing_is_left(client, writer)


def test_a_branch_that_is_committed_before_the_decision_counts(client: Client, writer: Writer) -> None:
    """As qpidd's linear store does when it is restarted; the rows of the new attempt are the same."""
    before = writer.run(0, range(10), range(10, 20))
    client.transactions.commit_branch(parse_xid(before[1].xid))
    assert depth(client, writer.queue) == 10
    anew(writer)
    after = writer.run(0, range(10), range(10, 20))
    assert writer.decision.commit(after, 0)
    assert [each.xid for each in state_of(client, writer).branches] == [after[0].xid, before[1].xid]
    nothing_is_left(client, writer)
    assert taken(client, writer.queue) == rows(range(20))


def test_every_branch_is_committed_before_the_decision(client: Client, writer: Writer) -> None:
    tasks = writer.run(0, range(10), range(10, 20))
    for task in tasks:
        client.transactions.commit_branch(parse_xid(task.xid))
    assert writer.decision.commit(tasks, 0)
    nothing_is_left(client, writer)
    assert taken(client, writer.queue) == rows(range(20))


@memory_only
@pytest.mark.parametrize("again", [[range(10), range(10, 21)], [range(10)]], ids=["more rows", "fewer tasks"])
def test_a_branch_that_is_committed_before_the_decision_with_other_rows(
    client: Client, writer: Writer, again: list[range]
) -> None:
    before = writer.run(0, range(10), range(10, 20))
    client.transactions.commit_branch(parse_xid(before[1].xid))
    tasks = writer.run(0, *again)
    with pytest.raises(StateError, match=r"Batch 0 was published .* before, and is not the same now: partition 1"):
        writer.decision.commit(tasks, 0)
    writer.decision.abort(tasks, 0)
    assert taken(client, writer.queue) == rows(range(10, 20))


@memory_only
def test_two_attempts_at_a_task_are_committed(client: Client, writer: Writer) -> None:
    both = [writer.task(0, 0, range(10)), writer.task(0, 0, range(10), attempt=1)]
    for task in both:
        client.transactions.commit_branch(parse_xid(task.xid))
    tasks = writer.run(0, range(10))
    with pytest.raises(StateError, match=r"Partition 0 of batch 0 .* was committed by .* and not by the decided"):
        writer.decision.commit(tasks, 0)


@memory_only
def test_an_orphan_is_committed_after_the_decision(client: Client, writer: Writer, fate: Fate) -> None:
    tasks = writer.run(0, range(10))
    stray = orphan(writer, 0)
    fate.kill_at(crashpoints.DECISION_COMMITTED)
    with pytest.raises(Killed):
        writer.decision.commit(tasks, 0)
    client.transactions.commit_branch(parse_xid(stray))
    anew(writer)
    with pytest.raises(StateError, match=f"was committed by {stray}.*Remove the rows of the batch"):
        writer.publish(0, range(10))


def test_a_decided_branch_is_lost_and_its_repetition_takes_its_place(
    client: Client, writer: Writer, fate: Fate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_protocol, "MARKER_SECONDS", 0.5)
    tasks = writer.run(0, range(10), range(10, 20), range(20, 30))
    fate.kill_at(crashpoints.DECISION_COMMITTED)
    with pytest.raises(Killed):
        writer.decision.commit(tasks, 0)
    client.transactions.rollback_branch(parse_xid(tasks[1].xid))
    anew(writer)
    with pytest.raises(StateError, match=f"{tasks[1].xid} of partition 1 in batch 0 .* 1 of 3 .* not run it again yet"):
        writer.decision.commit(tasks, 0)  # the same attempt: it cannot help itself
    with pytest.raises(StateError, match="its repetition has other rows"):
        writer.publish(0, range(10), range(11, 20), range(20, 30))
    with pytest.raises(StateError, match=r"its repetition has other rows.*Remove the rows of the batch that arrived"):
        writer.publish(0, range(10))
    others = writer.run(1, range(30, 40))
    with pytest.raises(StateError, match="not run it again yet"):
        writer.decision.commit(others, 1)
    writer.decision.abort(others, 1)
    assert depth(client, writer.queue) == 20
    again = writer.run(0, range(10), range(10, 20), range(20, 30))
    assert not writer.decision.commit(again, 0)
    assert [each.xid for each in state_of(client, writer).branches] == [tasks[0].xid, again[1].xid, tasks[2].xid]
    nothing_is_left(client, writer)
    assert taken(client, writer.queue) == rows(range(30))


def test_a_decided_branch_is_committed_by_another_client(client: Client, writer: Writer, fate: Fate) -> None:
    tasks = writer.run(0, range(10), range(10, 20))
    fate.kill_at(crashpoints.DECISION_COMMITTED)
    with pytest.raises(Killed):
        writer.decision.commit(tasks, 0)
    client.transactions.commit_branch(parse_xid(tasks[1].xid))
    anew(writer)
    assert not writer.publish(0, range(10), range(10, 20))
    nothing_is_left(client, writer)
    assert taken(client, writer.queue) == rows(range(20))


# -------------------------------------------------------------------------------------- queues with a fate of their own
@memory_only
def test_a_state_queue_that_was_deleted_is_noticed(client: Client, writer: Writer) -> None:
    writer.publish(0, range(10))
    client.delete_queue(writer.names.state)
    anew(writer)
    tasks = writer.run(0, range(10))
    with pytest.raises(StateError, match=r"The state queue .* was deleted, .*--forget` lets the next batch begin anew"):
        writer.decision.commit(tasks, 0)
    writer.decision.abort(tasks, 0)
    assert taken(client, writer.queue) == rows(range(10))
    client.delete_queue(writer.names.markers)  # as --forget does
    assert writer.publish(1, range(10, 20))
    nothing_is_left(client, writer)


@memory_only
@pytest.mark.parametrize("first", [True, False])
def test_a_queue_of_markers_that_was_deleted_before_the_decision(client: Client, writer: Writer, first: bool) -> None:
    if not first:
        writer.publish(0, range(10))
    tasks = writer.run(1, range(10, 20))
    client.delete_queue(writer.names.markers)
    with pytest.raises(StateError, match=r"The queue .* was deleted, .*nothing of batch 1 was committed"):
        writer.decision.commit(tasks, 1)
    writer.decision.abort(tasks, 1)
    assert writer.publish(1, range(10, 20))
    nothing_is_left(client, writer)
    assert taken(client, writer.queue) == rows(range(10 if first else 0, 20))


@memory_only
def test_a_queue_of_markers_that_was_deleted_after_the_decision(client: Client, writer: Writer, fate: Fate) -> None:
    """As long as all transactions are prepared their commit proves itself."""
    writer.publish(0, range(10))
    tasks = writer.run(1, range(10, 20), range(20, 30))
    fate.kill_at(crashpoints.DECISION_COMMITTED)
    with pytest.raises(Killed):
        writer.decision.commit(tasks, 1)
    client.delete_queue(writer.names.markers)
    anew(writer)
    assert not writer.publish(1, range(10, 20), range(20, 30))
    assert writer.publish(2, range(30, 40))
    nothing_is_left(client, writer)
    assert taken(client, writer.queue) == rows(range(40))


@memory_only
def test_a_queue_of_markers_that_was_deleted_among_the_commits(client: Client, writer: Writer, fate: Fate) -> None:
    """Whether what is no longer prepared was committed cannot be known: nothing takes its place."""
    tasks = writer.run(0, range(10), range(10, 20))
    fate.kill_at(crashpoints.SOME_COMMITTED)
    with pytest.raises(Killed):
        writer.decision.commit(tasks, 0)
    client.delete_queue(writer.names.markers)
    for _ in range(2):
        anew(writer)
        with pytest.raises(
            StateError, match=r"was deleted in the commit of batch 0: \d of 2 transactions are in doubt"
        ):
            writer.publish(0, range(10), range(10, 20))
    assert taken(client, writer.queue) == rows(range(20)), "the other one was prepared, and is committed"


@memory_only
def test_something_else_among_the_markers(client: Client, writer: Writer) -> None:
    writer.publish(0, range(10))
    publish(client, writer.names.markers, [b"hello"])
    with pytest.raises(
        StateError, match=r"The queue 'amqp-spark\.markers\..* is for markers .* take that message away"
    ):
        writer.publish(1, range(10))
    assert depth(client, writer.names.markers) == 1


@memory_only
def test_strays_of_what_is_done_are_told(client: Client, writer: Writer, caplog: pytest.LogCaptureFixture) -> None:
    """An attempt that prepared after the last sweep, and that the broker has committed when it was restarted."""
    writer.publish(0, range(10))
    stray = orphan(writer, 0)
    client.transactions.commit_branch(parse_xid(stray))
    anew(writer)
    assert not writer.publish(0, range(10))
    assert f"{stray} (partition 0, batch 0 of query {writer.query_id}) was committed without a decision" in caplog.text
    caplog.clear()
    assert writer.publish(1, range(10, 20))
    assert stray in caplog.text
    caplog.clear()
    assert writer.publish(2, range(20, 30))
    assert stray not in caplog.text
    nothing_is_left(client, writer)


def test_a_task_whose_connection_broke_leaves_nothing_at_the_broker(client: Client, writer: Writer) -> None:
    """Broker-J keeps the branch of a session that ended: the task rolls it back on another connection."""
    delivery = writer.delivery(0)

    def cut() -> Iterator[pa.RecordBatch]:
        yield from batches(["1"])
        for lease in list(writer.tasks._leases):
            lease.client.abort()
        yield from batches(["2"])

    begun: list[Xid] = []
    policy = delivery.policy
    begin = policy._begin

    def noted(lease: Lease) -> None:
        begin(lease)
        assert policy._xid is not None
        begun.append(policy._xid)

    policy._begin = noted  # type: ignore[method-assign]
    with pytest.raises(PublishFailed, match="lost in the middle of the transaction"):
        delivery.run(cut())
    with pytest.raises(NotFound):
        client.transactions.rollback_branch(begun[0])
