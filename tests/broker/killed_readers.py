"""A query over a quorum queue whose reader and broker are killed, again and again, and what its sink has then."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from amqp_core.errors import AmqpError
from amqp_core.v0_9.messages import Message
from amqp_core.v0_9.spec import BasicProperties
from amqp_spark import crashpoints
from tests.broker.source_0_9_support import Place
from tests.support.process import die_with_us, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from amqp_core.v0_9.client import Client
    from amqp_core.v0_9.subscription import Subscription
    from tests.support.rabbitmq import RabbitMQNode

_ROOT = Path(__file__).parents[2]
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
class Killing:
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
        self.points = self.directory / "points"
        self.points.mkdir(parents=True)
        # RabbitMQ 3.10 takes -1 for a limit, and drops each message that comes back
        if self.node.version.startswith("3."):
            self.place.declare()
        else:
            self.place.declare(x_delivery_limit=-1)
        options = {
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
        (self.directory / "options.json").write_text(json.dumps(options))
        self.reader: subprocess.Popen[bytes] | None = None
        self.watcher: subprocess.Popen[bytes] | None = None

    def grow_old(self) -> None:
        """Wait until the node may be killed: RabbitMQ 4 loses what a queue has confirmed that is some seconds young."""
        time.sleep(4.0)

    def publish(self, count: int) -> None:
        """Send messages, and wait until the broker has them: at least once, each with its number."""
        with self.place.connect() as client:
            for number in range(self.published, self.published + count):
                properties = BasicProperties(delivery_mode=2, message_id=f"{number}" if self.named else None)
                client.publish(Message(self.body_of(number), properties), routing_key=self.place.queue)
            client.confirm()
        self.published += count

    def start(self) -> None:
        """Start the reader."""
        environment = {
            **os.environ,
            crashpoints.VARIABLE: str(self.points),
            "PYTHONPATH": str(_ROOT),
        }
        with (self.directory / "log").open("ab") as log:
            self.reader = subprocess.Popen(
                [sys.executable, "-m", "tests.support._reader_process", str(self.directory)],
                env=environment, cwd=_ROOT, stdout=log, stderr=log,
            )  # fmt: skip
        self.watcher = die_with_us(self.reader.pid)

    def kill(self) -> None:
        """Kill the reader."""
        assert self.reader is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.reader.pid, signal.SIGKILL)
        self.reader.wait()
        if self.watcher is not None:
            self.watcher.kill()
            self.watcher.wait()
            self.watcher = None

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

    def reach(self, point: str, *, after: int = 0, within_s: float = 6.0) -> bool:
        """Let the reader run to a point, where it waits; False if it does not come there."""
        self.arm(point, after=after)
        return self.arrives(point, within_s)

    def arm(self, point: str, *, after: int = 0) -> None:
        """Let the reader wait at a point when it comes there."""
        self.release()
        (self.points / f"{point}.armed").write_text(f"wait {after}")

    def arrives(self, point: str, within_s: float = 6.0) -> bool:
        """Wait until the reader is at the armed point; False if it is not there in time (seconds)."""

        def there() -> bool:
            assert self.reader is not None
            assert self.reader.poll() is None, f"the reader has ended:\n{self.log()}"
            return any(self.points.glob("*.reached"))

        try:
            wait_until(there, point, within_s)
        except TimeoutError:
            return False
        return True

    def release(self) -> None:
        """Let the reader run on, past every point."""
        for path in self.points.iterdir():
            path.unlink(missing_ok=True)

    def go_on(self) -> None:
        """Start again what was killed."""
        if not self.node.running:
            self.node.start()
            wait_until(self._serves, "the node serves the queue", 60)
        if self.reader is None or self.reader.poll() is not None:
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
        (self.directory / "complete").touch()

        def complete() -> bool:
            assert self.reader is not None
            assert self.reader.poll() is None, f"the reader has ended:\n{self.log()}"
            idle = self.directory / "idle"
            return idle.exists() and idle.read_text() == str(self.reader.pid) and self.sum() >= self.published

        try:
            wait_until(complete, "all are read", 60)
        except TimeoutError:
            pass
        time.sleep(1.0)  # what comes twice may come late: it can only be waited for
        self.kill()
        return self.sink()

    def sum(self) -> int:
        """Number of rows in the sink."""
        return self.sink().total()

    def sink(self) -> Counter[bytes]:
        """Bodies in the sink."""
        found: Counter[bytes] = Counter()
        for path in (self.directory / "sink").glob("*.json"):
            found.update(base64.b64decode(each) for each in json.loads(path.read_text()))
        return found

    def log(self) -> str:
        """End of the reader's log."""
        return (self.directory / "log").read_text()[-4000:]

    def logged(self, text: str) -> int:
        """How often the readers have logged a text."""
        return (self.directory / "log").read_text().count(text)

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

    def close(self) -> None:
        """End what runs."""
        if self.reader is not None:
            self.kill()
