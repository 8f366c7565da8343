"""Messages of every JMS type, published by the Java client, as rows of the source in a real Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.broker.stream_support import Stream, depth
from tests.support import javapeer
from tests.support.capabilities import needs

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.fixtures import Broker, Connect

pytestmark = [pytest.mark.broker, pytest.mark.spark]

PROPERTIES = """content_type STRING, priority TINYINT, delivery_mode TINYINT, ttl BIGINT, correlation_id BINARY,
    reply_to STRUCT<exchange STRING, routing_key STRING>, user_id STRING, application_headers VARIANT"""
EXPECTED = javapeer.expected()


def plain(typed: Any) -> Any:
    """The value that ``expected.json`` spells with its wire type; octets as hex, as ``readable`` makes them."""
    code, value = typed
    if code == "map":
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if code == "list" else value


def readable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: readable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [readable(item) for item in value]
    return bytes(value).hex() if isinstance(value, (bytes, bytearray)) else value


def of_variant(value: Any) -> Any:
    return None if value is None else readable(value.toPython())


def strict(value: object) -> str:
    """A text that differs for 1, 1.0 and True, which compare equal."""
    return json.dumps(value, sort_keys=True)


@needs("keeps_ttl")
def test_the_source_decodes_body_and_properties_as_sent(
    spark: SparkSession, broker: Broker, connect: Connect, queue: str, tmp_path: Path
) -> None:
    javapeer.publish_all(broker, queue)
    stream = Stream(spark, broker, tmp_path)
    login = {"url": broker.url(), "username": broker.username, "password": broker.password, "queue": queue}
    browse = spark.read.format("amqp").options(**login, mode="PERMISSIVE").schema("position BIGINT, body VARIANT")
    described = [of_variant(row["body"]) for row in browse.load().orderBy("position").collect()]
    stream.drain(stream.frame(queue, f"body BINARY, message_id STRING, timestamp TIMESTAMP, {PROPERTIES}"))
    for row, variant, message in zip(stream.rows, described, EXPECTED, strict=True):
        name, wire = message["name"], message["wire"]
        found = readable(row.asDict(recursive=True) | {"application_headers": None})
        fields = ("content_type", "priority", "delivery_mode", "ttl", "correlation_id", "reply_to")
        # An empty name and an absent one are the same exchange.
        reply_to = found["reply_to"] and found["reply_to"] | {"exchange": found["reply_to"]["exchange"] or ""}
        assert {key: found[key] for key in fields} | {"reply_to": reply_to} == {key: wire[key] for key in fields}, name
        assert row["user_id"] == broker.username
        assert row["message_id"] is not None
        assert row["timestamp"] is not None
        headers = wire["headers"] and {key: plain(value) for key, value in wire["headers"].items()}
        assert strict(of_variant(row["application_headers"])) == strict(headers), name
        ((form, body),) = wire["body"].items()
        if form in {"map", "list"}:
            assert strict(variant) == strict(plain([form, body])), name
        else:
            assert bytes(row["body"]) == (body.encode() if form == "utf8" else bytes.fromhex(body)), name
            assert variant is None, name  # no body that describes itself
    assert depth(connect(heartbeat=0), queue) == 0
