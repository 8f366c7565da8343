"""Bytes of every row of a block, built from cells and columns, with the size of each row.

Sizes precede the bytes that they count (frame, struct, text), so they must be known before anything is joined: a
:class:`RowBytes` adds them up as it grows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from amqp_spark.arrow.v0_10.encode.pieces import fixed, lengths, width

if TYPE_CHECKING:
    from amqp_spark.arrow.v0_10.encode.pieces import Array, Cell, Mask, Numbers

Size: TypeAlias = "int | Numbers"
"""The same number in every row, or one per row."""


def number(kind: str, value: Size) -> Cell:
    """A number in a dtype such as ``>u2``, constant if it is the same in every row."""
    return np.array(value, kind).tobytes() if isinstance(value, int) else (kind, value)


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
