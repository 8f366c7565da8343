"""Real Spark reads what the column decoder makes: every type, VARIANT above all."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.functions import from_json

from amqp_spark.arrow.decode import DEFAULT_SCHEMA, ColumnPlan
from amqp_spark.functions import decode_headers
from tests.support import wire
from tests.support.frames import assert_rows
from tests.support.received import chunk_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import types as t

pytestmark = pytest.mark.spark
I64, F64 = struct.Struct(">q").pack, struct.Struct(">d").pack


def frame(spark: SparkSession, schema: str | t.StructType, *messages: bytes, mode: str = "FAILFAST") -> DataFrame:
    """A data frame of decoded messages, by way of Python workers as the source itself."""
    chunk = chunk_of(b"".join(messages))

    # Inside the function: they travel to the workers by value, which cannot import this module.
    class Reader(DataSourceReader):
        def __init__(self, plan: ColumnPlan) -> None:
            self.plan = plan

        def read(self, partition: object) -> Iterator[pa.RecordBatch]:
            return self.plan.batches([chunk], queue="q", first_position=0)

    class Decoded(DataSource):
        @classmethod
        def name(cls) -> str:
            return "decoded_messages"

        def schema(self) -> t.StructType:
            return DEFAULT_SCHEMA

        def reader(self, schema: t.StructType) -> DataSourceReader:
            return Reader(ColumnPlan.build(schema, mode=mode, timestamp_unit="auto"))

    spark.dataSource.register(Decoded)
    return spark.read.format("decoded_messages").schema(schema).load()


def message(*entries: tuple[bytes, int, bytes], body: bytes = b"body") -> bytes:
    delivery = wire.delivery(
        redelivered=b"",
        priority=b"\x04",
        timestamp=struct.pack(">Q", 1_700_000_000),
        exchange=wire.str8(b"amq.topic"),
        routing_key=wire.str8(b"ticks"),
    )
    properties = wire.message(
        message_id=bytes(range(16)),
        correlation_id=wire.vbin16(b"\xff"),
        reply_to=wire.reply_to(None, b"answers"),
        content_type=wire.str8(b"amqp/map"),
        application_headers=wire.map_(entries),
    )
    return wire.transfer(delivery + properties, body)


HEADERS = [
    (b"symbol", 0x95, wire.vbin16("EUR€".encode())),
    (b"qty", 0x21, b"\0\0\0\x07"),
    (b"price", 0x33, F64(1.5)),
    (b"when", 0x38, I64(1_700_000_000)),
    (b"amount", 0xD8, b"\2" + I64(150)),
    (b"raw", 0x90, wire.vbin16(b"\xff\0")),
    (b"legs", 0xA9, wire.list_([(0x02, b"\1"), (0xF0, b""), (0xA8, wire.map_([(b"k", 0x08, b"\1")]))])),
    (b"none", 0xF0, b""),
]


def test_the_default_schema_in_spark(spark: SparkSession) -> None:
    df = frame(spark, DEFAULT_SCHEMA, message(*HEADERS[:3]), wire.transfer()).orderBy("position")
    full = {
        "queue": "q",
        "position": 0,
        "discard_unroutable": False,
        "immediate": False,
        "redelivered": True,
        "priority": 4,
        "timestamp": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        "exchange": "amq.topic",
        "routing_key": "ticks",
        "message_id": "00010203-0405-0607-0809-0a0b0c0d0e0f",
        "correlation_id": b"\xff",
        "reply_to": {"exchange": None, "routing_key": "answers"},
        "content_type": "amqp/map",
        "application_headers": {"symbol": "EUR€", "qty": "7", "price": "1.5"},
        "body": b"body",
    }
    assert_rows(df, [full, {"queue": "q", "position": 1, "body": b""}], DEFAULT_SCHEMA)


def test_spark_understands_the_variants(spark: SparkSession) -> None:
    df = frame(spark, "application_headers VARIANT, body VARIANT", message(*HEADERS, body=wire.map_(HEADERS)))
    # By hand, not ours: the functions that users call on a VARIANT run in the JVM, on Spark's own decoder.
    for column in ("application_headers", "body"):
        found = df.selectExpr(
            f"variant_get({column}, '$.symbol', 'string') AS symbol",
            f"variant_get({column}, '$.qty', 'int') AS qty",
            f"variant_get({column}, '$.price', 'double') AS price",
            f"variant_get({column}, '$.when', 'timestamp') = timestamp'2023-11-14 22:13:20Z' AS `when`",
            f"variant_get({column}, '$.amount', 'decimal(10,2)') AS amount",
            f"variant_get({column}, '$.raw', 'binary') AS raw",
            f"variant_get({column}, '$.legs[2].k', 'boolean') AS leg",
            f"is_variant_null(variant_get({column}, '$.legs[1]', 'variant')) AS empty",
            f"is_variant_null(variant_get({column}, '$.none', 'variant')) AS none",
            f"schema_of_variant({column}) AS schema",
        )
        wanted = {
            "symbol": "EUR€",
            "qty": 7,
            "price": 1.5,
            "when": True,
            "amount": Decimal("1.50"),
            "raw": b"\xff\0",
            "leg": True,
            "empty": True,
            "none": True,
            "schema": "OBJECT<amount: DECIMAL(2,1), legs: ARRAY<VARIANT>, none: VOID, price: DOUBLE, qty: BIGINT, "
            "raw: BINARY, symbol: STRING, when: TIMESTAMP>",
        }
        types = """symbol STRING, qty INT, price DOUBLE, `when` BOOLEAN, amount DECIMAL(10,2), raw BINARY, leg BOOLEAN,
            empty BOOLEAN, none BOOLEAN, schema STRING"""
        assert_rows(found, [wanted], types)
    assert df.collect()[0].body.toPython()["legs"] == [1, None, {"k": True}]


def test_a_large_variant_in_spark(spark: SparkSession) -> None:
    """More than 255 fields and offsets of more than one octet: the wide forms of the encoding."""
    many = [(b"k%03d" % i, 0x95, wire.vbin16(b"v" * i)) for i in range(400)]
    df = frame(spark, "application_headers VARIANT", message(*many))
    found = df.selectExpr(
        "variant_get(application_headers, '$.k399', 'string') AS last",
        "variant_get(application_headers, '$.k063', 'string') AS short",
        "variant_get(application_headers, '$.k064', 'string') AS long",
        "variant_get(application_headers, '$.k400', 'string') AS none",
    )
    types = "last STRING, short STRING, long STRING, none STRING"
    assert_rows(found, [("v" * 399, "v" * 63, "v" * 64, None)], types)


def test_any_names_of_a_large_variant_are_found_in_spark(spark: SparkSession) -> None:
    """From 32 fields on Spark expects them in the order of UTF-16, in which U+1F600 comes before U+FF00."""
    names = [chr(first + number) for first in (0xFF00, 0x1F600) for number in range(20)]
    some = [(name.encode(), 0x21, number.to_bytes(4)) for number, name in enumerate(names)]
    df = frame(spark, "application_headers VARIANT", message(*some))
    found = [f"variant_get(application_headers, '$[\"{name}\"]', 'int')" for name in names]
    assert_rows(df.selectExpr(f"array({', '.join(found)}) AS found"), [(list(range(40)),)], "found ARRAY<INT>")


def test_typed_headers_in_spark(spark: SparkSession) -> None:
    schema = (
        "position BIGINT NOT NULL, application_headers STRUCT<symbol: STRING, qty: INT NOT NULL, "
        "amount: DECIMAL(10,2), when: TIMESTAMP_NTZ, legs: ARRAY<VARIANT>, other: MAP<STRING, DATE>>"
    )
    other = (b"other", 0xA8, wire.map_([(b"day", 0x95, wire.vbin16(b"2024-02-29"))]))
    df = frame(spark, schema, message(*HEADERS, other), wire.transfer())
    legs = df.collect()[0].application_headers.legs
    assert [None if leg is None else leg.toPython() for leg in legs] == [1, None, {"k": True}]
    full = {
        "position": 0,
        "symbol": "EUR€",
        "qty": 7,
        "amount": Decimal("1.50"),
        "when": datetime(2023, 11, 14, 22, 13, 20),  # noqa: DTZ001 - TIMESTAMP_NTZ has no zone
        "other": {"day": datetime(2024, 2, 29, tzinfo=UTC).date()},
        "json": '[1,null,{"k":true}]',
    }
    types = """position BIGINT, symbol STRING, qty INT, amount DECIMAL(10,2), when TIMESTAMP_NTZ,
        other MAP<STRING, DATE>, json STRING"""
    found = df.selectExpr("position", "application_headers.*", "to_json(application_headers.legs) AS json").drop("legs")
    assert_rows(found, [full, {"position": 1}], types)


def test_an_error_names_queue_position_and_column(spark: SparkSession) -> None:
    df = frame(spark, "application_headers STRUCT<symbol: BIGINT>", message(*HEADERS))
    with pytest.raises(Exception, match="MessageFormatError") as raised:
        df.collect()
    text: Any = str(raised.value)
    for part in ("position 0 of queue 'q'", "'application_headers'", "symbol: str16 is not an integer"):
        assert part in text


def test_permissive_rows_in_spark(spark: SparkSession) -> None:
    df = frame(spark, "position BIGINT, body STRING", message(body=b"\xff"), message(), mode="PERMISSIVE")
    assert_rows(df.orderBy("position"), [(0, None), (1, "body")], "position BIGINT, body STRING")


def test_spark_reads_what_did_not_fit_with_the_documented_schema(spark: SparkSession) -> None:
    schema = "position BIGINT, _corrupt_record STRING, application_headers STRUCT<symbol: BIGINT>, body STRING"
    record = "reasons MAP<STRING,STRING>, body BINARY, application_headers BINARY, transfer BINARY"
    df = frame(spark, schema, message(), message(*HEADERS, body=b"\xff"), mode="PERMISSIVE")
    found = (
        df.where("_corrupt_record IS NOT NULL")
        .select("position", "body", from_json("_corrupt_record", record).alias("record"))
        .select("*", decode_headers("record.application_headers").alias("headers"))
        .selectExpr(
            *("position", "body", "record.body AS octets", "record.transfer"),
            *("sort_array(map_keys(record.reasons)) AS columns", "headers['symbol'] AS symbol"),
        )
    )
    types = "position BIGINT, body STRING, octets BINARY, transfer BINARY, columns ARRAY<STRING>, symbol STRING"
    assert_rows(found, [(1, None, b"\xff", None, ["application_headers", "body"], "EUR€")], types)
