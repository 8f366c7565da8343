"""Encoded maps and tables to Arrow columns, for headers that were received or are kept as bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type

from amqp_spark.arrow.columns import arrays
from amqp_spark.arrow.columns.batch import decoder
from amqp_spark.arrow.columns.dialect import AMQP_0_9, AMQP_0_10, is_table
from amqp_spark.arrow.columns.wire import Spans, Wire, padded
from amqp_spark.arrow.without_pandas import to_numpy

if TYPE_CHECKING:
    from pyspark.sql import types as t

    from amqp_spark.arrow.columns.arrays import Array, Column
    from amqp_spark.arrow.columns.conversion import Errors
    from amqp_spark.arrow.columns.dialect import Dialect
    from amqp_spark.arrow.columns.wire import Mask


def decode_maps(column: Array, kind: t.DataType, unit: str = "auto") -> Column:
    """Decode maps and tables (BINARY, each with its size; NULL stays NULL) to STRUCT or MAP, as the source does.

    Each says itself whether it is a map of 0-10 or a table of 0-9-1: see :func:`.dialect.is_table`.
    """
    arrow = to_arrow_type(kind, timezone="UTC")
    maps = column.cast(pa.binary())
    rows = len(maps)
    _, bounds, raw = maps.buffers()
    if not rows or bounds is None:
        return arrays.nulls(rows, arrow)
    ends = np.frombuffer(memoryview(bounds), np.int32)[maps.offset : maps.offset + rows + 1].astype(np.int64)
    first, last = int(ends[0]), int(ends[-1])
    data = b"" if raw is None else raw.slice(first, last - first).to_pybytes()
    data = padded(data, len(data))
    wire = Wire(data)
    absent = np.zeros(rows, np.bool_)
    if maps.null_count:
        absent |= to_numpy(maps.is_null())
    begin, end = ends[:-1] - first, ends[1:] - first
    errors: Errors = {}
    wrong = (wire.size(4, begin) != end - begin - 4) & ~absent
    for row in np.flatnonzero(wrong).tolist():
        errors[row] = f"{end[row] - begin[row]} bytes that do not begin with their number less 4"
    absent |= wrong
    filled = ~absent & (end - begin > 5)
    tables = ~absent & (end - begin > 4) & (wire.size(1, begin + 4) != 0)
    for row in np.flatnonzero(filled & ~tables & (wire.size(1, begin + 5) != 0)).tolist():
        tables[row] = is_table(data[begin[row] : end[row]])

    def decoded(dialect: Dialect, others: Mask) -> Array:
        spans = Spans(begin, end, absent | others)
        values, found = decoder(kind, arrow, unit)(Wire(data, dialect=dialect), spans, errors)
        errors.update(found)
        return values

    if not tables.any():
        return decoded(AMQP_0_10, tables), errors
    both = [decoded(AMQP_0_10, tables), decoded(AMQP_0_9, ~tables)]
    return arrays.take(pa.concat_arrays(both), np.arange(rows) + tables * rows), errors
