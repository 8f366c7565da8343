"""Arrow arrays from numbers and texts, and numbers from arrays.

Of Arrow, ``pa.array()``, ``pa.scalar()``, ``to_numpy()`` and, in old versions, ``to_pandas_dtype()`` import pandas at
their first call, for which a new worker needs longer than for its first batch. So they are for rows that are no usual
ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    import numpy.typing as npt

_FLOATS: Final = {"halffloat": "float16", "float": "float32", "double": "float64"}


def buffer(values: npt.NDArray[Any]) -> pa.Buffer:
    """The memory of a numpy array as an Arrow buffer, not copied."""
    return pa.py_buffer(cast("Any", values.reshape(-1)))


def bits(values: npt.NDArray[np.bool_]) -> pa.Buffer:
    """Booleans, one bit each, as Arrow stores them, and which rows are not NULL."""
    return buffer(np.packbits(values, bitorder="little"))


def from_numpy(values: npt.NDArray[Any], null: npt.NDArray[np.bool_] | None = None) -> pa.Array[Any]:
    """Numbers or booleans, in the byte order of the machine, as a column of their type; NULL where ``null`` is set."""
    assert values.dtype.isnative
    validity = None if null is None else bits(~null)
    data = bits(values) if values.dtype == np.bool_ else buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [validity, data])


def dtype_of(kind: pa.DataType) -> np.dtype[Any]:
    """The type of numpy for a type of numbers."""
    return np.dtype(_FLOATS.get(str(kind), str(kind)))


def to_numpy(column: pa.Array[Any]) -> npt.NDArray[Any]:
    """The values of a column of numbers or booleans; a row that is NULL has any value."""
    kind, rows, offset = column.type, len(column), column.offset
    data = column.buffers()[1]
    raw = np.frombuffer(b"" if data is None else cast("Any", data), np.uint8)
    if pa.types.is_boolean(kind):
        first = offset // 8
        bits = np.unpackbits(raw[first : (offset + rows + 7) // 8], bitorder="little")
        return bits[offset - 8 * first :][:rows].view(np.bool_)
    width = kind.bit_width // 8
    values: npt.NDArray[Any] = raw[offset * width : (offset + rows) * width].view(dtype_of(kind))
    return values


def single(value: str | bytes) -> pa.Array[Any]:
    """A column of one row: a text as STRING, or bytes as BINARY. Its item is a scalar."""
    kind, data = (pa.string(), value.encode()) if isinstance(value, str) else (pa.binary(), value)
    return pa.Array.from_buffers(kind, 1, [None, buffer(np.array((0, len(data)), np.int32)), pa.py_buffer(data)])
