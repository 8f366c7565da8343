"""Application headers of a block: encoded maps, checked if already encoded, and stamps added to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from pyspark.sql import types as t

from amqp_spark.arrow.columns import dialect
from amqp_spark.arrow.columns.headers import check
from amqp_spark.arrow.columns.wire import Spans, Wire, padded
from amqp_spark.arrow.rows import stamps
from amqp_spark.arrow.rows.dialect import AMQP_0_10
from amqp_spark.arrow.rows.messages import HEADERS
from amqp_spark.arrow.rows.row_bytes import bounds, lengths, present
from amqp_spark.arrow.rows.row_errors import foreign, limited
from amqp_spark.arrow.rows.values import encode_map, map_parts

if TYPE_CHECKING:
    from amqp_spark.arrow.rows.messages import TaskId
    from amqp_spark.arrow.rows.row_bytes import Array, RowBytes
    from amqp_spark.arrow.rows.row_errors import Blamed

_MOST: Final = 0xFFFF  # a header segment is one frame


def encode(column: Array, kind: t.DataType, blamed: Blamed) -> Array | RowBytes:
    """The encoded map of every row (BINARY), null where the column is; rows that cannot be sent go into ``blamed``."""
    if isinstance(kind, t.BinaryType):
        raw = limited(column, _MOST, HEADERS, blamed)
        wrong = checked(raw)
        encoded: Array | RowBytes = raw
        for row in wrong:
            if dialect.is_encoded(cast("Any", raw[row]).as_py(), dialect.AMQP_0_9):
                wrong[row] = foreign("0-9-1")
    else:
        assert isinstance(kind, t.StructType | t.MapType | t.VariantType)
        encoded, wrong = map_parts(column, kind, AMQP_0_10) or encode_map(column, kind, AMQP_0_10)
    for row, reason in wrong.items():
        blamed.setdefault(row, (HEADERS, reason))
    return encoded


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


def stamped(maps: Array | None, rows: int, task_id: TaskId, first_row: int) -> Array:
    """Add stamps to every encoded map (:func:`amqp_spark.arrow.rows.stamps.stamped`)."""
    origin = stamps.Origin(task_id.query_id, task_id.batch_id, task_id.partition, first_row)
    return stamps.stamped(maps, rows, origin, AMQP_0_10, dialect.AMQP_0_10.end_of)
