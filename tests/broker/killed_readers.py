"""A query over a quorum queue whose reader and broker are killed, again and again, and what its sink has then."""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from amqp_core.errors import AmqpError
from amqp_core.v0_9.messages import Message
from amqp_core.v0_9.spec import BasicProperties
from amqp_spark import crashpoints
from tests.broker.reader_process import ReaderProcess
from tests.broker.source_0_9_support import Place
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from amqp_core.v0_9.client import Client
    from amqp_core.v0_9.subscription import Subscription
    from tests.support.rabbitmq import RabbitMQNode

POINTS = (
    *crashpoints.QUORUM_POINTS,
    *crashpoints.QUORUM_POINTS,
    crashpoints.ACKED_WITHOUT_BARRIER,
    crashpoints.RECOGNISED_UNACKED,
    crashpoints.REACKED_WITHOUT_BARRIER,
    crashpoints.SPOOL_PARTIAL,
    crashpoints.SPOOL_RENAMED,
    crashpoints.TX_COMMITTED,
    crashpoints.END_RETURNED_UNLOGGED,
    crashpoints.LOGGED_BEFORE_PARTITIONS,
    crashpoints.COMMIT_LOGGED,
    crashpoints.FINISH_CONFIRMED,
    crashpoints.EPOCH_RAISED,
    crashpoints.LOCK_TAKEN,
)


@dataclass
class Foreign:
    """A consumer that is not ours."""

    client: Client
    subscription: Subscription

    def take(self, count: int) -> Counter[bytes]:
        """Accept so many messages at most, for good; return their bodies."""
        taken: Counter[bytes] = Counter()
        while taken.total() < count and (message := self.subscription.take_one(timeout=0.5)) is not None:
            self.client.accept([(message.transfer_id, message.transfer_id)])
            taken[message.body] += 1
        self.client.sync()
        return taken


@dataclass
class Killing(ReaderProcess):
    """A run with kills.

    Args:
        node: the broker, which may be killed.
        directory: of the query's files.
        body_of: the body of each message by its number.
        named: whether messages have a message_id.
        options: of the query, besides those that it has here.
        seed: of everything random.
    """

    node: RabbitMQNode
    directory: Path
    body_of: Callable[[int], bytes] = lambda number: b"%08d" % number
    named: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    per_batch: int = 40
    published: int = 0
    kills: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.place = Place(self.node.url("durable"), self.node.username, self.node.password, "quorum")
        # RabbitMQ 3.10 takes -1 for a limit, and drops each message that comes back
        if self.node.version.startswith("3."):
            self.place.declare()
        else:
            self.place.declare(x_delivery_limit=-1)
        given = {
            "url": self.place.address,
            "username": self.node.username,
            "password": self.node.password,
            "protocol": "0-9-1",
            "queue": self.place.queue,
            "retry.maxDelay": "0.2",
            "retry.maxAttempts": "1000",
            "heartbeat": "1",
            "deliveryGuarantee": "exactly-once",
            "consumerId": self.place.queue,
            "spoolLocation": str(self.directory / "spool"),
            "maxMessagesPerTrigger": str(self.per_batch),
            **self.options,
        }
        self.prepare(given)

    def publish(self, count: int) -> None:
        """Send messages, and wait until the broker has them: at least once, each with its number."""
        with self.place.connect() as client:
            for number in range(self.published, self.published + count):
                properties = BasicProperties(delivery_mode=2, message_id=f"{number}" if self.named else None)
                client.publish(Message(self.body_of(number), properties), routing_key=self.place.queue)
            client.confirm()
        self.published += count

    def kill_at(self, point: str, *, node: bool, after: int = 0, within_s: float = 6.0) -> bool:
        """Let the reader run to a point, and kill it there, the node, or both; False if it is not there in time."""
        if not self.reach(point, after=after, within_s=within_s):
            return False
        self.kills[point] += 1
        if node:
            self.node.kill9()
            self.kills["node"] += 1
        if not node or self.random.random() < 0.5:
            self.kill()
            self.kills["reader"] += 1
        self.release()
        return True

    def go_on(self) -> None:
        """Start again what was killed."""
        if not self.node.running:
            self.node.start()
            wait_until(self._serves, "the node serves the queue", 60)
        if not self.runs:
            self.start()

    def _serves(self) -> bool:
        try:
            return self.place.count() is not None
        except (AmqpError, AssertionError):
            return False

    def rounds(self, count: int, *, nodes: float = 0.25, points: Sequence[str] = POINTS) -> None:
        """Kill so often; new messages come in between."""
        self.start()
        done = 0
        while done < count:
            self.publish(self.random.randint(2, 5) * self.per_batch)
            point = self.random.choice(points)
            if not self.kill_at(point, node=self.random.random() < nodes, after=self.random.randint(0, 2)):
                self.kill()  # at any moment
                self.kills["anywhere"] += 1
            done += 1
            self.go_on()

    def finish(self) -> Counter[bytes]:
        """Read all that is left; return the bodies in the sink."""
        return self.drained(lambda: self.sink().total() >= self.published)

    def logged(self, text: str) -> int:
        """How often the readers have logged a text."""
        return self.log().count(text)

    def recognised(self) -> tuple[int, int]:
        """Messages that were recognised, and that were read as others."""
        files = sorted((self.directory / "spool").glob("amqp-spark.state.*.json"))
        record = json.loads(files[-1].read_text())
        return record["recognised"], record["alike"]

    @contextlib.contextmanager
    def foreign(self, most: int) -> Iterator[Foreign]:
        """Another consumer of the queue: it is sent so many messages, and gives back what it has not accepted."""
        with self.place.connect() as client:
            yield Foreign(client, client.subscribe(self.place.queue, max_unsettled=most))
