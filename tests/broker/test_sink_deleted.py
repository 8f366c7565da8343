"""Exchanges and queues that are deleted while a task publishes, on a real broker."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from amqp_spark.arrow.encode import MessagePlan, TaskId
from amqp_spark.errors import PublishFailed, Unroutable
from amqp_spark.options import SinkOptions
from amqp_spark.sink.at_least_once import AtLeastOnce
from amqp_spark.sink.connections import Connections
from amqp_spark.sink.task_writer import TaskWriter
from amqp_spark.state.names import WRITER, Names
from tests.broker.sink_support import login
from tests.support.tasks import ExactlyOnceTask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.fixtures import Broker, Connect

pytestmark = [pytest.mark.broker]

SCHEMA = StructType().add("body", "binary")
ROWS = pa.RecordBatch.from_pydict({"body": pa.array([b"x"] * 100, pa.binary())})


@pytest.fixture
def task(broker: Broker) -> Iterator[Callable[..., TaskWriter]]:
    """Makes tasks; their connections end with the test."""
    pool = Connections()

    def make(exchange: str, key: str) -> TaskWriter:
        options = SinkOptions.parse(login(broker, exchange=exchange, routingKey=key))
        policy = AtLeastOnce(options, TaskId(None, 1, 0), connections=pool)
        return TaskWriter(MessagePlan.build(SCHEMA, options), policy)

    yield make
    pool.close()


def rows_and_between(do: Callable[[], object]) -> Iterator[pa.RecordBatch]:
    yield ROWS
    do()
    yield ROWS


def test_an_exchange_that_is_deleted_fails_the_task(
    task: Callable[..., TaskWriter], connect: Connect, queue: str, fresh_names: Iterator[str]
) -> None:
    """Broker-J routes what comes then by queue name, and completes it."""
    client, exchange = connect(heartbeat=0), next(fresh_names)
    client.declare_exchange(exchange, "direct")
    client.bind(queue, exchange, queue)
    with pytest.raises(PublishFailed, match=rf"for exchange '{exchange}'.*(the exchange was deleted|404)"):
        task(exchange, queue).run(rows_and_between(lambda: client.delete_exchange(exchange)))


def test_a_queue_that_is_deleted_fails_the_task(
    task: Callable[..., TaskWriter], connect: Connect, fresh_names: Iterator[str]
) -> None:
    """A broker that rejects what it cannot route says so itself; any other one is asked again."""
    client, queue = connect(heartbeat=0), next(fresh_names)
    client.declare_queue(queue)
    client.bind(queue, "amq.direct", queue)
    with pytest.raises(Unroutable, match=rf"message\(s\), the first is row .* with routing key '{queue}'"):
        task("amq.direct", queue).run(rows_and_between(lambda: client.delete_queue(queue)))


def test_an_empty_routing_key_reaches_no_queue_that_is_not_bound_with_it(
    task: Callable[..., TaskWriter], connect: Connect, queue: str
) -> None:
    connect(heartbeat=0).bind(queue, "amq.direct", queue)
    with pytest.raises(Unroutable, match=r"exchange 'amq\.direct' with routing key ''"):
        task("amq.direct", "").run([ROWS])


@pytest.mark.parametrize("key", ["", None])
def test_an_empty_routing_key_is_no_queue(broker: Broker, key: str | None) -> None:
    """Rows of a column get to the default exchange with an empty key: no queue has that name."""
    options, pool = SinkOptions.parse(login(broker)), Connections()
    schema = StructType().add("body", "binary").add("routing_key", "string")
    rows = ROWS.append_column("routing_key", pa.array([key] * ROWS.num_rows, pa.string()))
    try:
        policy = AtLeastOnce(options, TaskId(None, 1, 0), connections=pool)
        with pytest.raises(Unroutable, match="exchange '' with routing key ''"):
            TaskWriter(MessagePlan.build(schema, options), policy).run([rows])
    finally:
        pool.close()


def test_a_queue_that_is_deleted_after_the_last_row_of_a_transaction_fails_the_task(
    broker: Broker, connect: Connect, fresh_names: Iterator[str]
) -> None:
    """The broker has taken every row: they would vanish when the transaction is committed."""
    client, queue, writer = connect(heartbeat=0), next(fresh_names), next(fresh_names)
    client.declare_queue(queue)
    client.bind(queue, "amq.direct", queue)
    given = {"exchange": "amq.direct", "routingKey": queue}
    options = SinkOptions.parse(
        login(broker, **given) | {"deliveryGuarantee": "exactly-once", "transactionalId": writer}
    )
    pool = Connections()
    place = TaskId(str(uuid.uuid4()), 1, 0)
    task = ExactlyOnceTask(MessagePlan.build(SCHEMA, options), options, place, connections=pool)

    def batches() -> Iterator[pa.RecordBatch]:
        yield ROWS
        assert task.policy.sender.link is not None
        task.policy.sender.link.publisher.finish()
        client.delete_queue(queue)

    try:
        with pytest.raises(Unroutable, match=r"100 message\(s\), the first is row 0 .*was deleted during the task"):
            task.run(batches())
    finally:
        pool.close()
        client.delete_queue(Names(WRITER, writer).markers)
