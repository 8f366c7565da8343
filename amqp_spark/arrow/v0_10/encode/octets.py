"""Columns of texts and bytes with the limits of the wire, and the rows that exceed them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa

from amqp_spark.arrow.v0_10.encode.pieces import LARGEST, bounds, lengths, packed, present

if TYPE_CHECKING:
    from amqp_spark.arrow.v0_10.encode.pieces import Array, Mask

Blamed: TypeAlias = dict[int, tuple[str | None, str]]
"""By row of the block: the column at fault (None: more than one), and the reason. The first reason of a row stays."""

LARGEST_BODY: Final = LARGEST - LARGEST // 128
"""Maximum bytes of a body: with its frame headers and preceding bytes it must fit one Arrow array."""


def blame(blamed: Blamed, rows: Mask, column: str, reason: str) -> None:
    """Record a reason for all of these rows."""
    for row in np.flatnonzero(rows).tolist():
        blamed.setdefault(row, (column, reason))


def limited(column: Array, most: int, name: str, blamed: Blamed) -> Array:
    """Texts or bytes as a binary array with 32-bit offsets; nothing is copied.

    Rows of more than ``most`` bytes go into ``blamed``; their contents are then undefined.
    """
    long = lengths(column)
    if int(long.max(initial=0)) > most:
        for row in np.flatnonzero(long > most).tolist():
            blamed.setdefault(row, (name, f"has {long[row]:,} bytes; at most {most:,} are allowed"))
    if pa.types.is_binary(column.type):
        return column
    if pa.types.is_string(column.type):
        octets: Array = column.view(pa.binary())
        return octets
    ends = bounds(column)
    data = column.buffers()[2]
    first, last = int(ends[0]), int(ends[-1])
    if data is None or last - first > LARGEST:  # a row exceeds the limit: only then is a block so large
        return packed(np.zeros(0, np.uint8), np.zeros(len(column) + 1, np.int32), present(column))
    return packed(data.slice(first, last - first), ends - first, present(column))
