"""Positions of the fields of many messages, as numpy arrays: one step per field, not per message.

Positions count bytes of ``Wire.data``. Every length read from the wire is checked against its enclosing struct before
anything behind it is used; a message with malformed structs goes into ``broken`` with the reason, and from then on has
no fields. Presence flags are compared as the 16-bit number on the wire: field 0 is 0x0100, field 8 is 0x0001 (0-10
section 3.4; the byte order is that of the brokers).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from amqp_core.v0_10._columns import WIDTHS

if TYPE_CHECKING:
    import numpy.typing as npt

    Positions = npt.NDArray[np.int64]
    Mask = npt.NDArray[np.bool_]

_PADDING: Final = 16  # bytes behind the last field that may be read but are not used
_MOST_STRUCTS: Final = 64  # in one header; three kinds are defined
_WIDTHS: Final = np.array(WIDTHS, np.int64)
_LOW: Final = np.uint64(0xFFFF)


class Layout(NamedTuple):
    """A packed struct of the header: its fields in order, as (name, presence flag, bytes of value or of its size)."""

    name: str
    code: int
    bits: tuple[tuple[str, int], ...]
    fixed: tuple[tuple[str, int, int], ...]
    sized: tuple[tuple[str, int, int], ...]
    last: tuple[tuple[str, int, int], ...]
    """Fixed fields behind those of variable size."""


DELIVERY: Final = Layout(
    "delivery-properties",
    0x0401,
    (("discard_unroutable", 0x0100), ("immediate", 0x0200), ("redelivered", 0x0400)),
    (
        ("priority", 0x0800, 1),
        ("delivery_mode", 0x1000, 1),
        ("ttl", 0x2000, 8),
        ("timestamp", 0x4000, 8),
        ("expiration", 0x8000, 8),
    ),
    (("exchange", 0x0001, 1), ("routing_key", 0x0002, 1), ("resume_id", 0x0004, 2)),
    (("resume_ttl", 0x0008, 8),),
)
MESSAGE: Final = Layout(
    "message-properties",
    0x0403,
    (),
    (("content_length", 0x0100, 8), ("message_id", 0x0200, 16)),
    (
        ("correlation_id", 0x0400, 2),
        ("reply_to", 0x0800, 2),
        ("content_type", 0x1000, 1),
        ("content_encoding", 0x2000, 1),
        ("user_id", 0x4000, 2),
        ("app_id", 0x8000, 2),
        ("application_headers", 0x0001, 4),
    ),
    (),
)
REPLY_TO: Final = Layout("reply-to", -1, (), (), (("exchange", 0x0100, 1), ("routing_key", 0x0200, 1)), ())


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
            octets = self.read(">u8", at + offset).astype(np.uint64)
            if len(piece) < 8:
                octets >>= np.uint64(64 - 8 * len(piece))
            result &= octets == np.uint64(int.from_bytes(piece, "big"))
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


_SIZES: dict[tuple[tuple[str, int, int], ...], Positions] = {}


def _sizes(fields: tuple[tuple[str, int, int], ...]) -> Positions:
    """Bytes of the present fields, by combination of flags."""
    table = _SIZES.get(fields)
    if table is None:
        flags = np.arange(0x10000)
        table = np.zeros(0x10000, np.int64)
        for _, mask, width in fields:
            table += np.where(flags & mask, width, 0)
        _SIZES[fields] = table
    return table


class PackedFields:
    """One struct in every message of a batch (absent: no flags and position 0)."""

    def __init__(self, wire: Wire, layout: Layout, rows: int, broken: dict[int, str]) -> None:
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
        known = 0
        for group in (layout.bits, layout.fixed, layout.sized, layout.last):
            for _, mask, *_ in group:
                known |= mask
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
        unknown = (flags & ~known) != 0
        if unknown.any():
            self.drop(rows[unknown], "it has presence flags that are not defined")
        needed = _sizes(layout.fixed + layout.last)[flags if self._all_flags is None else self._all_flags]
        short = at + needed > end
        if short.any():
            self.drop(rows[short], "it is too short for its fields")

    def drop(self, rows: Positions, reason: str) -> None:
        """Mark these rows as broken."""
        for row in rows.tolist():
            self._broken.setdefault(row, f"{self.layout.name}: {reason}")
        self.flags[rows] = 0
        self.at[rows] = 0
        self._all_flags = None

    def bit(self, name: str) -> tuple[Mask, Mask | None]:
        """A field without bytes: its values, and the rows without the struct (None: none)."""
        mask = dict(self.layout.bits)[name]
        return (self.flags & mask) != 0, _nowhere(self.at == 0)

    def fixed(self, name: str) -> tuple[Positions, Mask | None]:
        """Positions of a field of fixed width, and the rows without it (None: none)."""
        fields = self.layout.fixed
        index = [field[0] for field in fields].index(name)
        at = self.at + self._octets_of(fields[:index]) if index else self.at
        return at, self._absent(fields[index][1])

    def sized(self, name: str) -> Spans:
        """Begin and end of a field of variable size."""
        index = [field[0] for field in self.layout.sized].index(name)
        self._walk(index)
        return Spans(self._before[index], self._before[index + 1], self._absent(self.layout.sized[index][1]))

    def trailing(self, name: str) -> tuple[Positions, Mask | None]:
        """Positions of a field of fixed width behind those of variable size, and the rows without it."""
        ((only, mask, _),) = self.layout.last
        assert only == name
        self._walk(len(self.layout.sized) - 1)
        return self._before[-1], self._absent(mask)

    def _absent(self, mask: int) -> Mask | None:
        if self._all_flags is None:
            return _nowhere((self.flags & mask) == 0)
        return None if self._all_flags & mask else np.ones(len(self.at), np.bool_)

    def _octets_of(self, fields: tuple[tuple[str, int, int], ...]) -> Positions | np.int64:
        """Bytes of the given fields that are present, per message."""
        return _sizes(fields)[self.flags if self._all_flags is None else self._all_flags]

    def _walk(self, index: int) -> None:
        before = self._before
        if not before:
            before.append(self.at + self._octets_of(self.layout.fixed))
        while len(before) < index + 2:
            _, mask, width = self.layout.sized[len(before) - 1]
            at = before[-1]
            absent = self._absent(mask)
            if absent is not None and absent.all():
                after = at.copy()
            else:
                after = at + self.wire.size(width, at) + width
                if absent is not None:
                    after = np.where(absent, at, after)
            before.append(after)
            beyond = after > self.end
            if beyond.any():
                rows = np.flatnonzero(beyond)
                after[rows] = at[rows]
                self.drop(rows, "a field reaches beyond its end")
            if len(before) > len(self.layout.sized):
                wrong = (after + self._octets_of(self.layout.last) != self.end) & (self.at != 0)
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
