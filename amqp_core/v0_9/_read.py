"""Tables and arrays of AMQP 0-9-1 read from bytes, with the type letters of all dialects: functions only.

``read_x(data, pos)`` returns the value and the position after it, and raises :class:`DecodeError` for anything that is
not such a value: nothing else leaves, and neither time nor memory grows beyond the size of ``data`` whatever sizes it
claims. What is not in tables only is in :mod:`amqp_core.read_primitives`.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from struct import error as StructError  # noqa: N812 - the module's own name for it says nothing
from typing import Any, Final

from amqp_core.errors import DecodeError
from amqp_core.read_primitives import (
    deeper,
    incomplete,
    octets,
    read_boolean,
    read_datetime,
    read_dec32,
    read_double,
    read_float,
    read_int8,
    read_int16,
    read_int32,
    read_int64,
    read_str8,
    read_uint8,
    read_uint16,
    read_uint32,
    read_vbin8,
    read_vbin32,
)
from amqp_core.typed_values import Typed
from amqp_core.v0_9 import type_codes as codes

_uint32 = Struct(">I").unpack_from
_int32 = Struct(">i").unpack_from
_int64 = Struct(">q").unpack_from

_One = Callable[[bytes, int, int, int], tuple[Any, int]]


def read_any_str8(data: bytes, pos: int) -> tuple[str, int]:
    """Up to 255 octets as text; :func:`._write.write_any_str8` makes the same octets of it.

    Each octet that is not UTF-8 is a surrogate (PEP 383).
    """
    value, end = read_vbin8(data, pos)
    return value.decode("utf-8", "surrogateescape"), end


def read_table(data: bytes, pos: int) -> tuple[dict[str, object], int]:
    """A table as natural Python values; of a key that occurs twice the last value counts.

    A long string is ``str``, or ``bytes`` if it is not UTF-8.
    """
    return _natural_table(data, pos, 1)


def read_table_typed(data: bytes, pos: int) -> tuple[dict[str, Typed], int]:
    """A table with the type letter of every value, nested ones included."""
    return _table(data, pos, 1, _typed)


def read_entry(data: bytes, pos: int, key: bytes) -> object:
    """The value of one key of a table, ``None`` without it; other keys, and nested tables, may have any octets."""
    pos, end = _bounds(data, pos, "table")
    found: object = None
    while pos < end:
        name, at = read_vbin8(data, pos)
        code, pos = read_uint8(data, at)
        if code in (codes.TABLE, codes.ARRAY):
            value: object = None
            _, pos = read_vbin32(data, pos)
        else:
            value, pos = _natural(data, pos, code, 1)
        if name == key:
            found = value
    return found


def read_array(data: bytes, pos: int) -> tuple[list[object], int]:
    """An array as natural Python values."""
    return _array(data, pos, 1, _natural)


def read_array_typed(data: bytes, pos: int) -> tuple[list[Typed], int]:
    """An array with the type letter of every value, nested ones included."""
    return _array(data, pos, 1, _typed)


def _bounds(data: bytes, pos: int, what: str) -> tuple[int, int]:
    """Position of the first value and end of a container whose size word is at ``pos``."""
    try:
        size = _uint32(data, pos)[0]
    except StructError:
        raise incomplete(what, pos) from None
    if pos + 4 + size > len(data):
        raise DecodeError(f"{what} of {size} bytes does not fit", pos)
    return pos + 4, pos + 4 + size


def _full(pos: int, end: int, start: int, what: str) -> None:
    if pos != end:
        raise DecodeError(f"{what} says it ends at byte {end}, its values end at {pos}", start)


def _natural(data: bytes, pos: int, code: int, depth: int) -> tuple[object, int]:
    reader = _READERS.get(code)
    if reader is not None:
        return reader(data, pos)
    if code == codes.TABLE:
        return _natural_table(data, pos, deeper(depth, pos))
    if code == codes.ARRAY:
        return _array(data, pos, deeper(depth, pos), _natural)
    raise _unknown(code, pos)


def _typed(data: bytes, pos: int, code: int, depth: int) -> tuple[Typed, int]:
    reader = _READERS.get(code)
    value: object
    if reader is not None:
        value, end = reader(data, pos)
    elif code == codes.TABLE:
        value, end = _table(data, pos, deeper(depth, pos), _typed)
    elif code == codes.ARRAY:
        value, end = _array(data, pos, deeper(depth, pos), _typed)
    else:
        raise _unknown(code, pos)
    return Typed(code, value), end


def _unknown(code: int, pos: int) -> DecodeError:
    return DecodeError(f"unknown type letter 0x{code:02x}", pos - 1)


def _natural_table(data: bytes, pos: int, depth: int) -> tuple[dict[str, Any], int]:
    """The hot one: keys, long strings and integers are read here. Reaching beyond it shows where it should end."""
    start = pos
    pos, end = _bounds(data, pos, "table")
    out: dict[str, Any] = {}
    at = pos
    try:
        while pos < end:
            at = pos + 1
            pos = at + data[pos]
            key = data[at:pos].decode()
            code = data[pos]
            at = pos + 1
            if code == codes.LONG_STRING:
                pos = at + 4 + _uint32(data, at)[0]
                out[key] = _text(data[at + 4 : pos])
            elif code == codes.INT32:
                out[key] = _int32(data, at)[0]
                pos = at + 4
            elif code == codes.INT64:
                out[key] = _int64(data, at)[0]
                pos = at + 8
            else:
                out[key], pos = _natural(data, at, code, depth)
    except (IndexError, StructError):
        raise incomplete("table", start) from None
    except UnicodeDecodeError as bad:
        if pos > end:
            raise incomplete("table", start) from None
        raise DecodeError(f"a key of a table is not UTF-8: {bad.reason}", at + bad.start) from None
    _full(pos, end, start, "table")
    return out, end


def _table(data: bytes, pos: int, depth: int, one: _One) -> tuple[dict[str, Any], int]:
    start = pos
    pos, end = _bounds(data, pos, "table")
    out: dict[str, Any] = {}
    while pos < end:
        key, pos = read_str8(data, pos)
        if pos >= end:
            raise incomplete("table", start)
        out[key], pos = one(data, pos + 1, data[pos], depth)
    _full(pos, end, start, "table")
    return out, end


def _array(data: bytes, pos: int, depth: int, one: _One) -> tuple[list[Any], int]:
    start = pos
    pos, end = _bounds(data, pos, "array")
    out: list[Any] = []
    while pos < end:
        value, pos = one(data, pos + 1, data[pos], depth)
        out.append(value)
    _full(pos, end, start, "array")
    return out, end


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _long_string(data: bytes, pos: int) -> tuple[str | bytes, int]:
    raw, end = read_vbin32(data, pos)
    return _text(raw), end


def _char(data: bytes, pos: int) -> tuple[str, int]:
    raw, end = octets(data, pos, 1, "char")
    return raw.decode("latin-1"), end


def _void(_data: bytes, pos: int) -> tuple[None, int]:
    return None, pos


_READERS: Final[dict[int, Callable[[bytes, int], tuple[object, int]]]] = {
    codes.LONG_STRING: _long_string,
    codes.INT32: read_int32,
    codes.INT64: read_int64,
    codes.BOOLEAN: read_boolean,
    codes.DOUBLE: read_double,
    codes.TIMESTAMP: read_datetime,
    codes.BINARY: read_vbin32,
    codes.INT8: read_int8,
    codes.UINT8: read_uint8,
    codes.INT16: read_int16,
    codes.UINT16: read_uint16,
    codes.UINT32: read_uint32,
    codes.FLOAT: read_float,
    codes.DECIMAL: read_dec32,
    codes.VOID: _void,
    codes.INT16_U: read_int16,
    codes.INT64_L: read_int64,
    codes.ASCII_STRING: _long_string,
    codes.WIDE_STRING: _long_string,
    codes.ASCII_CHAR: _char,
}
