"""Bridges between AMQP 0-9-1 and 0-10: RabbitMQ, Broker-J and RabbitMQ again. Every property that both have is kept.

Broker-J writes headers again from Java objects (specs/amqp_0_10/errata.toml): timestamps, decimals and unsigned numbers
have other types when it delivers them. tests/spark/test_conversion.py has these.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.typed_values import Typed
from amqp_core.v0_9 import type_codes as letter
from amqp_core.v0_9.messages import Message
from amqp_core.v0_9.spec import BasicProperties
from amqp_core.v0_10 import spec
from amqp_core.v0_10.messages import Message as Message010
from amqp_spark import cli
from tests.broker.job_support import Here, error_lines, received
from tests.broker.job_support import login as variables
from tests.broker.sink_support import login
from tests.broker.source_0_9_support import Place
from tests.support.capabilities import needs
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from amqp_core.v0_9.client import Client
    from tests.support.fixtures import Broker, Connect
    from tests.support.rabbitmq import RabbitMQNode

pytestmark = [pytest.mark.broker, pytest.mark.spark]

HEADERS: dict[str, object] = {
    "text": "grün", "empty": "", "long": "x" * 300, "int8": Typed(letter.INT8, -8), "int16": Typed(letter.INT16, -300),
    "int": 42, "int64": -(1 << 40), "float": Typed(letter.FLOAT, 0.5), "double": 2.5, "true": True,
    "bytes": b"\x00\xff", "none": None, "table": {"a": 1, "list": [1, "b", {"c": False}]},
    "no entries": {}, "no items": [],
}  # fmt: skip
FULL = BasicProperties(
    content_type="text/plain", content_encoding="utf-8", headers=HEADERS, delivery_mode=2, priority=7,
    correlation_id="corr-1", reply_to="answers", expiration="600000", message_id=str(uuid.UUID(int=7)),
    timestamp=1_700_000_000, user_id="guest", app_id="app",
)  # fmt: skip
MESSAGES = [
    Message(b"\x00body\xff", FULL),
    Message(b"", BasicProperties(delivery_mode=1, priority=0)),
    Message(b"bare"),
    Message(b"x" * 300_000, BasicProperties(headers={"n": 1}, delivery_mode=2)),
]
VARIANT = cli.exact_ddl({"application_headers"}) + ", application_headers VARIANT"


class Route:
    """A queue of RabbitMQ, one of Broker-J and another one of RabbitMQ, each with a fanout exchange of its name."""

    def __init__(self, rabbitmq: RabbitMQNode, broker: Broker, there: Any) -> None:
        self.rabbitmq = rabbitmq
        self.broker = broker
        prefix = f"test-{uuid.uuid4().hex[:12]}"
        self.first, self.middle, self.last = (f"{prefix}-{number}" for number in range(3))
        with self.connect() as here:
            for client, name in ((here, self.first), (there, self.middle), (here, self.last)):
                client.declare_queue(name, durable=client is here)
                client.declare_exchange(name, "fanout")
                client.bind(name, name, "")

    def connect(self) -> Client:
        return Place(self.rabbitmq.url(), self.rabbitmq.username, self.rabbitmq.password).connect()

    def send(self, messages: list[Message]) -> None:
        with self.connect() as client:
            for number, message in enumerate(messages):
                client.publish(message, exchange=self.first, routing_key=f"k.{number}")
            client.confirm()

    def left(self, queue: str) -> int:
        with self.connect() as client:
            info = client.query_queue(queue)
        assert info is not None
        return info.message_count

    def take(self) -> list[Message]:
        """The messages of the last queue."""
        found = []
        with self.connect() as client:
            while (message := client.get(self.last)) is not None:
                found.append(message)
                client.accept([(message.transfer_id, message.transfer_id)])
            client.sync()
        return found

    def close(self, there: Any) -> None:
        with self.connect() as here:
            for client, name in ((here, self.first), (there, self.middle), (here, self.last)):
                client.delete_queue(name)
                client.delete_exchange(name)


@pytest.fixture
def route(rabbitmq: RabbitMQNode, broker: Broker, connect: Connect) -> Iterator[Route]:
    found = Route(rabbitmq, broker, connect(heartbeat=0))
    yield found
    found.close(connect())


class Bridges:
    """jobs/bridge.py on the two legs of a route."""

    def __init__(self, route: Route, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._route = route
        self._directory = directory
        self._monkeypatch = monkeypatch

    def _leg(self, source: Broker, sink: Broker, queue: str, exchange: str, arguments: tuple[str, ...]) -> int:
        job = Here("bridge", variables(source, "FROM_") | variables(sink, "TO_"), self._monkeypatch)
        where = ["--queue", queue, "--exchange", exchange, "--checkpoint", str(self._directory / exchange)]
        return job(*where, "--available-now", "--from-option", "numPartitions=1", *arguments)

    def there(self, *arguments: str) -> int:
        """From RabbitMQ to Broker-J."""
        route = self._route
        return self._leg(route.rabbitmq, route.broker, route.first, route.middle, arguments)

    def back(self, *arguments: str) -> int:
        """From Broker-J to RabbitMQ."""
        route = self._route
        return self._leg(route.broker, route.rabbitmq, route.middle, route.last, arguments)


@pytest.fixture
def bridges(route: Route, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bridges:
    """The jobs use this Spark: one of their own would cost seconds each time."""
    return Bridges(route, tmp_path, monkeypatch)


def same(found: list[Message], sent: list[Message]) -> None:
    """Message by message: key, body, and each property with its type."""
    assert [message.routing_key for message in found] == [f"k.{number}" for number in range(len(sent))]
    for message, original in zip(found, sent, strict=True):
        assert message.body == original.body
        assert with_types(message.properties.headers) == with_types(natural(original.properties.headers))
        for name in BasicProperties.__dataclass_fields__:
            if name != "headers":
                assert getattr(message.properties, name) == getattr(original.properties, name), name


def natural(value: Any) -> Any:
    """The value that a client gets."""
    if isinstance(value, Typed):
        return value.value
    return {key: natural(item) for key, item in value.items()} if isinstance(value, dict) else value


def with_types(value: Any) -> Any:
    """Values with their types, in an order that brokers do not change: 1, 1.0 and True are equal otherwise."""
    if isinstance(value, dict):
        return sorted([(key, with_types(item)) for key, item in value.items()], key=lambda pair: pair[0])
    return list(map(with_types, value)) if isinstance(value, list) else (type(value), value)


@pytest.mark.thorough
@needs("is_broker_j")
def test_the_job_keeps_every_property_there_and_back(
    route: Route, bridges: Bridges, connect: Connect, capfd: pytest.CaptureFixture[str]
) -> None:
    route.send(MESSAGES)
    assert bridges.there() == 0
    shown = capfd.readouterr()
    assert shown.out.startswith(f"bridge: {len(MESSAGES)} rows in 1 batch")
    assert (
        "bridge: from AMQP 0-9-1 to 0-10: type, cluster_id, and a message_id that is no UUID end the query" in shown.err
    )
    assert bridges.back() == 0
    assert "bridge: from AMQP 0-10 to 0-9-1: resume_id, resume_ttl" in capfd.readouterr().err
    same(route.take(), MESSAGES)
    assert route.left(route.first) == 0
    assert received(connect(), route.middle) == []


@needs("is_broker_j")
def test_what_a_client_of_0_10_sees(route: Route, bridges: Bridges, connect: Connect) -> None:
    route.send(MESSAGES[:1])
    assert bridges.there() == 0
    (message,) = received(connect(), route.middle)
    assert (message.body, message.routing_key) == (b"\x00body\xff", "k.0")
    assert message.headers == natural(HEADERS)
    delivery, properties = message.delivery, message.properties
    assert (delivery.priority, delivery.delivery_mode, delivery.ttl, delivery.timestamp) == (
        7,
        2,
        600_000,
        1_700_000_000,
    )
    assert (properties.message_id, properties.correlation_id) == (uuid.UUID(int=7), b"corr-1")
    assert properties.reply_to is not None
    assert properties.reply_to.routing_key == "answers"
    assert (properties.content_type, properties.content_encoding) == ("text/plain", "utf-8")
    assert (properties.user_id, properties.app_id) == (b"guest", b"app")


@pytest.mark.thorough
def test_a_property_that_0_10_lacks_ends_the_job_or_is_left_out(
    route: Route, bridges: Bridges, connect: Connect, capfd: pytest.CaptureFixture[str]
) -> None:
    route.send([Message(b"a", BasicProperties(type="tick", cluster_id="c", message_id="order-1", app_id="app"))])
    assert bridges.there() == 1
    (error,) = error_lines(capfd.readouterr().err, "bridge")
    assert "AMQP 0-10 has no such property: leave the column out, or set onUnsupported=drop" in error
    wait_until(lambda: route.left(route.first) == 1, "the message to be back on its queue")
    assert received(connect(), route.middle) == []
    without = ["--without", "type", "--without", "cluster_id"]
    assert bridges.there(*without) == 1
    (error,) = error_lines(capfd.readouterr().err, "bridge")
    assert "'message_id' has a text of 7 bytes that is no UUID" in error
    assert "onUnsupported=drop" in error
    wait_until(lambda: route.left(route.first) == 1, "the message to be back on its queue")
    assert bridges.there("--to-option", "onUnsupported=drop") == 0
    assert "type, cluster_id, and a message_id that is no UUID are dropped" in capfd.readouterr().err
    (message,) = received(connect(), route.middle)
    assert (message.body, message.properties.app_id, message.properties.message_id) == (b"a", b"app", None)


@pytest.mark.thorough
def test_a_property_that_0_9_1_lacks_ends_the_job_or_is_left_out(
    route: Route, bridges: Bridges, connect: Connect, capfd: pytest.CaptureFixture[str]
) -> None:
    client = connect()
    reply_to = spec.ReplyTo(exchange="amq.direct", routing_key="back")
    client.publish(Message010(b"a", properties=spec.MessageProperties(reply_to=reply_to)), route.middle)
    client.confirm()
    assert bridges.back() == 1
    (error,) = error_lines(capfd.readouterr().err, "bridge")
    assert "'reply_to.exchange' has a value, and AMQP 0-9-1 has no exchange in reply_to" in error
    assert route.left(route.last) == 0
    assert bridges.back("--to-option", "onUnsupported=drop") == 0
    assert "the exchange of reply_to, and for RabbitMQ expiration without ttl are dropped" in capfd.readouterr().err
    (message,) = route.take()
    assert (message.body, message.properties.reply_to) == (b"a", "back")


@pytest.mark.thorough
def test_expressions_see_the_headers_of_the_other_protocol(route: Route, bridges: Bridges, connect: Connect) -> None:
    route.send(
        [Message(b"%d" % n, BasicProperties(headers={"symbol": ("SAP", "BMW")[n % 2], "n": n})) for n in range(6)]
    )
    chosen = ["--filter", "headers['symbol'] = 'SAP'", "--routing-key-expr", "concat('n.', headers['n'])"]
    assert bridges.there(*chosen) == 0
    found = received(connect(), route.middle)
    assert [message.routing_key for message in found] == ["n.0", "n.2", "n.4"]
    assert [message.headers for message in found] == [{"symbol": "SAP", "n": n} for n in (0, 2, 4)]


def stream(
    spark: SparkSession, source: dict[str, str], schema: str, sink: dict[str, str], checkpoint: Path, *drop: str
) -> None:
    """A bridge as a plain query."""
    rows = spark.readStream.format("amqp").options(**source, numPartitions="1").schema(schema).load()
    writer = rows.drop(*drop).writeStream.format("amqp").options(**sink).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()


@pytest.mark.thorough
@needs("is_broker_j")
def test_a_query_with_variant_headers_keeps_every_property_there_and_back(
    route: Route, spark: SparkSession, tmp_path: Path
) -> None:
    route.send(MESSAGES)
    there = login(route.rabbitmq, queue=route.first), VARIANT, login(route.broker, exchange=route.middle)
    stream(spark, *there, tmp_path / "there")
    back = login(route.broker, queue=route.middle), VARIANT, login(route.rabbitmq, exchange=route.last)
    stream(spark, *back, tmp_path / "back", "expiration")  # Broker-J computes it from ttl
    same(route.take(), MESSAGES)


@pytest.mark.thorough
@pytest.mark.sampled("headers", every=2)
@pytest.mark.parametrize("headers", [HEADERS, {"n": 1}, {}])
def test_encoded_headers_of_the_other_protocol_are_refused(
    route: Route, spark: SparkSession, connect: Connect, tmp_path: Path, headers: dict[str, object]
) -> None:
    schema = "body BINARY, application_headers BINARY"
    advice = "convert it with amqp_spark.functions.convert_headers, or read it as VARIANT"
    if headers:  # an empty table is an empty map, too
        route.send([Message(b"a", BasicProperties(headers=headers))])
        there = login(route.rabbitmq, queue=route.first), schema, login(route.broker, exchange=route.middle)
        with pytest.raises(Exception, match="AMQP_ROW_INVALID") as raised:
            stream(spark, *there, tmp_path / "there")
        assert (
            f"'application_headers' was encoded for AMQP 0-9-1, which encodes headers in another way: {advice}"
            in str(raised.value)
        )
    client = connect()
    client.publish(
        Message010(b"a", properties=spec.MessageProperties(application_headers=natural(headers))), route.middle
    )
    client.confirm()
    back = login(route.broker, queue=route.middle), schema, login(route.rabbitmq, exchange=route.last)
    with pytest.raises(Exception, match="AMQP_ROW_INVALID") as raised:
        stream(spark, *back, tmp_path / "back")
    assert f"'application_headers' was encoded for AMQP 0-10, which encodes headers in another way: {advice}" in str(
        raised.value
    )
    assert route.left(route.last) == 0
