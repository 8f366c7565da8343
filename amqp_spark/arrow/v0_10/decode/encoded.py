"""Columns of encoded header maps, such as ``application_headers BINARY`` gives, decoded afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type

from amqp_spark.arrow.v0_10.decode import arrays
from amqp_spark.arrow.v0_10.decode.batch import decoder
from amqp_spark.arrow.v0_10.decode.fields import Spans, Wire, padded

if TYPE_CHECKING:
    from pyspark.sql import types as t

    from amqp_spark.arrow.v0_10.decode.arrays import Array, Column, Errors


def decode_maps(column: Array, kind: t.DataType, unit: str = "auto") -> Column:
    """Decode encoded maps (BINARY, each with its size; NULL stays NULL) to STRUCT or MAP, by the rules of the source.

    Args:
        column: the encoded maps.
        kind: the type to decode to.
        unit: of numbers that become TIMESTAMP: ``s``, ``ms``, or ``auto`` by magnitude.

    Returns:
        The column, and the reason for every row that cannot be decoded or does not fit.
    """
    maps = column.cast(pa.binary())
    rows = len(maps)
    _, bounds, octets = maps.buffers()
    if not rows or bounds is None:
        return arrays.nulls(rows, _arrow(kind))
    ends = np.frombuffer(memoryview(bounds), np.int32)[maps.offset : maps.offset + rows + 1].astype(np.int64)
    first, last = int(ends[0]), int(ends[-1])
    data = b"" if octets is None else octets.slice(first, last - first).to_pybytes()
    wire = Wire(padded(data, len(data)))
    absent = maps.is_null().to_numpy(zero_copy_only=False) if maps.null_count else None
    begin, end = ends[:-1] - first, ends[1:] - first
    broken: Errors = {}
    wrong = wire.size(4, begin) != end - begin - 4
    if absent is not None:
        wrong &= ~absent
    for row in np.flatnonzero(wrong).tolist():
        broken[row] = f"{end[row] - begin[row]} bytes that do not begin with their number less 4"
    absent = wrong if absent is None else absent | wrong
    decoded, errors = decoder(kind, _arrow(kind), unit)(wire, Spans(begin, end, absent), broken)
    return decoded, errors | broken


def _arrow(kind: t.DataType) -> pa.DataType:
    return to_arrow_type(kind, timezone="UTC")
