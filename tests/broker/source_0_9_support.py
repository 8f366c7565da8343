"""The reader of a stream over brokers of AMQP 0-9-1, without a JVM."""

from __future__ import annotations

import struct
import uuid
from array import array
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest

from amqp_core.address import ConnectOptions, parse_url
from amqp_core.blocks import Block
from amqp_core.v0_9.client import Client
from amqp_core.v0_9.messages import Message, each_message
from amqp_core.v0_9.spec import BasicProperties
from amqp_spark.connect import connect
from amqp_spark.datasource.stream_reader import AmqpStreamReader
from amqp_spark.options import SourceOptions
from tests.spark.driver import Driver
from tests.spark.reader_support import BodyPlan
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from amqp_spark.arrow.decode import Chunk, ColumnPlan


RABBITMQ = [
    "classic",
    "quorum",
    pytest.param("classic 3.10", marks=pytest.mark.thorough),
    pytest.param("quorum 3.10", marks=pytest.mark.thorough),
]
"""Types of queues and releases of RabbitMQ, for :func:`requested`."""
PLACES = [*RABBITMQ, "brokerj"]


def numbers(count: int, begin: int = 0) -> list[bytes]:
    """Bodies that say which message they are."""
    return [b"%08d" % number for number in range(begin, begin + count)]


class MessagePlan(BodyPlan):
    """A BodyPlan for the frames of 0-9-1."""

    def bodies(self, chunk: Chunk) -> list[bytes]:
        assert chunk.protocol == "0-9-1"
        ends = array("I", [end for (end,) in struct.iter_unpack(">I", chunk.ends)])
        messages = list(each_message(Block(bytes(chunk.frames), ends)))
        assert all(isinstance(message, Message) for message in messages)
        return [cast("Message", message).body for message in messages]


@dataclass
class Place:
    """A virtual host of a broker, and a queue of a type in it."""

    address: str
    username: str
    password: str
    queue_type: str | None = None
    queue: str = field(default_factory=lambda: f"test-{uuid.uuid4().hex[:12]}")
    readers: list[AmqpStreamReader] = field(default_factory=list)

    def url(self, _vhost: str = "") -> str:
        """The URL of the virtual host."""
        return self.address

    def log(self) -> str:
        """Nothing: the broker is that of a fixture."""
        return ""

    def connect(self) -> Client:
        """A client of 0-9-1."""
        hosts, virtual_host, _ = parse_url(self.address)
        user, password = self.username, self.password
        return Client.connect(
            ConnectOptions(hosts=hosts, virtual_host=virtual_host, username=user, password=password, protocol="0-9-1")
        )

    def declare(self, name: str = "", **arguments: object) -> None:
        """Declare the queue, or another one of its type; ``_`` in a keyword stands for ``-``."""
        given = {key.replace("_", "-"): value for key, value in arguments.items()}
        if self.queue_type is not None:
            given["x-queue-type"] = self.queue_type
        with self.connect() as client:
            client.declare_queue(name or self.queue, durable=True, arguments=given)

    def publish(self, bodies: Iterable[bytes], queue: str = "") -> None:
        """Send bodies to the queue and wait until the broker has them."""
        with self.connect() as client:
            for body in bodies:
                properties = BasicProperties(delivery_mode=2)
                client.publish(Message(body, properties), routing_key=queue or self.queue)
            client.confirm()

    def take(self, queue: str = "") -> list[bytes]:
        """Take every message of a queue, from its front."""
        found = []
        with self.connect() as client:
            while (message := client.get(queue or self.queue)) is not None:
                found.append(message.body)
                client.accept([(message.transfer_id, message.transfer_id)])
            client.sync()
        return found

    def count(self, queue: str = "") -> tuple[int, int]:
        """Messages and consumers of the queue."""
        with self.connect() as client:
            info = client.query_queue(queue or self.queue)
        assert info is not None
        return info.message_count, info.subscriber_count

    def wait_for_count(self, messages: int, consumers: int, queue: str = "") -> None:
        """Wait until :meth:`count` says so: on RabbitMQ it is late for a moment, after a consumer has gone, too."""
        wait_until(lambda: self.count(queue) == (messages, consumers), f"{messages} messages and {consumers} consumers")

    def reader(self, **options: Any) -> AmqpStreamReader:
        """A reader of the queue with options; ``__`` in a keyword stands for a dot."""
        given = {
            "url": self.address,
            "username": self.username,
            "password": self.password,
            "protocol": "0-9-1",
            "queue": self.queue,
            "retry.maxDelay": 0.1,
        }
        given |= {key.replace("__", "."): str(value) for key, value in options.items()}
        plan = cast("ColumnPlan", MessagePlan())
        self.readers.append(AmqpStreamReader(SourceOptions.parse(given), plan, connector=connect))
        return self.readers[-1]

    def driver(self, checkpoint: Driver | None = None, *, available_now: bool = False, **options: Any) -> Driver:
        """A run of a query over the queue."""
        return Driver(self.reader(**options), checkpoint, available_now=available_now)

    def stop(self) -> None:
        """Stop the readers, as a query that ends."""
        while self.readers:
            self.readers.pop().stop()

    def close(self, *others: str) -> None:
        """Stop the readers; delete the queue and others."""
        self.stop()
        with self.connect() as client:
            for queue in (self.queue, *others):
                if client.query_queue(queue) is not None:
                    client.delete_queue(queue)


class ExactlyOncePlace(Place):
    """A place whose readers have one consumerId, and a spool in its directory."""

    directory: Path

    def driver(self, checkpoint: Driver | None = None, *, available_now: bool = False, **options: Any) -> Driver:
        given = {
            "deliveryGuarantee": "exactly-once",
            "consumerId": self.queue,
            "spoolLocation": str(self.directory / "spool"),
            "heartbeat": 1,
        }
        return super().driver(checkpoint, available_now=available_now, **(given | options))

    def files(self) -> list[str]:
        """Names of the files of owned batches."""
        return sorted(path.name for path in (self.directory / "spool").glob("*.spool"))


def drained(driver: Driver) -> list[bytes]:
    """The bodies of all batches until an AvailableNow query ends."""
    while driver.trigger() is not None:
        pass
    return [row[2] for batch in driver.batches for row in batch]


@contextmanager
def requested(request: pytest.FixtureRequest) -> Iterator[Place]:
    """The declared queue that the parameter of a fixture asks for, one of ``PLACES``."""
    kind, _, old = request.param.partition(" ")
    broker = request.getfixturevalue("brokerj_0_9" if kind == "brokerj" else "rabbitmq310" if old else "rabbitmq")
    queue_type = None if kind == "brokerj" else kind
    with closing(Place(broker.url("durable"), broker.username, broker.password, queue_type)) as place:
        place.declare()
        yield place
