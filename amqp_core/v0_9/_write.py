"""Tables, arrays and bits of AMQP 0-9-1 written to bytes: functions only.

``write_x(value, name)`` raises :class:`EncodeError` with ``name`` when the value is not one of that type. Only letters
that RabbitMQ and Broker-J both serve are written. What is not in tables only is in :mod:`amqp_core.write_primitives`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from math import isfinite
from struct import Struct
from typing import Any, Final

from amqp_core.errors import EncodeError
from amqp_core.typed_values import Datetime, Typed
from amqp_core.v0_9 import type_codes as codes
from amqp_core.write_primitives import (
    deeper,
    encoded,
    misfit,
    sequence,
    write_boolean,
    write_datetime,
    write_dec32,
    write_double,
    write_float,
    write_int8,
    write_int16,
    write_int32,
    write_int64,
    write_str8,
    write_uint8,
    write_uint16,
    write_uint32,
    write_vbin8,
    write_vbin32,
    write_void,
)

_U8 = Struct(">B").pack


def write_any_str8(value: str, name: str = "str8") -> bytes:
    """Up to 255 octets, from the text that :func:`._read.read_any_str8` makes of them."""
    return write_vbin8(encoded(value, "utf-8", name, "surrogateescape"), name)


def write_table(value: Mapping[str, object], name: str = "table") -> bytes:
    """A table of natural Python values and :class:`Typed`.

    None is void, bool boolean, int the first of int32 and int64 that it fits, float double, str long string, bytes
    binary, Datetime timestamp, Decimal decimal, a mapping table, a list or tuple array. ``Typed(code, value)`` takes
    the type of its letter; a long string may then be bytes.
    """
    return _table(value, name, 1)


def write_array(value: list[Any] | tuple[Any, ...], name: str = "array") -> bytes:
    """An array of natural Python values and :class:`Typed`; types as in :func:`write_table`."""
    return _array(value, name, 1)


def write_bits(*bits: bool) -> bytes:
    """Up to eight neighbouring bits in one octet, the first in its lowest bit (0-9-1 section 4.2.5.2)."""
    packed = 0
    for index, bit in enumerate(bits):
        if bit:
            packed |= 1 << index
    return _U8(packed)


def _table(value: object, name: str, depth: int) -> bytes:
    if not isinstance(value, Mapping):
        raise misfit(name, value, "a mapping")
    parts = []
    for key, item in value.items():
        code, raw = _value(item, name, depth)
        parts.append(write_str8(key, f"{name} key") + _U8(code) + raw)
    return write_vbin32(b"".join(parts), name)


def _array(value: object, name: str, depth: int) -> bytes:
    parts = []
    for item in sequence(value, name):
        code, raw = _value(item, name, depth)
        parts.append(_U8(code) + raw)
    return write_vbin32(b"".join(parts), name)


def _value(value: object, name: str, depth: int) -> tuple[int, bytes]:
    """Type code and bytes of a value inside a container."""
    if isinstance(value, Typed):
        return value.code, _typed(value, name, depth)
    for known, code in _NATURAL:
        if isinstance(value, known):
            if code in _CONTAINERS:
                return code, _CONTAINERS[code](value, name, deeper(depth, name))
            exact = _int_code(value) if code == codes.INT32 else code
            return exact, _WRITERS[exact](value, name)
    raise misfit(name, value, "of a type that a table can hold")


def _int_code(value: Any) -> int:
    return codes.INT32 if -0x80000000 <= value <= 0x7FFFFFFF else codes.INT64


def _typed(value: Typed, name: str, depth: int) -> bytes:
    writer = _WRITERS.get(value.code)
    if writer is not None:
        return writer(value.value, name)
    container = _CONTAINERS.get(value.code)
    if container is None:
        raise EncodeError(f"{name}: no type that brokers serve has the letter {value.code!r}")
    return container(value.value, name, deeper(depth, name))


def _finite(write: Callable[[Any, str], bytes]) -> Callable[[Any, str], bytes]:
    """Refuse NaN and infinities, at which RabbitMQ closes the connection (541)."""

    def checked(value: Any, name: str) -> bytes:
        out = write(value, name)
        if not isfinite(value):
            raise misfit(name, value, "a finite number, and RabbitMQ takes no others in tables")
        return out

    return checked


def _long_string(value: Any, name: str) -> bytes:
    return write_vbin32(encoded(value, "utf-8", name) if isinstance(value, str) else value, name)


# The first that fits: bool before int, Datetime before int.
_NATURAL: Final[tuple[tuple[Any, int], ...]] = (
    (str, codes.LONG_STRING),
    (bool, codes.BOOLEAN),
    (Datetime, codes.TIMESTAMP),
    (int, codes.INT32),
    (float, codes.DOUBLE),
    (type(None), codes.VOID),
    ((bytes, bytearray, memoryview), codes.BINARY),
    (Decimal, codes.DECIMAL),
    (Mapping, codes.TABLE),
    ((list, tuple), codes.ARRAY),
)

_WRITERS: Final[dict[int, Callable[[Any, str], bytes]]] = {
    codes.LONG_STRING: _long_string,
    codes.BINARY: write_vbin32,
    codes.BOOLEAN: write_boolean,
    codes.INT8: write_int8,
    codes.UINT8: write_uint8,
    codes.INT16: write_int16,
    codes.UINT16: write_uint16,
    codes.INT32: write_int32,
    codes.UINT32: write_uint32,
    codes.INT64: write_int64,
    codes.FLOAT: _finite(write_float),
    codes.DOUBLE: _finite(write_double),
    codes.DECIMAL: write_dec32,
    codes.TIMESTAMP: write_datetime,
    codes.VOID: write_void,
}

_CONTAINERS: Final[dict[int, Callable[[Any, str, int], bytes]]] = {
    codes.TABLE: _table,
    codes.ARRAY: _array,
}
