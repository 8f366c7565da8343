"""What the sink writes over 0-9-1 the source reads back, and what was read over one protocol goes over the other."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t
from pyspark.sql.types import VariantVal

from amqp_core.v0_9._scan import scan
from amqp_spark.arrow.decode import DEFAULT_SCHEMA, Chunk, ColumnPlan
from tests.spark.message_support import INT, LONG, OCTETS, TEXT, blocks_of, fields, sink_options, to_batch
from tests.spark.publish_support import encoded
from tests.support import wire_0_9 as wire9
from tests.support.received import chunk_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from amqp_spark.arrow.encode import EncodedBlock

ALL = fields(
    flag=t.BooleanType(),
    tiny=t.ByteType(),
    small=t.ShortType(),
    int=INT,
    big=LONG,
    float=t.FloatType(),
    double=t.DoubleType(),
    text=TEXT,
    raw=OCTETS,
    money=t.DecimalType(38, 10),
    day=t.DateType(),
    at=t.TimestampType(),
    local=t.TimestampNTZType(),
    list=t.ArrayType(fields(a=INT, b=t.ArrayType(TEXT))),
    map=t.MapType(TEXT, t.MapType(TEXT, LONG)),
    inner=fields(x=OCTETS, y=t.DoubleType()),
)
HEADERS: dict[str, Any] = {
    "flag": False,
    "tiny": -128,
    "small": 32_767,
    "int": -(2**31),
    "big": 2**63 - 1,
    "float": 1.5,
    "double": 0.1,
    "text": "Grüße \N{ROCKET}",
    "raw": b"\xff\x00",
    "money": Decimal("-12345678901234567890.0123456789"),
    "day": date(1, 1, 1),
    "at": datetime(2026, 11, 21, 0, 5, 30, 123_456, UTC),
    "local": datetime(9999, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001 - without a zone, as the type is
    "list": [{"a": 1, "b": ["x", None]}, None],
    "map": [("k", [("n", 1), ("v", None)]), ("empty", []), ("none", None)],
    "inner": {"x": b"", "y": None},
}
MESSAGE = {
    "routing_key": "ticks.é",
    "priority": 9,
    "delivery_mode": 1,
    "ttl": 60_000,
    "timestamp": datetime(2026, 11, 21, tzinfo=UTC),
    "message_id": "f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
    "correlation_id": b"c-1",
    "reply_to": {"exchange": None, "routing_key": "answers"},
    "content_type": "text/plain",
    "content_encoding": "gzip",
    "user_id": b"guest",
    "app_id": b"app",
    "application_headers": [("symbol", "EURUSD"), ("qty", "7")],
    "body": b"body",
}


def as_deliveries(blocks: Iterable[EncodedBlock]) -> bytes:
    """The same messages as a broker sends them."""
    out: list[bytes] = []
    for block in blocks:
        data = bytes(memoryview(block.frames))
        begin = 0
        for end in block.ends:
            method, *rest = wire9.frames_of(data[begin:end])
            exchange = 13 + 1 + method[13]
            key = method[exchange + 1 : exchange + 1 + method[exchange]]
            deliver = wire9.deliver_method(len(out) + 1, exchange=method[14:exchange], key=key)
            frames = [wire9.frame(frame[0], frame[7:-1]) for frame in rest]
            out.append(wire9.frame(wire9.METHOD, deliver) + b"".join(frames))
            begin = end
    return b"".join(out)


def read(schema: t.StructType, chunk: Chunk) -> list[dict[str, Any]]:
    plan = ColumnPlan.build(schema, mode="FAILFAST", timestamp_unit="auto")
    return [row for batch in plan.batches([chunk], queue="q", first_position=0) for row in batch.to_pylist()]


def over_0_9(schema: t.StructType, rows: list[dict[str, Any]] | pa.RecordBatch, **options: Any) -> list[dict[str, Any]]:
    """Write and read over 0-9-1."""
    frames = as_deliveries(encoded(schema, rows, sink_options(**options)))
    found, _ = scan(frames, 0, 1, 1 << 32)
    assert found.error is None
    wanted = schema if "body" in schema.names else fields(body=OCTETS)
    return read(wanted, Chunk.of(frames, found.ends, protocol="0-9-1"))


def over_0_10(schema: t.StructType, rows: list[dict[str, Any]], **options: Any) -> list[dict[str, Any]]:
    """Write and read over 0-10."""
    blocks = blocks_of(schema, to_batch(schema, rows), sink_options(**options))
    return read(schema, chunk_of(b"".join(bytes(memoryview(block.frames)) for block in blocks)))


def test_every_type_of_header_comes_back() -> None:
    schema = fields(body=OCTETS, application_headers=ALL)
    rows: list[dict[str, Any]] = [
        {"body": b"", "application_headers": HEADERS},
        {"body": b"", "application_headers": None},
        {"body": b"", "application_headers": dict.fromkeys(HEADERS)},
    ]
    assert over_0_9(schema, rows) == to_batch(schema, rows).to_pylist()


def test_encoded_tables_come_back_byte_by_byte() -> None:
    schema = fields(body=OCTETS, application_headers=OCTETS)
    table = wire9.table((b"u", b"u\xff\xff"), (b"D", b"D\x02" + struct.pack(">i", -150)), (b"T", b"T" + bytes(8)))
    rows: list[dict[str, Any]] = [{"body": b"", "application_headers": each} for each in (table, None, wire9.table())]
    assert over_0_9(schema, rows) == rows


def test_a_variant_comes_back() -> None:
    schema = fields(body=OCTETS, application_headers=t.VariantType())
    text = '{"a":[1,300,70000,5000000000,null,true,"é"],"o":{"k":"v"}}'
    value = VariantVal.parseJson(text)
    rows = [{"body": b"", "application_headers": {"value": value.value, "metadata": value.metadata}}]
    (row,) = over_0_9(schema, rows)
    found = row["application_headers"]
    assert VariantVal(found["value"], found["metadata"]).toPython() == value.toPython()


def test_a_map_as_body_comes_back() -> None:
    schema = fields(body=fields(a=INT, b=t.ArrayType(TEXT)))
    rows: list[dict[str, Any]] = [{"body": {"a": 1, "b": ["x", None]}}, {"body": {"a": None, "b": None}}]
    assert over_0_9(schema, rows) == rows


def test_what_both_protocols_have_survives_a_bridge_there_and_back() -> None:
    expected = {**dict.fromkeys(DEFAULT_SCHEMA.names), **MESSAGE, "queue": "q", "position": 0}
    row = over_0_10(DEFAULT_SCHEMA, [expected])[0]
    assert {name: row[name] for name in MESSAGE} == MESSAGE
    row = over_0_9(DEFAULT_SCHEMA, [row])[0]
    assert {name: row[name] for name in MESSAGE} == MESSAGE
    row = over_0_10(DEFAULT_SCHEMA, [row])[0]
    assert {name: row[name] for name in MESSAGE} == MESSAGE


def test_what_one_protocol_lacks_is_dropped_on_request_and_null_then() -> None:
    more = {"type": "tick", "cluster_id": "c", "resume_id": "r", "resume_ttl": 5}
    row = {**dict.fromkeys(DEFAULT_SCHEMA.names), **MESSAGE, **more}
    there = over_0_9(DEFAULT_SCHEMA, [row], onUnsupported="drop")[0]
    assert {name: there[name] for name in more} == {**more, "resume_id": None, "resume_ttl": None}
    back = over_0_10(DEFAULT_SCHEMA, [{**there, **more}], onUnsupported="drop")[0]
    assert {name: back[name] for name in more} == {**more, "type": None, "cluster_id": None}


VALUES = fields(
    body=OCTETS,
    routing_key=TEXT,
    priority=t.ShortType(),
    ttl=LONG,
    message_id=TEXT,
    type=TEXT,
    correlation_id=OCTETS,
    application_headers=fields(a=LONG, b=TEXT, c=t.ArrayType(t.DoubleType()), d=t.MapType(TEXT, OCTETS)),
)
SHORT = st.none() | st.text(max_size=12)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "body": st.binary(max_size=30),
            "routing_key": st.text(max_size=12),
            "priority": st.none() | st.integers(0, 255),
            "ttl": st.none() | st.integers(0, 10**11),
            "message_id": SHORT,
            "type": SHORT,
            "correlation_id": st.none() | st.binary(max_size=12),
            "application_headers": st.none()
            | st.fixed_dictionaries(
                {
                    "a": st.none() | st.integers(-(2**63), 2**63 - 1),
                    "b": SHORT,
                    "c": st.none() | st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), max_size=3),
                    "d": st.none()
                    | st.dictionaries(st.text(max_size=3), st.none() | st.binary(max_size=3), max_size=3).map(
                        lambda entries: list(entries.items())
                    ),
                }
            ),
        }
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=50, deadline=None)
@given(ROWS)
def test_any_rows_come_back(rows: list[dict[str, Any]]) -> None:
    assert over_0_9(VALUES, rows) == rows
