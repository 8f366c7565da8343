"""Columns as fields of delivery- and message-properties: a packed struct of every row of a block at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow as pa

from amqp_spark.arrow.v0_10.encode import uuids
from amqp_spark.arrow.v0_10.encode.octets import blame, limited
from amqp_spark.arrow.v0_10.encode.pieces import lengths, not_utf8, present
from amqp_spark.arrow.v0_10.encode.row_bytes import RowBytes, number

if TYPE_CHECKING:
    from amqp_spark.arrow.v0_10.encode.octets import Blamed
    from amqp_spark.arrow.v0_10.encode.pieces import Array, Cell, Mask, Numbers
    from amqp_spark.arrow.v0_10.encode.row_bytes import Size

DELIVERY: Final = 0x0401
MESSAGE: Final = 0x0403

# Presence flags as a number of 16 bits: the first byte has fields 0 to 7, bit 0 is the first field.
FLAGS: Final = {
    "discard_unroutable": 0x0100,
    "immediate": 0x0200,
    "priority": 0x0800,
    "delivery_mode": 0x1000,
    "ttl": 0x2000,
    "timestamp": 0x4000,
    "expiration": 0x8000,
    "routing_key": 0x0002,
    "resume_id": 0x0004,
    "resume_ttl": 0x0008,
    "content_length": 0x0100,
    "message_id": 0x0200,
    "correlation_id": 0x0400,
    "reply_to": 0x0800,
    "content_type": 0x1000,
    "content_encoding": 0x2000,
    "user_id": 0x4000,
    "app_id": 0x8000,
    "application_headers": 0x0001,
}
"""Both structs; no name is in both."""

_RANGES: Final = {"priority": (0, 9), "delivery_mode": (1, 2)}
_NUMBERS: Final = {"priority": ">u1", "delivery_mode": ">u1", "ttl": ">u8", "resume_ttl": ">u8"}
_TEXTS: Final = {  # bytes of the size
    "routing_key": ">u1",
    "resume_id": ">u2",
    "correlation_id": ">u2",
    "content_type": ">u1",
    "content_encoding": ">u1",
    "user_id": ">u2",
    "app_id": ">u2",
}
_REPLY_TO: Final = {"exchange": 0x0100, "routing_key": 0x0200}
_PER_SECOND: Final = 1_000_000
_MOST_OF_A_UUID: Final = 36


class PackedLayout:
    """A struct with presence flags, of every row: its fields are added in the order of the specification."""

    def __init__(self, rows: int, blamed: Blamed) -> None:
        self.fields = RowBytes(rows)
        self.flags: Size = 0
        self._blamed = blamed

    def announce(self, flag: int, there: Mask | None) -> None:
        """Set a field's flag in the rows that are ``there`` (None: all)."""
        self.flags = self.flags | (flag if there is None else there * np.uint16(flag))

    def constant(self, name: str, value: int | str) -> None:
        """Add a field that is the same in every row."""
        self.announce(FLAGS[name], None)
        if isinstance(value, int):
            self.fields.cells(number(_NUMBERS[name], value))
        else:
            octets = value.encode()
            self.fields.cells(number(_TEXTS[name], len(octets)), octets)

    def column(self, name: str, column: Array, unit: str) -> None:
        """Add a field with the row's own value; NULL leaves it out. ``unit`` is that of TIMESTAMP columns."""
        if column.null_count == len(column):
            return
        if name in _TEXTS:
            self.text(name, column)
        elif name in _NUMBERS:
            self._number(name, column)
        elif name in ("discard_unroutable", "immediate"):
            self._bit(name, column)
        elif name in ("timestamp", "expiration"):
            self._time(name, column, unit)
        elif name == "message_id":
            self._uuid(column)
        else:
            self._reply_to(cast("pa.StructArray", column))

    def cells(self, name: str, cell: Cell, there: Mask | None) -> None:
        """Add a field of fixed width in the rows that are ``there``."""
        self.announce(FLAGS[name], there)
        self.fields.cells(cell, there=there)

    def text(self, name: str, column: Array) -> None:
        """Add a field that consists of a size and that many bytes."""
        self.announce(FLAGS[name], present(column))
        sized(self.fields, _TEXTS[name], column, name, self._blamed)

    def encoded(self, name: str, column: Array) -> None:
        """Add a field that is encoded already."""
        self.announce(FLAGS[name], present(column))
        self.fields.column(column)

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

    def _number(self, name: str, column: Array) -> None:
        there = present(column)
        values = _integers(column)
        lowest, highest = _RANGES.get(name, (0, (1 << 63) - 1))
        self._check(name, values, there, lowest, highest)
        self.cells(name, (_NUMBERS[name], values), there)

    def _bit(self, name: str, column: Array) -> None:
        set_ = column.fill_null(False).to_numpy(zero_copy_only=False)
        if set_.any():
            self.announce(FLAGS[name], None if set_.all() else set_)

    def _time(self, name: str, column: Array, unit: str) -> None:
        there = present(column)
        if pa.types.is_timestamp(column.type):
            micros = _integers(column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()))
            values = micros // (_PER_SECOND if unit == "s" else _PER_SECOND // 1000)
            early = values < 0
            if early.any():
                blame(self._blamed, early, name, "is before 1970; times from then on are allowed")
        else:
            values = _integers(column)  # unchanged: values from the source are written back as they were
        self.cells(name, (">i8", values), there)

    def _check(self, name: str, values: Numbers, there: Mask | None, lowest: int, highest: int) -> None:
        wrong = (values < lowest) | (values > highest)
        if there is not None:
            wrong &= there
        allowed = "0 and above are allowed" if highest > 9 else f"{lowest} to {highest} are allowed"
        for row in np.flatnonzero(wrong).tolist():
            self._blamed.setdefault(row, (name, f"is {values[row]}; {allowed}"))

    def _uuid(self, column: Array) -> None:
        there = present(column)
        octets = limited(column, _MOST_OF_A_UUID, "message_id", {})  # other lengths are reported below
        long = lengths(column)
        if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            wrong = (long != 16) if there is None else (long != 16) & there
            for row in np.flatnonzero(wrong).tolist():
                self._blamed.setdefault(row, ("message_id", f"has {long[row]} bytes; a UUID has 16"))
            self.encoded("message_id", octets)
            return
        values, wrong = uuids.parse(octets)
        for row in np.flatnonzero(wrong).tolist():
            reason = (
                f"has a text of {long[row]} bytes that is no UUID; it has to look like "
                "f81d4fae-7dec-11d0-a765-00a0c91e6bf6 (hexadecimal digits in groups of 8-4-4-4-12)"
            )
            self._blamed.setdefault(row, ("message_id", reason))
        self.cells("message_id", ("V16", values), there)

    def _reply_to(self, column: pa.StructArray) -> None:
        there = present(column)
        inner = PackedLayout(len(column), self._blamed)
        parts = dict(zip([field.name.lower() for field in column.type], column.flatten(), strict=True))
        for name, flag in _REPLY_TO.items():
            if name in parts and parts[name].null_count < len(column):
                inner.announce(flag, present(parts[name]))
                sized(inner.fields, ">u1", parts[name], f"reply_to.{name}", self._blamed)
        self.announce(FLAGS["reply_to"], there)
        if there is None:
            self.fields.run(inner.struct16())
        else:  # the parts of a NULL struct are NULL too, so only its own cells have to be left out
            self.fields.cells(number(">u2", inner.fields.size + 2), number(">u2", inner.flags), there=there)
            self.fields.run(inner.fields)


def sized(run: RowBytes, kind: str, column: Array, name: str, blamed: Blamed) -> None:
    """Add texts or bytes, preceded by their size in a dtype such as ``>u1``; null has neither."""
    octets = limited(column, int(np.iinfo(np.dtype(kind)).max), name, blamed)
    long = lengths(octets)
    if not pa.types.is_binary(column.type) and not pa.types.is_large_binary(column.type):
        for row in not_utf8(octets):
            reason = f"has {long[row]} bytes that are not UTF-8, as a STRING has to be"
            blamed.setdefault(row, (name, reason))
    run.cells((kind, long), there=present(octets))
    run.column(octets, long)


def _integers(column: Array) -> Numbers:
    """Integers with 0 for NULL."""
    filled: Any = column.fill_null(0) if column.null_count else column
    return cast("Numbers", filled.to_numpy(zero_copy_only=False))
