"""How client, source and sink reach RabbitMQ: TLS, passwords, client certificates (EXTERNAL), and what is refused."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PythonException, StreamingQueryException

from amqp_core.address import ConnectOptions
from amqp_core.errors import AuthenticationFailed, SpeaksNoAmqp, TlsError, VersionRefused
from amqp_spark.connect import connect as connect_to
from tests.broker.sink_support import login, write
from tests.broker.stream_support import Stream, depth
from tests.support.dial_0_9 import dial_0_9, put

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from amqp_core.v0_9.client import Client
    from tests.support.rabbitmq import RabbitMQNode
    from tests.support.tls import KeyPair

pytestmark = [pytest.mark.broker, pytest.mark.spark]

COUNT = 3000


@pytest.fixture
def queue(rabbitmq_tls: RabbitMQNode) -> Iterator[str]:
    """The name of a new, empty queue."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    with dial_0_9(rabbitmq_tls, heartbeat=0) as client:
        client.declare_queue(name)
        yield name
        client.delete_queue(name)


def connect(node: RabbitMQNode, pair: KeyPair) -> Client:
    """A client that logs in with a certificate."""
    return dial_0_9(
        node,
        hosts=((node.host, node.ports["tls"]),),
        tls=True,
        tls_ca_file=str(node.tls.ca_file),
        tls_cert_file=str(pair.cert_file),
        tls_key_file=str(pair.key_file),
        username=None,
        password=None,
    )


def over_tls(node: RabbitMQNode, kind: str) -> dict[str, str]:
    """Options that reach the TLS listener, with a login by ``password`` or ``certificate``."""
    url, authority = node.url(listener="tls"), str(node.tls.ca_file)
    if kind == "password":
        return login(node, tls__caFile=authority) | {"url": url}
    pair = node.tls.client
    files = {"tls.certFile": str(pair.cert_file), "tls.keyFile": str(pair.key_file)}
    return {"url": url, "tls.caFile": authority} | files


def rows(spark: SparkSession, user: str = "guest") -> DataFrame:
    """Rows of one user; one of them is large. RabbitMQ takes the name of its sender only."""
    body = "IF(id = 7, repeat('x', 3000000), CAST(id AS STRING)) AS body"
    return spark.range(0, COUNT, 1, 2).selectExpr(body, f"CAST('{user}' AS BINARY) AS user_id")


def stream_of(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.readStream.format("amqp").options(**options).schema("body STRING, user_id STRING").load()


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "user"), [("password", "guest"), ("certificate", "client")])
def test_sink_and_source_over_tls(
    rabbitmq_tls: RabbitMQNode, spark: SparkSession, queue: str, tmp_path: Path, kind: str, user: str
) -> None:
    options = over_tls(rabbitmq_tls, kind)
    write(rows(spark, user), options | {"routingKey": queue})
    stream = Stream(spark, rabbitmq_tls, tmp_path)
    stream.drain(stream_of(spark, options | {"queue": queue}))
    assert {row["body"] for row in stream.rows} == {str(n) if n != 7 else "x" * 3_000_000 for n in range(COUNT)}
    assert len(stream.rows) == COUNT
    assert {row["user_id"] for row in stream.rows} == {user}


def test_a_certificate_of_an_unknown_authority_is_refused(
    rabbitmq_tls: RabbitMQNode, spark: SparkSession, queue: str, tmp_path: Path
) -> None:
    options = over_tls(rabbitmq_tls, "password") | {
        "tls.caFile": str(rabbitmq_tls.tls.other_ca_file),
        "retry.maxAttempts": "1",
    }
    with pytest.raises(PythonException, match=r"(?s)TlsError: .* is not trusted.*CA file"):
        write(rows(spark), options | {"routingKey": queue})
    stream = Stream(spark, rabbitmq_tls, tmp_path)
    with pytest.raises(StreamingQueryException, match=r"(?s)TlsError: .* is not trusted.*CA file"):
        stream.drain(stream_of(spark, options | {"queue": queue}))


@pytest.mark.parametrize("protocol", ["auto", "0-9-1"])
def test_a_port_with_tls_and_one_without_are_named(rabbitmq_tls: RabbitMQNode, protocol: str) -> None:
    host, ports = rabbitmq_tls.host, rabbitmq_tls.ports
    with pytest.raises((VersionRefused, SpeaksNoAmqp), match=r"TLS.*amqps://") as plain:
        connect_to(ConnectOptions(hosts=((host, ports["tls"]),), protocol=protocol))
    with pytest.raises(TlsError, match=r"does not speak TLS: .* Use amqp://") as encrypted:
        connect_to(ConnectOptions(hosts=((host, ports["login"]),), protocol=protocol, tls=True))
    assert not plain.value.retryable
    assert not encrypted.value.retryable


# --- EXTERNAL


def test_external_takes_the_common_name_of_the_certificate(rabbitmq_tls: RabbitMQNode, queue: str) -> None:
    with connect(rabbitmq_tls, rabbitmq_tls.tls.client) as client:
        assert client.mechanism == "EXTERNAL"
        put(client, queue, b"body", user_id="client")
        (message,) = client.subscribe(queue).take(timeout=30)
        assert (message.body, message.properties.user_id) == (b"body", "client")


def test_a_certificate_that_names_no_user_is_refused(rabbitmq_tls: RabbitMQNode) -> None:
    with pytest.raises(AuthenticationFailed, match=r"AMQP_LOGIN_REFUSED.*\(EXTERNAL\).*403.*client certificate"):
        connect(rabbitmq_tls, rabbitmq_tls.tls.wrong_name)


def test_a_client_certificate_of_an_unknown_authority_is_refused(rabbitmq_tls: RabbitMQNode) -> None:
    with pytest.raises(TlsError, match=r"refused our client certificate: .*unknown ca\. Give .* the broker trusts"):
        connect(rabbitmq_tls, rabbitmq_tls.tls.stranger)


# --- what the sink cannot write


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"password": "s3cret-and-wrong"}, r"AuthenticationFailed: \[AMQP_LOGIN_REFUSED\] .*Check user name"),
        ({"url": "no-such-host"}, r"VirtualHostRefused: \[AMQP_VIRTUAL_HOST_REFUSED\] .*'no-such-host': 530 .*URL"),
        (
            {"exchange": "no-such-exchange"},
            r"PublishFailed: \[AMQP_EXCHANGE_NOT_FOUND\] .*row 0 .*'no-such-exchange': there is no such exchange",
        ),
    ],
    ids=["password", "virtual host", "exchange"],
)
def test_what_cannot_be_written_is_named(
    rabbitmq_tls: RabbitMQNode, spark: SparkSession, queue: str, changes: dict[str, str], text: str
) -> None:
    if "url" in changes:
        changes = {"url": rabbitmq_tls.url(changes["url"])}
    with pytest.raises(PythonException, match=text) as raised:
        write(rows(spark), login(rabbitmq_tls, routingKey=queue) | changes)
    assert "s3cret" not in str(raised.value)
    with dial_0_9(rabbitmq_tls) as client:
        assert depth(client, queue) == 0, "nothing was sent"
