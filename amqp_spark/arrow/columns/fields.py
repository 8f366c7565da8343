"""Positions of the fields of many messages, as numpy arrays.

Positions count bytes of ``Wire.data``. Every length read from the wire is checked against its enclosing struct before
anything behind it is used; a message with malformed fields goes into ``broken`` with the reason, and from then on has
no fields. Presence flags are compared as the 16-bit number on the wire.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from amqp_spark.arrow.columns.wire import Spans

if TYPE_CHECKING:
    from amqp_spark.arrow.columns.wire import Mask, Positions, Wire
    from amqp_spark.arrow.layout import Layout, Property


class FieldPlan:
    """The fields of a struct with bytes, as those in front of the first variable size, and the others."""

    def __init__(self, layout: Layout) -> None:
        self.name, self.code = layout.name, layout.code
        self.flags = sum(field.flag for field in layout.fields)
        valued = tuple(field for field in layout.fields if field.width)
        first = next((index for index, field in enumerate(valued) if field.width < 0), len(valued))
        self.head, self.tail = valued[:first], valued[first:]
        self.fixed = tuple(field for field in valued if field.width > 0)


@cache
def _sizes(fields: tuple[Property, ...]) -> Positions:
    """Bytes of the present fields of fixed width, by combination of flags."""
    flags = np.arange(0x10000)
    table = np.zeros(0x10000, np.int64)
    for field in fields:
        table += np.where(flags & field.flag, field.width, 0)
    return table


class PackedFields:
    """One struct in every message of a batch (absent: no flags and position 0)."""

    def __init__(self, wire: Wire, layout: FieldPlan, rows: int, broken: dict[int, str]) -> None:
        self.wire = wire
        self.layout = layout
        self.at = np.zeros(rows, np.int64)
        self.flags = np.zeros(rows, np.int64)
        self.end = np.zeros(rows, np.int64)
        self._broken = broken
        self._before: list[Positions] = []
        self._all_flags: int | None = None  # if they are the same in all messages

    def place(self, rows: Positions, at: Positions, flags: Positions, end: Positions) -> None:
        """Set the struct positions of these rows; drop rows with undefined flags or too short for the fixed fields."""
        layout = self.layout
        if len(rows) == len(self.at) and not self.at.any():
            self.at, self.flags, self.end = at.copy(), flags.copy(), end.copy()
            if len(flags) and (flags == flags[0]).all():
                self._all_flags = int(flags[0])
        else:
            again = self.at[rows] != 0
            self.at[rows], self.flags[rows], self.end[rows] = at, flags, end
            self._all_flags = None
            if again.any():
                self.drop(rows[again], "it is there twice")
        unknown = (flags & ~layout.flags) != 0
        if unknown.any():
            self.drop(rows[unknown], "it has presence flags that are not defined")
        short = at + _sizes(layout.fixed)[flags if self._all_flags is None else self._all_flags] > end
        if short.any():
            self.drop(rows[short], "it is too short for its fields")

    def drop(self, rows: Positions, reason: str) -> None:
        """Mark these rows as broken."""
        for row in rows.tolist():
            self._broken.setdefault(row, f"{self.layout.name}: {reason}")
        self.flags[rows] = 0
        self.at[rows] = 0
        self._all_flags = None

    def bit(self, field: Property) -> tuple[Mask, Mask | None]:
        """A field without bytes: its values, and the rows without the struct (None: none)."""
        return (self.flags & field.flag) != 0, _nowhere(self.at == 0)

    def fixed(self, field: Property) -> tuple[Positions, Mask | None]:
        """Positions of a field of fixed width, and the rows without it (None: none)."""
        head = self.layout.head
        if field not in head:
            begin, _, absent = self.sized(field)
            return begin, absent
        before = head[: head.index(field)]
        return self.at + self._size_of(before) if before else self.at, self._absent(field.flag)

    def sized(self, field: Property) -> Spans:
        """Begin and end of a field behind the first of variable size."""
        tail = self.layout.tail
        index = tail.index(field)
        # If only fields of fixed width follow, walk them, too: then the end of the struct is known and checked.
        self._walk(len(tail) - 1 if all(each.width > 0 for each in tail[index + 1 :]) else index)
        return Spans(self._before[index], self._before[index + 1], self._absent(field.flag))

    def _absent(self, mask: int) -> Mask | None:
        if self._all_flags is None:
            return _nowhere((self.flags & mask) == 0)
        return None if self._all_flags & mask else np.ones(len(self.at), np.bool_)

    def _size_of(self, fields: tuple[Property, ...]) -> Positions | np.int64:
        """Bytes of the given fields that are present, per message."""
        return _sizes(fields)[self.flags if self._all_flags is None else self._all_flags]

    def _walk(self, index: int) -> None:
        before, tail = self._before, self.layout.tail
        if not before:
            before.append(self.at + self._size_of(self.layout.head))
        while len(before) < index + 2:
            field = tail[len(before) - 1]
            at = before[-1]
            absent = self._absent(field.flag)
            if absent is not None and absent.all():
                after = at.copy()
            else:
                after = at + field.width if field.width > 0 else at + self.wire.size(-field.width, at) - field.width
                if absent is not None:
                    after = np.where(absent, at, after)
            before.append(after)
            beyond = after > self.end
            if beyond.any():
                rows = np.flatnonzero(beyond)
                after[rows] = at[rows]
                self.drop(rows, "a field reaches beyond its end")
            if len(before) > len(tail):
                wrong = (after != self.end) & (self.at != 0)
                if wrong.any():
                    self.drop(np.flatnonzero(wrong), "it does not end with its last field")


def _nowhere(mask: Mask) -> Mask | None:
    return mask if mask.any() else None
