"""``encode_rate``: rows per second of one core from Arrow record batches to the frames of transfers (0-10).

The columns are those of the other benchmarks of the sink: body, routing_key, message_id (text) and three headers as a
STRUCT. No broker, no Spark session, nothing compiled of ours. The clock is processor time of all threads together, so
that "of one core" holds whatever else runs; nothing here waits for anything, and the wall clock is in ``detail``.
"""

from __future__ import annotations

import os
import random
import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from amqp_core.v0_10 import spec
from amqp_spark.arrow.encode import FrameFormat, MessagePlan, TaskId
from amqp_spark.options import SinkOptions
from tests.bench.environment import Result, middle, rounded

if TYPE_CHECKING:
    from collections.abc import Callable

BODY_BYTES = 256
BATCH_ROWS = 10_000
"""Of each batch that Spark makes (``spark.sql.execution.arrow.maxRecordsPerBatch``)."""
ROUNDS = 7


def struct(**columns: t.DataType) -> t.StructType:
    """A schema, or a type of a column."""
    return t.StructType([t.StructField(name, kind) for name, kind in columns.items()])


_HEADERS = struct(symbol=t.StringType(), qty=t.IntegerType(), price=t.DoubleType())
_BASIC = {"body": t.BinaryType(), "routing_key": t.StringType(), "message_id": t.StringType()}
_ALL = {**_BASIC, "application_headers": _HEADERS}
SCHEMA = struct(**_ALL)
OTHER_SCHEMAS = {
    "no headers": struct(**_BASIC),
    "headers as MAP<STRING,STRING>": struct(**_BASIC, application_headers=t.MapType(t.StringType(), t.StringType())),
    "ten columns": struct(
        **_ALL,
        priority=t.ByteType(),
        ttl=t.LongType(),
        timestamp=t.TimestampType(),
        correlation_id=t.BinaryType(),
        content_type=t.StringType(),
        user_id=t.BinaryType(),
    ),
    "body as STRUCT": struct(**{**_BASIC, "body": _HEADERS}),
}
_SYMBOLS = ("EURUSD", "GBPUSD", "USDJPY", "AAPL", "MSFT.O")
FRAMES = FrameFormat(accept_mode=spec.MessageAcceptMode.EXPLICIT, max_frame_size=65_535)
_OPTIONS = {"url": "amqp://localhost/default", "exchange": "amq.topic", "deliveryMode": "non-persistent"}


def row(number: int, source: random.Random, schema: t.StructType) -> dict[str, object]:
    """Values for the columns that ``schema`` has; every row others."""
    symbol = source.choice(_SYMBOLS)
    headers = {"symbol": symbol, "qty": number, "price": 1 + number / 1000}
    texts = {name: str(value) for name, value in headers.items()}
    values: dict[str, object] = {
        "body": headers if _has_struct(schema, "body") else source.randbytes(BODY_BYTES),
        "routing_key": f"ticks.{symbol}",
        "message_id": str(uuid.UUID(bytes=source.randbytes(16))),
        "application_headers": headers if _has_struct(schema, "application_headers") else texts,
        "priority": 4,
        "ttl": 60_000 + number,
        "timestamp": datetime(2026, 11, 21, tzinfo=UTC) + timedelta(microseconds=number),
        "correlation_id": source.randbytes(16),
        "content_type": "application/octet-stream",
        "user_id": b"guest",
    }
    return {name: values[name] for name in schema.names}


def batches(schema: t.StructType, count: int) -> list[pa.RecordBatch]:
    """``count`` batches of that schema."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    source = random.Random(5)
    rows = [row(number, source, schema) for number in range(count * BATCH_ROWS)]
    return [
        pa.RecordBatch.from_pylist(rows[first : first + BATCH_ROWS], schema=arrow)
        for first in range(0, len(rows), BATCH_ROWS)
    ]


def run() -> list[Result]:
    """Encode the same batches again and again; the value is that of the median round."""
    return rates("encode_rate", FRAMES)


def rates(name: str, frame_format: FrameFormat) -> list[Result]:
    """The result of that name: encoding to frames of a protocol."""
    quick = os.environ.get("BENCH_QUICK", "") not in ("", "0")
    count = 1 if quick else 12
    cpu, wall, octets = measure(SCHEMA, count, frame_format)
    others = {name: measure(schema, 1 if quick else 3, frame_format)[0] for name, schema in OTHER_SCHEMAS.items()}
    return [
        Result(
            name=name,
            value=middle(cpu),
            unit="rows/s",
            higher_is_better=True,
            detail={
                "rows": count * BATCH_ROWS,
                "bytes_per_message": round(octets),
                "rates": rounded(cpu, 0),
                "rate_by_wall_clock": round(middle(wall)),
                **{f"rate of {name}": round(middle(found)) for name, found in others.items()},
            },
        )
    ]


def measure(schema: t.StructType, count: int, frame_format: FrameFormat) -> tuple[list[float], list[float], float]:
    """Rows per second of each round by processor time and by the wall clock; bytes of a message."""
    every = batches(schema, count)
    plan = MessagePlan.build(schema, SinkOptions.parse(_OPTIONS))
    place = TaskId(query_id=None, batch_id=None, partition=0)
    encoder = plan.encoder(frame_format, place)
    rows = count * BATCH_ROWS

    def encode() -> tuple[int, int]:
        done = octets = 0
        for number, batch in enumerate(every):
            for block in encoder.blocks(batch, number * BATCH_ROWS):
                done += len(block.ends)
                octets += memoryview(block.frames).nbytes
        return done, octets

    done, octets = encode()
    assert done == rows
    cpu, wall = _time(encode)
    return [rows / seconds for seconds in cpu], [rows / seconds for seconds in wall], octets / rows


def _time(work: Callable[[], object]) -> tuple[list[float], list[float]]:
    """Processor seconds and seconds of each round."""
    cpu: list[float] = []
    wall: list[float] = []
    for _ in range(ROUNDS):
        started, spent = time.perf_counter(), time.process_time()
        work()
        cpu.append(time.process_time() - spent)
        wall.append(time.perf_counter() - started)
    return cpu, wall


def _has_struct(schema: t.StructType, name: str) -> bool:
    return name in schema.names and isinstance(schema[name].dataType, t.StructType)
