"""Tasks and decisions of an exactly-once sink without Spark: what a worker and a driver would do, call by call."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructType

from amqp_core.errors import ConnectionLost
from amqp_spark.arrow.encode import MessagePlan, TaskId
from amqp_spark.options import SinkOptions
from amqp_spark.sink.commit_coordinator import CommitCoordinator
from amqp_spark.sink.connections import Connections
from amqp_spark.state.names import WRITER, Names
from amqp_spark.state.queue import StateQueue
from amqp_spark.state.records import WriterState
from amqp_spark.state.xids import Run, parse_branch, xid_text
from tests.broker.stream_support import depth
from tests.support.tasks import ExactlyOnceTask

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from amqp_core.v0_10.client import Client
    from amqp_spark.sink.prepared_transactions import PreparedBranch
    from tests.support.fixtures import Broker

SCHEMA = StructType().add("body", "string")


def batches(bodies: Sequence[str], per_batch: int = 100) -> Iterator[pa.RecordBatch]:
    """Rows as a task gets them."""
    for start in range(0, len(bodies), per_batch):
        yield pa.RecordBatch.from_pydict({"body": pa.array(bodies[start : start + per_batch], pa.string())})


@dataclass
class Writer:
    """One query with one transactionalId; every process of it is a pool of connections of its own."""

    broker: Broker
    queue: str
    vhost: str = "default"
    identity: str = field(default_factory=lambda: f"writer-{uuid.uuid4().hex[:8]}")
    query_id: str | None = field(default_factory=lambda: str(uuid.uuid4()))
    given: dict[str, Any] = field(default_factory=dict)
    run_of_batch: Run = field(default_factory=Run.new)
    timeout_s: int | None = None
    """A transactionTimeout that is shorter than the option allows."""
    tasks: Connections = field(default_factory=Connections)
    drivers: Connections = field(default_factory=Connections)

    @property
    def options(self) -> SinkOptions:
        """Those of the sink."""
        options = SinkOptions.parse(
            {
                "url": self.broker.url(self.vhost),
                "username": self.broker.username,
                "password": self.broker.password,
                "routingKey": self.queue,
                "deliveryGuarantee": "exactly-once",
                "transactionalId": self.identity,
                "retry.maxDelay": 0.2,
            }
            | self.given
        )
        return options if self.timeout_s is None else replace(options, transaction_timeout=self.timeout_s)

    @property
    def names(self) -> Names:
        """The queues of the writer."""
        return Names(WRITER, self.identity)

    @property
    def decision(self) -> CommitCoordinator:
        """The commit coordinator of the driver."""
        return CommitCoordinator(self.options, connections=self.drivers)

    def delivery(self, batch: int, partition: int = 0, *, attempt: int = 0) -> ExactlyOnceTask:
        """A task that has not run."""
        options = self.options
        plan = MessagePlan.build(SCHEMA, options)
        place = TaskId(self.query_id, batch, partition)
        run = self.run_of_batch
        return ExactlyOnceTask(plan, options, place, attempt=attempt, run=run, connections=self.tasks)

    def task(self, batch: int, partition: int, bodies: Sequence[object], *, attempt: int = 0) -> PreparedBranch:
        """Run a task."""
        delivery = self.delivery(batch, partition, attempt=attempt)
        delivery.run(batches([str(body) for body in bodies]))
        return delivery.prepared

    def run(self, batch: int, *partitions: Sequence[object]) -> list[PreparedBranch]:
        """Run the tasks of a batch."""
        return [self.task(batch, partition, bodies) for partition, bodies in enumerate(partitions)]

    def publish(self, batch: int, *partitions: Sequence[object]) -> bool:
        """A batch from tasks to commit."""
        return self.decision.commit(self.run(batch, *partitions), batch)

    def close(self) -> None:
        """End all connections."""
        self.tasks.close()
        self.drivers.close()


def state_of(client: Client, writer: Writer) -> WriterState:
    """The state of the writer; no session may hold it."""
    queue = StateQueue(client, writer.names)
    body = queue.take()
    assert body is not None
    queue.lock()
    queue.unlock()
    return WriterState.load(body)


def prepared_of(client: Client, writer: Writer) -> list[str]:
    """The xids that are prepared, of this writer."""
    found = client.transactions.recover()
    return [xid_text(xid) for xid in found if (branch := parse_branch(xid)) and branch.is_of(writer.identity)]


def nothing_is_left(client: Client, writer: Writer) -> None:
    """After a batch: no branch of the writer, no marker, no lock, and one state message."""
    assert prepared_of(client, writer) == []
    assert depth(client, writer.names.markers) == 0
    assert client.query_queue(writer.names.lock) is None
    assert depth(client, writer.names.state) == 1


class Killed(BaseException):
    """The process ends here."""


class Fate:
    """An action at a crash point, executed once."""

    def __init__(self) -> None:
        self.point = ""
        self.error: BaseException = Killed()

    def __call__(self, point: str) -> None:
        if point == self.point:
            self.point = ""
            raise self.error

    def kill_at(self, point: str) -> None:
        """The process that gets there is killed."""
        self.point, self.error = point, Killed()

    def cut_at(self, point: str) -> None:
        """The connection breaks there."""
        self.point, self.error = point, ConnectionLost("the connection was cut")


def anew(writer: Writer) -> None:
    """The next process of the query."""
    writer.close()
    writer.tasks, writer.drivers = Connections(), Connections()
    writer.run_of_batch = Run.new()


def orphan(writer: Writer, batch: int) -> str:
    """One more attempt at a task, that Spark says nothing of."""
    return writer.task(batch, 0, ["1000"], attempt=1).xid


def rows(*ranges: range) -> Counter[int]:
    """As :func:`tests.broker.sink_scenarios.taken` tells that they are there once."""
    return Counter(row for each in ranges for row in each)
