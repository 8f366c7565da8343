"""Queries over a cluster of RabbitMQ while nodes are killed: a publisher, a reader in a process of its own, the sum."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa

from amqp_core.errors import AmqpError
from amqp_core.v0_9.messages import Message
from amqp_core.v0_9.spec import BasicProperties
from amqp_spark.arrow.encode import MessagePlan, TaskId
from amqp_spark.options import SinkOptions
from amqp_spark.sink.at_least_once import AtLeastOnce
from amqp_spark.sink.connections import Connections
from amqp_spark.sink.task_writer import TaskWriter
from tests.broker.reader_process import ReaderProcess
from tests.broker.sink_0_9_support import BODY
from tests.broker.source_0_9_support import Place
from tests.support.process import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from amqp_core.v0_9.client import Client
    from tests.support.rabbitmq import RabbitMQNode
    from tests.support.rabbitmq_cluster import RabbitMQCluster

AT_ONCE: Final = 50
"""Messages that are confirmed together."""
PAUSE_S: Final = 0.05
"""Between them, so that three queries and three nodes run on two cores."""

Kind = Literal["at-least-once", "exactly-once", "stream"]
KINDS: Final[tuple[Kind, ...]] = ("at-least-once", "exactly-once", "stream")


class Feed(ABC):
    """Publishes numbers on a thread until it is stopped, whatever becomes of the nodes."""

    def __init__(self) -> None:
        self.confirmed: list[bytes] = []
        """Bodies that the broker has confirmed."""
        self.in_doubt: list[bytes] = []
        """Bodies that were sent once, and perhaps arrived."""
        self.error: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End behind the messages under way."""
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the feed does not end"
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        number = 0
        try:
            while not self._stopping.wait(PAUSE_S):
                self.send([b"%08d" % each for each in range(number, number + AT_ONCE)])
                number += AT_ONCE
        except BaseException as error:  # noqa: BLE001 - it fails the test
            self.error = error
        finally:
            self.close()

    @abstractmethod
    def send(self, bodies: list[bytes]) -> None:
        """Send messages, and note what became of them."""

    @abstractmethod
    def close(self) -> None:
        """End connections."""


class OnceFeed(Feed):
    """Sends nothing twice: what it did not see confirmed stays in doubt. So what is read twice was doubled by us."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place
        self._client: Client | None = None

    def send(self, bodies: list[bytes]) -> None:
        while self._client is None and not self._stopping.is_set():
            with contextlib.suppress(AmqpError):
                self._client = self._place.connect()
        if self._client is None:
            return
        try:
            for body in bodies:
                message = Message(body, BasicProperties(delivery_mode=2))
                self._client.publish(message, routing_key=self._place.queue)
            self._client.confirm()
        except AmqpError:
            self.in_doubt += bodies
            self._client.abort()
            self._client = None
        else:
            self.confirmed += bodies

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


class SinkFeed(Feed):
    """Tasks of the sink, one after the other; none may fail."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place
        self._pool = Connections()
        given = {"url": place.address, "username": place.username, "password": place.password, "protocol": "0-9-1"}
        self._options = SinkOptions.parse(given | {"routingKey": place.queue})
        self._plan = MessagePlan.build(BODY, self._options)
        self.resent = 0

    def send(self, bodies: list[bytes]) -> None:
        policy = AtLeastOnce(self._options, TaskId("the-query", len(self.confirmed), 0), connections=self._pool)
        batch = pa.RecordBatch.from_pydict({"body": [body.decode() for body in bodies]})
        self.resent += TaskWriter(self._plan, policy).run([batch]).resent
        self.confirmed += bodies

    def close(self) -> None:
        self._pool.close()


@dataclass
class ClusterQuery(ReaderProcess):
    """A query over a queue, or a stream, of a cluster.

    Args:
        cluster: the nodes.
        kind: the guarantee; ``stream`` is exactly-once from a stream.
        directory: of its files.
        first: the node that the URLs name first, on which the leader begins.
        reader: the node that the URL of the reader names first; default: as ``first``.
    """

    cluster: RabbitMQCluster
    kind: Kind
    directory: Path
    first: RabbitMQNode | None = None
    reader: RabbitMQNode | None = None
    killed: int = 0
    """How often the leader of its queue was killed."""

    def __post_init__(self) -> None:
        address = self.cluster.url("durable", self.first)
        login = {"username": self.cluster.username, "password": self.cluster.password}
        queue_type = "stream" if self.kind == "stream" else "quorum"
        self.place = Place(address, self.cluster.username, self.cluster.password, queue_type)
        # RabbitMQ 3.10 takes -1 for a limit, and drops each message that comes back
        unlimited = self.kind == "exactly-once" and not self.cluster.version.startswith("3.")
        arguments: dict[str, Any] = {"x_delivery_limit": -1} if unlimited else {}
        self.place.declare(**arguments)
        self.feed = SinkFeed(self.place) if self.kind == "at-least-once" else OnceFeed(self.place)
        self.options = {
            "url": self.cluster.url("durable", self.reader or self.first),
            **login,
            "protocol": "0-9-1",
            "queue": self.place.queue,
            "maxMessagesPerTrigger": "2000",
        }
        if self.kind == "stream":
            self.options |= {"queueType": "stream", "startingOffsets": "earliest"}
        if self.kind == "exactly-once":
            spool = str(self.directory / "spool")
            self.options |= {
                "deliveryGuarantee": "exactly-once",
                "consumerId": self.place.queue,
                "spoolLocation": spool,
            }
        self.prepare(self.options)

    def start(self) -> None:
        """Start the reader and the publisher."""
        super().start()
        self.feed.start()

    @property
    def waits_for_lost_node(self) -> bool:
        """RabbitMQ 3.10 counts the consumer of a node that is down: it may be another's, so exactly-once waits."""
        return self.kind == "exactly-once" and self.cluster.version.startswith("3.")

    def flows_without_node(self) -> None:
        """As :meth:`flows`, after the kill of a node."""
        if not self.waits_for_lost_node:
            self.flows()

    def flows(self) -> None:
        """Wait until messages that were published after this call are read."""
        published, read = len(self.feed.confirmed), self.sink().total()

        def has_flown() -> bool:
            return self.is_well() and len(self.feed.confirmed) > published and self.sink().total() > read

        wait_until(has_flown, f"messages of {self.kind}", 60, poll_s=0.1)
        newest = self.feed.confirmed[-1]
        wait_until(lambda: self.is_well() and newest in self.sink(), f"{newest!r} of {self.kind}", 60, poll_s=0.1)

    def finish(self) -> Counter[bytes]:
        """Stop the publisher and read all; return what was read."""
        self.feed.stop()
        expected = Counter(self.feed.confirmed)
        return self.drained(lambda: not expected - self.sink())

    def lost(self, found: Counter[bytes]) -> Counter[bytes]:
        """Messages that were confirmed and not read."""
        return Counter(set(self.feed.confirmed)) - found

    def twice(self, found: Counter[bytes]) -> Counter[bytes]:
        """Messages that were read more than once."""
        return found - Counter(set(found))

    def is_well(self) -> bool:
        """True, or what the reader or the publisher has failed with."""
        if self.feed.error is not None:
            raise self.feed.error
        return super().is_well()
