"""Every type of the AMQP 0-10 specification written to bytes: functions only.

``write_x(value, name)`` raises :class:`EncodeError` with ``name`` when the value is not one of that type. Numbers are
shown in the error; texts and bytes are not, they may be secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from struct import Struct
from struct import error as StructError  # noqa: N812 - the module's own name for it says nothing
from typing import Any, Final
from uuid import UUID

from amqp_core.errors import EncodeError
from amqp_core.typed_values import Datetime, Typed
from amqp_core.v0_10 import type_codes as codes
from amqp_core.write_primitives import (
    Write,
    decimal_parts,
    deeper,
    encoded,
    misfit,
    number_writer,
    opaque,
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
    write_uint64,
    write_vbin8,
    write_vbin32,
    write_void,
)

_LATIN: Final = "iso8859-15"

_U8 = Struct(">B").pack
_U16 = Struct(">H").pack
_U32 = Struct(">I").pack
_PAIR32 = Struct(">II").pack
_PAIR64 = Struct(">QQ").pack


# --- fixed width -----------------------------------------------------------------------------------------------------


write_sequence_no: Final[Write[int]] = number_writer("I", "sequence-no", "a uint32 (0 to 2**32 - 1)")
"""A 32-bit serial number (RFC 1982)."""


def write_char(value: str, name: str = "char") -> bytes:
    """One ISO 8859-15 character."""
    out = encoded(value, _LATIN, name)
    if len(out) != 1:
        raise misfit(name, value, "one character")
    return out


def write_char_utf32(value: str, name: str = "char-utf32") -> bytes:
    """One Unicode character in four bytes."""
    out = encoded(value, "utf-32-be", name)
    if len(out) != 4:
        raise misfit(name, value, "one character")
    return out


def write_uuid(value: UUID, name: str = "uuid") -> bytes:
    """A UUID of 16 bytes."""
    if not isinstance(value, UUID):
        raise misfit(name, value, "a UUID")
    return value.bytes


def write_dec64(value: Decimal, name: str = "dec64") -> bytes:
    """A decimal: number of decimal places, then a signed 64-bit number; exact or refused."""
    places, mantissa = decimal_parts(value, 19, name)
    return places + write_int64(mantissa, name)


def write_bit(value: bool, name: str = "bit") -> bytes:  # noqa: FBT001 - it is the value
    """A presence indicator: no bytes, and only true can be written."""
    if value is not True:
        raise misfit(name, value, "True, the only bit that has a place in a map")
    return b""


def _fixed(width: int) -> Write[bytes]:
    def write(value: bytes, name: str = f"bin{8 * width}") -> bytes:
        out = opaque(value, name)
        if len(out) != width:
            raise misfit(name, out, f"of {width} bytes")
        return out

    return write


write_bin8: Final = _fixed(1)
write_bin16: Final = _fixed(2)
write_bin32: Final = _fixed(4)
write_bin40: Final = _fixed(5)
write_bin64: Final = _fixed(8)
write_bin72: Final = _fixed(9)
write_bin128: Final = _fixed(16)
write_bin256: Final = _fixed(32)
write_bin512: Final = _fixed(64)
write_bin1024: Final = _fixed(128)


# --- variable width --------------------------------------------------------------------------------------------------


def write_vbin16(value: bytes, name: str = "vbin16") -> bytes:
    """Up to 65535 opaque bytes."""
    out = opaque(value, name)
    if len(out) > 0xFFFF:
        raise misfit(name, out, "at most 65535 bytes")
    return _U16(len(out)) + out


def write_str16(value: str, name: str = "str16") -> bytes:
    """Up to 65535 bytes of UTF-8."""
    return write_vbin16(encoded(value, "utf-8", name), name)


def write_str8_latin(value: str, name: str = "str8-latin") -> bytes:
    """Up to 255 ISO 8859-15 characters."""
    return write_vbin8(encoded(value, _LATIN, name), name)


def write_str16_latin(value: str, name: str = "str16-latin") -> bytes:
    """Up to 65535 ISO 8859-15 characters."""
    return write_vbin16(encoded(value, _LATIN, name), name)


def write_str8_utf16(value: str, name: str = "str8-utf16") -> bytes:
    """Up to 255 bytes of big-endian UTF-16."""
    return write_vbin8(_utf16(value, name), name)


def write_str16_utf16(value: str, name: str = "str16-utf16") -> bytes:
    """Up to 65535 bytes of big-endian UTF-16."""
    return write_vbin16(_utf16(value, name), name)


def _utf16(value: str, name: str) -> bytes:
    out = encoded(value, "utf-16-be", name)
    # A text whose first character looks like a byte order mark needs a real one before it.
    return b"\xfe\xff" + out if out[:2] in {b"\xfe\xff", b"\xff\xfe"} else out


def write_sequence_set(value: Sequence[tuple[int, int]], name: str = "sequence-set") -> bytes:
    """Ranges of serial numbers, both bounds included, in the order given: at most 8191."""
    try:
        out = b"".join([_PAIR32(lower, upper) for lower, upper in value])
    except (StructError, TypeError, ValueError):
        raise misfit(name, value, "pairs of uint32") from None
    if any((upper - lower) & 0xFFFFFFFF >= 0x80000000 for lower, upper in value):
        raise EncodeError(f"{name}: a range runs backwards")
    return write_vbin16(out, name)


def write_byte_ranges(value: Sequence[tuple[int, int]], name: str = "byte-ranges") -> bytes:
    """Ranges of byte offsets, both bounds included, in the order given: at most 4095."""
    try:
        out = b"".join([_PAIR64(lower, upper) for lower, upper in value])
    except (StructError, TypeError, ValueError):
        raise misfit(name, value, "pairs of uint64") from None
    if any(upper < lower for lower, upper in value):
        raise EncodeError(f"{name}: a range runs backwards")
    return write_vbin16(out, name)


def write_struct32(value: bytes, name: str = "struct32") -> bytes:
    """A coded struct given as its bytes after the size word."""
    out = opaque(value, name)
    if len(out) == 1:
        raise misfit(name, out, "a coded struct")
    return write_vbin32(out, name)


# --- map, list, array ------------------------------------------------------------------------------------------------


def write_map(value: Mapping[str, object], name: str = "map") -> bytes:
    """A map of natural Python values and :class:`Typed`.

    None is void, bool boolean, int the first of int32, int64 and uint64 that it fits, float double, str str16 (beyond
    65535 bytes vbin32, as the C++ client does: no string type is longer), bytes vbin32, UUID uuid, Datetime datetime,
    Decimal dec64, a mapping map, a list or tuple list. ``Typed(code, value)`` takes the type of its code.
    """
    return _map(value, name, 1)


def write_list(value: Sequence[object], name: str = "list") -> bytes:
    """A list of natural Python values and :class:`Typed`; types as in :func:`write_map`."""
    return _list(value, name, 1)


def write_array(value: Sequence[object], name: str = "array") -> bytes:
    """An array: the values must all get the same type; integers share the widest they need."""
    return _array(value, name, 1)


def write_str16_array(value: Sequence[str], name: str = "array") -> bytes:
    """An array of str16."""
    if isinstance(value, str):
        raise misfit(name, value, "a sequence of texts")
    return _array_of(codes.STR16, [write_str16(item, name) for item in value])


def write_struct32_array(value: Sequence[bytes], name: str = "array") -> bytes:
    """An array of coded structs, each given with its size word."""
    return _array_of(codes.STRUCT32, value)


def _array_of(code: int, items: Sequence[bytes]) -> bytes:
    out = b"".join(items)
    return _U32(5 + len(out)) + _U8(code) + _U32(len(items)) + out


def _map(value: object, name: str, depth: int) -> bytes:
    if not isinstance(value, Mapping):
        raise misfit(name, value, "a mapping")
    parts = []
    for key, item in value.items():
        code, raw = _value(item, name, depth)
        parts.append(write_str8(key, f"{name} key") + _U8(code) + raw)
    out = b"".join(parts)
    return _U32(4 + len(out)) + _U32(len(parts)) + out


def _list(value: object, name: str, depth: int) -> bytes:
    parts = []
    for item in sequence(value, name):
        code, raw = _value(item, name, depth)
        parts.append(_U8(code) + raw)
    out = b"".join(parts)
    return _U32(4 + len(out)) + _U32(len(parts)) + out


def _array(value: object, name: str, depth: int) -> bytes:
    items = sequence(value, name)
    pairs = [_value(item, name, depth) for item in items]
    found = {code for code, _ in pairs}
    if len(found) > 1 and not any(isinstance(item, Typed) for item in items):
        small = {codes.INT32, codes.INT64}
        widest = codes.INT64 if found <= small else codes.UINT64 if found <= {*small, codes.UINT64} else None
        if widest is not None:
            found = {widest}
            pairs = [(widest, _WRITERS[widest](item, name)) for item in items]
    if len(found) > 1:
        raise EncodeError(f"{name}: an array has one type, these values need {len(found)}")
    code = found.pop() if found else codes.STR16
    if code in {codes.VOID, codes.BIT}:
        raise EncodeError(f"{name}: values without bytes cannot be counted in an array")
    return _array_of(code, [raw for _, raw in pairs])


def _value(value: object, name: str, depth: int) -> tuple[int, bytes]:
    """Type code and bytes of a value inside a container."""
    kind = type(value)
    if kind is str:
        assert isinstance(value, str)
        out = encoded(value, "utf-8", name)
        return (codes.STR16, _U16(len(out)) + out) if len(out) <= 0xFFFF else (codes.VBIN32, write_vbin32(out, name))
    if isinstance(value, Typed):
        return value.code, _typed(value, name, depth)
    for known, code in _NATURAL:
        if isinstance(value, known):
            if code in _CONTAINERS:
                return code, _CONTAINERS[code](value, name, deeper(depth, name))
            exact = _int_code(value) if code == codes.INT32 else code
            return exact, _WRITERS[exact](value, name)
    if isinstance(value, str):
        return _value(str(value), name, depth)
    raise misfit(name, value, "of a type that a map can hold")


def _int_code(value: Any) -> int:
    if -0x80000000 <= value <= 0x7FFFFFFF:
        return codes.INT32
    return codes.INT64 if value <= 0x7FFFFFFFFFFFFFFF else codes.UINT64


def _typed(value: Typed, name: str, depth: int) -> bytes:
    writer = _WRITERS.get(value.code)
    if writer is not None:
        return writer(value.value, name)
    container = _CONTAINERS.get(value.code)
    if container is None:
        raise EncodeError(f"{name}: no type has the code {value.code!r}")
    return container(value.value, name, deeper(depth, name))


# The first that fits: bool before int, Datetime before int.
_NATURAL: Final[tuple[tuple[Any, int], ...]] = (
    (bool, codes.BOOLEAN),
    (Datetime, codes.DATETIME),
    (int, codes.INT32),
    (float, codes.DOUBLE),
    (type(None), codes.VOID),
    ((bytes, bytearray, memoryview), codes.VBIN32),
    (UUID, codes.UUID_),
    (Decimal, codes.DEC64),
    (Mapping, codes.MAP),
    ((list, tuple), codes.LIST),
)

_WRITERS: Final[dict[int, Callable[[Any, str], bytes]]] = {
    codes.BIN8: write_bin8,
    codes.INT8: write_int8,
    codes.UINT8: write_uint8,
    codes.CHAR: write_char,
    codes.BOOLEAN: write_boolean,
    codes.BIN16: write_bin16,
    codes.INT16: write_int16,
    codes.UINT16: write_uint16,
    codes.BIN32: write_bin32,
    codes.INT32: write_int32,
    codes.UINT32: write_uint32,
    codes.FLOAT: write_float,
    codes.CHAR_UTF32: write_char_utf32,
    codes.BIN64: write_bin64,
    codes.INT64: write_int64,
    codes.UINT64: write_uint64,
    codes.DOUBLE: write_double,
    codes.DATETIME: write_datetime,
    codes.BIN128: write_bin128,
    codes.UUID_: write_uuid,
    codes.BIN256: write_bin256,
    codes.BIN512: write_bin512,
    codes.BIN1024: write_bin1024,
    codes.VBIN8: write_vbin8,
    codes.STR8_LATIN: write_str8_latin,
    codes.STR8: write_str8,
    codes.STR8_UTF16: write_str8_utf16,
    codes.VBIN16: write_vbin16,
    codes.STR16_LATIN: write_str16_latin,
    codes.STR16: write_str16,
    codes.STR16_UTF16: write_str16_utf16,
    codes.VBIN32: write_vbin32,
    codes.STRUCT32: write_struct32,
    codes.BIN40: write_bin40,
    codes.DEC32: write_dec32,
    codes.BIN72: write_bin72,
    codes.DEC64: write_dec64,
    codes.VOID: write_void,
    codes.BIT: write_bit,
}

_CONTAINERS: Final[dict[int, Callable[[Any, str, int], bytes]]] = {
    codes.MAP: _map,
    codes.LIST: _list,
    codes.ARRAY: _array,
}
