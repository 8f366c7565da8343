"""Rows that cannot be sent: the error names row, partition, batch and column, and shows no value."""

from __future__ import annotations

import mmap
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as t

from amqp_spark.arrow.encode import FrameFormat, MessagePlan
from amqp_spark.arrow.rows.messages import KEPT_FREE, MOST_ROWS
from amqp_spark.errors import OptionError, RowError
from tests.spark.message_support import (
    EVERYTHING,
    FRAME,
    HERE,
    INT,
    LIST,
    LONG,
    OBJECT,
    OCTETS,
    REPLY_TO,
    TEXT,
    blocks_of,
    fields,
    one,
    received,
    refused,
    sink_options,
    to_batch,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_an_error_names_row_partition_batch_and_column() -> None:
    schema = fields(body=OCTETS, routing_key=TEXT)
    rows = [{"body": b"", "routing_key": "k" * 255}, {"body": b"", "routing_key": "k" * 300}]
    error = refused(schema, *rows, first_row=16)
    assert str(error) == (
        "[AMQP_ROW_INVALID] Row 17 of partition 3 in batch 12 cannot be sent: column 'routing_key' has 300 bytes; "
        "at most 255 are allowed. Correct the row, or filter it out before the write."
    )


@pytest.mark.parametrize("name", ["routing_key", "content_type", "content_encoding", "correlation_id", "resume_id"])
def test_a_text_of_spark_that_is_none_is_refused(name: str) -> None:
    """``CAST(X'ff' AS STRING)`` is such a text: Spark does not look. As BINARY the octets go out as they are."""
    schema = fields(body=OCTETS, **{name: TEXT})
    plan = MessagePlan.build(schema, sink_options())
    texts = pa.array([b"a", None, b"\xff\xfe"], pa.binary()).view(pa.string())
    batch = pa.RecordBatch.from_arrays([pa.array([b""] * 3, pa.binary()), texts], names=["body", name])
    with pytest.raises(RowError, match=rf"Row 2 .* column '{name}' has 2 bytes that are not UTF-8"):
        list(plan.encoder(FrameFormat(accept_mode=0, max_frame_size=65535), HERE).blocks(batch, 0))


def test_the_content_type_of_an_encoded_body_is_a_text_too() -> None:
    schema = fields(body=t.MapType(TEXT, TEXT), content_type=TEXT)
    plan = MessagePlan.build(schema, sink_options())
    types = pa.array([None, b"\xff\xfe"], pa.binary()).view(pa.string())
    maps = pa.array([[("a", "b")]] * 2, pa.map_(pa.string(), pa.string()))
    batch = pa.RecordBatch.from_arrays([maps, types], names=["body", "content_type"])
    with pytest.raises(RowError, match=r"Row 1 .* column 'content_type' has 2 bytes that are not UTF-8"):
        list(plan.encoder(FrameFormat(accept_mode=0, max_frame_size=65535), HERE).blocks(batch, 0))


TOO_LONG = {
    "routing_key": 256,
    "content_type": 256,
    "content_encoding": 256,
    "correlation_id": 65536,
    "user_id": 65536,
    "app_id": 65536,
    "resume_id": 65536,
}


@pytest.mark.parametrize("name", list(TOO_LONG))
@pytest.mark.parametrize("large", [False, True])
def test_what_is_too_long_cannot_be_sent(name: str, large: bool) -> None:
    kind = EVERYTHING[name].dataType
    size = TOO_LONG[name]
    value: Any = b"v" * size if isinstance(kind, t.BinaryType) else "v" * size
    schema = t.StructType([EVERYTHING["body"], EVERYTHING[name]])
    error = refused(schema, {"body": b"", name: None}, {"body": b"", name: value}, large=large)
    assert (error.row, error.column) == (1, name)
    assert f"{size:,} bytes" in error.reason
    assert f"{size - 1:,}" in error.reason
    assert "vvv" not in str(error)


def test_length_is_counted_in_bytes_of_utf8() -> None:
    schema = fields(body=OCTETS, routing_key=TEXT)
    assert refused(schema, {"body": b"", "routing_key": "ü" * 128}).column == "routing_key"


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("body", OCTETS, None),
        ("body", TEXT, None),
        ("body", fields(a=INT), None),
        ("body", t.VariantType(), None),
        ("priority", t.ByteType(), 10),
        ("priority", LONG, 2**32 + 1),
        ("priority", t.ByteType(), -1),
        ("delivery_mode", t.ByteType(), 0),
        ("delivery_mode", t.ByteType(), 3),
        ("ttl", LONG, -1),
        ("ttl", INT, -1),
        ("resume_ttl", LONG, -1),
        ("timestamp", t.TimestampType(), datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
        ("expiration", t.TimestampNTZType(), datetime(1969, 12, 31)),  # noqa: DTZ001 - the type has none
        ("message_id", TEXT, "secret"),
        ("message_id", TEXT, "secret-7dec-11d0-a765-00a0c91e6bf6-x"),
        ("message_id", TEXT, "f81d4fae-7dec-11d0-a765-00a0c91e6bf"),
        ("message_id", TEXT, "f81d4fae+7dec-11d0-a765-00a0c91e6bf6"),
        ("message_id", TEXT, "f81d4fae-7dec-11d0-a765-00a0c91e6bfg"),
        ("message_id", TEXT, "{f81d4fae-7dec-11d0-a765-00a0c91e6bf6}"),
        ("message_id", OCTETS, bytes(15)),
        ("message_id", OCTETS, bytes(36)),
        ("reply_to", REPLY_TO, {"exchange": "x" * 256, "routing_key": None}),
        ("reply_to", REPLY_TO, {"exchange": None, "routing_key": "x" * 256}),
        ("application_headers", fields(a=TEXT), {"a": "secret" * 20_000}),
        ("application_headers", t.MapType(TEXT, INT), [("secret" * 100, 1)]),
        ("application_headers", OCTETS, b""),
        ("application_headers", OCTETS, b"\0\0\0"),
        ("application_headers", OCTETS, b"\0\0\0\x05" + bytes(4)),
        ("application_headers", OCTETS, b"\0\0\0\x05" + bytes(5)),
        ("application_headers", OCTETS, b"\0\0\0\x04\0\0\0\x01"),
        ("application_headers", OCTETS, b"\0\0\0\x0a\0\0\0\x01\x02ab\x21\0\0"),
        ("application_headers", OCTETS, b"\0\0\0\x07\0\0\0\x01\x00\xf0\x00"),
    ],
    ids=str,
)
def test_what_the_wire_has_no_form_for_cannot_be_sent(name: str, kind: t.DataType, value: Any) -> None:
    schema = fields(**{"body": OCTETS, name: kind})
    good: dict[str, Any] = {"body": b"", name: None}
    if name == "body":
        good["body"] = {"a": 1} if isinstance(kind, t.StructType) else b"" if kind == OCTETS else ""
        if isinstance(kind, t.VariantType):
            good["body"] = OBJECT
    error = refused(schema, good, {"body": good["body"], name: value}, good)
    assert (error.row, error.partition, error.batch_id) == (1, 3, 12)
    assert (error.column or "").split(".")[0] == name
    assert "secret" not in str(error)


def test_the_first_row_at_fault_is_named_whatever_its_column() -> None:
    schema = fields(body=OCTETS, priority=INT, content_type=TEXT)
    good = {"body": b"", "priority": 1, "content_type": "t"}
    error = refused(schema, good, good | {"content_type": "t" * 999}, good | {"priority": 99}, good | {"body": None})
    assert (error.row, error.column) == (1, "content_type")


@pytest.mark.parametrize(("option", "row"), [("amqp/map", 1), ("amqp/list", 0)])
def test_a_variant_that_contradicts_the_content_type_of_the_option_cannot_be_sent(option: str, row: int) -> None:
    schema = fields(body=t.VariantType())
    options = sink_options(contentType=option)
    error = refused(schema, {"body": OBJECT}, {"body": LIST}, options=options)
    assert (error.row, error.column) == (row, "body")
    assert option in error.reason
    good = {"body": OBJECT if option == "amqp/map" else LIST}
    assert one(schema, good, options).message.content_type == option


@pytest.mark.parametrize("large", [False, True])
def test_an_exchange_that_is_not_utf8_cannot_be_sent(large: bool) -> None:
    schema = fields(body=TEXT, exchange=OCTETS)
    rows = [{"body": "", "exchange": name} for name in (None, "ü".encode(), b"amq.\xff")]
    options = sink_options(exchange="", exchangeFromColumn="true")
    error = refused(schema, *rows, options=options, large=large)
    assert (error.row, error.column) == (2, "exchange")
    batch = to_batch(schema, rows[:2], large=large)
    assert [message.command.destination for message in received(blocks_of(schema, batch, options))] == ["", "ü"]


def test_an_exchange_that_is_too_long_cannot_be_sent() -> None:
    schema = fields(body=TEXT, exchange=TEXT)
    error = refused(schema, {"body": "", "exchange": "x" * 256}, options=sink_options(exchangeFromColumn="true"))
    assert (error.row, error.column) == (0, "exchange")


def test_a_header_segment_larger_than_a_frame_cannot_be_sent() -> None:
    schema = fields(body=OCTETS, application_headers=t.MapType(TEXT, TEXT), app_id=OCTETS)
    small = {"body": b"", "application_headers": [("a", "x")], "app_id": b""}
    large = {"body": b"", "application_headers": [("a", "x" * 4000)], "app_id": b"y" * 4000}
    error = refused(schema, small, large, max_frame_size=4096)
    assert (error.row, error.column) == (1, None)
    assert "its properties and headers (columns application_headers, app_id) take 8,0" in error.reason
    assert "at most 3,784 are allowed, for they have to fit one frame of 4,096 bytes, of which 300" in error.reason
    (message,) = received(blocks_of(schema, to_batch(schema, [large])))
    assert len(message.header) > 8000


@pytest.mark.parametrize("frame", [4096, 65535])
def test_the_largest_header_segment_is_sent_and_leaves_room_for_what_brokers_add(frame: int) -> None:
    """On delivery qpidd adds the name of the exchange: with less room every consumer of the message would die of it."""
    schema = fields(body=OCTETS, app_id=OCTETS, correlation_id=OCTETS)
    room = frame - FRAME - KEPT_FREE
    assert KEPT_FREE == 300
    correlation = bytes(min(room // 2, 30_000))
    rest = len(one(schema, {"body": b"", "app_id": b"", "correlation_id": correlation}).header)
    row = {"body": b"b", "app_id": bytes(room - rest), "correlation_id": correlation}
    message = one(schema, row, max_frame_size=frame)
    assert message.frames[1] == frame - KEPT_FREE
    error = refused(schema, row | {"app_id": bytes(room - rest + 1)}, max_frame_size=frame)
    assert f"take {room + 1:,} bytes; at most {room:,} are allowed" in error.reason


def test_headers_that_options_alone_make_too_large_are_refused() -> None:
    schema = fields(body=OCTETS, application_headers=t.MapType(TEXT, TEXT))
    headers = {"body": b"", "application_headers": [("a", "x" * 3700)]}
    assert one(schema, headers, max_frame_size=4096).header
    error = refused(schema, headers, options=sink_options(stampHeaders="true"), max_frame_size=4096)
    assert "at most 3,784 are allowed" in error.reason


def test_rows_of_earlier_blocks_are_handed_out_before_an_error() -> None:
    schema = fields(body=OCTETS)
    batch = to_batch(schema, [{"body": b"x"}] * MOST_ROWS + [{"body": b"y"}, {"body": None}])
    encoder = MessagePlan.build(schema, sink_options()).encoder(FrameFormat(accept_mode=1, max_frame_size=65535), HERE)
    blocks = encoder.blocks(batch, 10)
    assert len(next(blocks)) == MOST_ROWS
    with pytest.raises(RowError) as caught:
        next(blocks)
    assert caught.value.row == 10 + MOST_ROWS + 1


def sparse(path: Path, size: int, tail: bytes = b"") -> pa.Buffer:
    """Memory of which nothing but the tail takes room."""
    with path.open("w+b") as file:
        file.truncate(size)
        file.seek(size - len(tail))
        file.write(tail)
        file.flush()
        return pa.py_buffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))


@pytest.mark.parametrize(
    ("kind", "dtype", "size"), [(pa.large_binary(), np.int64, 2**31 + 50), (pa.binary(), np.int32, 2**31 - 1)], ids=str
)
def test_a_body_too_large_for_an_array_of_frames_is_refused(kind: Any, dtype: Any, size: int, tmp_path: Path) -> None:
    ends = pa.py_buffer(np.array([0, size], dtype).tobytes())
    body = pa.Array.from_buffers(kind, 1, [None, ends, sparse(tmp_path / "body", size)])
    batch = pa.RecordBatch.from_arrays([body], names=["body"])
    with pytest.raises(RowError, match=rf"column 'body' has {size:,} bytes; at most [\d,]+ are allowed"):
        blocks_of(fields(body=OCTETS), batch)


def test_bodies_far_inside_a_large_array_are_found(tmp_path: Path) -> None:
    start = 2**31 + 10
    ends = pa.py_buffer(np.array([0, start, start + 2, start + 2, start + 6], np.int64).tobytes())
    buffers = [None, ends, sparse(tmp_path / "bodies", start + 6, b"abcdef")]
    body = pa.Array.from_buffers(pa.large_binary(), 4, buffers)
    batch = pa.RecordBatch.from_arrays([body], names=["body"]).slice(1)
    assert [message.body for message in received(blocks_of(fields(body=OCTETS), batch))] == [b"ab", b"", b"cdef"]


def test_what_0_10_has_no_property_for_is_refused_unless_it_may_be_dropped() -> None:
    schema = fields(body=OCTETS, type=TEXT, cluster_id=TEXT)
    rows: list[dict[str, Any]] = [
        {"body": b"", "type": None, "cluster_id": None},
        {"body": b"", "type": "tick", "cluster_id": "c"},  # the first column is named
    ]
    assert str(refused(schema, *rows)) == (
        "[AMQP_ROW_INVALID] Row 1 of partition 3 in batch 12 cannot be sent: column 'type' has a value, and AMQP 0-10 "
        "has no such property: leave the column out, or set onUnsupported=drop. Correct the row, or filter it out "
        "before the write."
    )
    plain = fields(body=OCTETS)
    dropped = blocks_of(schema, to_batch(schema, rows), sink_options(onUnsupported="drop"))
    without = blocks_of(plain, to_batch(plain, [{"body": b""}] * 2), sink_options())
    assert bytes(memoryview(dropped[0].frames)) == bytes(memoryview(without[0].frames))


def test_an_option_beyond_the_limits_of_0_10_is_refused_when_the_protocol_is_known() -> None:
    """``protocol=auto``: only the connection shows it."""
    with pytest.raises(OptionError, match="'priority' has the value 10, which is not allowed with AMQP 0-10"):
        blocks_of(fields(body=OCTETS), to_batch(fields(body=OCTETS), [{"body": b""}]), sink_options(priority=10))
