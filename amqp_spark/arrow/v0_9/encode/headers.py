"""The table of headers of a block: encoded, or checked if it is already, and stamps added to it."""

from __future__ import annotations

from math import isfinite
from struct import unpack_from
from typing import TYPE_CHECKING, Final

from pyspark.sql import types as t

from amqp_core.typed_values import MAX_DEPTH
from amqp_core.v0_9 import type_codes as code
from amqp_core.v0_9.type_codes import WIDTHS
from amqp_spark.arrow.rows import stamps
from amqp_spark.arrow.rows.dialect import AMQP_0_9
from amqp_spark.arrow.rows.messages import HEADERS
from amqp_spark.arrow.rows.row_bytes import LARGEST, is_utf8
from amqp_spark.arrow.rows.row_errors import limited
from amqp_spark.arrow.rows.values import encode_map

if TYPE_CHECKING:
    from amqp_spark.arrow.rows.messages import TaskId
    from amqp_spark.arrow.rows.row_bytes import Array
    from amqp_spark.arrow.rows.row_errors import Blamed

KEPT: Final = frozenset(b"tbBsuIilfdDSxATFV")
"""Letters that every broker takes and sends on as they are; another one may end the connection (501, 541)."""
_CONTAINERS: Final = frozenset((code.TABLE, code.ARRAY))
_FRACTIONS: Final = {code.FLOAT: ">f", code.DOUBLE: ">d"}


def encode(column: Array, kind: t.DataType, blamed: Blamed) -> Array:
    """The encoded table of every row (BINARY), null where the column is; rows that cannot be sent: ``blamed``."""
    if isinstance(kind, t.BinaryType):
        raw = limited(column, LARGEST, HEADERS, blamed)
        wrong = checked(raw)
    else:
        assert isinstance(kind, t.StructType | t.MapType | t.VariantType)
        raw, wrong = encode_map(column, kind, AMQP_0_9)
    for row, reason in wrong.items():
        blamed.setdefault(row, (HEADERS, reason))
    return raw


def checked(raw: Array) -> dict[int, str]:
    """Rows with a malformed encoded table, and the reasons: sizes must hold, entries fill the table exactly."""
    items: list[bytes | None] = raw.to_pylist()
    known = {data: _problem(data) for data in {*items} if data is not None}
    found = ((row, known[data]) for row, data in enumerate(items) if data is not None)
    return {row: reason for row, reason in found if reason is not None}


def stamped(tables: Array | None, rows: int, task_id: TaskId, first_row: int) -> Array:
    """Add stamps to every encoded table (:func:`amqp_spark.arrow.rows.stamps.stamped`)."""
    origin = stamps.Origin(task_id.query_id, task_id.batch_id, task_id.partition, first_row)
    return stamps.stamped(tables, rows, origin, AMQP_0_9, end_of)


def end_of(data: bytes, letter: int, at: int) -> int:
    """End position of a value of type ``letter`` whose bytes begin at ``at``; -1 if there is no such type."""
    width = WIDTHS[letter]
    if width >= 0:
        return at + width
    return -1 if width == -9 else at + 4 + int.from_bytes(data[at : at + 4])


def _problem(data: bytes) -> str | None:
    """Why these bytes are no encoded table that every broker takes; None if they are one."""
    if len(data) < 4:
        return f"has {len(data)} bytes; an encoded table begins with its size in 4 bytes"
    if int.from_bytes(data[:4]) != len(data) - 4:
        return "is no encoded table: the size in its first 4 bytes is not the number of bytes behind them"
    return _problem_inside(data)


def _problem_inside(data: bytes) -> str | None:
    """The same for a table whose size is right."""
    left = [(code.TABLE, 4, len(data), 1)]
    while left:
        letter, at, end, depth = left.pop()
        if depth > MAX_DEPTH:
            return f"is a table nested too deep; at most {MAX_DEPTH} levels are allowed"
        while at < end:
            begin = _after_key(data, at, end) if letter == code.TABLE else at
            inner = data[begin] if begin < end else -1
            if inner not in KEPT:
                return f"has no value or one with an unknown type letter at byte {begin}; {_LETTERS} are allowed"
            at = end_of(data, inner, begin + 1)
            if at > end:
                return f"is no encoded table: the value at byte {begin} is longer than the table"
            if inner in _FRACTIONS and not isfinite(unpack_from(_FRACTIONS[inner], data, begin + 1)[0]):
                return f"has a number that is not finite at byte {begin}; NaN and infinities are allowed in texts only"
            if inner in _CONTAINERS:
                left.append((inner, begin + 5, at, depth + 1))
    return None


def _after_key(data: bytes, at: int, end: int) -> int:
    """The end of the key that begins with its size at a byte; ``end`` if it is no text."""
    after = at + 1 + data[at]
    return after if after < end and is_utf8(data[at + 1 : after]) else end


_LETTERS: Final = " ".join(map(chr, sorted(KEPT)))
