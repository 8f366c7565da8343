"""Texts of values without a wire type of their own (DECIMAL, DATE, TIMESTAMP, TIMESTAMP_NTZ), and texts of UUIDs.

The texts are canonical: one value has one text. A decimal is plain, with as many places as its type has (``-1.50``). A
date is ``2026-11-21``. A time always has six places, TIMESTAMP is UTC with a Z (``2026-11-21T00:05:30.123456Z``), and
TIMESTAMP_NTZ has no zone. Texts of dates and times have four digits for the year, so only the years 1 to 9999 have one.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqp_spark.arrow.columns.arrays import UUID_DIGITS, UUID_TEXT
from amqp_spark.arrow.columns.conversion import EARLIEST_SECONDS, LATEST_SECONDS
from amqp_spark.arrow.rows import row_bytes

if TYPE_CHECKING:
    from amqp_spark.arrow.rows.row_bytes import Array, Cell, Mask, Numbers

_DAY: Final = 86_400
_EARLIEST_DAY: Final = EARLIEST_SECONDS // _DAY
_LATEST_DAY: Final = LATEST_SECONDS // _DAY
_TWO: Final = np.array([f"{i:02}" for i in range(100)], "S2")
_THREE: Final = np.array([f"{i:03}" for i in range(1000)], "S3")
_FOUR: Final = np.array([f"{i:04}" for i in range(10_000)], "S4")
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - the zone is in the text, not in the number


def date_cells(days: Numbers) -> tuple[list[Cell], Mask]:
    """Days since 1970 as cells of 10 bytes, and which of them have no text."""
    wrong = (days < _EARLIEST_DAY) | (days > _LATEST_DAY)
    day = np.clip(days, _EARLIEST_DAY, _LATEST_DAY).astype("M8[D]")
    month = day.astype("M8[M]")
    year = day.astype("M8[Y]").astype(np.int64) + 1970
    months = month.astype(np.int64) % 12 + 1
    cells: list[Cell] = [
        *(("S4", _FOUR[year]), b"-", ("S2", _TWO[months]), b"-"),
        ("S2", _TWO[(day - month).astype(np.int64) + 1]),
    ]
    return cells, wrong


def time_cells(microseconds: Numbers) -> tuple[list[Cell], Mask]:
    """Microseconds since 1970 as cells of 26 bytes, without a zone, and which of them have no text."""
    seconds, fraction = np.divmod(microseconds, 1_000_000)
    days, seconds = np.divmod(seconds, _DAY)
    minutes, seconds = np.divmod(seconds, 60)
    hours, minutes = np.divmod(minutes, 60)
    milliseconds, fraction = np.divmod(fraction, 1000)
    cells, wrong = date_cells(days)
    cells += [b"T", ("S2", _TWO[hours]), b":", ("S2", _TWO[minutes]), b":", ("S2", _TWO[seconds])]
    cells += [b".", ("S3", _THREE[milliseconds]), ("S3", _THREE[fraction])]
    return cells, wrong


def date_text(days: int) -> str:
    """The text of one date; OverflowError if it is outside of the years 1 to 9999."""
    return (date(1970, 1, 1) + timedelta(days=days)).isoformat()


def utc_text(microseconds: int) -> str:
    """The text of one TIMESTAMP; OverflowError if it is outside of the years 1 to 9999."""
    return local_text(microseconds) + "Z"


def local_text(microseconds: int) -> str:
    """The text of one TIMESTAMP_NTZ; OverflowError if it is outside of the years 1 to 9999."""
    return (_EPOCH + timedelta(microseconds=microseconds)).isoformat(timespec="microseconds")


def decimal_text(unscaled: int, scale: int) -> str:
    """The text of one decimal, plain, with ``scale`` places."""
    digits = str(abs(unscaled)).zfill(scale + 1)
    sign = "-" if unscaled < 0 else ""
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else sign + digits


def decimals(column: Array) -> Array:
    """The texts of a column of decimals as BINARY."""
    texts = column.cast(pa.string())
    compute = cast("Any", pc)
    if column.type.scale > 6 and compute.any(compute.match_substring(texts, "E")).as_py():
        texts = _plain(column)  # Arrow writes values below 0.000001 with an exponent, and zero as 0E-18
    return row_bytes.binary(texts)


def _plain(column: Array) -> Array:
    compute = cast("Any", pc)
    scale = column.type.scale
    whole = pa.decimal128(column.type.precision, 0)
    unscaled = pa.Array.from_buffers(whole, len(column), column.buffers(), offset=column.offset)
    digits = compute.utf8_lpad(compute.abs(unscaled).cast(pa.string()), scale + 1, "0")
    sign = compute.if_else(compute.less(unscaled, pa.scalar(0, whole)), "-", "")
    parts = (sign, compute.utf8_slice_codeunits(digits, 0, -scale), ".")
    return cast("Array", compute.binary_join_element_wise(*parts, compute.utf8_slice_codeunits(digits, -scale), ""))


# ---- UUIDs ----------------------------------------------------------------------------------------------------------

_UUID_LENGTH: Final = 36
_DASHES: Final = (8, 13, 18, 23)
_NOT_HEX: Final = 0x100  # in the table: not two hexadecimal digits


def _hex_pairs() -> Numbers:
    """The byte of two hexadecimal digits, indexed by both characters as a 16-bit number in native byte order."""
    table = np.full(0x10000, _NOT_HEX, np.uint16)
    digits = b"0123456789abcdefABCDEF"
    for first in digits:
        for second in digits:
            pair = bytes((first, second))
            table[int(np.frombuffer(pair, np.uint16)[0])] = int(pair, 16)
    return table


_HEX_PAIRS: Final = _hex_pairs()


def uuids(column: Array) -> tuple[Numbers, Mask]:
    """Parse UUIDs in the usual text form (BINARY), either case: ``f81d4fae-7dec-11d0-a765-00a0c91e6bf6``.

    Returns the bytes of every text as dtype ``V16``, and which rows (never null ones) are no UUID and undefined.
    """
    rows = len(column)
    ends = row_bytes.bounds(column)
    there = row_bytes.present(column)
    fits = np.diff(ends) == _UUID_LENGTH
    if there is not None:
        fits &= there
    wrong = ~fits if there is None else there & ~fits
    raw = np.zeros((rows, 16), np.uint8)
    good = np.flatnonzero(fits)
    if len(good):
        data = np.frombuffer(cast("Any", column.buffers()[2]), np.uint8)
        if len(good) == rows:
            raw, wrong = _parsed_uuids(data[ends[0] : ends[-1]].reshape(rows, _UUID_LENGTH))
        else:
            raw[good], bad = _parsed_uuids(data[ends[good][:, None] + np.arange(_UUID_LENGTH)])
            wrong[good] |= bad
    return raw.reshape(-1).view("V16"), wrong


def _parsed_uuids(texts: Numbers) -> tuple[Numbers, Mask]:
    digits = np.empty(len(texts), UUID_DIGITS)
    every = texts.reshape(-1).view(UUID_TEXT)
    for part in UUID_TEXT.names or ():
        digits[part] = every[part]
    found = _HEX_PAIRS.take(digits.view(np.uint16).reshape(-1, 16))
    wrong = np.zeros(len(texts), np.bool_)
    if found.max() >= _NOT_HEX:
        wrong |= (found == _NOT_HEX).any(axis=1)
    for dash in _DASHES:
        wrong |= texts[:, dash] != ord("-")
    return found.astype(np.uint8), wrong
