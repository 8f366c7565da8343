"""Headers of many messages at once: find keys in the encoded maps, and make typed columns of their values.

The rules of widening are those of :mod:`.values`; here the common types are converted a column at a time, and the rest
goes through that module value by value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import types as t

from amqp_core.v0_10 import type_codes as code
from amqp_spark.arrow.columns import arrays
from amqp_spark.arrow.columns.conversion import ConversionError
from amqp_spark.arrow.columns.values import INTEGERS, converter, name_of
from amqp_spark.arrow.without_pandas import from_numpy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from amqp_spark.arrow.columns.arrays import Column
    from amqp_spark.arrow.columns.conversion import Errors
    from amqp_spark.arrow.columns.wire import Mask, Positions, Spans, Wire

# One step over the next entry of all maps costs about as much as this many entries one by one. A few maps with far
# more entries than the others are therefore finished alone: the work must not grow with the largest map times the
# number of messages.
_FEW: Final = 128
_ROUNDS: Final = 64
_MANY_KEYS: Final = 8
"""With more keys, only those are looked for that entries have: looking for each of them in every entry takes time in
proportion to the square of their number."""
_MOST_DIFFERENT: Final = 8
"""Unless the next entries of the maps have more different keys than these."""
_FIRST_BYTE: Final = np.uint64(56)  # shifts the other bytes out of eight
_NO_KEY: Final = bytes(256)  # longer than any key
_NOT_WHOLE: Final = "a map, list or array inside of it is malformed"

READ: Final = {  # the numpy type of an integer by its type code
    code.INT8: ">i1",
    code.INT16: ">i2",
    code.INT32: ">i4",
    code.INT64: ">i8",
    code.UINT8: ">u1",
    code.UINT16: ">u2",
    code.UINT32: ">u4",
    code.UINT64: ">u8",
}
# Values that are bytes with a size, by type code: the bytes of the size. Texts among them are UTF-8.
TEXT_SIZES: Final = {code.STR8: 1, code.STR16: 2, code.VBIN8: 1, code.VBIN16: 2, code.VBIN32: 4}


class Target(NamedTuple):
    """The type to convert a value to, in Spark and in Arrow, and the unit of times."""

    kind: t.DataType
    arrow: pa.DataType
    unit: str


class _Walk:
    """Steps through the entries of all maps at once; a malformed map is removed and goes into ``broken``."""

    def __init__(self, wire: Wire, spans: Spans, broken: Errors) -> None:
        self.wire = wire
        self.lost: list[int] = []
        self._broken = broken
        rows = spans.present()
        begin, end = spans.begin[rows], spans.end[rows]
        size = end - begin - 4
        self.is_counted = wire.dialect.is_counted
        count = wire.size(4, begin + 4) if self.is_counted else size
        wrong = ((size < 4) | (count > (size - 4) // 2)) & (size != 0)  # Broker-J may write a null map with size 0
        if not self.is_counted:
            wrong = size < 0
        first = begin + (8 if self.is_counted else 4)
        self.rows, self.at, self.until, self.left = rows, first, end, np.where(size == 0, 0, count)
        """``left``: entries; without a count as many as could be there."""
        self.length = self.code_at = self.codes = self.after = begin  # of the entries that step() has found
        self.raw = np.zeros(len(begin), np.uint64)
        """The first eight bytes of these entries, as a number."""
        self.drop(wrong, "it cannot hold as many entries as it says")
        self.stop(self.until < self.at)  # those of size 0

    def stop(self, done: Mask) -> None:
        """End the walk of these maps."""
        if done.any():
            keep = ~done
            for name in ("rows", "at", "until", "left", "length", "code_at", "codes", "after", "raw"):
                setattr(self, name, getattr(self, name)[keep])

    def drop(self, wrong: Mask, reason: str) -> None:
        """Mark these maps as malformed."""
        if wrong.any():
            for row in self.rows[wrong].tolist():
                self._broken.setdefault(row, f"application-headers: {reason}")
                self.lost.append(row)
            self.stop(wrong)

    def step(self) -> bool:
        """Find the next entry of every map that has one; return False if no map has one."""
        if self.is_counted:
            self.drop((self.left == 0) & (self.at != self.until), "bytes follow its last entry")
            self.stop(self.left == 0)
        else:
            self.stop(self.at >= self.until)
        if not len(self.rows):
            return False
        wire, until = self.wire, self.until
        self.raw = wire.peek(">u8", self.at).astype(np.uint64)
        self.length = (self.raw >> _FIRST_BYTE).astype(np.int64)
        self.code_at = self.at + 1 + self.length
        wire.decided(self.at, self.code_at)
        self.codes = wire.size(1, np.minimum(self.code_at, until - 1))
        self.after = wire.after_values(self.code_at, self.codes)
        self.drop((self.code_at >= until) | (self.after > until) | (self.after < 0), "an entry reaches beyond its end")
        self.left = self.left - 1
        return True

    def named(self, key: bytes) -> Mask:
        """Which of the entries have this key."""
        if len(key) > 7:
            match: Mask = self.length == len(key)
            if match.any():
                match &= self.wire.same(self.at + 1, key)
            return match
        wanted = int.from_bytes(bytes((len(key),)) + key, "big")
        begins: Mask = (self.raw >> np.uint64(56 - 8 * len(key))) == np.uint64(wanted)
        return begins

    def matches(self, slots: Mapping[bytes, Positions]) -> Iterator[tuple[Positions, Mask]]:
        """For those of many keys that the entries have, their slot, and which of the entries have this key."""
        left = np.arange(len(self.rows))
        for _ in range(_MOST_DIFFERENT):
            if not len(left):  # also where all maps were dropped as malformed
                return
            first = int(left[0])
            key = self.wire.piece(int(self.at[first]) + 1, int(self.code_at[first]))
            match = self.named(key)
            if (slot := slots.get(key)) is not None:
                yield slot, match
            left = left[~match[left]]
        for key, slot in slots.items():
            yield slot, self.named(key)


def pick(wire: Wire, spans: Spans, keys: Sequence[bytes], broken: Errors) -> list[Positions]:
    """Per key, the positions of its value's type code; 0 if the map or the key is absent.

    Each map is read up to the last of the keys only; of a repeated key the first counts.
    """
    found = [np.zeros(len(spans.begin), np.int64) for _ in keys]
    wanted = np.full(len(spans.begin), len(keys), np.int64)
    walk = _Walk(wire, spans, broken)
    slots = dict(zip(keys, found, strict=True))
    are_many = len(slots) == len(keys) > _MANY_KEYS  # of a key that is there twice a dictionary has one slot
    rounds = 0
    while walk.step():
        rounds += 1
        if rounds > _ROUNDS and len(walk.rows) < _FEW:
            _alone(walk, keys, found, broken)
            break
        each = ((column, walk.named(key)) for key, column in zip(keys, found, strict=True))
        for column, match in walk.matches(slots) if are_many else each:
            if match.any():
                new = match & (column[walk.rows] == 0)
                rows = walk.rows[new]
                column[rows] = walk.code_at[new]
                wanted[rows] -= 1
        walk.at = walk.after
        walk.stop(wanted[walk.rows] == 0)
    for column in found:
        column[walk.lost] = 0
    return found


class Entries(NamedTuple):
    """All entries of many maps, map by map."""

    bounds: Positions
    """Of every map, the index of its first entry; at last the number of entries."""
    key_at: Positions
    """Positions of their keys, which end at ``code_at``."""
    code_at: Positions
    after: Positions
    kinds: Positions | None = None
    """Entries of one kind have the same key and type code; None: that is not known."""
    examples: Positions | None = None
    """Of every kind, the index of its first entry."""


def entries(wire: Wire, spans: Spans, broken: Errors) -> Entries | None:
    """Find all entries of the encoded maps; None if a few maps have so many that each should be read alone."""
    walk = _Walk(wire, spans, broken)
    steps: list[tuple[Positions, ...]] = [(np.zeros(0, np.int64),) * 4]
    while walk.step():
        if len(steps) > _ROUNDS and len(walk.rows) < _FEW:
            return None
        steps.append((walk.rows, walk.at + 1, walk.code_at, walk.after))
        walk.at = walk.after
    rows, *columns = (np.concatenate(parts) for parts in zip(*steps, strict=True))
    order = np.argsort(rows, kind="stable")
    if walk.lost:
        order = order[~np.isin(rows[order], walk.lost)]
    bounds = np.zeros(len(spans.begin) + 1, np.int64)
    np.cumsum(np.bincount(rows[order], minlength=len(spans.begin)), out=bounds[1:])
    return Entries(bounds, *(column[order] for column in columns))


def check(wire: Wire, spans: Spans, broken: Errors) -> None:
    """Walk all entries of the encoded maps, and their contents; a malformed map goes into ``broken``."""
    walk = _Walk(wire, spans, broken)
    rounds = 0
    while walk.step():
        rounds += 1
        if rounds > _ROUNDS and len(walk.rows) < _FEW:
            _alone(walk, [_NO_KEY], [np.zeros(len(spans.begin), np.int64)], broken, inside=True)
            return
        nested = np.flatnonzero(np.isin(walk.codes, wire.dialect.containers))
        if len(nested):
            wrong = np.zeros(len(walk.rows), np.bool_)
            for index in nested.tolist():
                wrong[index] = not wire.dialect.is_whole(wire.data, int(walk.code_at[index]), int(walk.after[index]))
            walk.drop(wrong, _NOT_WHOLE)
        walk.at = walk.after


def _alone(walk: _Walk, keys: Sequence[bytes], found: list[Positions], broken: Errors, *, inside: bool = False) -> None:
    """Finish the remaining maps one by one; ``inside``: also check inside values."""
    data, dialect = walk.wire.data, walk.wire.dialect
    state = (walk.rows.tolist(), walk.at.tolist(), walk.until.tolist(), walk.left.tolist())
    for row, begin, end, left in zip(*state, strict=True):
        slots = {key: column for key, column in zip(keys, found, strict=True) if not column[row]}
        at, reason = begin, ""
        for _ in range(left + 1):  # step() has counted the current entry already
            if at == end and not walk.is_counted:
                break
            code_at = at + 1 + data[at] if at < end else end
            after = dialect.end_of(data, data[code_at], code_at + 1) if code_at < end else -1
            if not 0 <= after <= end:
                reason = "an entry reaches beyond its end"
                break
            if inside and not dialect.is_whole(data, code_at, after):
                reason = _NOT_WHOLE
                break
            column = slots.pop(bytes(data[at + 1 : code_at]), None)
            if column is not None:
                column[row] = code_at
            at = after
            if not slots:
                break
        else:
            reason = "bytes follow its last entry" if at != end else ""
        if reason:
            broken.setdefault(row, f"application-headers: {reason}")
            walk.lost.append(row)


# ---- typed values --------------------------------------------------------------------------------------------------


def typed(wire: Wire, at: Positions, target: Target) -> Column:
    """A column of the values whose type codes are at ``at`` (0: absent); the errors name the types found."""
    missing = at == 0
    absent = missing if missing.any() else None
    if missing.all():
        return arrays.nulls(len(at), target.arrow)
    codes = wire.size(1, at)
    present = codes if absent is None else codes[~absent]
    lowest, highest = int(present.min()), int(present.max())
    if lowest == highest:
        fast = _uniform(wire, at, absent, lowest, target)
        if fast is not None:
            return fast
    convert = converter(target.kind, target.unit)
    after = wire.after_values(at, codes)
    errors: Errors = {}
    values: list[Any] = []
    texts_as_bytes = isinstance(target.kind, t.BinaryType)
    for row, (begin, end) in enumerate(zip(at.tolist(), after.tolist(), strict=True)):
        value = None
        if begin and texts_as_bytes and (width := TEXT_SIZES.get(wire.dialect.kinds[wire.data[begin]])):
            value = bytes(wire.data[begin + 1 + width : end])  # as in _uniform: UTF-8 is not checked
        elif begin:
            try:
                value = convert(wire.dialect.value_at(wire.data, begin, end))
            except ConversionError as bad:
                errors[row] = str(bad)
        values.append(value)
    return pa.array(values, target.arrow), errors


def _uniform(wire: Wire, at: Positions, absent: Mask | None, number: int, target: Target) -> Column | None:
    """Convert values of one type as a whole column; None if this pair of types must be converted one by one."""
    kind, arrow, _ = target
    number = wire.dialect.kinds[number]
    at = at + 1
    if number in INTEGERS and isinstance(kind, t.IntegralType):
        values = wire.read(READ[number], at)
        if number == code.UINT64:
            column, errors = arrays.unsigned(values.astype(np.uint64), absent, arrow)
        else:
            column, errors = arrays.integers(values.astype(np.int64), absent, arrow)
        return column, {row: f"{name_of(number)} {reason}" for row, reason in errors.items()}
    if number == code.DOUBLE and isinstance(kind, t.DoubleType):
        return from_numpy(wire.read(">f8", at).astype(np.float64), absent), {}
    if number == code.FLOAT and isinstance(kind, t.DoubleType | t.FloatType):
        native = np.float64 if isinstance(kind, t.DoubleType) else np.float32
        return from_numpy(wire.read(">f4", at).astype(native), absent), {}
    if number == code.BOOLEAN and isinstance(kind, t.BooleanType):
        return from_numpy(wire.size(1, at) != 0, absent), {}
    width = TEXT_SIZES.get(number)
    if width is not None and isinstance(kind, t.StringType | t.BinaryType):
        raw = arrays.binary(wire, at + width, at + width + wire.size(width, at), absent)
        return arrays.text(raw) if isinstance(kind, t.StringType) else (raw, {})
    return None
