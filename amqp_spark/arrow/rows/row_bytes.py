"""Bytes of many rows at once: the parts of every row as Arrow binary arrays, joined to the encoded output.

A row on the wire is a sequence of parts: constants, numbers of fixed width, texts as stored in a column. Each part is
one array for all rows, and :func:`join` concatenates them row by row in one call. The data of its result are the
consecutive rows, and its offsets are their boundaries. Sizes precede the bytes that they count (frame, struct, text):
a :class:`RowBytes` adds them up as it grows, before anything is joined.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqp_spark.arrow.without_pandas import bits, buffer, single, to_numpy

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

Array: TypeAlias = "pa.Array[Any]"
Numbers: TypeAlias = "npt.NDArray[Any]"
Mask: TypeAlias = "npt.NDArray[np.bool_]"
Cell: TypeAlias = "bytes | tuple[str, Numbers]"
"""A part of fixed width: bytes that are the same in every row, or one number per row in a dtype such as ``>u2``."""
Size: TypeAlias = "int | Numbers"
"""The same number in every row, or one per row."""

_WIDE: Final = frozenset(kind.id for kind in (pa.large_binary(), pa.large_string(), pa.large_list(pa.null())))
"""Types whose offsets have 64 bits."""
LARGEST: Final = (1 << 31) - 2
"""Maximum bytes of all rows of an array; a limit of Arrow."""


def whole(column: Array | pa.ChunkedArray[Any]) -> Array:
    """Combine the chunks of a column."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def binary(column: Array) -> Array:
    """A column of texts or bytes, in any layout, as BINARY; only 64-bit offsets are copied.

    Raises:
        pyarrow.ArrowCapacityError: the values have more than 2 GiB.
    """
    kind = column.type
    if kind == pa.binary():
        return column
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        ends = bounds(column)
        first, data = int(ends[0]), column.buffers()[2]
        check_capacity(int(ends[-1]) - first)
        return packed(pa.py_buffer(b"") if data is None else data.slice(first), ends - first, present(column))
    return column.view(pa.binary()) if pa.types.is_string(kind) else column.cast(pa.binary())


def check_capacity(size: int) -> None:
    """Raise ArrowCapacityError if one array cannot hold this many bytes."""
    if size > LARGEST:
        raise pa.ArrowCapacityError(f"{size:,} bytes in one array; at most {LARGEST:,} are possible")


def present(column: Array) -> Mask | None:
    """Which rows are not null; None if all are present."""
    if not column.null_count:
        return None
    return to_numpy(column.is_valid())


def flags(column: Array) -> Mask:
    """Booleans with False for NULL."""
    values: Mask = to_numpy(column)
    there = present(column)
    return values if there is None else values & there


def bounds(column: Array) -> Numbers:
    """Offsets of the rows of a binary, string, list or map array: one number more than rows.

    They count from the begin of the whole buffer, or of all children, also for an array that is a slice.
    """
    rows = len(column)
    if not rows:
        return np.zeros(1, np.int32)
    offsets = np.frombuffer(cast("Any", column.buffers()[1]), np.int64 if column.type.id in _WIDE else np.int32)
    return cast("Numbers", offsets[column.offset : column.offset + rows + 1])


def lengths(column: Array) -> Numbers:
    """Bytes or items of every row; 0 for null rows."""
    ends = bounds(column)
    counts = ends[1:] - ends[:-1]
    there = present(column)
    return counts if there is None else np.where(there, counts, 0)


def not_utf8(raw: Array) -> list[int]:
    """The rows of a BINARY column that are not UTF-8: Spark does not check CAST(binary AS STRING)."""
    try:
        raw.cast(pa.string())
    except pa.ArrowInvalid:
        return [row for row, value in enumerate(raw.to_pylist()) if value is not None and not is_utf8(value)]
    return []


def is_utf8(value: bytes) -> bool:
    """Whether these bytes are UTF-8."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def width(*cells: Cell) -> int:
    """Total bytes of these cells."""
    return sum([len(cell) if isinstance(cell, bytes) else len(_blank(cell[0])) for cell in cells])


@cache
def _blank(kind: str) -> bytes:
    """Zeros in the place of a number of this dtype."""
    return bytes(np.dtype(kind).itemsize)


def fixed(rows: int, cells: list[Cell], there: Mask | None = None) -> Array:
    """Concatenate the cells of every row; rows left out by ``there`` have no bytes.

    Raises:
        pyarrow.ArrowCapacityError: all rows together have more than 2 GiB.
    """
    template = b"".join([cell if isinstance(cell, bytes) else _blank(cell[0]) for cell in cells])
    size = len(template)
    if not rows or not size:
        return packed(np.zeros(0, np.uint8), np.zeros(rows + 1, np.int32))
    check_capacity(rows * size)
    data = np.full(rows, np.frombuffer(template, f"V{size}")[0])
    at = 0
    for cell in cells:
        if isinstance(cell, bytes):
            at += len(cell)
        else:
            kind, numbers = cell
            np.ndarray((rows,), kind, data.data, at, (size,))[...] = numbers
            at += len(_blank(kind))
    if there is None:
        return packed(data.view(np.uint8), np.arange(0, rows * size + 1, size, dtype=np.int32))
    ends = np.zeros(rows + 1, np.int32)
    np.cumsum(there, out=ends[1:])
    return packed(data[there].view(np.uint8), ends * np.int32(size))


def packed(data: Numbers | pa.Buffer, offsets: Numbers, there: Mask | None = None) -> Array:
    """A binary array of this memory, not copied; null in rows left out by ``there``."""
    raw = data if isinstance(data, pa.Buffer) else buffer(data)
    validity = None if there is None else bits(there)
    ends = buffer(np.ascontiguousarray(offsets, np.int32))
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [validity, ends, raw])


def join(*pieces: Array | bytes) -> Array:
    """Concatenate the pieces of every row; a null piece has no bytes, a piece of type ``bytes`` is constant.

    Raises:
        pyarrow.ArrowCapacityError: all rows together have more than 2 GiB.
    """
    if len(pieces) == 1 and not isinstance(pieces[0], bytes) and not pieces[0].null_count:
        return pieces[0]
    parts = [single(piece)[0] if isinstance(piece, bytes) else piece for piece in (*pieces, b"")]
    concatenate = cast("Any", pc.binary_join_element_wise)
    return cast("Array", concatenate(*parts, null_handling="replace", null_replacement=b""))


def data_and_ends(joined: Array) -> tuple[pa.Buffer, Numbers]:
    """The bytes of all rows of a BINARY array that is no slice and not empty, and the end of each row."""
    ends = bounds(joined)[1:]
    data = joined.buffers()[2]
    assert data is not None
    return data.slice(0, int(ends[-1])), ends


def runs(children: Array, ends: Numbers) -> Array:
    """Concatenate the consecutive children of each row; ``ends`` are the :func:`bounds` of the rows.

    Nothing is copied. ``children`` are all children that the bounds refer to, none of them null.
    """
    if len(ends) < 2:
        return packed(np.zeros(0, np.uint8), np.zeros(1, np.int32))
    data = children.buffers()[2]
    return packed(data if data is not None else np.zeros(0, np.uint8), bounds(children)[ends])


def masked(column: Array, there: Mask | None) -> Array:
    """The same bytes, null in rows left out by ``there``; nothing is copied."""
    if there is None:
        return column
    data = column.buffers()[2] if len(column) else None
    return packed(data if data is not None else np.zeros(0, np.uint8), bounds(column), there)


class RowBytes:
    """Cells and columns of every row in order; ``size`` is their number of bytes."""

    __slots__ = ("_parts", "rows", "size")

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.size: Size = 0
        self._parts: list[Cell | Array] = []

    def cells(self, *cells: Cell, there: Mask | None = None) -> None:
        """Add cells of fixed width, in the rows that are ``there`` (None: all)."""
        if there is None:
            self._parts += cells
            self.size = self.size + width(*cells)
        else:
            self._parts.append(fixed(self.rows, list(cells), there))
            self.size = self.size + there * np.int64(width(*cells))

    def column(self, column: Array, size: Numbers | None = None) -> None:
        """Add a binary array, whose nulls have no bytes; ``size`` are its lengths, if they are known."""
        self._parts.append(column)
        self.size = self.size + (lengths(column) if size is None else size)

    def parts(self, parts: Sequence[Cell | Array], size: Size) -> None:
        """Add cells, and binary arrays whose nulls have no bytes, with ``size`` bytes together."""
        self._parts += parts
        self.size = self.size + size

    def run(self, other: RowBytes) -> None:
        """Add all of another run."""
        self._parts += other._parts
        self.size = self.size + other.size

    def pieces(self) -> list[Array | bytes]:
        """The pieces to join: adjacent cells are one piece."""
        pieces: list[Array | bytes] = []
        cells: list[Cell] = []

        def close() -> None:
            if cells:
                constants = [cell for cell in cells if isinstance(cell, bytes)]
                whole = len(constants) == len(cells)
                pieces.append(b"".join(constants) if whole else fixed(self.rows, cells))
                cells.clear()

        for part in self._parts:
            if isinstance(part, bytes | tuple):
                cells.append(part)
            else:
                close()
                pieces.append(part)
        close()
        constants = [piece for piece in pieces if isinstance(piece, bytes)]
        return [fixed(self.rows, [*constants])] if len(constants) == len(pieces) else pieces  # one must have the rows


def number(kind: str, value: Size) -> Cell:
    """A number in a dtype such as ``>u2``, constant if it is the same in every row."""
    return np.array(value, kind).tobytes() if isinstance(value, int) else (kind, value)
