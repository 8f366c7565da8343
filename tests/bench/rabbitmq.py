"""The environment of the benchmarks with RabbitMQ: AMQP 0-9-1, a quorum queue."""

from __future__ import annotations

import gc
import uuid
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from tqdm import tqdm

from amqp_core.v0_9.client import Client
from amqp_spark.transactions.consumer_status import look_at_spooled
from tests.bench import raw_0_9
from tests.bench.environment import Environment
from tests.bench.preload import BLOCK_MESSAGES
from tests.support.external import ExternalBroker
from tests.support.process import wait_until
from tests.support.rabbitmq import RabbitMQNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from amqp_spark.state.records import ConsumerState
    from tests.support.fixtures import Broker


class RabbitMQEnvironment(Environment):
    """As its base class, on RabbitMQ: the one of ``AMQP_URL``, or a new node."""

    def _own_broker(self) -> AbstractContextManager[Broker]:
        external = ExternalBroker.from_environment()
        return nullcontext(external) if external is not None else RabbitMQNode()

    def client(self) -> Client:  # type: ignore[override]  # of the other protocol
        """A new client; close it."""
        return Client.connect(self.connect_options)

    @contextmanager
    def queue(self) -> Iterator[str]:
        """A new, empty quorum queue, deleted afterwards."""
        name = f"bench-{uuid.uuid4().hex[:12]}"
        with self.client() as client:
            client.declare_queue(name, durable=True, arguments={"x-queue-type": "quorum"})
        try:
            yield name
        finally:
            with self.client() as client:
                client.delete_queue(name)

    @contextmanager
    def stream(self, count: int, *, body_bytes: int) -> Iterator[str]:
        """A new stream with ``count`` messages, deleted afterwards."""
        name = f"bench-{uuid.uuid4().hex[:12]}"
        with self.client() as client:
            client.declare_queue(name, durable=True, arguments={"x-queue-type": "stream"})
        try:
            raw_0_9.fill(self.connect_options, name, count, body_bytes=body_bytes, told=lambda _: None)
            yield name
        finally:
            with self.client() as client:
                client.delete_queue(name)

    def depth(self, queue: str) -> int:
        """How many messages the broker has ready in a queue."""
        with self.client() as client:
            found = client.query_queue(queue)
            return -1 if found is None or found.message_count is None else found.message_count

    def consumer_state(self, consumer_id: str, spool: str) -> ConsumerState | None:
        """The state of a consumer of one queue: it is in the spool."""
        with self.client() as client:
            (found,) = look_at_spooled(client, consumer_id, spool)
            return found.found.state

    def fill(self, queue: str, count: int, *, body_bytes: int = 256) -> None:
        """Publish ``count`` more messages to a queue."""
        before = self.depth(queue)
        with tqdm(
            total=count, desc="  publishing", unit="msg", unit_scale=True, leave=False, disable=self._hidden
        ) as bar:
            raw_0_9.fill(self.connect_options, queue, count, body_bytes=body_bytes, told=bar.update)
        self._await_depth(queue, before + count)

    def drain_raw(self, queue: str, count: int) -> float:
        """Drain a queue with the bare socket loop; return seconds."""
        gc.collect()
        seconds = raw_0_9.drain(self.connect_options, queue, count)
        self._await_depth(queue, 0)
        return seconds

    def ready_made(self, queue: str, count: int, *, body_bytes: int) -> list[bytes]:
        """Frames of the messages that ``queries.messages`` has as rows, in blocks for :meth:`publish_raw`."""
        return raw_0_9.ready_made(queue, count, body_bytes=body_bytes)

    def publish_raw(self, blocks: Sequence[bytes], count: int) -> float:
        """Publish blocks of :meth:`ready_made`, of ``count`` messages, with the bare socket loop; return seconds."""
        gc.collect()
        size = BLOCK_MESSAGES
        sizes = [min(size, count - first) for first in range(0, count, size)]
        return raw_0_9.publish(self.connect_options, blocks, sizes)

    @contextmanager
    def sending(self, queue: str) -> Iterator[Callable[[bytes], object]]:
        """Return what publishes one body to a queue and returns when the broker has confirmed it."""
        with self.client() as client:

            def send(body: bytes) -> None:
                client.publish_to_queue(queue, body, content_type="text/plain")
                client.confirm()

            yield send

    def take_all(self, queue: str, count: int) -> None:
        """Empty a queue that has to hold ``count`` messages."""
        self._await_depth(queue, count)
        super().take_all(queue, count)
        self._await_depth(queue, 0)

    def _await_depth(self, queue: str, count: int) -> None:
        """The count of a quorum queue is right some time after the messages."""
        wait_until(lambda: self.depth(queue) == count, f"{count} messages in the queue", 60.0)
