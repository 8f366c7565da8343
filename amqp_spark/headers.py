"""Headers of many messages at once: find keys in the encoded maps, and make typed columns of their values.

The rules of widening are those of :mod:`amqp_spark._values`; here the common types are converted a column at a time,
and what is left goes through that module value by value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import types as t

from amqp_core.v0_10 import values as code
from amqp_core.v0_10._columns import WIDTHS
from amqp_spark import _arrow
from amqp_spark._values import INTEGERS, Misfit, converter, name_of, value_at

if TYPE_CHECKING:
    from amqp_spark._arrow import Column, Errors
    from amqp_spark._fields import Mask, Positions, Wire

_ROUNDS: Final = 64  # entries of a map that are walked for all messages together; what has more is finished alone

_READ: Final = {
    code.INT8: ">i1",
    code.INT16: ">i2",
    code.INT32: ">i4",
    code.INT64: ">i8",
    code.UINT8: ">u1",
    code.UINT16: ">u2",
    code.UINT32: ">u4",
    code.UINT64: ">u8",
}
# Values that are octets with a size, by type code: the octets of the size. Their texts are UTF-8.
_TEXT_SIZES: Final = {code.STR8: 1, code.STR16: 2, code.VBIN8: 1, code.VBIN16: 2, code.VBIN32: 4}


def pick(
    wire: Wire, begin: Positions, end: Positions, absent: Mask | None, keys: list[bytes], broken: Errors
) -> list[Positions]:
    """Per key, the positions of its value's type code; 0 where the map or the key is absent.

    ``begin`` and ``end`` are those of the encoded maps, size words included. A map is read up to the last of the keys
    only; of a key that occurs twice the first counts. A malformed map goes into ``broken``.
    """
    found = [np.zeros(len(begin), np.int64) for _ in keys]
    lost: list[int] = []

    def give_up(rows: Positions, reason: str) -> None:
        for row in rows.tolist():
            broken.setdefault(row, f"application-headers: {reason}")
            lost.append(row)

    rows = np.arange(len(begin)) if absent is None else np.flatnonzero(~absent)
    size = end[rows] - begin[rows] - 4
    count = wire.size(4, begin[rows] + 4)
    wrong = ((size < 4) | (count > (size - 4) // 2)) & (size != 0)  # Broker-J may write a null map with size 0
    if wrong.any():
        give_up(rows[wrong], "a map that cannot hold its entries")
    keep = ~wrong & (size != 0)
    rows, left = rows[keep], count[keep]
    at, until = begin[rows] + 8, end[rows]
    wanted = np.full(len(rows), len(keys), np.int64)
    for _ in range(_ROUNDS):
        done = (left == 0) & (at != until) & (wanted > 0)
        if done.any():
            give_up(rows[done], "octets after the last entry of the map")
        more = (left > 0) & (wanted > 0)
        if not more.all():
            rows, at, until, left, wanted = (x[more] for x in (rows, at, until, left, wanted))
        if not len(rows):
            break
        length = wire.size(1, at)
        code_at = at + 1 + length
        codes = wire.size(1, np.minimum(code_at, until - 1))
        after = wire.after_values(code_at, codes)
        wrong = (code_at >= until) | (after > until) | (after < 0)
        if wrong.any():
            give_up(rows[wrong], "an entry reaches beyond the end of the map")
            keep = ~wrong
            rows, at, until, left, wanted, length, code_at, after = (
                x[keep] for x in (rows, at, until, left, wanted, length, code_at, after)
            )
        for key, column in zip(keys, found, strict=True):
            match = length == len(key)
            if match.any():
                match &= wire.same(at + 1, key)
                match &= column[rows] == 0
                column[rows[match]] = code_at[match]
                wanted -= match
        at = after
        left = left - 1
    for index in range(len(rows)):  # maps of very many entries
        reason = _rest(wire.data, int(at[index]), int(until[index]), int(left[index]), keys, found, int(rows[index]))
        if reason:
            give_up(rows[index : index + 1], reason)
    for column in found:
        column[lost] = 0
    return found


def _rest(data: bytes, at: int, end: int, left: int, keys: list[bytes], found: list[Positions], row: int) -> str:
    slots = {key: column for key, column in zip(keys, found, strict=True) if not column[row]}
    for _ in range(left):
        if not slots:
            return ""
        code_at = at + 1 + data[at] if at < end else end
        if code_at >= end:
            return "an entry reaches beyond the end of the map"
        column = slots.pop(data[at + 1 : code_at], None)
        if column is not None:
            column[row] = code_at
        at = _skip(data, code_at)
        if at > end or at < 0:
            return "an entry reaches beyond the end of the map"
    return "" if at == end or not slots else "octets after the last entry of the map"


def _skip(data: bytes, code_at: int) -> int:
    width = WIDTHS[data[code_at]]
    at = code_at + 1
    if width >= 0:
        return at + width
    return -1 if width == -9 else at - width + int.from_bytes(data[at : at - width], "big")


def typed(wire: Wire, at: Positions, kind: t.DataType, arrow: pa.DataType, unit: str) -> Column:
    """A column of the values whose type codes are at ``at`` (0: absent), as a type of Spark.

    The errors name what was found.
    """
    absent: Mask | None = at == 0
    if not absent.any():  # type: ignore[union-attr]
        absent = None
    elif absent.all():  # type: ignore[union-attr]
        return _arrow.nulls(len(at), arrow)
    codes = wire.size(1, at)
    present = codes if absent is None else codes[~absent]
    lowest, highest = int(present.min()), int(present.max())
    if lowest == highest:
        fast = _uniform(wire, at, lowest, absent, kind, arrow)
        if fast is not None:
            return fast
    return _each(wire, at, codes, kind, arrow, unit)


def _uniform(
    wire: Wire, at: Positions, number: int, absent: Mask | None, kind: t.DataType, arrow: pa.DataType
) -> Column | None:
    """All values of one type: the column at once, or None if that pair of types is left to :func:`_each`."""
    if number in INTEGERS and isinstance(kind, t.IntegralType):
        values = wire.read(_READ[number], at + 1)
        if number == code.UINT64:
            column, errors = _arrow.unsigned(values.astype(np.uint64), absent, arrow)
        else:
            column, errors = _arrow.integers(values.astype(np.int64), absent, arrow)
        return column, {row: f"{name_of(number)} {reason}" for row, reason in errors.items()}
    if number == code.DOUBLE and isinstance(kind, t.DoubleType):
        return pa.array(wire.read(">f8", at + 1).astype(np.float64), arrow, mask=absent), {}
    if number == code.FLOAT and isinstance(kind, t.DoubleType | t.FloatType):
        values = wire.read(">f4", at + 1)
        return pa.array(values.astype(arrow.to_pandas_dtype()), arrow, mask=absent), {}
    if number == code.BOOLEAN and isinstance(kind, t.BooleanType):
        return pa.array(wire.size(1, at + 1) != 0, arrow, mask=absent), {}
    width = _TEXT_SIZES.get(number)
    if width is not None and isinstance(kind, t.StringType | t.BinaryType):
        begin = at + 1 + width
        octets = _arrow.binary(wire, begin, begin + wire.size(width, at + 1), absent)
        return _arrow.text(octets) if isinstance(kind, t.StringType) else (octets, {})
    return None


def _each(wire: Wire, at: Positions, codes: Positions, kind: t.DataType, arrow: pa.DataType, unit: str) -> Column:
    """Value by value, whatever their types."""
    convert = converter(kind, unit)
    after = wire.after_values(at, codes)
    errors: Errors = {}
    values: list[Any] = []
    for row, (begin, end) in enumerate(zip(at.tolist(), after.tolist(), strict=True)):
        value = None
        if begin:
            try:
                value = convert(value_at(wire.data, begin, end))
            except Misfit as bad:
                errors[row] = str(bad)
        values.append(value)
    return _arrow.listed(values, arrow), errors
