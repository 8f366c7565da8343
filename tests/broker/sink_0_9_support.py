"""Tasks of the sink that publish over AMQP 0-9-1, on RabbitMQ (quorum and classic queues) and on Broker-J."""

from __future__ import annotations

import contextlib
import itertools
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyspark.sql.types import StructType

from amqp_core.address import ConnectOptions, parse_url
from amqp_core.errors import NotFound
from amqp_core.v0_9.client import Client
from amqp_spark.arrow.encode import MessagePlan, TaskId
from amqp_spark.options import SinkOptions
from amqp_spark.sink.at_least_once import AtLeastOnce
from amqp_spark.sink.connections import Connections
from amqp_spark.sink.task_writer import TaskWriter
from tests.broker.sink_support import login
from tests.support.rabbitmq import RabbitMQNode

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import ExitStack

    from amqp_core.v0_9.messages import Message
    from amqp_spark.sink.statistics import Statistics
    from tests.support.brokerj import BrokerJ

Kind = Literal["quorum", "classic", "brokerj"]
KINDS: tuple[Kind, ...] = ("quorum", "classic", "brokerj")

BODY = StructType().add("body", "string")


def rows(count: int, first: int = 0, **columns: Any) -> pa.RecordBatch:
    """A batch whose bodies are the numbers of its rows; ``columns`` have a value for all rows, or a list of them."""
    given = {"body": [str(number) for number in range(first, first + count)]} | {
        name: values if isinstance(values, list) else [values] * count for name, values in columns.items()
    }
    return pa.RecordBatch.from_pydict({name: pa.array(values) for name, values in given.items()})


@dataclass
class Place:
    """One broker with queues of one kind. Everything declared here is deleted at the end."""

    broker: RabbitMQNode | BrokerJ
    kind: Kind
    stack: ExitStack

    def __post_init__(self) -> None:
        prefix = uuid.uuid4().hex[:12]
        self._names = (f"test-{prefix}-{number}" for number in itertools.count())
        self._declared: list[str] = []
        self.stack.callback(self._delete)
        self.client = self.connect()
        self.pool = Connections()
        self.stack.callback(self.pool.close)

    @property
    def node(self) -> RabbitMQNode:
        """The RabbitMQ node."""
        assert isinstance(self.broker, RabbitMQNode)
        return self.broker

    def connect(self, **options: Any) -> Client:
        """Another client, closed at the end."""
        hosts, vhost, _ = parse_url(self.broker.url())
        login_ = {"username": self.broker.username, "password": self.broker.password}
        given = ConnectOptions(hosts=hosts, virtual_host=vhost, protocol="0-9-1", heartbeat=0, **(login_ | options))
        client = Client.connect(given)
        self.stack.callback(client.close)
        return client

    def queue(self, *, bound_to: str = "", **arguments: Any) -> str:
        """A new queue, bound by its name; arguments are written with underscores."""
        name = next(self._names)
        named = {key if "." in key else key.replace("_", "-"): value for key, value in arguments.items()}
        if self.kind != "brokerj":
            named["x-queue-type"] = self.kind
        self.client.declare_queue(name, durable=self.kind != "brokerj", arguments=named)
        self._declared.append(name)
        if bound_to:
            self.client.bind(name, bound_to, name)
        return name

    def exchange(self, kind: str = "direct") -> str:
        """A new exchange."""
        name = next(self._names)
        self.client.declare_exchange(name, kind)
        self._declared.append(name)
        return name

    def _delete(self) -> None:
        client = self.connect()
        for name in self._declared:
            for delete in (client.delete_queue, client.delete_exchange):
                with contextlib.suppress(NotFound):
                    delete(name)
        client.close()

    def options(self, **options: Any) -> SinkOptions:
        """Options of the sink for this broker."""
        return SinkOptions.parse(login(self.broker, **({"protocol": "0-9-1"} | options)))

    def run(self, batches: Iterable[pa.RecordBatch], schema: StructType = BODY, /, **options: Any) -> Statistics:
        """Run one task, the second of batch 7."""
        parsed = self.options(**options)
        policy = AtLeastOnce(parsed, TaskId("the-query", 7, 1), connections=self.pool)
        return TaskWriter(MessagePlan.build(schema, parsed), policy).run(batches)

    def count(self, queue: str) -> int:
        """Number of messages of a queue that are ready, when nothing is published any more."""
        info = self.client.query_queue(queue)
        assert info is not None
        return info.message_count

    def received(self, queue: str, count: int) -> list[Message]:
        """Take messages from a queue, and make sure that there are no more."""
        client = self.connect()
        subscription = client.subscribe(queue)
        found: list[Message] = []
        while len(found) < count:
            more = subscription.take(min(1000, count - len(found)))
            assert more, f"only {len(found)} of {count} came"
            found += more
            client.accept([(more[0].transfer_id, more[-1].transfer_id)], sync=True)
        assert subscription.take_one(timeout=0.1) is None, "one more came"
        client.close()
        return found

    def bodies(self, queue: str, count: int) -> list[int]:
        """The bodies of :func:`rows` that a queue has."""
        return [int(message.body) for message in self.received(queue, count)]
