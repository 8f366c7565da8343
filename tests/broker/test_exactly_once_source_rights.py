"""Exactly-once from a queue when the login may not all that it takes: on a real broker with rules of access."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from tests.broker.stream_support import Stream, depth, numbers, publish

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.fixtures import Connect, OwnBroker

pytestmark = [pytest.mark.broker, pytest.mark.spark]

CONSUMER_ID = "orders to archive"


@pytest.mark.sampled("rule", every=3)
@pytest.mark.sampled("protocol", every=2)
@pytest.mark.parametrize("protocol", ["0-10", "0-9-1"])
@pytest.mark.parametrize(
    ("rule", "what"),
    [
        ('CREATE QUEUE name="amqp-spark.lock.*"', r"declare the queue 'amqp-spark\.lock\."),
        ('CREATE QUEUE name="amqp-spark.state.*"', r"declare the queue 'amqp-spark\.state\."),
        ('PUBLISH EXCHANGE name="" routingkey="amqp-spark.state.*"', r"publish to the queue 'amqp-spark\.state\."),
    ],
)
def test_a_login_that_may_not_all_that_it_takes(
    spark: SparkSession, own_broker: OwnBroker, connect: Connect, tmp_path: Path, rule: str, what: str, protocol: str
) -> None:
    ours = own_broker(durable=False, acl=(f"ACL DENY trader {rule}",), protocols=("AMQP_0_10", "AMQP_0_9_1"))
    client = connect(broker=ours, heartbeat=0)
    client.declare_queue("q")
    publish(client, "q", numbers(100))
    spool = tmp_path / "spool"
    stream = Stream(spark, ours, tmp_path)
    options: dict[str, Any] = {
        "deliveryGuarantee": "exactly-once", "consumerId": CONSUMER_ID, "spoolLocation": spool, "retry__maxAttempts": 2,
        "protocol": protocol,
    }  # fmt: skip
    password = ours.config.users["trader"]
    with pytest.raises(StreamingQueryException) as failed:
        stream.drain(stream.frame("q", "body BINARY", username="trader", password=password, **options))
    told = str(failed.value)
    found = rf"AMQP_PERMISSION_MISSING\] The login may not {what}.*for consumer '{CONSUMER_ID}'.*Permit it to create"
    assert re.search(found, told), told
    assert password not in told
    assert depth(client, "q") == 100
    assert list(spool.glob("*.spool")) == []
    # With a login that may, the same query goes on: nothing is in the way, and all messages are there.
    stream.drain(stream.frame("q", "body BINARY", **options))
    assert stream.bodies() == numbers(100)
    assert depth(client, "q") == 0
