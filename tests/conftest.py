"""Fixtures of all tests: real brokers, a Spark session, fresh names.

``AMQP_TEST_URL``, ``AMQP_TEST_USERNAME`` and ``AMQP_TEST_PASSWORD`` make the shared broker one that runs already, of
any kind (``make broker`` prints them for a Broker-J); tests of what it does not do are skipped there
(``tests/support/capabilities.py``). Tests that kill, freeze or configure their broker always start their own.
"""

from __future__ import annotations

import gc
import os
import sys
import uuid
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support import ports, quick_spark
from tests.support.broker_process import started
from tests.support.brokerj import BrokerConfig, BrokerJ
from tests.support.choice import all_cases, examples
from tests.support.external import ExternalBroker
from tests.support.order import Kind, SparkApart
from tests.support.rabbitmq import OLD, RabbitMQConfig, RabbitMQNode
from tests.support.rabbitmq_needed import put_together, start_or_skip

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from xdist.remote import Producer

    from amqp_core.v0_10.client import Client
    from tests.support.capabilities import Capabilities
    from tests.support.doctor import Doctor
    from tests.support.fixtures import Broker, Connect, OwnBroker, OwnRabbitMQ
    from tests.support.objectstore import ObjectStore

# How long an example takes says something about the machine, not about the code.
settings.register_profile(
    "amqp_spark", max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("amqp_spark")
quick_spark.configure()


def _leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out ``thorough`` tests and most cases of ``sampled`` ones, unless ``AMQP_TEST_ALL`` is set."""
    if all_cases():
        return
    left_out = {item for item in items if _is_left_out(item)}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def _is_left_out(item: pytest.Item) -> bool:
    sampled: list[tuple[str, int]] = [(mark.args[0], mark.kwargs["every"]) for mark in item.iter_markers("sampled")]
    indices: dict[str, int] = item.callspec.indices if isinstance(item, pytest.Function) and sampled else {}
    if "rabbitmq310" in getattr(item, "fixturenames", ()):
        return True
    return item.get_closest_marker("thorough") is not None or any(indices[name] % every for name, every in sampled)


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """The broker that tests share: virtual hosts "default" (in memory) and "durable". Use names of your own on it."""
    given = ExternalBroker.of_tests()
    if given is not None:
        yield given
        return
    with BrokerJ() as ours:
        yield ours


@pytest.fixture(scope="session")
def capabilities(broker: Broker) -> Capabilities:
    """The capabilities of the shared broker; those of our own broker are known."""
    from tests.support.capabilities import BROKER_J, Capabilities  # noqa: PLC0415 - as in ``connect``

    return BROKER_J if ExternalBroker.of_tests() is None else Capabilities.of(broker)


@pytest.fixture(autouse=True)
def _has_what_is_needed(request: pytest.FixtureRequest) -> None:
    skip_if_needed(request)


def skip_if_needed(request: pytest.FixtureRequest) -> None:
    """Skip a test that the broker of ``AMQP_TEST_URL`` cannot pass; with a broker of our own the test has to pass."""
    _need(request, *(name for mark in request.node.iter_markers("needs") for name in mark.args))


def _need(request: pytest.FixtureRequest, *names: str) -> None:
    if names and ExternalBroker.of_tests() is not None:
        from tests.support.capabilities import skip_without  # noqa: PLC0415

        skip_without(request.getfixturevalue("capabilities"), names)


@pytest.fixture
def own_broker() -> Iterator[OwnBroker]:
    """A function that starts a broker for this test alone; its arguments are those of ``BrokerConfig``."""
    with ExitStack() as stack:

        def start(**config: Any) -> BrokerJ:
            return stack.enter_context(BrokerJ(BrokerConfig(**config)))

        yield start


@pytest.fixture(scope="session")
def brokerj_0_9() -> Iterator[BrokerJ]:
    """A Broker-J for 0-9-1, 0-9 and 0-8, too. Its listener "plain" takes passwords as other clients send them."""
    protocols = ("AMQP_0_10", "AMQP_0_9_1", "AMQP_0_9", "AMQP_0_8")
    with BrokerJ(BrokerConfig(listeners=("plain",), protocols=protocols)) as broker:
        yield broker


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMQNode]:
    """The RabbitMQ node that tests of this process share. Use names of your own on it, and leave it running."""
    with closing(RabbitMQNode()) as node:
        yield start_or_skip(node)


@pytest.fixture(scope="session")
def rabbitmq310() -> Iterator[RabbitMQNode]:
    """The same of an old release. Only ``make test-all`` runs tests that take it."""
    with closing(RabbitMQNode(RabbitMQConfig(release=OLD))) as node:
        yield start_or_skip(node)


@pytest.fixture(scope="module")
def rabbitmq_tls() -> Iterator[RabbitMQNode]:
    """A node with a TLS listener, for the tests of one module."""
    with closing(RabbitMQNode(RabbitMQConfig(listeners=("tls",)))) as node:
        yield start_or_skip(node)


@pytest.fixture(scope="session")
def _victim() -> Iterator[RabbitMQNode]:
    with closing(RabbitMQNode()) as node:
        yield node


@pytest.fixture
def rabbitmq_private(_victim: RabbitMQNode) -> RabbitMQNode:
    """A node that a test may kill or freeze: it runs when the test begins, with what earlier tests left on it."""
    if _victim.running:
        _victim.resume()
        return _victim
    return start_or_skip(_victim)


@pytest.fixture
def own_rabbitmq() -> Iterator[OwnRabbitMQ]:
    """A function that starts a node for this test alone; its arguments are those of ``RabbitMQConfig``."""
    with ExitStack() as stack:

        def start(**config: Any) -> RabbitMQNode:
            return start_or_skip(stack.enter_context(closing(RabbitMQNode(RabbitMQConfig(**config)))))

        yield start


@pytest.fixture
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """A function ``connect(vhost="default", broker=the shared one, **options)`` that returns a connected client."""
    # Here, so that a client that cannot be imported fails the tests that need it, and no others.
    from tests.support.dial import dial  # noqa: PLC0415

    with ExitStack() as stack:

        def connect(vhost: str = "default", broker: Broker | None = None, **options: Any) -> Client:
            if broker is None and vhost == "durable":
                _need(request, "durable_host")
            client = dial(request.getfixturevalue("broker") if broker is None else broker, vhost, **options)
            stack.callback(client.close)
            return client

        yield connect


@pytest.fixture
def queue(connect: Connect) -> Iterator[str]:
    """The name of a new, empty queue of the virtual host "default"."""
    yield from _fresh_queue(connect, "default", durable=False)


@pytest.fixture
def durable_queue(connect: Connect) -> Iterator[str]:
    """The name of a new, empty, durable queue of the virtual host "durable"."""
    yield from _fresh_queue(connect, "durable", durable=True)


def _fresh_queue(connect: Connect, vhost: str, *, durable: bool) -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex[:12]}"
    connect(vhost).declare_queue(name, durable=durable)
    yield name
    client = connect(vhost)  # a new one: errors of the test may have ended the first
    if client.query_queue(name) is not None:
        client.delete_queue(name)


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    """An empty object store; the credentials for it are in the environment from then on."""
    from tests.support.objectstore import CREDENTIALS, ObjectStore  # noqa: PLC0415 - most tests do without Arrow

    with pytest.MonkeyPatch.context() as patch, ObjectStore() as store:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield store


@pytest.fixture
def free_port() -> int:
    """A port of the loopback interface without a listener."""
    return ports.free_port()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One local Spark for all tests, tuned for many small queries."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - half a second that most runs of single tests can save

    from tests.support.query_process import WARM  # noqa: PLC0415

    # Workers are started by the JVM from its environment: it must name the interpreter that has our packages.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    directory = tmp_path_factory.mktemp("spark")
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("amqp_spark tests")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.sql.streaming.checkpointLocation", str(directory / "checkpoints"))
        .config("spark.sql.streaming.stopTimeout", "60s")  # a query that cannot stop fails its test, not the run
        .config("spark.log.level", "ERROR")
    )
    with pytest.MonkeyPatch.context() as patch:  # the JVM keeps the environment in which it starts
        for name, value in WARM.items():
            patch.setenv(name, value)
        session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let the garbage collector look at what collection makes less often: thousands of tests, which stay to the end.

    It is not frozen: on Python 3.14 Hypothesis asks the collector who refers to its objects.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        young, middle, old = gc.get_threshold()
        gc.set_threshold(young, middle, 10 * old)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _leave_out(config, items)
    kinds: dict[Path, Kind] = {}
    for item in items:
        kinds[item.path] = min(kinds.get(item.path, Kind.SMALL), Kind.of(item))
    items.sort(key=lambda item: kinds[item.path])  # keeps the order within a kind


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SparkApart | None:
    return SparkApart(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the end of the logs of the brokers to the report of a failed test; put skips without a RabbitMQ together."""
    report = yield
    put_together(report)
    if report.failed:
        report.sections += [(f"{broker.title} log", broker.log()) for broker in started()]
    return report


def pytest_report_header() -> list[str]:
    """Name what decides the outcome besides the code."""
    given = ExternalBroker.of_tests()
    return [f"shared broker: {given.url() if given else 'Broker-J, started when needed'}"]


@pytest.fixture
def empty_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is all of PATH."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return programs


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """The doctor's command; it does not start ``java -version``, which one test looks at."""
    from amqp_spark.diagnosis import spark_side  # noqa: PLC0415
    from tests.support.doctor import Doctor  # noqa: PLC0415

    monkeypatch.setattr(spark_side, "require_java", lambda: 17)
    return Doctor(monkeypatch, capsys)
