"""Failed runs of a batch leave the branches of at most one run on a real broker, and none after a success."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from amqp_core.api import Xid
from amqp_spark.sink import commit_coordinator as decisions
from amqp_spark.sink import errors
from amqp_spark.state.names import WRITER, hashed
from amqp_spark.state.xids import FORMAT, Run
from tests.broker.exactly_once_support import Writer, anew, nothing_is_left, prepared_of, rows
from tests.broker.sink_scenarios import duplicates, put_file, taken
from tests.broker.stream_support import depth
from tests.broker.test_exactly_once_sink import STREAMS, files, options_of, run_stream, sink

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from amqp_core.v0_10.client import Client
    from tests.support.fixtures import Broker, Connect

pytestmark = pytest.mark.broker


@pytest.fixture
def client(connect: Connect) -> Client:
    return connect(heartbeat=0)  # it sends no heartbeats while Spark works


@pytest.fixture
def writer(broker: Broker, queue: str) -> Iterator[Writer]:
    writer = Writer(broker, queue)
    yield writer
    writer.close()


FAILING_RUNS = 50


@pytest.mark.thorough
def test_fifty_runs_that_are_aborted_leave_the_branches_of_one_at_most(client: Client, writer: Writer) -> None:
    """In each one a task has prepared when the driver aborts, and another one prepares afterwards."""
    for _ in range(FAILING_RUNS):
        anew(writer)
        writer.task(0, 0, range(3))
        writer.decision.abort([], 0, query_id=writer.query_id, run=writer.run_of_batch)
        assert prepared_of(client, writer) == []
        writer.task(0, 1, range(3, 6))
        assert len(prepared_of(client, writer)) == 1
    anew(writer)
    assert writer.publish(0, range(3), range(3, 6))
    nothing_is_left(client, writer)
    assert taken(client, writer.queue) == rows(range(6))


@pytest.mark.thorough
def test_fifty_drivers_that_are_killed_leave_the_branches_of_one_at_most(client: Client, writer: Writer) -> None:
    assert writer.query_id is not None
    for _ in range(FAILING_RUNS):
        anew(writer)
        writer.decision.sweep_before(writer.query_id, 0, writer.run_of_batch)
        assert prepared_of(client, writer) == []
        writer.run(0, range(3), range(3, 6))
    assert len(prepared_of(client, writer)) == 2
    anew(writer)
    assert writer.publish(0, range(3), range(3, 6))
    nothing_is_left(client, writer)


def test_a_run_that_is_at_work_is_left_alone_by_those_before_it(client: Client, writer: Writer) -> None:
    before = writer.run(0, range(3))
    late = Run(writer.run_of_batch.begun + 1, "00ff00")
    writer.run_of_batch = late
    tasks = writer.run(0, range(3))
    writer.decision.abort(before, 0)
    assert prepared_of(client, writer) == [tasks[0].xid]
    assert writer.decision.commit(tasks, 0)
    nothing_is_left(client, writer)
    assert taken(client, writer.queue) == rows(range(3))


def test_a_decided_batch_survives_a_run_that_begins(client: Client, writer: Writer) -> None:
    assert writer.query_id is not None
    assert writer.publish(0, range(3))
    anew(writer)
    stray = writer.task(0, 0, range(3))
    anew(writer)
    writer.decision.sweep_before(writer.query_id, 0, writer.run_of_batch)
    assert stray.xid not in prepared_of(client, writer)
    assert not writer.publish(0, range(3))
    assert taken(client, writer.queue) == rows(range(3))


def test_branches_of_the_first_version_are_swept(
    client: Client, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next commit rolls back the branches of an older amqp_spark, as before."""
    old = Writer(writer.broker, writer.queue, identity=writer.identity, query_id=writer.query_id)
    monkeypatch.setattr("amqp_spark.sink.exactly_once.new_branch", first_version)
    stray = old.task(0, 0, range(3))
    assert ":as1k" in stray.xid
    monkeypatch.undo()
    old.close()
    assert prepared_of(client, writer) == [stray.xid]
    assert writer.publish(0, range(3))
    nothing_is_left(client, writer)
    assert taken(client, writer.queue) == rows(range(3))


def first_version(identity: str, query_id: str, batch: int, partition: int, attempt: int, *, run: Run) -> Xid:
    """A branch's name as the first version made it."""
    del run
    gid = f"as1k{hashed(WRITER, identity)}{hashed(query_id)}".encode()
    return Xid(format=FORMAT, global_id=gid, branch_id=f"{batch}.{partition}.{attempt}.65f00000.0123abcd".encode())


# ------------------------------------------------------------------------------------------------------------ in Spark
def failing(frame: DataFrame, row: int) -> DataFrame:
    """The task that has this row fails."""
    return frame.selectExpr(f"CASE WHEN body = '{row}' THEN raise_error('told to fail') ELSE body END AS body")


@pytest.mark.thorough
@pytest.mark.sampled("entry", every=2)
@pytest.mark.spark
@pytest.mark.parametrize("entry", STREAMS)
def test_a_stream_whose_batch_fails_again_and_again_leaves_the_branches_of_one_run_at_most(
    spark: SparkSession, client: Client, writer: Writer, tmp_path: Path, entry: str
) -> None:
    count = 8
    for begin in range(0, 100 * count, 100):
        put_file(tmp_path / "rows", begin, begin + 100)
    frame = files(spark, tmp_path / "rows", per_batch=count).repartition(count)
    for _ in range(4):
        with pytest.raises(Exception, match="told to fail"):
            run_stream(entry, failing(frame, 750), tmp_path / "checkpoint", options_of(writer))
        assert len(prepared_of(client, writer)) < count
        assert depth(client, writer.queue) == 0
    run_stream(entry, frame, tmp_path / "checkpoint", options_of(writer))
    assert duplicates(taken(client, writer.queue), 100 * count) == 0
    nothing_is_left(client, writer)


@pytest.mark.spark
def test_nothing_is_prepared_still_when_for_each_batch_has_failed(
    spark: SparkSession, client: Client, writer: Writer, tmp_path: Path
) -> None:
    """One task after the other, so that none is under way when the last one fails: all of them had prepared."""
    put_file(tmp_path / "rows", 0, 100)
    frame = files(spark, tmp_path / "rows")
    seen: list[int] = []

    def publish(batch: DataFrame, batch_id: int) -> None:
        together = batch.coalesce(1)
        good, bad = together, failing(together, 99)
        try:
            sink(options_of(writer))(good.union(bad), batch_id)
        finally:
            seen.append(len(prepared_of(client, writer)))

    query = (
        frame.writeStream.foreachBatch(publish)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with contextlib.suppress(Exception):
        query.awaitTermination(120)
    assert "told to fail" in str(query.exception())
    assert len(seen) == 1
    assert seen[0] <= 1
    assert depth(client, writer.queue) == 0


@pytest.mark.spark
def test_a_batch_of_too_many_tasks_is_refused_before_any_of_them_runs(
    spark: SparkSession, client: Client, writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for qpidd, which would not be able to name what they prepare."""
    monkeypatch.setattr(decisions.CommitCoordinator, "has_few_tasks", lambda _self: True)
    put_file(tmp_path / "rows", 0, 10)
    most = errors.MOST_TASKS
    frame = files(spark, tmp_path / "rows").repartition(most + 1)
    with pytest.raises(Exception, match=rf"Batch 0 has {most + 1} tasks, and this broker \(qpidd\) takes {most}.*coal"):
        run_stream("foreachBatch", frame, tmp_path / "checkpoint", options_of(writer))
    assert prepared_of(client, writer) == []
    assert client.query_queue(writer.names.markers) is None, "no task has begun a transaction"
    run_stream("foreachBatch", frame.coalesce(4), tmp_path / "checkpoint", options_of(writer))
    assert taken(client, writer.queue) == rows(range(10))
    nothing_is_left(client, writer)
