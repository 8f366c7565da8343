"""Headers that `stampHeaders` adds to encoded maps: where a row comes from."""

from __future__ import annotations

from struct import pack
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqp_spark.arrow.rows.row_bytes import LARGEST, RowBytes, bounds, flags, join, lengths

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_spark.arrow.rows.dialect import Dialect
    from amqp_spark.arrow.rows.row_bytes import Array

STAMPS: Final = ("amqp-spark.query-id", "amqp-spark.batch-id", "amqp-spark.partition", "amqp-spark.row")
"""Text, BIGINT, INT, BIGINT."""
_PREFIX: Final = "amqp-spark."


class Origin(NamedTuple):
    """Where the rows of a block come from; None leaves the stamp out."""

    query_id: str | None
    batch_id: int | None
    partition: int
    first_row: int
    """The position of the first row in the partition."""


def stamped(
    maps: Array | None, rows: int, origin: Origin, wire: Dialect, end_of: Callable[[bytes, int, int], int]
) -> Array:
    """Add stamps to every encoded map; existing stamps are replaced, and rows without a map get one.

    ``end_of`` finds the end of a value of a checked map by its type code and its begin.
    """
    constant = b""
    count = 2
    if origin.query_id is not None:
        text = origin.query_id.encode()
        constant += _key(STAMPS[0]) + pack(">B", wire.text) + len(text).to_bytes(wire.text_size, "big") + text
        count += 1
    if origin.batch_id is not None:
        constant += _key(STAMPS[1]) + pack(">Bq", wire.bigint, origin.batch_id)
        count += 1
    constant += _key(STAMPS[2]) + pack(">Bi", wire.integer, origin.partition)
    constant += _key(STAMPS[3]) + pack(">B", wire.bigint)
    stamps = RowBytes(rows)
    stamps.cells(constant, (">i8", np.arange(origin.first_row, origin.first_row + rows)))
    assert isinstance(stamps.size, int)
    out = RowBytes(rows)
    head = 8 if wire.is_counted else 4
    if maps is None:
        out.cells(pack(">I", stamps.size + head - 4))
        if wire.is_counted:
            out.cells(pack(">I", count))
    else:
        maps = _unstamped(maps, head, end_of)
        # Without a stop, a map of less than 8 bytes (size 0) makes pyarrow 26 fail: "Negative buffer resize".
        entries = cast("Array", cast("Any", pc).binary_slice(maps, head, LARGEST))
        long = lengths(entries)
        out.cells((">u4", long + (stamps.size + head - 4)))
        if wire.is_counted:
            out.cells((">u4", _counts(maps) + count))
        out.column(entries, long)
    out.run(stamps)
    return join(*out.pieces())


def _key(name: str) -> bytes:
    return pack(">B", len(name)) + name.encode()


def _counts(maps: Array) -> Any:
    """Number of entries of every map of 0-10; 0 for a missing map and for one of size 0, which has no count."""
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


def _unstamped(maps: Array, head: int, end_of: Callable[[bytes, int, int], int]) -> Array:
    """The maps without stamps of an earlier write (a message that was read and is written again has them)."""
    rows = np.flatnonzero(flags(cast("Any", pc).match_substring(maps, pattern=_PREFIX)))
    if not len(rows):
        return maps
    items: list[bytes | None] = maps.to_pylist()
    keys = {name.encode() for name in STAMPS}
    for row in rows.tolist():
        item = items[row]
        assert item is not None
        items[row] = _without(item, keys, head, end_of)
    return pa.array(items, pa.binary())


def _without(data: bytes, keys: set[bytes], head: int, end_of: Callable[[bytes, int, int], int]) -> bytes:
    """A checked map without the entries of these keys."""
    kept: list[bytes] = []
    at = head
    while at < len(data):
        code_at = at + 1 + data[at]
        after = end_of(data, data[code_at], code_at + 1)
        if data[at + 1 : code_at] not in keys:
            kept.append(data[at:after])
        at = after
    body = b"".join(kept)
    size = pack(">I", len(body) + head - 4)
    return size + (pack(">I", len(kept)) if head == 8 else b"") + body
