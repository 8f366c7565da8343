"""Positions of the fields of many messages, as numpy arrays: one step per field, not per message.

Positions count bytes of ``Wire.data``. Every length read from the wire is checked against its enclosing struct before
anything behind it is used; a message with malformed structs goes into ``broken`` with the reason, and from then on has
no fields. Presence flags are compared as the 16-bit number on the wire: field 0 is 0x0100, field 8 is 0x0001 (0-10
section 3.4; the byte order is that of the brokers).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from amqp_core.v0_10.type_codes import WIDTHS
from amqp_spark.arrow.v0_10 import properties

if TYPE_CHECKING:
    import numpy.typing as npt

    from amqp_spark.arrow.layout import Layout, Property

    Positions = npt.NDArray[np.int64]
    Mask = npt.NDArray[np.bool_]

_PADDING: Final = 16  # bytes behind the last field that may be read but are not used
_MOST_STRUCTS: Final = 64  # in one header; three kinds are defined
_WIDTHS: Final = np.array(WIDTHS, np.int64)
_LOW: Final = np.uint64(0xFFFF)


class _StructPlan:
    """A struct of the header: its fields with bytes, as those in front of the first variable size, and the others."""

    def __init__(self, layout: Layout) -> None:
        self.name, self.code = layout.name, layout.code
        self.flags = sum(field.flag for field in layout.fields)
        valued = tuple(field for field in layout.fields if field.width)
        first = next((index for index, field in enumerate(valued) if field.width < 0), len(valued))
        self.head, self.tail = valued[:first], valued[first:]
        self.fixed = tuple(field for field in valued if field.width > 0)


DELIVERY: Final = _StructPlan(properties.DELIVERY)
MESSAGE: Final = _StructPlan(properties.MESSAGE)
REPLY_TO: Final = _StructPlan(properties.REPLY_TO)


class Spans(NamedTuple):
    """A field of variable size in every message: its begin and end, and the rows without it (None: none)."""

    begin: Positions
    """Position of the size; absent fields have an arbitrary position."""
    end: Positions
    absent: Mask | None

    def present(self) -> Positions:
        """The rows that have the field."""
        return np.arange(len(self.begin)) if self.absent is None else np.flatnonzero(~self.absent)


class Wire:
    """The bytes of a block, read at many positions at once."""

    def __init__(self, data: bytes, *, ordered: bool = True) -> None:
        self.data = data
        self.ordered = ordered  # the parts of later messages lie behind those of earlier ones
        self.buffer = pa.py_buffer(data)
        self._views: dict[str, npt.NDArray[np.generic]] = {}

    def read(self, dtype: str, at: Positions) -> npt.NDArray[np.generic]:
        """The values of a numpy type at any positions; a position too near the end reads earlier bytes."""
        view = self._views.get(dtype)
        if view is None:
            # One element at every byte: they overlap, and only the copy made by the index is used.
            kind = np.dtype(dtype)
            view = np.ndarray((len(self.data) - kind.itemsize + 1,), kind, self.data, 0, (1,))
            self._views[dtype] = view
        return view[np.minimum(at, len(view) - 1)]

    def size(self, width: int, at: Positions) -> Positions:
        """Unsigned numbers of 1, 2 or 4 bytes at the positions."""
        return self.read(f">u{width}", at).astype(np.int64)

    def same(self, at: Positions, key: bytes) -> Mask:
        """Whether the bytes at the positions are those of ``key``."""
        result = np.ones(len(at), np.bool_)
        for offset in range(0, len(key), 8):
            piece = key[offset : offset + 8]
            raw = self.read(">u8", at + offset).astype(np.uint64)
            if len(piece) < 8:
                raw >>= np.uint64(64 - 8 * len(piece))
            result &= raw == np.uint64(int.from_bytes(piece, "big"))
        return result

    def after_values(self, code_at: Positions, codes: Positions) -> Positions:
        """Position after the values whose type codes are at ``code_at``; -1 for an undefined code."""
        after = code_at + 1
        width = _WIDTHS[codes]
        lowest, highest = int(width.min()), int(width.max())
        if lowest >= 0:
            return after + width
        for size in (1, 2, 4):
            if lowest == highest == -size:
                return after + size + self.size(size, after)
        result = after + np.maximum(width, 0)
        for size in (1, 2, 4):
            chosen = np.flatnonzero(width == -size)
            if len(chosen):
                result[chosen] += size + self.size(size, after[chosen])
        result[width == -9] = -1
        return result


def padded(data: bytes, last: int) -> bytes:
    """``data`` padded behind position ``last`` for reads that cover more bytes than they use."""
    return data if len(data) >= last + _PADDING else data + bytes(_PADDING)


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

    def __init__(self, wire: Wire, layout: _StructPlan, rows: int, broken: dict[int, str]) -> None:
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


def structs(wire: Wire, begin: Positions, end: Positions, broken: dict[int, str]) -> tuple[PackedFields, PackedFields]:
    """Delivery- and message-properties of the header segments.

    Structs of other codes are skipped by their size.
    """
    rows = len(begin)
    delivery = PackedFields(wire, DELIVERY, rows, broken)
    message = PackedFields(wire, MESSAGE, rows, broken)
    alive = np.flatnonzero(begin < end)
    at, until = begin[alive], end[alive]
    for _ in range(_MOST_STRUCTS):
        if not len(alive):
            return delivery, message
        head = wire.read(">u8", at).astype(np.uint64)
        size = (head >> np.uint64(32)).astype(np.int64)
        code = ((head >> np.uint64(16)) & _LOW).astype(np.int64)
        flags = (head & _LOW).astype(np.int64)
        after = at + 4 + size
        code[size < 2] = 0  # an empty struct; the structs used here have a code and flags
        wrong = (after > until) | (size == 1) | ((size < 4) & ((code == DELIVERY.code) | (code == MESSAGE.code)))
        if wrong.any():
            for row in alive[wrong].tolist():
                broken.setdefault(row, "the structs of the header do not fit its segment")
            keep = ~wrong
            alive, at, until, code, flags, after = (x[keep] for x in (alive, at, until, code, flags, after))
        for packed in (delivery, message):
            mine = code == packed.layout.code
            if mine.all():
                packed.place(alive, at + 8, flags, after)
            elif mine.any():
                packed.place(alive[mine], at[mine] + 8, flags[mine], after[mine])
        more = after < until
        if more.all():
            at = after
        else:
            alive, at, until = alive[more], after[more], until[more]
    for row in alive.tolist():
        broken.setdefault(row, f"more than {_MOST_STRUCTS} structs in the header")
    return delivery, message


def reply_to(wire: Wire, spans: Spans, broken: dict[int, str]) -> PackedFields:
    """The reply-to structs inside message-properties: a 16-bit size, presence flags, fields."""
    packed = PackedFields(wire, REPLY_TO, len(spans.begin), broken)
    rows = spans.present()
    at, until = spans.begin[rows], spans.end[rows]
    tiny = until - at < 4  # no bytes, or no room for the flags: nothing is set
    if tiny.any():
        rows, at, until = rows[~tiny], at[~tiny], until[~tiny]
    packed.place(rows, at + 4, wire.size(2, at + 2), until)
    return packed
