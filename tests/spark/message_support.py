"""Encodes rows as the sink does and decodes the frames with the core, frame by frame and strictly."""

from __future__ import annotations

import pickle
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from amqp_core.scanning import OUTSIDE
from amqp_core.v0_10 import spec
from amqp_core.v0_10 import type_codes as code
from amqp_core.v0_10._codec import decode_command, decode_header, encode_header
from amqp_core.v0_10._scan import scan
from amqp_core.v0_10.framing import Assembler, parse_frame
from amqp_core.v0_10.type_codes import Typed
from amqp_spark.arrow.columns.variant import encode as encode_variant
from amqp_spark.arrow.encode import FrameFormat, MessagePlan, TaskId
from amqp_spark.errors import RowError
from amqp_spark.options import SinkOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from amqp_spark.arrow.encode import EncodedBlock

TEXT, OCTETS, INT, LONG, SHORT = t.StringType(), t.BinaryType(), t.IntegerType(), t.LongType(), t.ShortType()
FRAME = 12
HERE = TaskId(query_id=None, batch_id=12, partition=3)


@dataclass(frozen=True)
class Received:
    """One transfer as a peer sees it."""

    command: spec.MessageTransfer
    header: bytes
    delivery: spec.DeliveryProperties
    message: spec.MessageProperties
    body: bytes
    frames: tuple[int, ...]
    """Size of every frame."""


def sink_options(**options: object) -> SinkOptions:
    """Options by their public names, with ``__`` for a dot."""
    given = {"url": "amqp://localhost/default", "exchange": "amq.topic"}
    return SinkOptions.parse(given | {key.replace("__", "."): value for key, value in options.items()})


def to_batch(
    schema: t.StructType, rows: Sequence[dict[str, Any]], *, large: bool = False, skip: int = 0
) -> pa.RecordBatch:
    """Rows as Spark hands them over; ``skip`` of them are cut off in front, so that the arrays are slices."""
    arrow = to_arrow_schema(schema, timezone="UTC", prefers_large_types=large)
    return pa.RecordBatch.from_pylist(list(rows), arrow).slice(skip)


def blocks_of(
    schema: t.StructType,
    batch: pa.RecordBatch,
    options: SinkOptions | None = None,
    *,
    max_frame_size: int = 65535,
    accept_mode: int = spec.MessageAcceptMode.NONE,
    place: TaskId = HERE,
    first_row: int = 0,
) -> list[EncodedBlock]:
    """All blocks of a batch."""
    plan = MessagePlan.build(schema, options or sink_options())
    encoder = plan.encoder(FrameFormat(accept_mode=accept_mode, max_frame_size=max_frame_size), place)
    return list(encoder.blocks(batch, first_row))


def received(blocks: Iterable[EncodedBlock], *, max_frame_size: int = 65535) -> list[Received]:
    """Decode blocks; every frame and segment has to be as the specification says, and ``ends`` the boundaries."""
    out: list[Received] = []
    for block in blocks:
        data = bytes(memoryview(block.frames))
        found = scan(data, 0, 0, max_frame_size, OUTSIDE)
        assert found.error is None
        assert found.others == []
        assert found.ends == list(block.ends)
        assert found.next == len(data)
        begin = 0
        for end in block.ends:
            out.append(_transfer(data[begin:end], max_frame_size))
            begin = end
    return out


def _transfer(data: bytes, max_frame_size: int) -> Received:
    assembler = Assembler()
    at = 0
    sizes = []
    while True:
        parsed = parse_frame(data, at, max_frame_size)
        assert parsed is not None
        frame, after = parsed
        sizes.append(after - at)
        at = after
        assembly = assembler.receive(frame)
        if assembly is not None:
            break
    assert at == len(data)
    assert assembly.channel == 0
    command, sync = decode_command(assembly.operation)
    assert isinstance(command, spec.MessageTransfer)
    assert not sync
    assert assembly.header is not None
    assert assembly.body != b""  # an empty body has no segment
    delivery, message, others = decode_header(assembly.header)
    assert delivery is not None
    assert message is not None
    assert others == []
    return Received(command, assembly.header, delivery, message, assembly.body or b"", tuple(sizes))


def fields(**columns: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in columns.items()])


REPLY_TO = fields(exchange=TEXT, routing_key=TEXT)
EVERYTHING = fields(
    discard_unroutable=t.BooleanType(),
    immediate=t.BooleanType(),
    priority=t.ByteType(),
    delivery_mode=t.ByteType(),
    ttl=LONG,
    timestamp=LONG,
    expiration=LONG,
    routing_key=TEXT,
    resume_id=TEXT,
    resume_ttl=LONG,
    content_length=LONG,
    message_id=TEXT,
    correlation_id=OCTETS,
    reply_to=REPLY_TO,
    content_type=TEXT,
    content_encoding=TEXT,
    user_id=OCTETS,
    app_id=OCTETS,
    application_headers=fields(symbol=TEXT, qty=INT),
    body=OCTETS,
)
FULL: dict[str, Any] = {
    "discard_unroutable": True,
    "immediate": True,
    "priority": 7,
    "delivery_mode": 1,
    "ttl": 60_000,
    "timestamp": 1_700_000_000_123,
    "expiration": 1_700_000_060_123,
    "routing_key": "ticks.eurusd",
    "resume_id": "resume",
    "resume_ttl": 5,
    "content_length": 0,
    "message_id": "f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
    "correlation_id": b"\x00\xff",
    "reply_to": {"exchange": "amq.direct", "routing_key": "answers"},
    "content_type": "text/plain",
    "content_encoding": "gzip",
    "user_id": b"guest",
    "app_id": b"ticker",
    "application_headers": {"symbol": "EUR/USD", "qty": 3},
    "body": b"body",
}


def one(schema: t.StructType, row: dict[str, Any], options: SinkOptions | None = None, **how: Any) -> Received:
    (message,) = received(blocks_of(schema, to_batch(schema, [row]), options, **how))
    return message


def refused(schema: t.StructType, *rows: dict[str, Any], options: SinkOptions | None = None, **how: Any) -> RowError:
    batch = to_batch(schema, rows, large=how.pop("large", False))
    with pytest.raises(RowError) as caught:
        blocks_of(schema, batch, options, **how)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    assert copy.args == caught.value.args
    return caught.value


def expected(row: dict[str, Any]) -> bytes:
    """The header segment of a row as the generated encoder of the core writes it; absent columns are None."""
    get = row.get
    reply = get("reply_to")
    headers = get("application_headers")
    delivery = spec.DeliveryProperties(
        discard_unroutable=bool(get("discard_unroutable")),
        immediate=bool(get("immediate")),
        priority=get("priority"),
        delivery_mode=row.get("delivery_mode", 2),
        ttl=get("ttl"),
        timestamp=get("timestamp"),
        expiration=get("expiration"),
        routing_key=get("routing_key"),
        resume_id=get("resume_id"),
        resume_ttl=get("resume_ttl"),
    )
    message = spec.MessageProperties(
        content_length=None if row.get("content_length", 0) is None else len(row["body"]),
        message_id=None if get("message_id") is None else uuid.UUID(row["message_id"]),
        correlation_id=get("correlation_id"),
        reply_to=None if reply is None else spec.ReplyTo(**reply),
        content_type=get("content_type"),
        content_encoding=get("content_encoding"),
        user_id=get("user_id"),
        app_id=get("app_id"),
        application_headers=None if headers is None else typed_headers(headers),
    )
    return encode_header(delivery, message)


def typed_headers(headers: dict[str, Any]) -> dict[str, Any]:
    wire = {"symbol": code.STR16, "qty": code.INT32}
    return {key: Typed(kind, headers[key]) for key, kind in wire.items() if headers[key] is not None}


def variant(value: Any, kind: int) -> dict[str, bytes]:
    """A VARIANT as Spark hands it over."""
    return encode_variant(Typed(kind, value), "auto")


OBJECT = variant({"a": Typed(code.INT32, 1)}, code.MAP)
LIST = variant([Typed(code.STR16, "x")], code.LIST)
