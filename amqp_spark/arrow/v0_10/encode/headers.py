"""Application headers of a block: encoded maps, checked if already encoded, and stamps added to them."""

from __future__ import annotations

from struct import pack
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t

from amqp_core.v0_10 import type_codes as code
from amqp_spark.arrow.rows.row_bytes import LARGEST, RowBytes, bounds, join, lengths, present
from amqp_spark.arrow.rows.row_errors import limited
from amqp_spark.arrow.rows.values import encode_map
from amqp_spark.arrow.v0_10.decode.headers import check, end_of
from amqp_spark.arrow.v0_10.decode.properties import Spans, Wire, padded
from amqp_spark.arrow.v0_10.properties import PROPERTIES

if TYPE_CHECKING:
    from amqp_spark.arrow.rows.row_bytes import Array
    from amqp_spark.arrow.rows.row_errors import Blamed

COLUMN: Final = "application_headers"
"""The map that gets the stamps."""
MAPS: Final = frozenset(each.name for each in PROPERTIES if each.wire == "map")
"""All properties that are maps."""

STAMPS: Final = ("amqp-spark.query-id", "amqp-spark.batch-id", "amqp-spark.partition", "amqp-spark.row")
"""Headers that `stampHeaders` sets: str16, int64, int32, int64."""
_PREFIX: Final = "amqp-spark."
_MOST: Final = 0xFFFF  # a header segment is one frame


def encode(name: str, column: Array, kind: t.DataType, blamed: Blamed) -> Array:
    """The encoded map of every row (BINARY), null where the column is; rows that cannot be sent go into ``blamed``."""
    if isinstance(kind, t.BinaryType):
        raw = limited(column, _MOST, name, blamed)
        wrong = checked(raw)
    else:
        assert isinstance(kind, t.StructType | t.MapType | t.VariantType)
        raw, wrong = encode_map(column, kind)
    for row, reason in wrong.items():
        blamed.setdefault(row, (name, reason))
    return raw


def checked(raw: Array) -> dict[int, str]:
    """Rows with a malformed encoded map, and the reasons: sizes and counts must hold, entries fill the map exactly."""
    long = lengths(raw)
    there = present(raw)
    tiny = long < 4 if there is None else (long < 4) & there
    wrong = {
        row: f"has {long[row]} bytes; an encoded map begins with its size in 4 bytes"
        for row in np.flatnonzero(tiny).tolist()
    }
    rows = np.flatnonzero(long >= 4)
    if not len(rows):
        return wrong
    ends = bounds(raw).astype(np.int64)
    ends -= (first := int(ends[0]))
    data = raw.buffers()[2]
    assert data is not None  # some row has 4 bytes
    begin, end = ends[:-1][rows], ends[1:][rows]
    wire = Wire(padded(data.slice(first, int(ends[-1])).to_pybytes(), int(ends[-1])))
    size = wire.size(4, begin)
    for row in rows[size != end - begin - 4].tolist():
        wrong[row] = "is no encoded map: the size in its first 4 bytes is not the number of bytes behind them"
    fits = size == end - begin - 4
    broken: dict[int, str] = {}
    check(wire, Spans(begin[fits], end[fits], None), broken)
    fitting = rows[fits]
    for index, reason in broken.items():
        why = reason.removeprefix("application-headers: ")
        wrong[int(fitting[index])] = f"is no encoded map: {why}"
    return wrong


def stamped(
    maps: Array | None, rows: int, *, query_id: str | None, batch_id: int | None, partition: int, first_row: int
) -> Array:
    """Add stamps to every encoded map; existing stamps are replaced, and rows without a map get one.

    ``None`` as id of query or batch leaves the stamp out; ``first_row`` is the position of row 0 in the partition.
    """
    constant = b""
    count = 2
    if query_id is not None:
        text = query_id.encode()
        constant += _key(STAMPS[0]) + pack(">BH", code.STR16, len(text)) + text
        count += 1
    if batch_id is not None:
        constant += _key(STAMPS[1]) + pack(">Bq", code.INT64, batch_id)
        count += 1
    constant += _key(STAMPS[2]) + pack(">Bi", code.INT32, partition)
    constant += _key(STAMPS[3]) + pack(">B", code.INT64)
    numbers = np.arange(first_row, first_row + rows)
    stamps = RowBytes(rows)
    stamps.cells(constant, (">i8", numbers))
    assert isinstance(stamps.size, int)
    out = RowBytes(rows)
    if maps is None:
        out.cells(pack(">II", 4 + stamps.size, count))
        out.run(stamps)
    else:
        maps = _unstamped(maps)
        counts = _counts(maps)
        # Without a stop, a map of less than 8 bytes (size 0) makes pyarrow 26 fail: "Negative buffer resize".
        entries = cast("Array", cast("Any", pc).binary_slice(maps, 8, LARGEST))
        long = lengths(entries)
        out.cells((">u4", long + (4 + stamps.size)), (">u4", counts + count))
        out.column(entries, long)
        out.run(stamps)
    return join(*out.pieces())


def _key(name: str) -> bytes:
    return pack(">B", len(name)) + name.encode()


def _counts(maps: Array) -> Any:
    """Number of entries of every map; 0 for a missing map and for one of size 0, which has no count."""
    counts = np.zeros(len(maps), np.int64)
    rows = np.flatnonzero(lengths(maps) >= 8)
    if len(rows):
        data = maps.buffers()[2]
        assert data is not None
        raw = np.frombuffer(cast("Any", data), np.uint8)
        at = bounds(maps)[:-1][rows]
        for offset in range(4, 8):
            counts[rows] = counts[rows] << 8 | raw[at + offset]
    return counts


def _unstamped(maps: Array) -> Array:
    """The maps without stamps of an earlier write (a message that was read and is written again has them)."""
    suspects = cast("Any", pc).match_substring(maps, pattern=_PREFIX).fill_null(False)
    rows = np.flatnonzero(suspects.to_numpy(zero_copy_only=False))
    if not len(rows):
        return maps
    items: list[bytes | None] = maps.to_pylist()
    keys = {name.encode() for name in STAMPS}
    for row in rows.tolist():
        item = items[row]
        assert item is not None
        items[row] = _without(item, keys)
    return pa.array(items, pa.binary())


def _without(data: bytes, keys: set[bytes]) -> bytes:
    """A checked map without the entries of these keys."""
    kept: list[bytes] = []
    at = 8
    while at < len(data):
        code_at = at + 1 + data[at]
        after = end_of(data, data[code_at], code_at + 1)
        if data[at + 1 : code_at] not in keys:
            kept.append(data[at:after])
        at = after
    body = b"".join(kept)
    return pack(">II", 4 + len(body), len(kept)) + body
