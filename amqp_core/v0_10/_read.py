"""Every type of the AMQP 0-10 specification read from bytes: functions only.

``read_x(data, pos)`` returns the value and the position after it, and raises :class:`DecodeError` for anything that is
not such a value: nothing else leaves, and neither time nor memory grows beyond the size of ``data`` whatever counts
and sizes it claims.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import partial
from struct import Struct
from struct import error as StructError  # noqa: N812 - the module's own name for it says nothing
from typing import Any, Final
from uuid import UUID

from amqp_core.errors import DecodeError
from amqp_core.read_primitives import (
    Read,
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
    read_uint64,
    read_vbin8,
    read_vbin32,
)
from amqp_core.typed_values import Typed
from amqp_core.v0_10 import type_codes as codes
from amqp_core.v0_10.type_codes import MAX_ARGUMENT_MAP_BYTES

_LATIN: Final = "iso8859-15"

_uint16 = Struct(">H").unpack_from
_uint32 = Struct(">I").unpack_from
_int32 = Struct(">i").unpack_from
_pairs32 = Struct(">II").iter_unpack
_pairs64 = Struct(">QQ").iter_unpack


# --- fixed width -----------------------------------------------------------------------------------------------------


read_sequence_no: Final = read_uint32
"""A 32-bit serial number (RFC 1982)."""


def read_char(data: bytes, pos: int) -> tuple[str, int]:
    """One ISO 8859-15 character."""
    value, end = octets(data, pos, 1, "char")
    return value.decode(_LATIN), end


def read_char_utf32(data: bytes, pos: int) -> tuple[str, int]:
    """One Unicode character in four bytes; surrogates and numbers beyond Unicode are refused."""
    number, end = read_uint32(data, pos)
    if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
        raise DecodeError(f"char-utf32 0x{number:x} is not a character", pos)
    return chr(number), end


def read_uuid(data: bytes, pos: int) -> tuple[UUID, int]:
    """A UUID of 16 bytes."""
    value, end = octets(data, pos, 16, "uuid")
    return UUID(bytes=value), end


def read_dec64(data: bytes, pos: int) -> tuple[Decimal, int]:
    """A decimal: a byte with the number of decimal places, then a signed 64-bit number."""
    places, at = read_uint8(data, pos)
    mantissa, end = read_int64(data, at)
    return Decimal(f"{mantissa}E-{places}"), end


def read_void(data: bytes, pos: int) -> tuple[None, int]:
    """Nothing: no bytes."""
    return None, pos


def read_bit(data: bytes, pos: int) -> tuple[bool, int]:
    """A presence indicator: no bytes, true where it is met."""
    return True, pos


read_bin8: Final[Read[bytes]] = partial(octets, width=1, what="bin8")
read_bin16: Final[Read[bytes]] = partial(octets, width=2, what="bin16")
read_bin32: Final[Read[bytes]] = partial(octets, width=4, what="bin32")
read_bin40: Final[Read[bytes]] = partial(octets, width=5, what="bin40")
read_bin64: Final[Read[bytes]] = partial(octets, width=8, what="bin64")
read_bin72: Final[Read[bytes]] = partial(octets, width=9, what="bin72")
read_bin128: Final[Read[bytes]] = partial(octets, width=16, what="bin128")
read_bin256: Final[Read[bytes]] = partial(octets, width=32, what="bin256")
read_bin512: Final[Read[bytes]] = partial(octets, width=64, what="bin512")
read_bin1024: Final[Read[bytes]] = partial(octets, width=128, what="bin1024")


# --- variable width --------------------------------------------------------------------------------------------------


def read_vbin16(data: bytes, pos: int) -> tuple[bytes, int]:
    """Up to 65535 opaque bytes."""
    try:
        end = pos + 2 + _uint16(data, pos)[0]
    except StructError:
        raise incomplete("vbin16", pos) from None
    if end > len(data):
        raise incomplete("vbin16", pos)
    return data[pos + 2 : end], end


def read_str16(data: bytes, pos: int) -> tuple[str, int]:
    """Up to 65535 bytes of UTF-8."""
    try:
        end = pos + 2 + _uint16(data, pos)[0]
        if end <= len(data):
            return data[pos + 2 : end].decode(), end
    except StructError:
        pass
    except UnicodeDecodeError as bad:
        raise DecodeError(f"str16 is not UTF-8: {bad.reason}", pos + 2 + bad.start) from None
    raise incomplete("str16", pos)


def read_lenient_str16(data: bytes, pos: int) -> tuple[str, int]:
    """Up to 65535 bytes of a text for people: what is not UTF-8 is replaced, as with ``read_lenient_str8``."""
    value, end = read_vbin16(data, pos)
    return value.decode(errors="replace"), end


def read_str8_latin(data: bytes, pos: int) -> tuple[str, int]:
    """Up to 255 ISO 8859-15 characters."""
    value, end = read_vbin8(data, pos)
    return value.decode(_LATIN), end


def read_str16_latin(data: bytes, pos: int) -> tuple[str, int]:
    """Up to 65535 ISO 8859-15 characters."""
    value, end = read_vbin16(data, pos)
    return value.decode(_LATIN), end


def read_str8_utf16(data: bytes, pos: int) -> tuple[str, int]:
    """Up to 255 bytes of UTF-16: big-endian, or as a byte order mark says."""
    value, end = read_vbin8(data, pos)
    return _utf16(value, pos + 1), end


def read_str16_utf16(data: bytes, pos: int) -> tuple[str, int]:
    """Up to 65535 bytes of UTF-16: big-endian, or as a byte order mark says."""
    value, end = read_vbin16(data, pos)
    return _utf16(value, pos + 2), end


def _utf16(value: bytes, pos: int) -> str:
    try:
        if value[:2] == b"\xff\xfe":
            return value[2:].decode("utf-16-le")
        return value[2:].decode("utf-16-be") if value[:2] == b"\xfe\xff" else value.decode("utf-16-be")
    except UnicodeDecodeError as bad:
        raise DecodeError(f"not UTF-16: {bad.reason}", pos + bad.start) from None


def read_sequence_set(data: bytes, pos: int) -> tuple[list[tuple[int, int]], int]:
    """Ranges of serial numbers, both bounds included, as sent; a range must not run backwards (RFC 1982)."""
    value, end = read_vbin16(data, pos)
    if len(value) % 8:
        raise DecodeError(f"sequence-set of {len(value)} bytes is not whole ranges of 8", pos)
    ranges: list[tuple[int, int]] = list(_pairs32(value))
    for lower, upper in ranges:
        if (upper - lower) & 0xFFFFFFFF >= 0x80000000:
            raise DecodeError(f"sequence-set range {lower}..{upper} runs backwards", pos)
    return ranges, end


def read_byte_ranges(data: bytes, pos: int) -> tuple[list[tuple[int, int]], int]:
    """Ranges of byte offsets, both bounds included; a range must not run backwards."""
    value, end = read_vbin16(data, pos)
    if len(value) % 16:
        raise DecodeError(f"byte-ranges of {len(value)} bytes are not whole ranges of 16", pos)
    ranges: list[tuple[int, int]] = list(_pairs64(value))
    for lower, upper in ranges:
        if upper < lower:
            raise DecodeError(f"byte range {lower}..{upper} runs backwards", pos)
    return ranges, end


def read_struct32(data: bytes, pos: int) -> tuple[bytes, int]:
    """A coded struct as bytes: class code, struct code, packing flags and fields, without the size word."""
    value, end = read_vbin32(data, pos)
    if 0 < len(value) < 2:
        raise DecodeError("struct32 of 1 byte has no room for its code", pos)
    return value, end


# --- map, list, array ------------------------------------------------------------------------------------------------


def _bounds(data: bytes, pos: int, head: int, item: int, what: str) -> tuple[int, int, int]:
    """Count, position of the first item and end of a container whose size word is at ``pos``.

    ``head`` bytes of the counted size precede the items, each item takes ``item`` bytes or more: a count that cannot
    fit is refused before anything is read. A size of zero is an empty container (Broker-J sends it for null).
    """
    try:
        size = _uint32(data, pos)[0]
        if size == 0:
            return 0, pos + 4, pos + 4
        end = pos + 4 + size
        if size < head or end > len(data):
            raise DecodeError(f"{what} of {size} bytes does not fit", pos)
        first = pos + 4 + head
        count = _uint32(data, first - 4)[0]
    except StructError:
        raise incomplete(what, pos) from None
    if count * item > end - first:
        raise DecodeError(f"{what} of {size} bytes cannot hold {count} values", pos)
    return count, first, end


def _full(pos: int, end: int, start: int, what: str) -> None:
    if pos != end:
        raise DecodeError(f"{what} says it ends at byte {end}, its values end at {pos}", start)


_One = Callable[[bytes, int, int, int], tuple[object, int]]


def _natural(data: bytes, pos: int, code: int, depth: int) -> tuple[object, int]:
    reader = _READERS.get(code)
    if reader is not None:
        return reader(data, pos)
    container = _CONTAINERS.get(code)
    if container is None:
        raise DecodeError(f"unknown type code 0x{code:02x}", pos)
    return container(data, pos, deeper(depth, pos), _natural)


def _typed(data: bytes, pos: int, code: int, depth: int) -> tuple[Typed, int]:
    reader = _READERS.get(code)
    if reader is not None:
        value, end = reader(data, pos)
        return Typed(code, value), end
    container = _CONTAINERS.get(code)
    if container is None:
        raise DecodeError(f"unknown type code 0x{code:02x}", pos)
    value, end = container(data, pos, deeper(depth, pos), _typed)
    return Typed(code, value), end


def _natural_map(data: bytes, pos: int, depth: int) -> tuple[dict[str, Any], int]:
    """The hot one: keys, str16 and int32 are read here. Reaching beyond the map shows where it should end."""
    start = at = pos
    count, pos, end = _bounds(data, pos, 4, 2, "map")
    out: dict[str, Any] = {}
    try:
        for _ in range(count):
            at = pos + 1
            pos = at + data[pos]
            key = data[at:pos].decode()
            code = data[pos]
            at = pos + 1
            if code == codes.STR16:
                at += 2
                pos = at + _uint16(data, at - 2)[0]
                out[key] = data[at:pos].decode()
            elif code == codes.INT32:
                out[key] = _int32(data, at)[0]
                pos = at + 4
            else:
                reader = _READERS.get(code)
                out[key], pos = _natural(data, at, code, depth) if reader is None else reader(data, at)
    except (IndexError, StructError):
        raise incomplete("map", start) from None
    except UnicodeDecodeError as bad:
        if pos > end:
            raise incomplete("map", start) from None
        raise DecodeError(f"text in a map is not UTF-8: {bad.reason}", at + bad.start) from None
    _full(pos, end, start, "map")
    return out, end


def _map(data: bytes, pos: int, depth: int, one: _One) -> tuple[dict[str, Any], int]:
    if one is _natural:
        return _natural_map(data, pos, depth)
    start = pos
    count, pos, end = _bounds(data, pos, 4, 2, "map")
    out: dict[str, Any] = {}
    for _ in range(count):
        key, pos = read_str8(data, pos)
        if pos >= end:
            raise incomplete("map", start)
        out[key], pos = one(data, pos + 1, data[pos], depth)
    _full(pos, end, start, "map")
    return out, end


def _list(data: bytes, pos: int, depth: int, one: _One) -> tuple[list[Any], int]:
    start = pos
    count, pos, end = _bounds(data, pos, 4, 1, "list")
    out: list[Any] = []
    for _ in range(count):
        if pos >= end:
            raise incomplete("list", start)
        value, pos = one(data, pos + 1, data[pos], depth)
        out.append(value)
    _full(pos, end, start, "list")
    return out, end


def _array(data: bytes, pos: int, depth: int, one: _One) -> tuple[list[Any], int]:
    start = pos
    code, count, pos, end = read_array_head(data, pos)
    out: list[Any] = []
    for _ in range(count):
        if pos >= end:
            raise incomplete("array", start)
        value, pos = one(data, pos, code, depth)
        out.append(value)
    _full(pos, end, start, "array")
    return out, end


def read_array_head(data: bytes, pos: int) -> tuple[int, int, int, int]:
    """Type code (void when the size is zero), count, position of the first element and end of an array."""
    count, first, end = _bounds(data, pos, 5, 0, "array")
    if first == end:
        if count:  # elements without bytes: any count would fit, so none does
            raise DecodeError(f"array of {count} values in no bytes", pos)
        return codes.VOID, 0, end, end
    if count > end - first:
        raise DecodeError(f"array of {end - pos - 4} bytes cannot hold {count} values", pos)
    return data[pos + 4], count, first, end


def read_map(data: bytes, pos: int) -> tuple[dict[str, object], int]:
    """A map as natural Python values; of a key that occurs twice the last value counts."""
    return _natural_map(data, pos, 1)


def read_argument_map(data: bytes, pos: int) -> tuple[dict[str, object], int]:
    """A map among the arguments of a control, command or result: refused beyond ``MAX_ARGUMENT_MAP_BYTES``.

    The decoded map can take forty times its bytes.
    """
    try:
        size = _uint32(data, pos)[0]
    except StructError:
        raise incomplete("map", pos) from None
    if size > MAX_ARGUMENT_MAP_BYTES:
        raise DecodeError(f"a map of {size} bytes among arguments, where {MAX_ARGUMENT_MAP_BYTES} are the most", pos)
    return _natural_map(data, pos, 1)


def read_map_typed(data: bytes, pos: int) -> tuple[dict[str, Typed], int]:
    """A map with the wire type of every value, nested ones included."""
    return _map(data, pos, 1, _typed)


def read_list(data: bytes, pos: int) -> tuple[list[object], int]:
    """A list as natural Python values."""
    return _list(data, pos, 1, _natural)


def read_list_typed(data: bytes, pos: int) -> tuple[list[Typed], int]:
    """A list with the wire type of every value, nested ones included."""
    return _list(data, pos, 1, _typed)


def read_array(data: bytes, pos: int) -> tuple[list[object], int]:
    """An array as natural Python values."""
    return _array(data, pos, 1, _natural)


def read_array_typed(data: bytes, pos: int) -> tuple[list[Typed], int]:
    """An array with the wire type of its values; an empty array's element type is not kept."""
    return _array(data, pos, 1, _typed)


def read_str16_array(data: bytes, pos: int) -> tuple[list[str], int]:
    """An array of texts, whatever string type its elements have."""
    values, end = _array(data, pos, 1, _natural)
    for value in values:
        if not isinstance(value, str):
            raise DecodeError("array holds values that are not strings", pos)
    return values, end


_READERS: Final[dict[int, Callable[[bytes, int], tuple[object, int]]]] = {
    codes.STR16: read_str16,
    codes.INT32: read_int32,
    codes.INT64: read_int64,
    codes.DOUBLE: read_double,
    codes.BOOLEAN: read_boolean,
    codes.BIN8: read_bin8,
    codes.INT8: read_int8,
    codes.UINT8: read_uint8,
    codes.CHAR: read_char,
    codes.BIN16: read_bin16,
    codes.INT16: read_int16,
    codes.UINT16: read_uint16,
    codes.BIN32: read_bin32,
    codes.UINT32: read_uint32,
    codes.FLOAT: read_float,
    codes.CHAR_UTF32: read_char_utf32,
    codes.BIN64: read_bin64,
    codes.UINT64: read_uint64,
    codes.DATETIME: read_datetime,
    codes.BIN128: read_bin128,
    codes.UUID_: read_uuid,
    codes.BIN256: read_bin256,
    codes.BIN512: read_bin512,
    codes.BIN1024: read_bin1024,
    codes.VBIN8: read_vbin8,
    codes.STR8_LATIN: read_str8_latin,
    codes.STR8: read_str8,
    codes.STR8_UTF16: read_str8_utf16,
    codes.VBIN16: read_vbin16,
    codes.STR16_LATIN: read_str16_latin,
    codes.STR16_UTF16: read_str16_utf16,
    codes.VBIN32: read_vbin32,
    codes.STRUCT32: read_struct32,
    codes.BIN40: read_bin40,
    codes.DEC32: read_dec32,
    codes.BIN72: read_bin72,
    codes.DEC64: read_dec64,
    codes.VOID: read_void,
    codes.BIT: read_bit,
}

_CONTAINERS: Final[dict[int, Callable[[bytes, int, int, _One], tuple[object, int]]]] = {
    codes.MAP: _map,
    codes.LIST: _list,
    codes.ARRAY: _array,
}
