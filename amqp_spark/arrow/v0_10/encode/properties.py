"""Columns as fields of delivery- and message-properties: a packed struct of every row of a block at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import numpy as np
import pyarrow as pa

from amqp_spark.arrow.rows import texts
from amqp_spark.arrow.rows.fields import NUMBERS, Fields
from amqp_spark.arrow.rows.row_bytes import RowBytes, flags, lengths, number, present
from amqp_spark.arrow.rows.row_errors import limited
from amqp_spark.arrow.v0_10.properties import REPLY_TO

if TYPE_CHECKING:
    from amqp_spark.arrow.layout import Property
    from amqp_spark.arrow.rows.row_bytes import Array
    from amqp_spark.arrow.rows.row_errors import Blamed

_MOST_OF_A_UUID: Final = 36


class PackedLayout(Fields):
    """A struct with presence flags, of every row; ``drops``: a text that is no UUID is left out where one is due."""

    def __init__(self, rows: int, blamed: Blamed, *, drops: bool = False) -> None:
        super().__init__(rows, blamed)
        self._drops = drops

    def constant(self, field: Property, value: int | str) -> None:
        """Add a field that is the same in every row."""
        if isinstance(value, int):
            self.add(field, None, number(NUMBERS[field.width], value))
        else:
            raw = value.encode()
            self.add(field, None, number(NUMBERS[-field.width], len(raw)), raw)

    def column(self, field: Property, column: Array, unit: str) -> None:
        """Add a field with the row's own value; NULL leaves it out. ``unit`` is that of TIMESTAMP columns."""
        if column.null_count == len(column):
            return
        match field.wire:
            case "bit":
                self._bit(field, column)
            case "datetime":
                self.add_time(field, column, seconds=unit == "s")
            case "uuid":
                self._uuid(field, column)
            case "reply-to":
                self._reply_to(field, cast("pa.StructArray", column))
            case _ if field.width > 0:
                self.add_number(field, column)
            case _:
                self.add_sized(field, column, field.name)

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

    def _bit(self, field: Property, column: Array) -> None:
        set_ = flags(column)
        if set_.any():
            self.add(field, None if set_.all() else set_)

    def _uuid(self, field: Property, column: Array) -> None:
        there = present(column)
        raw = limited(column, _MOST_OF_A_UUID, field.name, {})  # other lengths are reported below
        long = lengths(column)
        if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            wrong = (long != 16) if there is None else (long != 16) & there
            for row in np.flatnonzero(wrong).tolist():
                self.blamed.setdefault(row, (field.name, f"has {long[row]} bytes; a UUID has 16"))
            self.add_encoded(field, raw)
            return
        values, wrong = texts.uuids(raw)
        if self._drops:
            self.add(field, ~wrong if there is None else there & ~wrong, ("V16", values))
            return
        for row in np.flatnonzero(wrong).tolist():
            reason = (
                f"has a text of {long[row]} bytes that is no UUID; it has to look like "
                "f81d4fae-7dec-11d0-a765-00a0c91e6bf6 (hexadecimal digits in groups of 8-4-4-4-12); "
                "onUnsupported=drop leaves other texts out"
            )
            self.blamed.setdefault(row, (field.name, reason))
        self.add(field, there, ("V16", values))

    def _reply_to(self, field: Property, column: pa.StructArray) -> None:
        there = present(column)
        inner = PackedLayout(len(column), self.blamed)
        parts = dict(zip([part.name.lower() for part in column.type], column.flatten(), strict=True))
        for part in REPLY_TO.fields:
            if part.name in parts and parts[part.name].null_count < len(column):
                inner.add_sized(part, parts[part.name], f"{field.name}.{part.name}")
        self.add(field, there)
        if there is None:
            self.fields.run(inner.struct16())
        else:  # the parts of a NULL struct are NULL too, so only its own cells have to be left out
            self.fields.cells(number(">u2", inner.fields.size + 2), number(">u2", inner.flags), there=there)
            self.fields.run(inner.fields)
