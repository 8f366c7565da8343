"""The bytes of many messages, read at many positions at once: one step per field, not per message."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from amqp_spark.arrow.columns.dialect import AMQP_0_10

if TYPE_CHECKING:
    import numpy.typing as npt

    from amqp_spark.arrow.columns.dialect import Dialect

    Positions = npt.NDArray[np.int64]
    Mask = npt.NDArray[np.bool_]

PADDING: Final = 16
"""Bytes behind the last field that may be read but are not used."""


class Spans(NamedTuple):
    """A field of variable size in every message: its begin and end, and the rows without it (None: none)."""

    begin: Positions
    """Position of the size; absent fields have an arbitrary position."""
    end: Positions
    absent: Mask | None

    def present(self) -> Positions:
        """The rows that have the field."""
        return np.arange(len(self.begin)) if self.absent is None else np.flatnonzero(~self.absent)


def is_nowhere(absent: Mask | None) -> bool:
    """Whether a field is absent in every row."""
    return absent is not None and bool(absent.all())


class Wire:
    """The bytes of a block, read at many positions at once."""

    def __init__(self, data: bytes, *, ordered: bool = True, dialect: Dialect = AMQP_0_10) -> None:
        self._data = data
        self.ordered = ordered  # the parts of later messages lie behind those of earlier ones
        self.dialect = dialect
        self._views: dict[str, npt.NDArray[np.generic]] = {}

    @property
    def data(self) -> bytes:
        """All bytes."""
        return self._data

    @cached_property
    def buffer(self) -> pa.Buffer:
        """All bytes, for Arrow."""
        return pa.py_buffer(self.data)

    def read(self, dtype: str, at: Positions) -> npt.NDArray[np.generic]:
        """The values of a numpy type at any positions; a position too near the end reads earlier bytes."""
        return self.peek(dtype, at)

    def peek(self, dtype: str, at: Positions) -> npt.NDArray[np.generic]:
        """The same where not all of these bytes decide about anything: :meth:`decided` says which do."""
        view = self.at_every_byte(dtype)
        try:
            return view[at]
        except IndexError:
            return view[np.minimum(at, len(view) - 1)]

    def piece(self, begin: int, end: int) -> bytes:
        """The bytes from ``begin`` to ``end``; see :meth:`peek`."""
        return bytes(self._data[begin:end])

    def decided(self, begin: Positions, end: Positions) -> None:
        """What follows depends on the bytes from ``begin`` to ``end``, which were peeked at."""

    def at_every_byte(self, dtype: str) -> npt.NDArray[np.generic]:
        """The values of a numpy type at all positions. They overlap, so only copies of them should be used."""
        view = self._views.get(dtype)
        if view is None:
            kind = np.dtype(dtype)
            view = np.ndarray((len(self._data) - kind.itemsize + 1,), kind, self._data, 0, (1,))
            self._views[dtype] = view
        return view

    def size(self, width: int, at: Positions) -> Positions:
        """Unsigned numbers of 1, 2 or 4 bytes at the positions."""
        return self.read(f">u{width}", at).astype(np.int64)

    def same(self, at: Positions, key: bytes) -> Mask:
        """Whether the bytes at the positions are those of ``key``; see :meth:`peek`."""
        result = np.ones(len(at), np.bool_)
        for offset in range(0, len(key), 8):
            piece = key[offset : offset + 8]
            raw = self.peek(">u8", at + offset).astype(np.uint64)
            if len(piece) < 8:
                raw >>= np.uint64(64 - 8 * len(piece))
            result &= raw == np.uint64(int.from_bytes(piece, "big"))
        return result

    def after_values(self, code_at: Positions, codes: Positions) -> Positions:
        """Position after the values whose type codes are at ``code_at``; -1 for an undefined code."""
        after = code_at + 1
        width = self.dialect.widths[codes]
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


class Trace(Wire):
    """The bytes of one message up to the end of its header; records which of them were read."""

    def __init__(self, data: bytes, dialect: Dialect) -> None:
        super().__init__(padded(data, len(data)), dialect=dialect)
        self.length = len(data)
        self._read = np.zeros(len(data), np.bool_)
        self._is_incomplete = False

    @property
    def data(self) -> bytes:
        """All bytes; which of them are read is not recorded."""
        self._is_incomplete = True
        return self._data

    def read(self, dtype: str, at: Positions) -> npt.NDArray[np.generic]:
        """The values at the positions."""
        self.decided(at, at + np.dtype(dtype).itemsize)
        return self.peek(dtype, at)

    def decided(self, begin: Positions, end: Positions) -> None:
        """Record these bytes."""
        for first, last in zip(begin.tolist(), end.tolist(), strict=True):
            if not 0 <= first <= last <= self.length:
                self._is_incomplete = True
            self._read[first:last] = True

    @property
    def is_complete(self) -> bool:
        """Whether all bytes that were read are recorded, and there are any."""
        return not self._is_incomplete and bool(self._read.any())

    def decisive(self) -> tuple[int, npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Where the first byte that was read is; the words from there to the last one, and a mask of the bytes read.

        Some byte must have been read.
        """
        places = np.flatnonzero(self._read)
        first = int(places[0])
        size = -(-(int(places[-1]) + 1 - first) // 8) * 8
        mask = np.zeros(first + size, np.uint8)
        mask[places] = 0xFF
        return first, np.frombuffer(self._data, np.uint64, size // 8, first), mask[first:].copy().view(np.uint64)


def padded(data: bytes, last: int) -> bytes:
    """``data`` padded behind position ``last`` for reads that cover more bytes than they use."""
    return data if len(data) >= last + PADDING else data + bytes(PADDING)
