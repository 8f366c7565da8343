"""``python -m amqp_spark.transactions`` beside real queries: while they run, and as the way out when they cannot."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from amqp_spark.cli import EXIT_DONE, EXIT_FAILED
from amqp_spark.state.names import CONSUMER, WRITER, Names
from tests.broker.sink_support import login, write
from tests.broker.stream_support import Stream, depth, numbers, publish
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.broker.transactions_support import Command
    from tests.support.fixtures import Broker, Connect

pytestmark = [pytest.mark.broker, pytest.mark.spark]

ROWS = 30


@pytest.fixture
def identity(connect: Connect) -> Iterator[str]:
    identity = f"test {uuid.uuid4()}"
    yield identity
    client = connect()
    for kind in (CONSUMER, WRITER):
        names = Names(kind, identity)
        for queue in (names.state, names.markers):
            if client.query_queue(queue) is not None:
                client.delete_queue(queue)


def fail(frame: DataFrame, _batch: int) -> None:
    if not frame.isEmpty():
        raise RuntimeError("this sink fails")


@pytest.mark.thorough
def test_a_source_is_seen_while_it_runs_and_when_it_is_stuck_and_can_be_begun_anew(
    command: Command, spark: SparkSession, broker: Broker, connect: Connect, queue: str, identity: str, tmp_path: Path
) -> None:
    client = connect()
    publish(client, queue, numbers(ROWS))
    options: dict[str, Any] = {
        "deliveryGuarantee": "exactly-once",
        "consumerId": identity,
        "spoolLocation": str(tmp_path / "spool"),
        "heartbeat": 2,
    }
    stream = Stream(spark, broker, tmp_path / "first")
    query = stream.start(stream.frame(queue, "body BINARY", **options))
    try:
        wait_until(lambda: len(stream.rows) == ROWS, "the rows", 60.0)
        (found,) = command.json("--consumer-id", identity)["states"]
        assert found["held"]
        assert command("--consumer-id", identity) == EXIT_DONE
        assert "held by a live query" in command.out
        assert command("--consumer-id", identity, "--forget", "--yes") == EXIT_FAILED
        assert "in use" in command.err
        assert query.exception() is None
    finally:
        query.stop()

    publish(client, queue, numbers(ROWS, ROWS))
    with pytest.raises(StreamingQueryException, match="this sink fails"):
        stream.drain(stream.frame(queue, "body BINARY", **options), fail)
    wait_until(lambda: client.query_queue(Names(CONSUMER, identity).lock) is None, "the end of the lock", 30.0)
    (found,) = command.json("--consumer-id", identity)["states"]
    assert [(each["rows"], each["in_spool"]) for each in found["files"]] == [(ROWS, "exists")]
    assert depth(client, queue) == 0

    assert command("--consumer-id", identity, "--forget", "--yes") == EXIT_DONE, command.err
    assert f"{ROWS} messages" in command.err
    other = Stream(spark, broker, tmp_path / "second")
    with pytest.raises(StreamingQueryException, match="adoptState=true"):
        other.drain(other.frame(queue, "body BINARY", **options))
    other.drain(other.frame(queue, "body BINARY", **options, adoptState=True))
    assert sorted(other.bodies()) == numbers(ROWS, ROWS)


@pytest.mark.thorough
def test_branches_that_a_sink_left_behind_are_listed_and_rolled_back(
    command: Command, spark: SparkSession, broker: Broker, connect: Connect, queue: str, identity: str
) -> None:
    frame = spark.range(ROWS).selectExpr("CAST(id AS STRING) AS body").coalesce(1)
    options = login(
        broker, deliveryGuarantee="exactly-once", transactionalId=identity, routingKey=queue, batchId=1, heartbeat=1
    )
    holder = connect(heartbeat=0)
    holder.declare_queue(Names(WRITER, identity).lock, exclusive=True, auto_delete=True)
    with pytest.raises(Exception, match="in use"):
        write(frame, options)
    (branch,) = command.json("--transactional-id", identity)["prepared"]
    assert (branch["batch"], branch["partition"]) == (1, 0)
    assert branch["standing"] in {"unknown", "not decided"}  # the writer has no state yet
    assert command("--rollback", branch["xid"], "--yes") == EXIT_FAILED
    assert "in use" in command.err
    holder.close()
    assert command("--rollback", branch["xid"], "--yes") == EXIT_DONE, command.err
    write(frame, options)
    found = command.json("--transactional-id", identity)
    assert (found["prepared"], found["markers"]) == ([], [])
    assert (found["state"]["batch"], found["state"]["state"]) == (1, "done")
    assert {each["standing"] for each in found["decisions"]} == {"committed"}
    assert depth(connect(), queue) == ROWS

    assert command("--transactional-id", identity, "--forget", "--yes") == EXIT_DONE
    write(frame, options)  # the same batch: no record says any more that it was published
    assert depth(connect(), queue) == 2 * ROWS
