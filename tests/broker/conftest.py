"""Fixtures of the tests against a real broker."""

from __future__ import annotations

import contextlib
import itertools
import uuid
from typing import TYPE_CHECKING

import pytest

from amqp_core.errors import VirtualHostRefused
from amqp_spark import crashpoints
from tests.broker.crash_scenarios import Setting, shared_setting
from tests.broker.exactly_once_support import Fate, Writer
from tests.broker.log_support import Streams
from tests.broker.transactions_support import Command
from tests.support.dial import dial
from tests.support.query_process import CrashPoints, QueryProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from amqp_core.v0_10.client import Client
    from tests.support.fixtures import Broker, Connect
    from tests.support.rabbitmq import RabbitMQNode


@pytest.fixture(params=["default", "durable"])
def place(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A virtual host, in memory or with a store, and a fresh queue of it."""
    vhost: str = request.param
    return vhost, request.getfixturevalue("queue" if vhost == "default" else "durable_queue")


@pytest.fixture
def fresh_names(broker: Broker) -> Iterator[Iterator[str]]:
    """Unused names; queues and exchanges of these names are deleted after the test."""
    given: list[str] = []
    prefix = uuid.uuid4().hex[:12]

    def names() -> Iterator[str]:
        for number in itertools.count():
            given.append(f"test-{prefix}-{number}")
            yield given[-1]

    yield names()
    for vhost in ("default", "durable"):
        with contextlib.suppress(VirtualHostRefused), dial(broker, vhost) as client:
            for name in given:
                if client.query_queue(name) is not None:
                    client.delete_queue(name)
            for name in given:
                if client.query_exchange(name) is not None:
                    client.delete_exchange(name)


@pytest.fixture(params=["rabbitmq", pytest.param("rabbitmq310", marks=pytest.mark.thorough)])
def log_node(request: pytest.FixtureRequest) -> RabbitMQNode:
    found: RabbitMQNode = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def streams(log_node: RabbitMQNode) -> Iterator[Streams]:
    found = Streams(log_node.url("durable"), log_node.username, log_node.password)
    found.declare()
    yield found
    found.close()


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Arrow batches of a thousand rows."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


@pytest.fixture
def client(connect: Connect, place: tuple[str, str]) -> Client:
    """A client of the virtual host of ``place``."""
    return connect(place[0])


@pytest.fixture
def writer(broker: Broker, place: tuple[str, str]) -> Iterator[Writer]:
    """A writer with exactly-once to the queue of ``place``."""
    vhost, queue = place
    writer = Writer(broker, queue, vhost)
    yield writer
    writer.close()


@pytest.fixture
def command(broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """``python -m amqp_spark.transactions`` for the virtual host "default"."""
    return Command.of(broker, monkeypatch, capsys)


@pytest.fixture
def fate(monkeypatch: pytest.MonkeyPatch) -> Fate:
    """Actions at the crash points of this process."""
    fate = Fate()
    monkeypatch.setattr(crashpoints, "reached", fate)
    return fate


@pytest.fixture(scope="module")
def points() -> Iterator[CrashPoints]:
    """Crash points of the drivers of a module."""
    with contextlib.closing(CrashPoints()) as points:
        yield points


@pytest.fixture(scope="module")
def setting(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    """Where the queries of a module run that are killed at crash points."""
    with shared_setting(broker, tmp_path_factory.mktemp("crash")) as setting:
        yield setting


@pytest.fixture(scope="module")
def _process(setting: Setting) -> Iterator[QueryProcess]:
    # every query or write that waits at a point inside a task holds a slot
    process = QueryProcess(points=setting.points, settings={"spark.master": "local[16,4]"})
    yield process
    process.close()


@pytest.fixture
def driver(_process: QueryProcess) -> QueryProcess:
    """A driver that runs: that of the test before unless it was killed."""
    if not _process.running:
        _process.start()
    return _process
