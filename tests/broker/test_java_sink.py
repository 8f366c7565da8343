"""Messages of the sink, as the Java JMS client receives them: types and values are those of ``sink_expected.json``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.broker.sink_support import login, write
from tests.support import javapeer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.fixtures import Broker

pytestmark = [pytest.mark.spark, pytest.mark.broker]

EXPECTED = javapeer.expected_of_sink()

# A value of every type. As a VARIANT, Spark itself makes whole numbers inside of arrays as narrow as they can be.
VALUES = """named_struct(
    'p_boolean', true, 'p_tinyint', -128Y, 'p_smallint', -32768S, 'p_int', 2147483647,
    'p_bigint', -9223372036854775808L,
    'p_float', CAST(0.25 AS FLOAT), 'p_double', 1e300D, 'p_string', 'Grüße, 世界 🚀', 'p_empty', '',
    'p_binary', X'00ff10', 'p_decimal', -1.50BD, 'p_date', DATE'2026-11-21',
    'p_timestamp', TIMESTAMP'2026-11-21 00:05:30.123456Z', 'p_timestamp_ntz', TIMESTAMP_NTZ'2026-11-21 00:05:30.123456',
    'p_array', array(1, NULL, 3),
    'p_struct', named_struct('symbol', 'ÄBC', 'sizes', array(1L, 2L), 'none', CAST(NULL AS STRING)),
    'p_map', map('a', 1.5D, 'b', NULL), 'p_größe', 'a name that is not ASCII', 'p_null', CAST(NULL AS INT))"""

TEXT = {"contentType": "text/plain"}
MESSAGE_ID = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"

WRITTEN: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    (
        "text with every property",
        {
            "body": "'Grüße, 世界 🚀'",
            "content_type": "'text/plain'",
            "message_id": f"'{MESSAGE_ID}'",
            "correlation_id": "'order-ä-1'",
            "reply_to": "named_struct('exchange', '', 'routing_key', 'replies')",
            "priority": "7",
            "delivery_mode": "2",
            "timestamp": "TIMESTAMP'2026-11-21 00:05:30.123Z'",
            "expiration": "TIMESTAMP'2096-10-02 07:06:40.001Z'",
            "application_headers": VALUES,
        },
        {},
    ),
    (
        "text, empty, by options",
        {"body": "''"},
        {"contentType": "text/plain", "priority": "0", "deliveryMode": "non-persistent"},
    ),
    ("bytes", {"body": "X'000102ff'", "content_type": "'application/octet-stream'", "correlation_id": "X'00ff10'"}, {}),
    (
        "no content type",
        {"body": "'text?'", "application_headers": "map('x-jms-type', 'tick', 'JMSXGroupID', 'g')"},
        {},
    ),
    ("no content type, empty", {"body": "X''"}, {}),
    ("headers VARIANT", {"body": "''", "application_headers": f"to_variant_object({VALUES})"}, TEXT),
    ("headers MAP", {"body": "''", "application_headers": "map('p_a', 1L, 'p_b', NULL)"}, TEXT),
    ("map of STRUCT", {"body": VALUES}, {}),
    ("map of MAP", {"body": "map('a', 1S, 'größe', 2S)"}, {}),
    ("map of VARIANT", {"body": f"to_variant_object({VALUES})"}, {}),
    ("list of ARRAY", {"body": "array('eins', '', 'zwölf')"}, {}),
    ("list of VARIANT", {"body": """parse_json('[true, 1, 70000, 5000000000, 2.5e0, "x", {"a": [1]}]')"""}, {}),
]
"""Name, columns as SQL, options."""


def test_the_java_client_sees_types_and_values_as_they_were_written(
    spark: SparkSession, broker: Broker, queue: str
) -> None:
    for _, columns, options in WRITTEN:
        frame = spark.range(1).selectExpr(*[f"{value} AS {name}" for name, value in columns.items()])
        write(frame, login(broker, routingKey=queue) | options)
    received = javapeer.receive(broker, queue, len(WRITTEN))
    assert [expected["name"] for expected in EXPECTED] == [name for name, _, _ in WRITTEN]
    for message, expected in zip(received, EXPECTED, strict=True):
        assert strict(message) == strict(expected["java"]), expected["name"]


def strict(value: object) -> str:
    """A text that differs for 1, 1.0 and True, which compare equal."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
