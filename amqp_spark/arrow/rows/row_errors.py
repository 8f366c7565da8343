"""Rows that cannot be sent, and the reasons: kind of value, position inside its column, and limit, never the value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from amqp_spark.arrow.columns.conversion import LONGEST_KEY
from amqp_spark.arrow.rows.row_bytes import LARGEST, bounds, lengths, packed, present

if TYPE_CHECKING:
    from amqp_spark.arrow.rows.row_bytes import Array, Mask

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
        raw: Array = column.view(pa.binary())
        return raw
    ends = bounds(column)
    data = column.buffers()[2]
    first, last = int(ends[0]), int(ends[-1])
    if data is None or last - first > LARGEST:  # a row exceeds the limit: only then is a block so large
        return packed(np.zeros(0, np.uint8), np.zeros(len(column) + 1, np.int32), present(column))
    return packed(data.slice(first, last - first), ends - first, present(column))


def foreign(protocol: str) -> str:
    """The reason why encoded headers are refused that were read over another ``protocol``."""
    return (
        f"was encoded for AMQP {protocol}, which encodes headers in another way: convert it with "
        "amqp_spark.functions.convert_headers, or read it as VARIANT"
    )


# ---- inside of maps and lists ---------------------------------------------------------------------------------------


class Fault(NamedTuple):
    """A value that cannot be sent; ``where`` is its path, such as ``.legs[3].symbol`` or ``['trace']``."""

    what: str
    allowed: str
    where: str = ""

    def inside(self, part: str) -> Fault:
        """The same fault as part ``part`` of an enclosing value."""
        return self._replace(where=part + self.where)

    def __str__(self) -> str:
        """The reason, to be appended to the name of the column."""
        at = f" at {self.where.removeprefix('.')}" if self.where else ""
        return f"has {self.what}{at}; {self.allowed}"


Faults: TypeAlias = dict[int, Fault]
"""Row to the first fault of the row."""


class Unfit(Exception):
    """Raised during value-by-value encoding; each level adds its part of the path."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault

    def inside(self, part: str) -> Unfit:
        """The same error as part of an enclosing value."""
        return Unfit(self.fault.inside(part))


def text_too_long(size: Any, most: int) -> Fault:
    """Fault: text of more than ``most`` bytes."""
    return Fault(f"a text of {size:,} bytes", f"a STRING inside a map or list has at most {most:,} bytes")


def key_too_long(size: Any) -> Fault:
    """Fault: key too long for a str8."""
    return Fault(f"a key of {size:,} bytes", f"a key of a map has at most {LONGEST_KEY} bytes in UTF-8")


def not_utf8(size: Any) -> Fault:
    """Fault: text that is not UTF-8."""
    return Fault(f"a text of {size:,} bytes that are not UTF-8", "cast it to BINARY to send the bytes as they are")


def not_finite() -> Fault:
    """Fault: NaN or an infinity, where the broker would close the connection."""
    return Fault("a number that is not finite", "NaN and infinities are allowed in texts only")


def no_time(kind: str) -> Fault:
    """Fault: date or time without a text."""
    return Fault(f"a {kind} outside of the years 1 to 9999", "only these years have a text")
