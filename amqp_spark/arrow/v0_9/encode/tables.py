"""Checks of tables that are encoded already, before they are sent as they are (0-9-1 section 4.2.5.5)."""

from __future__ import annotations

from math import isfinite
from struct import unpack_from
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from amqp_core.typed_values import MAX_DEPTH
from amqp_core.v0_9 import type_codes as code
from amqp_core.v0_9.type_codes import WIDTHS
from amqp_spark.arrow.rows.row_bytes import bounds, is_utf8, lengths, present

if TYPE_CHECKING:
    from amqp_spark.arrow.rows.row_bytes import Array, Mask, Numbers

KEPT: Final = frozenset(b"tbBsuIilfdDSxATFV")
"""Letters that every broker takes and sends on as they are; another one may end the connection (501, 541)."""
_CONTAINERS: Final = frozenset((code.TABLE, code.ARRAY))
_FRACTIONS: Final = {code.FLOAT: ">f", code.DOUBLE: ">d"}
_STEPS: Final = 64
"""Entries of a table that are checked in all rows at once; rows with more are checked one by one."""
_BEYOND: Final = 16
"""Bytes behind the last table that may be read, but not used."""
_PLAIN: Final = np.array(
    [WIDTHS[letter] if letter in KEPT - _CONTAINERS - _FRACTIONS.keys() else -9 for letter in range(256)], np.int64
)
"""Bytes of a value by its letter; -9: it needs a closer look."""
# The bits of an exponent that are all set in NaN and infinities, in the first two bytes of a number.
_EXPONENTS: Final = {code.FLOAT: 0x7F80, code.DOUBLE: 0x7FF0}


_KEPT_BY_STREAMS: Final = _PLAIN.copy()
"""The same without what a stream of RabbitMQ does not take: it stores messages in the format of AMQP 1.0."""
_KEPT_BY_STREAMS[code.DECIMAL] = -9
_NOT_KEPT: Final = {code.TABLE: "a table", code.ARRAY: "an array"}


def checked(raw: Array) -> dict[int, str]:
    """Rows with a malformed encoded table, and the reasons: sizes must hold, entries fill the table exactly."""
    there = present(raw)
    doubtful = ~_plain(raw) if there is None else ~_plain(raw) & there
    wrong: dict[int, str] = {}
    for row in np.flatnonzero(doubtful).tolist():
        reason = _problem(cast("Any", raw[row]).as_py())
        if reason is not None:
            wrong[row] = reason
    return wrong


def not_for_streams(raw: Array, *, drops: bool) -> dict[int, str]:
    """Rows with a well-formed table of which a stream of RabbitMQ leaves a header out, unless ``drops``, or for which
    the broker closes the connection; and the reasons."""
    there = present(raw)
    doubtful = ~_plain(raw, _KEPT_BY_STREAMS) if there is None else ~_plain(raw, _KEPT_BY_STREAMS) & there
    wrong: dict[int, str] = {}
    for row in np.flatnonzero(doubtful).tolist():
        reason = _lost_in_streams(cast("Any", raw[row]).as_py(), drops=drops)
        if reason is not None:
            wrong[row] = reason
    return wrong


def _lost_in_streams(data: bytes, *, drops: bool) -> str | None:
    at = 4
    while at < len(data):
        letter_at = _after_key(data, at, len(data))
        letter = data[letter_at] if letter_at < len(data) else -1
        where = f"at [{data[at + 1 : letter_at].decode('utf-8', 'replace')!r}]"
        after = end_of(data, letter, letter_at + 1) if letter in KEPT else -1
        if not at < after <= len(data):
            return None  # malformed: it has a reason already
        if letter == code.DECIMAL:
            return (
                f"has a decimal {where}, and RabbitMQ closes the connection for a decimal on its way to a stream "
                "(queueType=stream): send a number or a text"
            )
        if letter in _NOT_KEPT and not drops:
            return (
                f"has {_NOT_KEPT[letter]} {where}, which a stream of RabbitMQ leaves out (queueType=stream): send a "
                "text, such as one with JSON, or set onUnsupported=drop"
            )
        at = after
    return None


def _plain(raw: Array, widths: Numbers = _PLAIN) -> Mask:
    """Rows whose tables are well-formed for certain: of few entries, with keys in ASCII, no container inside, and only
    types that have ``widths``."""
    long = lengths(raw)
    ends = bounds(raw).astype(np.int64)
    found = np.zeros(len(raw), np.bool_)
    rows = np.flatnonzero(long >= 4)
    if not len(rows):
        return found
    first = int(ends[0])
    ends -= first
    data = np.zeros(int(ends[-1]) + _BEYOND, np.uint8)
    data[:-_BEYOND] = np.frombuffer(cast("Any", raw.buffers()[2]), np.uint8)[first : first + int(ends[-1])]
    others = np.concatenate(([0], np.cumsum(data >= 0x80)))  # bytes before each position that are not ASCII
    at, end = ends[:-1][rows], ends[1:][rows]
    good = _size(data, at) == end - at - 4
    at = at + 4
    for _ in range(_STEPS):
        rows, at, end = rows[good], at[good], end[good]
        done = at == end
        found[rows[done]] = True
        rows, at, end = rows[~done], at[~done], end[~done]
        if not len(rows):
            break
        letter_at = np.minimum(at + 1 + data[at], end)
        letters = data[letter_at]
        width = _width(data, letters, letter_at + 1, end, widths)
        good = (letter_at < end) & (width >= 0) & (others[letter_at] == others[at + 1])
        at = letter_at + 1 + width
        good &= at <= end
    return found


def _width(data: Numbers, letters: Numbers, at: Numbers, end: Numbers, widths: Numbers) -> Numbers:
    """Bytes of values that begin at these positions, with their sizes; negative if they need a closer look."""
    width = widths[letters]
    sized = width == -4
    if sized.any():
        width[sized] = 4 + _size(data, np.minimum(at[sized], end[sized]))
    for letter, exponent in _EXPONENTS.items():
        fractions = letters == letter
        if fractions.any():
            begin = np.minimum(at[fractions], end[fractions])
            bits = data[begin].astype(np.int64) << 8 | data[begin + 1]
            width[fractions] = np.where(bits & exponent == exponent, -9, WIDTHS[letter])
    return width


def _size(data: Numbers, at: Numbers) -> Numbers:
    """The sizes in four bytes at these positions."""
    size = np.zeros(len(at), np.int64)
    for offset in range(4):
        size = size << 8 | data[at + offset]
    return size


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
