"""Encoded maps and tables to Arrow columns, for headers that were received or are kept as bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type

from amqp_spark.arrow.columns import arrays
from amqp_spark.arrow.columns.batch import decoder
from amqp_spark.arrow.columns.wire import Spans, Wire, padded
from amqp_spark.arrow.decode.protocols import DECODERS

if TYPE_CHECKING:
    from pyspark.sql import types as t

    from amqp_spark.arrow.columns.arrays import Array, Column
    from amqp_spark.arrow.columns.conversion import Errors


def decode_maps(column: Array, kind: t.DataType, unit: str = "auto", protocol: str = "0-10") -> Column:
    """Decode encoded maps (BINARY, each with its size; NULL stays NULL) to STRUCT or MAP, as the source does."""
    arrow = to_arrow_type(kind, timezone="UTC")
    maps = column.cast(pa.binary())
    rows = len(maps)
    _, bounds, raw = maps.buffers()
    if not rows or bounds is None:
        return arrays.nulls(rows, arrow)
    ends = np.frombuffer(memoryview(bounds), np.int32)[maps.offset : maps.offset + rows + 1].astype(np.int64)
    first, last = int(ends[0]), int(ends[-1])
    data = b"" if raw is None else raw.slice(first, last - first).to_pybytes()
    wire = Wire(padded(data, len(data)), dialect=DECODERS[protocol].dialect)
    absent = maps.is_null().to_numpy(zero_copy_only=False) if maps.null_count else None
    begin, end = ends[:-1] - first, ends[1:] - first
    broken: Errors = {}
    wrong = wire.size(4, begin) != end - begin - 4
    if absent is not None:
        wrong &= ~absent
    for row in np.flatnonzero(wrong).tolist():
        broken[row] = f"{end[row] - begin[row]} bytes that do not begin with their number less 4"
    absent = wrong if absent is None else absent | wrong
    decoded, errors = decoder(kind, arrow, unit)(wire, Spans(begin, end, absent), broken)
    return decoded, errors | broken
