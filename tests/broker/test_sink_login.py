"""How the sink's tasks reach a broker: TLS, client certificates, password files, and every other login."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PythonException

from tests.broker.sink_support import login, write
from tests.broker.stream_support import depth
from tests.support.brokerj import BrokerConfig, BrokerJ, Listener

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.fixtures import Connect

pytestmark = [pytest.mark.broker, pytest.mark.spark]

QUEUE = "q"


@pytest.fixture(scope="module")
def listening() -> Iterator[BrokerJ]:
    """A broker with every kind of listener."""
    listeners: tuple[Listener, ...] = ("anonymous", "plain", "tls", "tls-client-auth")
    with BrokerJ(BrokerConfig(listeners=listeners, durable=False, heap="512m")) as broker:
        yield broker


def rows_written(spark: SparkSession, broker: BrokerJ, connect: Connect, options: dict[str, str]) -> int:
    """Write a large and some small rows; how many are on the queue."""
    client = connect(broker=broker, heartbeat=0)
    client.declare_queue(QUEUE)
    client.purge_queue(QUEUE)
    frame = spark.range(0, 3000, 1, 2).selectExpr("IF(id = 7, repeat('x', 3000000), 'x') AS body")
    write(frame, {"routingKey": QUEUE, "retry.maxAttempts": "1"} | options)
    return depth(client, QUEUE)


@pytest.mark.parametrize("mechanism", ["", "SCRAM-SHA-256", "SCRAM-SHA-1", "CRAM-MD5", "PLAIN"])
def test_a_login_with_a_password(mechanism: str, spark: SparkSession, listening: BrokerJ, connect: Connect) -> None:
    options = {**login(listening), "url": listening.url(listener="plain")}
    options |= {"saslMechanisms": mechanism} if mechanism else {}
    assert rows_written(spark, listening, connect, options) == 3000


def test_no_login_is_anonymous(spark: SparkSession, listening: BrokerJ, connect: Connect) -> None:
    assert rows_written(spark, listening, connect, {"url": listening.url(listener="anonymous")}) == 3000


def test_tls(spark: SparkSession, listening: BrokerJ, connect: Connect) -> None:
    options = login(listening) | {"url": listening.url(listener="tls"), "tls.caFile": str(listening.tls.ca_file)}
    assert rows_written(spark, listening, connect, options) == 3000
    with pytest.raises(PythonException, match=r"(?s)TlsError: .* is not trusted.*CA file"):
        rows_written(spark, listening, connect, options | {"tls.caFile": str(listening.tls.other_ca_file)})


def test_a_client_certificate(spark: SparkSession, listening: BrokerJ, connect: Connect) -> None:
    pair = listening.tls.client
    options = {
        "url": listening.url(listener="tls-client-auth"),
        "tls.caFile": str(listening.tls.ca_file),
        "tls.certFile": str(pair.cert_file),
        "tls.keyFile": str(pair.key_file),
    }
    assert rows_written(spark, listening, connect, options) == 3000


def test_a_password_file_is_read_where_the_connection_is_made(
    spark: SparkSession, listening: BrokerJ, connect: Connect, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text("wrong-s3cret\n")
    options = {"url": listening.url(), "username": listening.username, "passwordFile": str(file)}
    with pytest.raises(PythonException, match="AuthenticationFailed") as failed:
        rows_written(spark, listening, connect, options)
    assert "s3cret" not in str(failed.value)
    file.write_text(f"{listening.password}\n")
    assert rows_written(spark, listening, connect, options) == 3000
