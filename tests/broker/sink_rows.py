"""Rows with all that a sink can write: bodies of every size, headers of every type, NULL in between."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

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
HEADERS_TYPE = """STRUCT<flag: BOOLEAN, tiny: TINYINT, small: SMALLINT, number: INT, long: BIGINT, single: FLOAT,
        double: DOUBLE, text: STRING, octets: BINARY, price: DECIMAL(12,4), day: DATE, at: TIMESTAMP, list: ARRAY<INT>,
        inner: STRUCT<a: INT, b: STRING>, counts: MAP<STRING, BIGINT>>"""


def some(rng: np.random.Generator, values: Any, kind: pa.DataType, share: float = 0.5) -> pa.Array[Any]:
    """The values with NULL in the rest of the rows."""
    return pa.array(values, kind, mask=rng.random(len(values)) >= share)


def bodies(rng: np.random.Generator, count: int, frame: int) -> pa.Array[Any]:
    """Of 0 and 1 byte, some hundred, about as many as a frame holds (at most ``frame``), and 5 MB."""
    sizes = rng.integers(2, 400, count)
    sizes[::10], sizes[1::10] = 0, 1
    large = {777: 5 << 20, count // 3: (5 << 20) + 1, count - 2: (5 << 20) - 1}
    around_a_frame = {500 + count // 20 * n: frame + (-1, 0, 1, 13, frame)[n % 5] for n in range(20)}
    for special in (large, around_a_frame):
        sizes[list(special)] = list(special.values())
    ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    data = rng.bytes(int(ends[-1]))
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(data)])


def headers(rng: np.random.Generator, count: int) -> pa.StructArray:
    """Structs of every type, with NULL fields, and NULL for the whole in some rows; not all fields in all rows."""
    numbers = np.arange(count)
    full = rng.random(count) < 0.05  # nested values cost the most
    day = np.timedelta64(1, "D")

    def nested(values: Iterator[Any]) -> list[Any]:
        return [value if there else None for value, there in zip(values, full, strict=True)]

    columns = [
        some(rng, numbers % 3 == 0, pa.bool_()),
        some(rng, rng.integers(-128, 128, count), pa.int8()),
        some(rng, rng.integers(-(1 << 15), 1 << 15, count), pa.int16()),
        some(rng, rng.integers(-(1 << 31), 1 << 31, count), pa.int32()),
        some(rng, rng.integers(-(1 << 63), (1 << 63) - 1, count), pa.int64()),
        some(rng, rng.random(count, np.float32), pa.float32()),
        some(rng, rng.standard_normal(count) * 1e200, pa.float64()),
        some(rng, [f"Grüße {n % 997} 🚀" for n in numbers], pa.string()),
        some(rng, [n.tobytes() for n in rng.integers(0, 1 << 62, count)], pa.binary()),
        some(rng, [Decimal(n).scaleb(-4) for n in rng.integers(-(10**8), 10**8, count).tolist()], pa.decimal128(12, 4)),
        some(rng, np.datetime64("1969-12-01") + numbers * day // 1, pa.date32()),
        some(rng, EPOCH_MS * 1000 + numbers * 1_000_003, pa.timestamp("us", "UTC")),
        pa.array(nested([n, None, -n] if n % 2 else [] for n in numbers.tolist()), HEADERS.field("list").type),
        pa.array(nested({"a": n, "b": None if n % 2 else "x"} for n in numbers.tolist()), HEADERS.field("inner").type),
        pa.array(nested([("a", n), ("ü", None)] for n in numbers.tolist()), HEADERS.field("counts").type),
    ]
    return pa.StructArray.from_arrays(columns, fields=list(HEADERS), mask=pa.array(rng.random(count) < 0.1))
