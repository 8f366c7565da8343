"""Optional properties of every row: flags that say which are there, and their values in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from amqp_spark.arrow.rows.row_bytes import RowBytes, lengths, not_utf8, present
from amqp_spark.arrow.rows.row_errors import blame, limited
from amqp_spark.arrow.without_pandas import to_numpy

if TYPE_CHECKING:
    from amqp_spark.arrow.layout import Property
    from amqp_spark.arrow.rows.row_bytes import Array, Cell, Mask, Numbers, Size
    from amqp_spark.arrow.rows.row_errors import Blamed

NUMBERS: Final = {1: ">u1", 2: ">u2", 4: ">u4", 8: ">u8"}
"""The dtype of an unsigned integer on the wire by its bytes."""
LARGEST: Final = (1 << 63) - 1
_PER_SECOND: Final = 1_000_000


class Fields:
    """Properties of every row, added in the order of the specification: ``flags`` and the bytes behind them."""

    def __init__(self, rows: int, blamed: Blamed) -> None:
        self.fields = RowBytes(rows)
        self.flags: Size = 0
        self.blamed = blamed

    def add(self, field: Property, there: Mask | None, *cells: Cell) -> None:
        """Set a field's flag in the rows that are ``there`` (None: all), and add its cells."""
        self.flags = self.flags | (field.flag if there is None else there * np.uint16(field.flag))
        if cells:
            self.fields.cells(*cells, there=there)

    def add_encoded(self, field: Property, column: Array) -> None:
        """Add values that are encoded already, with their sizes."""
        self.add(field, present(column))
        self.fields.column(column)

    def add_headers(self, field: Property, headers: Array | RowBytes) -> None:
        """Add encoded maps or tables, or their parts."""
        if isinstance(headers, RowBytes):
            self.add(field, None)
            self.fields.run(headers)
        elif headers.null_count < len(headers):
            self.add_encoded(field, headers)

    def add_sized(self, field: Property, column: Array, name: str) -> None:
        """Add texts or bytes, preceded by their sizes; ``name`` is for errors."""
        self.add(field, present(column))
        sized(self.fields, NUMBERS[-field.width], column, name, self.blamed)

    def add_number(self, field: Property, column: Array) -> None:
        """Add unsigned integers, which are checked."""
        there = present(column)
        values = integers(column)
        lowest, highest = field.choices or (0, min((1 << 8 * field.width) - 1, LARGEST))
        wrong = (values < lowest) | (values > highest)
        if there is not None:
            wrong &= there
        allowed = f"{lowest} to {highest}" if highest < LARGEST else "0 and above"
        for row in np.flatnonzero(wrong).tolist():
            self.blamed.setdefault(row, (field.name, f"is {values[row]}; {allowed} are allowed"))
        self.add(field, there, (NUMBERS[field.width], values))

    def add_time(self, field: Property, column: Array, *, seconds: bool) -> None:
        """Add times in 8 bytes: TIMESTAMP in seconds or milliseconds since 1970, integers unchanged."""
        there = present(column)
        if pa.types.is_timestamp(column.type):
            micros = integers(column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()))
            values = micros // (_PER_SECOND if seconds else _PER_SECOND // 1000)
            early = values < 0
            if early.any():
                blame(self.blamed, early, field.name, "is before 1970; times from then on are allowed")
        else:
            values = integers(column)  # unchanged: values from the source are written back as they were
        self.add(field, there, (">i8", values))


def sized(run: RowBytes, kind: str, column: Array, name: str, blamed: Blamed, *, null_is_empty: bool = False) -> None:
    """Add texts or bytes, preceded by their size in a dtype such as ``>u1``; null has neither, or is empty."""
    raw = limited(column, int(np.iinfo(np.dtype(kind)).max), name, blamed)
    long = lengths(raw)
    if not pa.types.is_binary(column.type) and not pa.types.is_large_binary(column.type):
        for row in not_utf8(raw):
            reason = f"has {long[row]} bytes that are not UTF-8, as a STRING has to be"
            blamed.setdefault(row, (name, reason))
    run.cells((kind, long), there=None if null_is_empty else present(raw))
    run.column(raw, long)


def integers(column: Array) -> Numbers:
    """Integers with 0 for NULL."""
    values = to_numpy(column)
    there = present(column)
    return values if there is None else np.where(there, values, 0)
