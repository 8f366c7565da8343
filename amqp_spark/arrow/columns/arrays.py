"""Arrow arrays from byte positions: a whole column at once, with the rows that do not fit and the reasons.

Most functions return the array, null in the rows that do not fit, and ``{row: reason}`` of those rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import numpy as np
import pyarrow as pa

from amqp_spark.arrow.columns.conversion import AUTO_MILLISECONDS, EARLIEST_SECONDS, LATEST_SECONDS, Errors
from amqp_spark.arrow.without_pandas import bits, buffer, dtype_of, from_numpy, single

if TYPE_CHECKING:
    import numpy.typing as npt

    from amqp_spark.arrow.columns.wire import Mask, Positions, Wire

Array: TypeAlias = "pa.Array[Any]"
Column: TypeAlias = tuple[Array, Errors]

_SQL: Final = {8: "TINYINT", 16: "SMALLINT", 32: "INT"}  # by bits
_LARGEST: Final = (1 << 63) - 1
_OFFSETS: Final = 1 << 31  # Arrow's binary and string arrays count bytes in 32 bits, signed


def _parts_of_uuid(size: int, *begins: int) -> np.dtype[Any]:
    formats = ["V8", "V4", "V4", "V4", "V12"]
    names = [str(begin) for begin in range(len(formats))]
    return np.dtype({"names": names, "formats": formats, "offsets": begins, "itemsize": size})


UUID_DIGITS: Final = _parts_of_uuid(32, 0, 8, 12, 16, 20)
"""The hexadecimal digits of a UUID, in the parts that dashes separate."""
UUID_TEXT: Final = _parts_of_uuid(36, 0, 9, 14, 19, 24)
"""The same parts in its usual text."""


def _four_digits() -> npt.NDArray[np.uint32]:
    """The hexadecimal digits of two bytes, read as one number, lower byte first."""
    two = np.frombuffer(bytes(range(256)).hex().encode(), np.uint16)
    four = np.empty((256, 256, 2), np.uint16)
    four[:, :, 0] = two
    four[:, :, 1] = two[:, None]
    return four.reshape(-1).view(np.uint32)


_FOUR_DIGITS: Final = _four_digits()


def repeated(text: str, rows: int, null: Mask | None = None) -> Array:
    """The same text in every row, NULL where ``null`` is set, as STRING."""
    one = single(text)
    if null is not None:
        return take(one, np.zeros(rows, np.int64), null)
    column: Array = pa.repeat(one[0], rows)
    return column


def take(column: Array, rows: Positions, null: Mask | None = None) -> Array:
    """Select rows of a column of any type, NULL where ``null`` is set."""
    return column.take(cast("Any", from_numpy(rows, null)))


def nulls(rows: int, kind: pa.DataType) -> Column:
    """A column without values."""
    return pa.nulls(rows, cast("Any", kind)), {}


def merged(absent: Mask | None, wrong: Mask) -> Mask | None:
    """Rows that are absent or wrong."""
    if not wrong.any():
        return absent
    return wrong if absent is None else absent | wrong


def binary(wire: Wire, begin: Positions, end: Positions, absent: Mask | None) -> Array:
    """The bytes from ``begin`` to ``end`` as BINARY; later rows should lie behind earlier ones."""
    rows = len(begin)
    if rows and wire.ordered and len(wire.data) < _OFFSETS:
        # As one array of alternating fields and gaps between them, the data need no slicing: take() copies the fields
        # out in one call.
        bounds = np.empty(2 * rows, np.int32)
        if absent is None:
            bounds[0::2], bounds[1::2] = begin, end
        else:  # absent rows may have any position
            bounds[0::2], bounds[1::2] = np.where(absent, 0, begin), np.where(absent, 0, end)
            np.maximum.accumulate(bounds, out=bounds)
        both = pa.Array.from_buffers(pa.binary(), 2 * rows - 1, [None, buffer(bounds), wire.buffer])
        return take(both, np.arange(0, 2 * rows, 2), absent)
    data = wire.data
    values: list[bytes | None] = [data[b:e] for b, e in zip(begin.tolist(), end.tolist(), strict=True)]
    if absent is not None:
        for row in np.flatnonzero(absent).tolist():
            values[row] = None
    return pa.array(values, pa.binary())


def text(raw: Array) -> Column:
    """Convert BINARY to STRING: strictly UTF-8."""
    try:
        return raw.cast(pa.string()), {}
    except pa.ArrowInvalid:
        pass
    errors: Errors = {}
    values: list[str | None] = []
    items: list[bytes | None] = raw.to_pylist()
    for row, value in enumerate(items):
        try:
            values.append(None if value is None else value.decode())
        except UnicodeDecodeError as bad:
            values.append(None)
            errors[row] = f"its {len(bad.object)} bytes are not UTF-8: {bad.reason} at byte {bad.start}"
    return pa.array(values, pa.string()), errors


def integers(values: Positions, absent: Mask | None, kind: pa.DataType) -> Column:
    """Signed 64-bit numbers as an integer type, with range check."""
    errors: Errors = {}
    if kind.bit_width < 64:
        limit = 1 << (kind.bit_width - 1)
        wrong = (values < -limit) | (values >= limit)
        if absent is not None:
            wrong &= ~absent
        for row in np.flatnonzero(wrong).tolist():
            errors[row] = f"{values[row]} does not fit {_SQL[kind.bit_width]}"
        absent = merged(absent, wrong)
    native = values.astype(dtype_of(kind))
    return from_numpy(native, absent), errors


def unsigned(values: npt.NDArray[np.uint64], absent: Mask | None, kind: pa.DataType) -> Column:
    """Unsigned 64-bit numbers as a signed integer type, with range check."""
    large = values > np.uint64(_LARGEST)
    if absent is not None:
        large &= ~absent
    errors = {row: f"{values[row]} does not fit BIGINT" for row in np.flatnonzero(large).tolist()}
    column, more = integers(values.astype(np.int64), merged(absent, large), kind)
    return column, errors | more


def times(number: Positions, absent: Mask | None, kind: pa.DataType, unit: str) -> Column:
    """Times since 1970 in seconds or milliseconds (``auto``: by their size) as a TIMESTAMP of microseconds."""
    if unit == "auto" and absent is None and len(number):
        least, most = number.min(), number.max()
        if least > AUTO_MILLISECONDS and most <= LATEST_SECONDS * 1000 + 999:  # the usual times
            return from_numpy(number * 1000).cast(kind), {}
    milliseconds = np.abs(number) > AUTO_MILLISECONDS if unit == "auto" else np.full(len(number), unit == "ms")
    factor = np.where(milliseconds, 1000, 1_000_000)
    wrong = number > np.where(milliseconds, LATEST_SECONDS * 1000 + 999, LATEST_SECONDS)
    wrong |= number < np.where(milliseconds, EARLIEST_SECONDS * 1000, EARLIEST_SECONDS)
    if absent is not None:
        wrong &= ~absent
    errors = {row: f"{number[row]} is no time of the years 1 to 9999" for row in np.flatnonzero(wrong).tolist()}
    mask = merged(absent, wrong)
    return from_numpy(number * factor, mask).cast(kind), errors


def uuid_text(raw: npt.NDArray[np.uint8], absent: Mask | None) -> Array:
    """Rows of 16 bytes (uint8, shape ``(rows, 16)``) as the usual text of a UUID."""
    rows = len(raw)
    letters = np.full(36 * rows, ord("-"), np.uint8)
    text, digits = letters.view(UUID_TEXT), _FOUR_DIGITS.take(raw.reshape(-1).view("<u2")).view(UUID_DIGITS)
    for part in UUID_TEXT.names or ():
        text[part] = digits[part]
    bounds = np.arange(0, 36 * rows + 1, 36, dtype=np.int32)
    validity = None if absent is None else bits(~absent)
    return pa.Array.from_buffers(pa.string(), rows, [validity, buffer(bounds), buffer(letters)])
