"""Columns as fields of delivery- and message-properties: a packed struct of every row of a block at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow as pa

from amqp_spark.arrow.rows import texts
from amqp_spark.arrow.rows.row_bytes import RowBytes, lengths, not_utf8, number, present
from amqp_spark.arrow.rows.row_errors import blame, limited
from amqp_spark.arrow.v0_10.properties import REPLY_TO

if TYPE_CHECKING:
    from amqp_spark.arrow.layout import Property
    from amqp_spark.arrow.rows.row_bytes import Array, Cell, Mask, Numbers, Size
    from amqp_spark.arrow.rows.row_errors import Blamed

_NUMBERS: Final = {1: ">u1", 2: ">u2", 4: ">u4", 8: ">u8"}
_LARGEST: Final = (1 << 63) - 1
_PER_SECOND: Final = 1_000_000
_MOST_OF_A_UUID: Final = 36


class PackedLayout:
    """A struct with presence flags, of every row: its fields are added in the order of the specification."""

    def __init__(self, rows: int, blamed: Blamed) -> None:
        self.fields = RowBytes(rows)
        self.flags: Size = 0
        self._blamed = blamed

    def _add(self, field: Property, there: Mask | None, *cells: Cell) -> None:
        """Set a field's flag in the rows that are ``there`` (None: all), and add its cells."""
        self.flags = self.flags | (field.flag if there is None else there * np.uint16(field.flag))
        if cells:
            self.fields.cells(*cells, there=there)

    def constant(self, field: Property, value: int | str) -> None:
        """Add a field that is the same in every row."""
        if isinstance(value, int):
            self._add(field, None, number(_NUMBERS[field.width], value))
        else:
            raw = value.encode()
            self._add(field, None, number(_NUMBERS[-field.width], len(raw)), raw)

    def column(self, field: Property, column: Array, unit: str) -> None:
        """Add a field with the row's own value; NULL leaves it out. ``unit`` is that of TIMESTAMP columns."""
        if column.null_count == len(column):
            return
        match field.wire:
            case "bit":
                self._bit(field, column)
            case "datetime":
                self._time(field, column, unit)
            case "uuid":
                self._uuid(field, column)
            case "reply-to":
                self._reply_to(field, cast("pa.StructArray", column))
            case "map":  # encoded already
                self._add(field, present(column))
                self.fields.column(column)
            case _ if field.width > 0:
                self._number(field, column)
            case _:
                self._sized(field, column, field.name)

    def _sized(self, field: Property, column: Array, name: str) -> None:
        self._add(field, present(column))
        sized(self.fields, _NUMBERS[-field.width], column, name, self._blamed)

    def struct32(self, code: int) -> RowBytes:
        """The whole struct: size, code, flags, fields."""
        run = RowBytes(self.fields.rows)
        run.cells(number(">u4", self.fields.size + 4), code.to_bytes(2), number(">u2", self.flags))
        run.run(self.fields)
        return run

    def struct16(self) -> RowBytes:
        """The whole struct as a field of another one: size, flags, fields."""
        run = RowBytes(self.fields.rows)
        run.cells(number(">u2", self.fields.size + 2), number(">u2", self.flags))
        run.run(self.fields)
        return run

    def _number(self, field: Property, column: Array) -> None:
        there = present(column)
        values = _integers(column)
        lowest, highest = field.choices or (0, min((1 << 8 * field.width) - 1, _LARGEST))
        wrong = (values < lowest) | (values > highest)
        if there is not None:
            wrong &= there
        allowed = f"{lowest} to {highest}" if highest < _LARGEST else "0 and above"
        for row in np.flatnonzero(wrong).tolist():
            self._blamed.setdefault(row, (field.name, f"is {values[row]}; {allowed} are allowed"))
        self._add(field, there, (_NUMBERS[field.width], values))

    def _bit(self, field: Property, column: Array) -> None:
        set_ = column.fill_null(False).to_numpy(zero_copy_only=False)
        if set_.any():
            self._add(field, None if set_.all() else set_)

    def _time(self, field: Property, column: Array, unit: str) -> None:
        there = present(column)
        if pa.types.is_timestamp(column.type):
            micros = _integers(column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()))
            values = micros // (_PER_SECOND if unit == "s" else _PER_SECOND // 1000)
            early = values < 0
            if early.any():
                blame(self._blamed, early, field.name, "is before 1970; times from then on are allowed")
        else:
            values = _integers(column)  # unchanged: values from the source are written back as they were
        self._add(field, there, (">i8", values))

    def _uuid(self, field: Property, column: Array) -> None:
        there = present(column)
        raw = limited(column, _MOST_OF_A_UUID, field.name, {})  # other lengths are reported below
        long = lengths(column)
        if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            wrong = (long != 16) if there is None else (long != 16) & there
            for row in np.flatnonzero(wrong).tolist():
                self._blamed.setdefault(row, (field.name, f"has {long[row]} bytes; a UUID has 16"))
            self._add(field, present(raw))
            self.fields.column(raw)
            return
        values, wrong = texts.uuids(raw)
        for row in np.flatnonzero(wrong).tolist():
            reason = (
                f"has a text of {long[row]} bytes that is no UUID; it has to look like "
                "f81d4fae-7dec-11d0-a765-00a0c91e6bf6 (hexadecimal digits in groups of 8-4-4-4-12)"
            )
            self._blamed.setdefault(row, (field.name, reason))
        self._add(field, there, ("V16", values))

    def _reply_to(self, field: Property, column: pa.StructArray) -> None:
        there = present(column)
        inner = PackedLayout(len(column), self._blamed)
        parts = dict(zip([part.name.lower() for part in column.type], column.flatten(), strict=True))
        for part in REPLY_TO.fields:
            if part.name in parts and parts[part.name].null_count < len(column):
                inner._sized(part, parts[part.name], f"{field.name}.{part.name}")
        self._add(field, there)
        if there is None:
            self.fields.run(inner.struct16())
        else:  # the parts of a NULL struct are NULL too, so only its own cells have to be left out
            self.fields.cells(number(">u2", inner.fields.size + 2), number(">u2", inner.flags), there=there)
            self.fields.run(inner.fields)


def sized(run: RowBytes, kind: str, column: Array, name: str, blamed: Blamed) -> None:
    """Add texts or bytes, preceded by their size in a dtype such as ``>u1``; null has neither."""
    raw = limited(column, int(np.iinfo(np.dtype(kind)).max), name, blamed)
    long = lengths(raw)
    if not pa.types.is_binary(column.type) and not pa.types.is_large_binary(column.type):
        for row in not_utf8(raw):
            reason = f"has {long[row]} bytes that are not UTF-8, as a STRING has to be"
            blamed.setdefault(row, (name, reason))
    run.cells((kind, long), there=present(raw))
    run.column(raw, long)


def _integers(column: Array) -> Numbers:
    """Integers with 0 for NULL."""
    filled: Any = column.fill_null(0) if column.null_count else column
    return cast("Numbers", filled.to_numpy(zero_copy_only=False))
