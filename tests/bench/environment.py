"""Shared code of the benchmarks: a warmed broker, a Spark session, queues, progress on the terminal."""

from __future__ import annotations

import gc
import logging
import os
import sys
import tempfile
import uuid
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Self, TypedDict

from tqdm import tqdm

from amqp_core.address import ConnectOptions, parse_url
from amqp_core.errors import ResourceLocked
from amqp_core.transport import tls_context
from amqp_core.v0_10 import spec
from amqp_core.v0_10.client import Client
from amqp_core.v0_10.driver import Driver
from amqp_core.v0_10.messages import Message
from amqp_spark.transactions.consumer_status import look_at_consumer
from tests.bench import preload, rawloop, rawpublish
from tests.support.brokerj import BrokerConfig, BrokerJ
from tests.support.external import ExternalBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from amqp_spark.state.records import ConsumerState
    from tests.support.fixtures import Broker

HEAP = "3g"
"""Of the broker: with less it cannot hold two million messages."""
DIRECT = "8g"
"""Of the broker, for bodies: it needs twice what they weigh, and the largest backlog is 2 GB."""


class Result(TypedDict):
    """One entry of ``build/bench.json``."""

    name: str
    value: float
    unit: str
    higher_is_better: bool
    detail: object


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is done; ``quick()`` only proves that everything works."""

    messages: int = 1_000_000
    queues: int = 200
    rounds: int = 3
    warm_messages: int = 300_000
    warm_rounds: int = 3
    latency_messages: int = 25
    latency_spacing_s: float = 0.4
    idle_s: float = 20.0
    backlog_messages: int = 1_000_000
    backlog_body: int = 1024
    mixed_small: int = 20_000
    mixed_large: int = 1500
    large_messages: int = 2000
    large_body: int = 1_000_000
    stalled_rows: int = 8_000_000
    stalled_after_bytes: int = 4_000_000
    stalled_s: float = 20.0
    small_batches: int = 60
    owned_messages: int = 100_000
    new_messages: int = 20_000

    @classmethod
    def quick(cls) -> Self:
        """Sizes for a test of the harness."""
        return cls(
            messages=4000,
            queues=20,
            rounds=1,
            warm_messages=1000,
            warm_rounds=1,
            latency_messages=2,
            latency_spacing_s=0.05,
            idle_s=0.5,
            backlog_messages=4000,
            mixed_small=500,
            mixed_large=3,
            large_messages=5,
            stalled_rows=100_000,
            stalled_after_bytes=100_000,
            stalled_s=0.5,
            small_batches=3,
            owned_messages=3000,
            new_messages=500,
        )


@dataclass(kw_only=True)
class Environment:
    """One run of benchmarks; a context manager that ends what it started.

    Args:
        sizes: how much is done.
        given_broker: to use instead of the one of ``AMQP_URL``, or of one of our own.
        given_spark: to use instead of a session of our own.
        spark_settings: further ones of a session of our own.
        quiet: no progress.
        warms: whether the broker is filled and emptied a few times first, as one needs that compiles itself.
    """

    sizes: Sizes = field(default_factory=Sizes)
    given_broker: Broker | None = None
    given_spark: SparkSession | None = None
    spark_settings: Mapping[str, str] = field(default_factory=dict)
    quiet: bool = False
    warms: bool = True
    _stack: ExitStack = field(default_factory=ExitStack, repr=False)

    def __enter__(self) -> Self:
        self._stack.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    # -- the broker ----------------------------------------------------------------------------------------

    @cached_property
    def broker(self) -> Broker:
        """The broker, warmed: its JIT needs some hundred thousand messages before it is as fast as it gets."""
        broker = self.given_broker or self._stack.enter_context(self._own_broker())
        self.__dict__["broker"] = broker  # what follows needs it already
        if not self.warms:
            return broker
        count = self.sizes.warm_messages
        with self.queue() as queue, self.progress("warming the broker", self.sizes.warm_rounds) as step:
            for _ in range(self.sizes.warm_rounds):
                self.fill(queue, count)
                self.drain_raw(queue, count)
                step("")
        return broker

    def _own_broker(self) -> AbstractContextManager[Broker]:
        """The broker of ``AMQP_URL``, or a new one."""
        external = ExternalBroker.from_environment()
        if external is not None:
            return nullcontext(external)
        return BrokerJ(
            BrokerConfig(
                heap=HEAP,
                direct=DIRECT,
                durable=False,
                long_lived=True,
                protocols=("AMQP_0_10", "AMQP_1_0"),  # the second, and PLAIN, for the script of peer_ratio
                listeners=("plain",),
            )
        )

    @property
    def connect_options(self) -> ConnectOptions:
        """How a client of ours connects; without heartbeats, since the raw loop sends none."""
        broker = self.broker
        hosts, virtual_host, tls = parse_url(broker.url())
        return ConnectOptions(
            hosts=hosts,
            virtual_host=virtual_host,
            tls=tls,
            username=broker.username,
            password=broker.password,
            heartbeat=0,
        )

    def client(self) -> Client:
        """A new client; close it."""
        return Client.connect(self.connect_options)

    @contextmanager
    def driver(self) -> Iterator[Driver]:
        """A connection with a session, one layer below the client."""
        options = self.connect_options
        context = tls_context(options) if options.tls else None
        driver = Driver.dial(options, *options.hosts[0], context, 120.0)
        try:
            yield driver
        finally:
            driver.close()

    @contextmanager
    def queue(self) -> Iterator[str]:
        """A new, empty queue, deleted afterwards."""
        name = f"bench-{uuid.uuid4().hex[:12]}"
        with self.client() as client:
            # qpidd refuses more than 100 MiB in a queue that does not say otherwise; Broker-J has no such limit.
            arguments: dict[str, object] | None = {"qpid.max_count": 0, "qpid.max_size": 0} if client.is_qpidd else None
            client.declare_queue(name, arguments=arguments)
        try:
            yield name
        finally:
            with self.client() as client:
                client.delete_queue(name)

    def depth(self, queue: str) -> int:
        """How many messages the broker has in a queue."""
        with self.client() as client:
            found = client.query_queue(queue)
            return -1 if found is None or found.message_count is None else found.message_count

    def is_free(self, lock: str) -> bool:
        """Whether no reader or writer of exactly-once has a lock."""
        with self.client() as client:
            try:
                return client.query_queue(lock) is None
            except ResourceLocked:
                return False

    def consumer_state(self, consumer_id: str, spool: str) -> ConsumerState | None:
        """The state of a consumer of one queue, where its broker has it."""
        with self.client() as client:
            (found,) = look_at_consumer(client, consumer_id)
            return found.found.state

    def fill(self, queue: str, count: int, *, body_bytes: int = 256) -> None:
        """Publish ``count`` messages to a queue."""
        with (
            self.driver() as driver,
            tqdm(
                total=count, desc="  publishing", unit="msg", unit_scale=True, leave=False, disable=self._hidden
            ) as bar,
        ):
            preload.publish(driver, queue, count, body_bytes=body_bytes, told=bar.update)

    def drain_raw(self, queue: str, count: int) -> float:
        """Drain a queue with the bare socket loop; return seconds."""
        gc.collect()
        with self.driver() as driver:
            return rawloop.drain(driver, queue, count)

    def ready_made(self, queue: str, count: int, *, body_bytes: int) -> list[bytes]:
        """Frames of the messages that ``queries.messages`` has as rows, in blocks for :meth:`publish_raw`."""
        with self.client() as client:  # Broker-J reports unroutable messages only in accept mode explicit
            accept_mode = spec.MessageAcceptMode.NONE if client.is_qpidd else spec.MessageAcceptMode.EXPLICIT
        return rawpublish.ready_made(queue, count, body_bytes=body_bytes, accept_mode=accept_mode)

    def publish_raw(self, blocks: Sequence[bytes], count: int) -> float:
        """Publish blocks of :meth:`ready_made`, of ``count`` messages, with the bare socket loop; return seconds."""
        gc.collect()
        with self.driver() as driver:
            return rawpublish.publish(driver, blocks, count)

    @contextmanager
    def sending(self, queue: str) -> Iterator[Callable[[bytes], object]]:
        """Return what publishes one body to a queue and returns when the broker has it."""
        with self.client() as client:
            yield lambda body: client.publish(Message(body=body), routing_key=queue)

    def purge(self, queue: str) -> None:
        """Empty a queue."""
        with self.client() as client:
            client.purge_queue(queue)

    def take_all(self, queue: str, count: int) -> None:
        """Empty a queue that has to hold ``count`` messages.

        Raises:
            RuntimeError: it holds more or fewer.
        """
        depth = self.depth(queue)
        if depth != count:
            raise RuntimeError(f"{depth} messages arrived instead of {count}")
        self.purge(queue)

    # -- Spark ---------------------------------------------------------------------------------------------

    @cached_property
    def spark(self) -> SparkSession:
        """A local session on two cores. ``format("amqp")`` is found there because the package is installed."""
        from pyspark.sql import SparkSession  # noqa: PLC0415 - decode_rate does without

        if self.given_spark is not None:
            session = self.given_spark
        else:
            os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
            os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
            logging.getLogger("py4j").setLevel(logging.ERROR)
            session = (
                SparkSession.builder.master("local[2]")
                .appName("amqp_spark benchmarks")
                .config("spark.driver.memory", "2g")
                .config("spark.ui.enabled", "false")
                .config("spark.ui.showConsoleProgress", "false")
                .config("spark.sql.session.timeZone", "UTC")
                .config("spark.sql.warehouse.dir", str(self.directory / "warehouse"))
                .config("spark.log.level", "ERROR")
                .config(map=dict(self.spark_settings))
                .getOrCreate()
            )
            self._stack.callback(session.stop)
        return session

    @cached_property
    def directory(self) -> Path:
        """A directory for checkpoints and the like, removed at the end."""
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="amqp-spark-bench-")))

    def checkpoint(self) -> str:
        """A checkpoint location that no query has used."""
        return str(self.directory / f"checkpoint-{uuid.uuid4().hex[:8]}")

    def source_options(self, queue: str) -> dict[str, str]:
        """The options that the source cannot do without; everything else is as by default."""
        broker = self.broker
        return {"url": broker.url(), "username": broker.username, "password": broker.password, "queue": queue}

    def sink_options(self) -> dict[str, str]:
        """The options that every benchmark of the sink gives; everything else is as by default."""
        broker = self.broker
        return {
            "url": broker.url(),
            "username": broker.username,
            "password": broker.password,
            "deliveryMode": "non-persistent",
        }

    # -- the terminal --------------------------------------------------------------------------------------

    @contextmanager
    def progress(self, name: str, total: int) -> Iterator[Step]:
        """A bar of ``total`` steps."""
        with tqdm(total=total, desc=name, unit="step", leave=True, disable=self._hidden) as bar:
            yield Step(bar)

    @property
    def _hidden(self) -> bool:
        return self.quiet


class Step:
    """Moves a bar one step and says what was found."""

    def __init__(self, bar: tqdm[Any]) -> None:
        self._bar = bar

    def __call__(self, found: str) -> None:
        self._bar.set_postfix_str(found)
        self._bar.update(1)


def middle(values: list[float]) -> float:
    """The median."""
    return float(median(values))


def rounded(values: list[float], digits: int = 3) -> list[float]:
    """For details: figures without digits that mean nothing."""
    return [round(value, digits) for value in values]
