"""The connection of a sink breaks at every point of publishing: nothing is lost, and what comes twice is counted."""

from __future__ import annotations

from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import InheritableThread
from pyspark.errors import PythonException

from amqp_core.v0_10 import spec
from amqp_spark.arrow.rows.messages import MOST_ROWS
from tests.broker.sink_scenarios import (
    BODY,
    Target,
    body_frame,
    completion_of,
    duplicates,
    first_rows_and_then,
    put_file,
    rows,
    sync,
    taken,
    transfer,
)
from tests.broker.stream_support import depth
from tests.support.dial import address, by_way_of
from tests.support.process import wait_until
from tests.support.proxy import FaultProxy
from tests.support.triggers import operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.fixtures import Broker, Connect
    from tests.support.proxied import Fault

pytestmark = [pytest.mark.broker, pytest.mark.spark]

COUNT = MOST_ROWS + 2000
"""Two blocks of one task, with an execution.sync after each 2500 and at the end."""
FINAL_SYNC = 5
EXCHANGE = "amq.direct"


@pytest.fixture
def proxy(broker: Broker) -> Iterator[FaultProxy]:
    with FaultProxy(address(broker)) as proxy:
        yield proxy


@pytest.fixture
def target(broker: Broker, connect: Connect, queue: str) -> Target:
    """A queue behind amq.direct, so that the exchange is asked for."""
    connect().bind(queue, EXCHANGE, binding_key=queue)
    return Target(broker, queue)


def through(target: Target, proxy: FaultProxy) -> dict[str, Any]:
    return {"url": by_way_of(proxy.port, target.broker.url()), "exchange": EXCHANGE}


# Each strikes one connection, once. Nothing was sent when these strike:
EARLY: dict[str, Callable[[FaultProxy], Fault]] = {
    "ended by the protocol header": lambda p: p.to_client.cut(operation(spec.ConnectionStart.CODE)),
    "ended during login": lambda p: p.to_broker.cut(operation(spec.ConnectionStartOk.CODE, inside=20)),
    "ended before open-ok": lambda p: p.to_client.cut(operation(spec.ConnectionOpenOk.CODE)),
    "ended before the session": lambda p: p.to_client.cut(operation(spec.SessionAttached.CODE)),
    "ended before the exchange query": lambda p: p.to_broker.cut(operation(spec.ExchangeQuery.CODE)),
    "ended before its answer": lambda p: p.to_client.cut(operation(spec.ExecutionResult.CODE)),
}
# Something was sent, and the broker has not completed all of it:
LATE: dict[str, Callable[[FaultProxy], Fault]] = {
    "ended inside the first block": lambda p: p.to_broker.cut(transfer(700)),
    "ended inside a frame header": lambda p: p.to_broker.cut(transfer(1300, inside=6)),
    "reset between command and body": lambda p: p.to_broker.cut(transfer(1300, past=True), how="reset"),
    "ended inside a body": lambda p: p.to_broker.cut(body_frame(3000, inside=13)),
    "ended between two blocks": lambda p: p.to_broker.cut(transfer(MOST_ROWS + 1)),
    "ended before the final sync": lambda p: p.to_broker.cut(sync(FINAL_SYNC)),
    "ended after the final sync": lambda p: p.to_broker.cut(sync(FINAL_SYNC, past=True)),
    "half closed to the broker": lambda p: p.to_broker.half_close(transfer(700)),
    "half closed by the broker": lambda p: p.to_client.half_close(completion_of(500)),
    "garbage from the broker": lambda p: p.to_client.inject(b"\xff" * 40, completion_of(500)),
    "stalled to the broker": lambda p: p.to_broker.stall(body_frame(700, inside=13)),
    "stalled from the broker": lambda p: p.to_client.stall(completion_of(500)),
}


@pytest.mark.sampled("fault", every=3)
@pytest.mark.parametrize("fault", EARLY)
def test_a_connection_that_breaks_before_anything_was_sent(
    spark: SparkSession, target: Target, proxy: FaultProxy, connect: Connect, fault: str
) -> None:
    struck = EARLY[fault](proxy)
    sink = target.sink(**through(target, proxy))
    sink(rows(spark, COUNT), 0)
    assert struck.struck.is_set()
    assert (sink.last.messages, sink.last.retries, sink.last.resent) == (COUNT, 1, 0)
    assert duplicates(taken(connect(), target.queue), COUNT) == 0


def test_transfers_that_never_arrived_are_counted_as_sent_again_and_are_no_duplicates(
    spark: SparkSession, target: Target, proxy: FaultProxy, connect: Connect
) -> None:
    struck = proxy.to_broker.cut(transfer(), how="reset")
    sink = target.sink(**through(target, proxy))
    sink(rows(spark, COUNT), 0)
    assert struck.struck.is_set()
    assert sink.last.retries == 1
    assert 0 < sink.last.resent <= COUNT
    assert duplicates(taken(connect(), target.queue), COUNT) == 0


@pytest.mark.sampled("fault", every=3)
@pytest.mark.parametrize("fault", LATE)
def test_a_connection_that_breaks_while_transfers_are_not_completed(
    spark: SparkSession, target: Target, proxy: FaultProxy, connect: Connect, fault: str
) -> None:
    struck = LATE[fault](proxy)
    sink = target.sink(**through(target, proxy), heartbeat=2)  # a busy machine must not lose a second connection
    sink(rows(spark, COUNT), 0)
    assert struck.struck.is_set()
    assert (sink.last.messages, sink.last.retries) == (COUNT, 1)
    assert 0 < sink.last.resent <= COUNT
    assert duplicates(taken(connect(), target.queue), COUNT) <= sink.last.resent


def test_an_answer_that_is_lost_makes_a_duplicate_of_each_row_that_it_was_about(
    spark: SparkSession, target: Target, proxy: FaultProxy, connect: Connect
) -> None:
    count = 200  # too few for the broker to complete anything unasked
    struck = proxy.to_client.cut(completion_of(count + 1))  # after exchange.query and the transfers: the sync
    sink = target.sink(**through(target, proxy))
    sink(rows(spark, count), 0)
    assert struck.struck.is_set()
    assert sink.last.resent == count
    assert taken(connect(), target.queue) == dict.fromkeys(range(count), 2)


@pytest.mark.parametrize("fault", ["ended inside the first block", "ended after the final sync"])
@pytest.mark.sampled("fault", every=2)
@pytest.mark.parametrize("entry", ["batch", "stream", "foreachBatch"])
def test_every_entry_survives_it(
    spark: SparkSession, target: Target, proxy: FaultProxy, connect: Connect, tmp_path: Path, entry: str, fault: str
) -> None:
    struck = LATE[fault](proxy)
    options = target.options(**through(target, proxy))
    if entry == "batch":
        rows(spark, COUNT).write.format("amqp").mode("append").options(**options).save()
    else:
        put_file(tmp_path / "rows", 0, COUNT)
        frame = spark.readStream.schema("id BIGINT").parquet(str(tmp_path / "rows")).selectExpr(BODY)
        writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        if entry == "stream":
            writer = writer.format("amqp").options(**options)
        else:
            writer = writer.foreachBatch(target.sink(**through(target, proxy)))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120), "the query did not end"
    assert struck.struck.is_set()
    assert len(proxy.connections) == 2
    assert duplicates(taken(connect(), target.queue), COUNT) <= COUNT


@pytest.mark.sampled("way", every=3)
@pytest.mark.parametrize("way", ["split", "coalesce", "delay"])
def test_how_bytes_arrive_does_not_matter(
    spark: SparkSession, target: Target, proxy: FaultProxy, connect: Connect, way: str
) -> None:
    count = 300
    for lane in (proxy.to_broker, proxy.to_client):
        if way == "split":
            lane.split(size=1)
        elif way == "coalesce":
            lane.coalesce(quiet_s=0.02)
        else:
            lane.delay(0.05)
    sink = target.sink(**through(target, proxy), maxInFlight=100)
    sink(rows(spark, count), 0)
    assert (sink.last.retries, sink.last.resent) == (0, 0)
    assert taken(connect(), target.queue) == dict.fromkeys(range(count), 1)


def test_when_every_connection_breaks_the_doubt_is_told_and_a_second_write_completes_it(
    spark: SparkSession, target: Target, proxy: FaultProxy, connect: Connect
) -> None:
    proxy.to_broker.cut(transfer(100), times=None)  # too early for any completion
    sink = target.sink(**through(target, proxy), retry__maxAttempts=2, retry__maxDelay=0.1)
    doubt = (
        r"OutcomeUnknown: \[AMQP_PUBLISH_OUTCOME_UNKNOWN\] The broker has not confirmed [\d,]+ messages of "
        rf"partition 0 in batch 7 .*after 3 failed connections: .*127\.0\.0\.1:{proxy.port}.*retry\.maxAttempts=2"
    )
    with pytest.raises(PythonException, match=doubt):
        sink(rows(spark, COUNT), 7)
    assert len(proxy.connections) == 3
    proxy.clear()
    sink(rows(spark, COUNT), 7)
    assert duplicates(taken(connect(), target.queue), COUNT) <= 3 * 99


def test_a_broker_that_is_away_is_named_and_nothing_is_in_doubt(
    spark: SparkSession, target: Target, proxy: FaultProxy
) -> None:
    proxy.refuse()
    sink = target.sink(**through(target, proxy), retry__maxAttempts=1, retry__maxDelay=0.1)
    with pytest.raises(PythonException, match=rf"127\.0\.0\.1:{proxy.port}.*Connection refused") as caught:
        sink(rows(spark, 10), 0)
    assert "OutcomeUnknown" not in str(caught.value)


def test_a_broker_that_comes_later_is_waited_for(
    spark: SparkSession, target: Target, proxy: FaultProxy, connect: Connect
) -> None:
    struck = proxy.to_broker.cut(body_frame(700, past=True))
    refused = Event()

    def come_back() -> None:
        struck.wait()
        proxy.refuse()
        refused.set()
        proxy.listen_again()

    helper = Thread(target=come_back)
    helper.start()
    sink = target.sink(**through(target, proxy), retry__maxAttempts=100)
    sink(rows(spark, COUNT), 0)
    helper.join()
    assert refused.is_set()
    assert duplicates(taken(connect(), target.queue), COUNT) <= sink.last.resent


def test_garbage_on_every_connection_ends_the_write(spark: SparkSession, target: Target, proxy: FaultProxy) -> None:
    proxy.to_client.inject(b"\xff" * 40, operation(spec.ExecutionResult.CODE), times=None)
    sink = target.sink(**through(target, proxy), retry__maxAttempts=1, retry__maxDelay=0.1)
    with pytest.raises(PythonException, match=r"DecodeError: .*MALFORMED\] .*frame type 255 .*\(at byte \d+\)"):
        sink(rows(spark, 10), 0)
    assert len(proxy.connections) == 2


# ------------------------------------------------------------------------------------------------ tasks that fail
@pytest.mark.sampled("network", every=2)
@pytest.mark.parametrize("network", ["fast", "slow"])
def test_nothing_of_a_failed_task_is_enqueued_after_its_failure_was_reported(
    spark: SparkSession, target: Target, proxy: FaultProxy, connect: Connect, network: str
) -> None:
    client = connect(heartbeat=0)
    if network == "slow":
        proxy.to_broker.delay(0.3)
    wrong = MOST_ROWS + 900  # in the second block
    frame = spark.range(0, wrong + 100, 1, 1).selectExpr(f"CASE WHEN id <> {wrong} THEN CAST(id AS STRING) END AS body")
    with pytest.raises(PythonException, match=f"Row {wrong} of partition 0 in batch 3 cannot be sent: column 'body'"):
        target.sink(**through(target, proxy))(frame, 3)
    reported = depth(client, target.queue)
    wait_until(lambda: not proxy.open_connections, "the end of the connection of the failed task")
    assert depth(client, target.queue) == reported
    assert taken(client, target.queue) == dict.fromkeys(range(MOST_ROWS), 1), "the block before that of the row"


@pytest.mark.sampled("network", every=2)
@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("network", ["fast", "slow"])
def test_rows_that_fail_to_come_end_the_session_with_the_task(
    spark: SparkSession, target: Target, proxy: FaultProxy, connect: Connect, tmp_path: Path, network: str
) -> None:
    """Spark reports what happened upstream before the sink hears of it: then its connection ends."""
    client = connect(heartbeat=0)
    if network == "slow":
        proxy.to_broker.delay(0.3)
    sent = tmp_path / "sent"
    proxy.to_broker.inject(b"", transfer(500)).struck.set = sent.touch  # type: ignore[method-assign]
    frame = rows(spark, COUNT, size=200).mapInArrow(first_rows_and_then(sent, "this row fails"), "body STRING")
    with pytest.raises(PythonException, match="this row fails"):
        target.sink(**through(target, proxy))(frame, 0)
    wait_until(lambda: not proxy.open_connections, "the end of the connection of the failed task")
    partly = depth(client, target.queue)
    assert taken(client, target.queue) == dict.fromkeys(range(partly), 1)
    assert partly <= 5000


@pytest.mark.usefixtures("small_batches")
def test_a_task_that_spark_kills_ends_its_session_and_another_one_completes_the_rows(
    spark: SparkSession, target: Target, proxy: FaultProxy, connect: Connect, tmp_path: Path
) -> None:
    client = connect(heartbeat=0)
    never = tmp_path / "never"
    frame = rows(spark, COUNT, size=200).mapInArrow(first_rows_and_then(never, ""), "body STRING")
    failures: list[BaseException] = []

    def write() -> None:
        spark.sparkContext.setJobGroup("killed", "a write that is cancelled", interruptOnCancel=True)
        try:
            target.sink(**through(target, proxy))(frame, 0)
        except BaseException as error:  # noqa: BLE001 - looked at below
            failures.append(error)

    writing = InheritableThread(target=write)
    writing.start()
    wait_until(lambda: depth(client, target.queue) >= 500, "the first rows", 60)
    spark.sparkContext.cancelJobGroup("killed")
    writing.join(60)
    assert len(failures) == 1
    wait_until(lambda: not proxy.open_connections, "the end of the connection of the killed task")
    partly = depth(client, target.queue)
    never.touch()
    sink = target.sink(**through(target, proxy))
    sink(frame, 0)
    assert sink.last.resent == 0
    assert duplicates(taken(client, target.queue), COUNT) == partly <= 5000
