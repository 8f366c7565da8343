"""Rows with many properties through each entry of the sink, read back and compared field by field.

``make test`` writes 25,000 of them, ``make test-all`` 100,000.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from tests.broker.sink_support import ENTRIES, Entry, browse, login, publish, same
from tests.broker.stream_support import depth
from tests.support.capabilities import needs
from tests.support.choice import all_cases

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.capabilities import Capabilities
    from tests.support.fixtures import Broker, Connect

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(600)]

COUNT = 100_000 if all_cases() else 25_000
FRAME = 65_535 - 12
"""Most octets of a body that is one frame."""
LARGE = {777: 5 << 20, COUNT // 3: (5 << 20) + 1, COUNT - 2: (5 << 20) - 1}
AROUND_A_FRAME = {500 + COUNT // 20 * n: FRAME + (-1, 0, 1, 13, FRAME)[n % 5] for n in range(20)}
EPOCH_MS = 1_700_000_000_000

HEADERS = pa.struct(
    [
        ("flag", pa.bool_()),
        ("tiny", pa.int8()),
        ("small", pa.int16()),
        ("number", pa.int32()),
        ("long", pa.int64()),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("text", pa.string()),
        ("octets", pa.binary()),
        ("price", pa.decimal128(12, 4)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("list", pa.list_(pa.int32())),
        ("inner", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        ("counts", pa.map_(pa.string(), pa.int64())),
    ]
)
SCHEMA = """message_id STRING, routing_key STRING, priority TINYINT, delivery_mode TINYINT, ttl BIGINT,
    timestamp TIMESTAMP, content_length BIGINT, correlation_id BINARY,
    reply_to STRUCT<exchange: STRING, routing_key: STRING>, content_type STRING, content_encoding STRING,
    user_id BINARY, app_id BINARY, body BINARY,
    application_headers STRUCT<flag: BOOLEAN, tiny: TINYINT, small: SMALLINT, number: INT, long: BIGINT, single: FLOAT,
        double: DOUBLE, text: STRING, octets: BINARY, price: DECIMAL(12,4), day: DATE, at: TIMESTAMP, list: ARRAY<INT>,
        inner: STRUCT<a: INT, b: STRING>, counts: MAP<STRING, BIGINT>>"""


def some(rng: np.random.Generator, values: Any, kind: pa.DataType, share: float = 0.5) -> pa.Array[Any]:
    """The values with NULL in the rest of the rows."""
    return pa.array(values, kind, mask=rng.random(COUNT) >= share)


def bodies(rng: np.random.Generator) -> pa.Array[Any]:
    """Of 0 and 1 byte, some hundred, about as many as a frame holds, and 5 MB."""
    sizes = rng.integers(2, 400, COUNT)
    sizes[::10], sizes[1::10] = 0, 1
    for special in (LARGE, AROUND_A_FRAME):
        sizes[list(special)] = list(special.values())
    ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    data = rng.bytes(int(ends[-1]))
    return pa.BinaryArray.from_buffers(pa.binary(), COUNT, [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(data)])


def headers(rng: np.random.Generator) -> pa.StructArray:
    """Structs of every type, with NULL fields, and NULL for the whole in some rows; not all fields in all rows."""
    numbers = np.arange(COUNT)
    full = rng.random(COUNT) < 0.05  # nested values cost the most
    day = np.timedelta64(1, "D")

    def nested(values: Iterator[Any]) -> list[Any]:
        return [value if there else None for value, there in zip(values, full, strict=True)]

    columns = [
        some(rng, numbers % 3 == 0, pa.bool_()),
        some(rng, rng.integers(-128, 128, COUNT), pa.int8()),
        some(rng, rng.integers(-(1 << 15), 1 << 15, COUNT), pa.int16()),
        some(rng, rng.integers(-(1 << 31), 1 << 31, COUNT), pa.int32()),
        some(rng, rng.integers(-(1 << 63), (1 << 63) - 1, COUNT), pa.int64()),
        some(rng, rng.random(COUNT, np.float32), pa.float32()),
        some(rng, rng.standard_normal(COUNT) * 1e200, pa.float64()),
        some(rng, [f"Grüße {n % 997} 🚀" for n in numbers], pa.string()),
        some(rng, [n.tobytes() for n in rng.integers(0, 1 << 62, COUNT)], pa.binary()),
        some(rng, [Decimal(n).scaleb(-4) for n in rng.integers(-(10**8), 10**8, COUNT).tolist()], pa.decimal128(12, 4)),
        some(rng, np.datetime64("1969-12-01") + numbers * day // 1, pa.date32()),
        some(rng, EPOCH_MS * 1000 + numbers * 1_000_003, pa.timestamp("us", "UTC")),
        pa.array(nested([n, None, -n] if n % 2 else [] for n in numbers.tolist()), HEADERS.field("list").type),
        pa.array(nested({"a": n, "b": None if n % 2 else "x"} for n in numbers.tolist()), HEADERS.field("inner").type),
        pa.array(nested([("a", n), ("ü", None)] for n in numbers.tolist()), HEADERS.field("counts").type),
    ]
    return pa.StructArray.from_arrays(columns, fields=list(HEADERS), mask=pa.array(rng.random(COUNT) < 0.1))


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    rng = np.random.default_rng(1)
    numbers = np.arange(COUNT)
    body = bodies(rng)
    lengths = np.diff(np.frombuffer(body.buffers()[1], np.int32))  # type: ignore[call-overload]
    reply_to = pa.StructArray.from_arrays(
        [some(rng, ["amq.direct"] * COUNT, pa.string()), some(rng, [f"r{n}" for n in numbers], pa.string())],
        names=["exchange", "routing_key"],
        mask=pa.array(rng.random(COUNT) < 0.5),
    )
    return pa.table(
        {
            "message_id": [str(uuid.UUID(int=n << 64 | n)) for n in range(COUNT)],
            "routing_key": some(rng, [f"k.{n % 5000}" for n in numbers], pa.string(), 0.9),
            "priority": some(rng, numbers % 10, pa.int8()),
            "delivery_mode": some(rng, numbers % 2 + 1, pa.int8()),
            "ttl": some(rng, 10**9 + numbers, pa.int64(), 0.2),
            "timestamp": some(rng, (EPOCH_MS + numbers) * 1000, pa.timestamp("us", "UTC")),
            "content_length": some(rng, lengths, pa.int64()),
            "correlation_id": some(rng, [b"\0\xff" + int(n).to_bytes(4) for n in numbers], pa.binary()),
            "reply_to": reply_to,
            "content_type": some(rng, np.where(numbers % 2, "text/plain", "application/octet-stream"), pa.string()),
            "content_encoding": some(rng, ["none"] * COUNT, pa.string()),
            "user_id": some(rng, [b"user %d" % n for n in numbers], pa.binary()),
            "app_id": some(rng, [b"\xfe" * (n % 300) for n in numbers], pa.binary()),
            "body": body,
            "application_headers": headers(rng),
        }
    )


@needs("takes_any_user_id")
@pytest.mark.parametrize("entry", ENTRIES)
def test_every_row_comes_back_as_it_was_written(
    entry: Entry,
    rows: pa.Table,
    spark: SparkSession,
    broker: Broker,
    connect: Connect,
    queue: str,
    fresh_names: Iterator[str],
    tmp_path: Path,
    capabilities: Capabilities,
) -> None:
    client = connect(heartbeat=0)
    exchange = next(fresh_names)
    client.declare_exchange(exchange, "fanout")
    client.bind(queue, exchange, "")
    frame = spark.createDataFrame(rows, SCHEMA)

    before = datetime.now(UTC)
    publish(entry, frame, tmp_path, login(broker, exchange=exchange))

    assert depth(client, queue) == COUNT  # no row is missing, none came twice
    schema = f"{SCHEMA}, exchange STRING, redelivered BOOLEAN, expiration TIMESTAMP"
    found = browse(spark, broker, queue, schema).toArrow()
    assert found["exchange"].unique().to_pylist() == [exchange]
    # Broker-J computes the expiration of what has a time to live; of others there is none.
    if capabilities.stamps_expiration:
        expiration = found["expiration"].combine_chunks()
        assert expiration.is_null().equals(found["ttl"].combine_chunks().is_null())
        assert min(filter(None, expiration.to_pylist())) > before
    changed = ["exchange", "redelivered", "expiration"] + ["ttl"] * (not capabilities.keeps_ttl)
    same(found.drop_columns(changed), rows, "message_id")
